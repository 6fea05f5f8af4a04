"""A save of the engine: what the table is given, and of which replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lanner.broker.replicas.installs import Incoming
from lanner.broker.replicas.replica import Replica
from lanner.ledger import Save


@dataclass(slots=True)
class SaveJob:
    """A save under way: the ledger's part of it, and which replicas it took in at which index."""

    save: Save
    taken: list[tuple[Replica, int]] = field(default_factory=list)
    built: list[Incoming] = field(default_factory=list)

    @property
    def puts(self) -> Mapping[bytes, bytes | None]:
        return self.save.puts
