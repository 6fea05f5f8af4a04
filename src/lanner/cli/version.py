"""`lanner version` and `lanner --version`."""

from __future__ import annotations

import typer

from lanner.cli.options import AsJson
from lanner.cli.screen import Screen


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    number = installed("lanner")
    Screen(as_json).say(f"lanner {number}", {"version": number})


def show_and_end(asked: bool) -> None:
    """What `lanner --version` does, as people expect of any program."""
    if asked:
        version()
        raise typer.Exit
