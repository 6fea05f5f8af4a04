"""`lanner version`."""

from __future__ import annotations

from lanner.cli.options import AsJson
from lanner.cli.screen import Screen


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    number = installed("lanner")
    Screen(as_json).say(f"lanner {number}", {"version": number})
