"""The command line: `lanner`. It talks to brokers through the client only; `up` runs one.

Modules are imported when a command needs them, so that `lanner --help` answers at once.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry point of the `lanner` command."""
    complete_streams()
    try:
        from lanner.cli.app import run

        run()
    except KeyboardInterrupt:  # while modules are loaded, or in the end
        sys.exit(130)


def complete_streams() -> None:
    """Put the null device where a standard stream is missing: else the next file or socket would have its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


__all__ = ["main"]
