"""How far a long command is, for people who look: a bar on standard error, only where that is a terminal."""

from __future__ import annotations

import sys
from typing import Any

from lanner.cli.screen import Screen


class Bar:
    """One bar that counts; without a total it only moves. Gone when the command is done."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._shown = not screen.as_json and sys.stderr.isatty()
        self._what = what
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=None, note="")
        return self

    def show(self, done: int, total: int | None = None, *, what: str | None = None, note: str = "") -> None:
        if self._progress is not None:
            description = self._what if what is None else what
            self._progress.update(
                self._task, description=description, completed=done, total=total or None, note=note, refresh=True
            )

    def tell(self, what: str, done: int, total: int) -> None:
        self.show(done, total, what=what)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
