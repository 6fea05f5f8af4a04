"""The commands of docs/groups.md do what it shows; one with & at its end goes on in the background."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lanner.testing.process import BrokerProcess

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
COMMANDS = [
    found
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"^\$ lanner (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)
]
LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        monkeypatch.setenv("LANNER_SERVERS", process.native)
        yield process


def run(words: str) -> str:
    done = subprocess.run([*LANNER, *words.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


def matches(answer: str, shown: str) -> bool:
    """… stands for anything; so do the letters before one, which are of a member's id."""
    parts = [".*?".join(map(re.escape, part.split("…"))) for part in re.split(r"\b[0-9a-f]{8}…", squeezed(shown))]
    return re.fullmatch(r"[0-9a-f]{8}…".join(parts), squeezed(answer)) is not None


def until_settled(group: str) -> None:
    ends = time.monotonic() + 60
    look = [*LANNER, "group", "members", group]
    while "settled" not in subprocess.run(look, capture_output=True, text=True).stdout:
        assert time.monotonic() < ends, f"nobody joined {group}"


def test_the_commands_do_what_is_shown(broker: BrokerProcess, tmp_path: Path) -> None:
    assert len(COMMANDS) == 6
    with ExitStack() as behind:
        for command, shown in COMMANDS:
            if command.endswith(" &"):
                words = command.removesuffix(" &").split()
                process = behind.enter_context(subprocess.Popen([*LANNER, *words], stdout=subprocess.DEVNULL))
                behind.callback(process.kill)
                until_settled(words[words.index("--group") + 1])
                continue
            answer = run(command)
            assert matches(answer, shown), f"{command}\nsays\n{answer}\nshown\n{shown}"
