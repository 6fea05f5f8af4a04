"""Plays text scripts: blocks of commands, a line of dashes, and the trace that they leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

RULE = "----"


class Stage(Protocol):
    """What a script is played on."""

    def do(self, command: str) -> None: ...

    def take_trace(self) -> list[str]:
        """What happened since the last time."""


def play(text: str, opening: str, begin: Callable[[list[str]], Stage]) -> str:
    """The script with the trace that it leaves now. A line that opens a stage gives it its words."""
    stage: Stage | None = None
    lines: list[str] = []
    expecting = False
    for line in [*text.splitlines(), ""]:
        if expecting:
            expecting = bool(line.strip())
            if not expecting:
                lines.append("")
        elif line.startswith(RULE):
            assert stage is not None
            lines += [RULE, *stage.take_trace()]
            expecting = True
        else:
            lines.append(line.rstrip())
            if line.startswith(opening):
                stage = begin(line.split()[1:])
            elif line.strip() and not line.startswith("#"):
                assert stage is not None
                stage.do(line)
    return "\n".join(lines).rstrip() + "\n"


def rewrite(folder: Path, played: Callable[[str], str]) -> None:
    """Write the traces that the scripts of a folder leave now."""
    for path in sorted(folder.glob("*.txt")):
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
