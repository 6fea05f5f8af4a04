"""The program inside a `BrokerProcess` that wants more than the command line offers.

It takes one JSON argument: settings of the broker, and the names of faults to plant before it starts. A planted fault
is how a test shows that it would notice: `skip_sync` answers every sync without making anything durable, and
`fail_sync_after:N` lets N syncs through and fails the rest as a bad disk does. `tails:ENTRIES:BYTES` keeps less of the
logs for peers that are away, so that a snapshot is needed sooner. `pace_sync:FILE` has every sync wait as many
milliseconds as the file says; "hang" in it: for ever. `fence_off` forgets which sequences of a transaction were
committed.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def _skip_sync(_: str) -> None:
    from lanner.storage.disk import DiskFiles

    def sync(self: DiskFiles, file_id: int) -> None:
        return None

    DiskFiles.sync = sync  # type: ignore[method-assign]


def _fail_sync_after(count: str) -> None:
    real, left = os.fdatasync, int(count)

    def fdatasync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    os.fdatasync = fdatasync  # type: ignore[assignment]


def _pace_sync(path: str) -> None:
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        try:
            with open(path, encoding="ascii") as file:
                pace = file.read().strip()
        except FileNotFoundError:
            pace = ""
        if pace == "hang":
            threading.Event().wait()
        time.sleep(int(pace or 0) / 1_000)
        real(descriptor)

    os.fdatasync = fdatasync  # type: ignore[assignment]


def _tails(bounds: str) -> None:
    from lanner.broker.replicas.engine import Engine

    entries, _, size = bounds.partition(":")
    defaults = Engine.__init__.__kwdefaults__
    assert defaults is not None, "the bounds are named arguments with defaults"
    defaults.update(tail_entries=int(entries), tail_bytes_max=int(size))


def _fence_off(_: str) -> None:
    from lanner.cluster import Transaction

    def has_done(self: Transaction, sequence: int) -> bool:
        return False

    Transaction.has_done = has_done  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[str], None]] = {
    "skip_sync": _skip_sync,
    "fail_sync_after": _fail_sync_after,
    "pace_sync": _pace_sync,
    "tails": _tails,
    "fence_off": _fence_off,
}


def main(given: str) -> None:
    wanted: dict[str, Any] = json.loads(given)
    for name in wanted["plants"]:
        fault, _, argument = name.partition(":")
        PLANTS[fault](argument)
    import uvloop

    from lanner.broker.settings import BrokerSettings
    from lanner.server import leave, serve

    settings: dict[str, Any] = wanted["settings"]
    settings.update({name: tuple(value) for name, value in settings.items() if isinstance(value, list)})
    failure = uvloop.run(serve(BrokerSettings(**settings), lambda server: None))
    if failure is not None:
        sys.stderr.write(f"{failure.name}: {failure.message}\n")
        leave(failure)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
