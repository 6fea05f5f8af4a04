"""The program inside a `BrokerProcess` that wants more than the command line offers.

It takes one JSON argument: settings of the broker, and the names of faults to plant before it starts. A planted fault
is how a test shows that it would notice: `skip_sync` answers every sync without making anything durable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def _skip_sync() -> None:
    from lanner.storage.disk import DiskFiles

    def sync(self: DiskFiles, file_id: int) -> None:
        return None

    DiskFiles.sync = sync  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {"skip_sync": _skip_sync}


def main(given: str) -> None:
    wanted: dict[str, Any] = json.loads(given)
    for name in wanted["plants"]:
        PLANTS[name]()
    import uvloop

    from lanner.broker.settings import BrokerSettings
    from lanner.server import serve

    failure = uvloop.run(serve(BrokerSettings(**wanted["settings"]), lambda server: None))
    if failure is not None:
        sys.exit(f"{failure.name}: {failure.message}")


if __name__ == "__main__":
    main(sys.argv[1])
