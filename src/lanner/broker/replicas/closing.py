"""Closing: one replica that cannot go on, while all others do.

- *It met a record that this release does not know.* Its log stays as it is, for a release that knows more.
- *A row of it is damaged.* Neither its state nor its votes can be trusted any more: its log is closed for good
  (`ledger/damaged`), and it waits to be replaced (`steward`).

Either way it says nothing more, so the set's other replicas go on without it. Nobody can go on without the metadata:
for that the whole broker stops; and so it does for a damaged row when it stands alone, as nobody could replace it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanner.broker.replicas.replica import Replica
from lanner.cluster import METADATA_SET
from lanner.errors import NotLeader, StorageDamaged, UnknownRecord

if TYPE_CHECKING:
    from lanner.broker.replicas.engine import Engine


class Closing:
    """One engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stop(self, replica: Replica, error: UnknownRecord) -> None:
        """It has met a record that this release does not know."""
        engine, set_id = self._engine, replica.set_id
        if set_id == METADATA_SET:
            raise error
        engine.stopped[set_id] = error
        engine.drop(set_id, save=True)
        replica.close(
            NotLeader("this broker's replica of the partition has stopped; ask again to be shown who leads it")
        )
        engine.on_stopped(set_id, error)

    def damaged(self, set_id: int, error: StorageDamaged) -> None:
        """Something is damaged that the set cannot do without; it is open, or was about to be."""
        engine = self._engine
        if set_id == METADATA_SET or not engine.replicas[METADATA_SET].has_peers:
            raise error
        replica = engine.drop(set_id)
        engine.ledger.unreadable.pop(set_id, None)
        engine.ledger.close_damaged(set_id, error)
        if replica is not None:
            replica.close(NotLeader("this broker's copy of the partition is damaged; ask again to be shown who leads"))
        engine.damages.note(set_id, 0, error)

    def contain(self, replica: Replica, error: StorageDamaged) -> None:
        """A row was in the way of what this replica had to do. Raised again, unless it is one of its own."""
        if error.details.get("set_id") != replica.set_id:
            raise error
        self.damaged(replica.set_id, error)

    def look(self) -> None:
        """Close the sets of which a damaged row was read since the last look, or whose entries found no place."""
        engine = self._engine
        found = {set_id: closed.error for set_id, closed in engine.ledger.damaged.items()} | engine.ledger.unreadable
        engine.ledger.unreadable.clear()
        for set_id, error in found.items():
            if set_id in engine.replicas:
                self.damaged(set_id, error)


__all__ = ["Closing"]
