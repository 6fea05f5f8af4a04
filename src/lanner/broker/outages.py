"""Outages: partitions that this broker cannot serve from its own copy, why, and what is to be done about it.

A replica *stops* when it meets a record that this release does not know; it is *damaged* when an entry or a row of it
does not match its checksum. Either is said once in the log, with the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.steward import DAMAGE_LEVEL
from lanner.cluster import ReplicaSet
from lanner.errors import LannerError, StorageDamaged, UnknownRecord
from lanner.features import START_NEWER

log = logging.getLogger("lanner.broker")


class Outages:
    """The outages of one broker."""

    def __init__(self, engine: Engine, node_id: str, fail: Callable[[LannerError], None]) -> None:
        self._engine, self._node_id, self._fail = engine, node_id, fail
        self._advised: set[int] = set()
        engine.on_stopped = self._say_stopped
        engine.damages.told.append(self._damaged)

    @property
    def stopped(self) -> dict[str, str]:
        """The partitions whose replica here does not run, and why."""
        return {self._shown(set_id): why for set_id, why in self.by_set().items()}

    def by_set(self) -> dict[int, str]:
        """Return why replicas here do not run, by the id of their set."""
        errors: dict[int, LannerError] = {**self._engine.stopped}
        errors |= {set_id: closed.error for set_id, closed in self._engine.ledger.damaged.items()}
        return {set_id: error.message for set_id, error in errors.items()}

    def refuse_alone(self) -> None:
        """Refuse to start with a damaged partition that has no other copy: the operator decides what is lost."""
        damaged = next(iter(self._engine.ledger.damaged.values()), None)
        if damaged is not None and not self._engine.replicas[CLUSTER_SET].has_peers:
            self._fail(damaged.error)
            raise damaged.error

    def advise(self) -> None:
        """Say what is to be done about damage that was found before the metadata was known here."""
        self._advised &= self._engine.damages.sets.keys()
        for set_id in self._engine.damages.sets.keys() - self._advised:
            record = self._record(set_id)
            if record is not None:
                self._advised.add(set_id)
                log.error("%s: %s", record.shown, self.next_step(record))

    def next_step(self, record: ReplicaSet) -> str:
        """Return what is to be done about damage in this broker's copy of a set."""
        closed = record.set_id in self._engine.ledger.damaged
        if any(replica.node_id != self._node_id for replica in record.voters):
            if self._engine.feature_level < DAMAGE_LEVEL:
                return (
                    "this copy is not replaced, because the cluster is still at feature level "
                    f"{self._engine.feature_level}: upgrade all brokers, then run `lanner cluster upgrade`"
                )
            return "this copy is being replaced from the other brokers' copies, there is nothing to do"
        if closed:
            return (
                "no other broker has a copy, so it cannot be served any more: stop this broker and restore its data "
                "directory from a backup, or delete the topic"
            )
        return "no other broker has a copy, so readers are told of a hole where it is damaged"

    def _record(self, set_id: int) -> ReplicaSet | None:
        return self._engine.cluster.sets.get(set_id) if CLUSTER_SET in self._engine.replicas else None

    def _shown(self, set_id: int) -> str:
        record = self._record(set_id)
        return f"set {set_id}" if record is None else record.shown

    def _say_stopped(self, set_id: int, error: UnknownRecord) -> None:
        text = "the replica of %s on this broker has stopped: %s; %s; other brokers go on with theirs"
        log.error(text, self._shown(set_id), error.message, START_NEWER)

    def _damaged(self, set_id: int, error: StorageDamaged) -> None:
        """End the broker when the metadata is damaged: a partition is served elsewhere, or with a hole."""
        if set_id == CLUSTER_SET:
            self._fail(error)


__all__ = ["Outages"]
