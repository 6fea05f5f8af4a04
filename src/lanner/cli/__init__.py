"""The command line: `lanner`. It talks to brokers through the client only; `up` runs one.

Modules are imported when a command needs them, so that `lanner --help` answers at once.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `lanner` command."""
    from lanner.cli.app import run

    run()


__all__ = ["main"]
