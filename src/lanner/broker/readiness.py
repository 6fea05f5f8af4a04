"""Readiness: whether callers should come to this broker, derived from the facts, with the reason when they should not.

`judge` is the whole rule, without I/O. `Readiness` gathers the facts, and remembers the two that stay true:

- *Serving* means that the metadata is here, so that callers can be answered or sent on; once so, always so.
- *Complete* means that every set which belongs here is here and has a leader that is known. After a disk was replaced
  that takes until its replicas vote again: an operator who waits for this before replacing the next disk never has two
  copies missing at a time.
- *Ready* means that callers should come. A broker that was complete stays ready while one partition elects a leader: it
  serves the others, and taking it away for that would take all brokers away at once.

A broker with a slow disk is ready; `/readyz` still sends its callers away while other brokers can lead instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from lanner.broker.pace import Pace
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.replicas.replica import Replica
from lanner.broker.room import Room
from lanner.errors import LannerError


class Facts(NamedTuple):
    """Everything that readiness depends on."""

    failed: str = ""  # why the broker stops
    draining: bool = False
    member: bool = False  # of a cluster: its metadata is open here
    registered: bool = False  # the metadata names this broker
    current: bool = False  # the metadata here has been as far as its leader's
    was_serving: bool = False
    opened: bool = False  # every replica that belongs here
    restored: bool = False  # its replicas vote as they should
    leaderless: int = 0  # sets here without a leader that is known and may decide
    metadata_led: bool = False
    was_complete: bool = False
    disk_full: str = ""  # what the disk lacks
    disk_slow: str = ""
    others_may_lead: bool = False


class Verdict(NamedTuple):
    """What follows from the facts."""

    serving: bool
    complete: bool
    ready: bool
    refusal: str  # why callers should go elsewhere; empty: they should come
    status: str  # what callers that come may know
    disk_slow: bool


def judge(facts: Facts) -> Verdict:
    """Derive everything that is said of a broker's readiness."""
    serving = facts.was_serving or (facts.member and facts.registered and facts.current)
    restored = facts.was_complete or facts.restored
    complete = serving and facts.opened and restored and not facts.leaderless
    reachable = complete or (facts.was_complete and facts.metadata_led)
    ready = reachable and not facts.draining and not facts.failed
    if not ready:
        refusal = f"the broker is not ready: {facts.disk_full or _missing(facts)}"
    elif facts.disk_slow and facts.others_may_lead:
        refusal = f"{facts.disk_slow}; other brokers lead meanwhile"
    else:  # with no broker to go to instead, a slow one is better than none
        refusal = ""
    status = f"ready, {facts.disk_slow}" if facts.disk_slow else "ready"
    return Verdict(serving, complete, ready, refusal, status, bool(facts.disk_slow))


def _missing(facts: Facts) -> str:
    """The first fact that keeps a broker from being ready."""
    if facts.failed:
        return f"it stops, because {facts.failed}"
    if facts.draining:
        return "it is draining"
    if not facts.member:
        return "it is starting, and does not belong to a cluster yet"
    if facts.was_complete:
        return "no broker leads the metadata at the moment"
    if not facts.registered:
        return "it is starting, and the metadata does not name it yet"
    if not facts.current and not facts.was_serving:
        return "it is starting, and does not know yet how far the metadata is"
    if not facts.opened:
        return "it is starting, and opens its partitions"
    if facts.leaderless:
        return f"it is starting, and {facts.leaderless} of the partitions here have no leader yet"
    return "it is starting, and the copies that its disk lost are not restored yet"


class Currency(Protocol):
    """Whether the metadata here is current."""

    @property
    def is_current(self) -> bool: ...


class Holdings(Protocol):
    """Whether everything that belongs here is open."""

    @property
    def settled(self) -> bool: ...


class Others(Protocol):
    """The other brokers."""

    @property
    def others_may_lead(self) -> bool: ...


class Readiness:
    """Gathers the facts of one broker."""

    def __init__(
        self,
        node_id: str,
        engine: Engine,
        failed: asyncio.Future[LannerError],
        *,
        metadata: Currency,
        holdings: Holdings,
        room: Room,
        pace: Pace,
        others: Others,
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._failed = failed
        self._metadata = metadata
        self._holdings = holdings
        self._room = room
        self._pace = pace
        self._others = others
        self._was_serving = False
        self._was_complete = False
        self.draining = False

    @property
    def serving(self) -> bool:
        """Whether callers can be answered or sent on; cheap, because every call asks."""
        return self._was_serving or self.verdict().serving

    @property
    def complete(self) -> bool:
        return self.verdict().complete

    def verdict(self) -> Verdict:
        """Judge the facts of this moment."""
        found = judge(self._facts())
        self._was_serving = found.serving
        self._was_complete = self._was_complete or found.complete
        return found

    def _facts(self) -> Facts:
        failed = self._failed.result().message if self._failed.done() else ""
        if CLUSTER_SET not in self._engine.replicas:
            return Facts(failed, self.draining, disk_full=self._room.missing)
        cluster, replicas = self._engine.cluster, self._engine.replicas
        return Facts(
            failed=failed,
            draining=self.draining,
            member=True,
            registered=bool(cluster.cluster_id) and self._node_id in cluster.brokers,
            current=self._metadata.is_current,
            was_serving=self._was_serving,
            opened=self._holdings.settled,
            restored=cluster.is_restored(self._node_id),
            leaderless=_leaderless(replicas),
            metadata_led=replicas[CLUSTER_SET].node.leader_id > 0,
            was_complete=self._was_complete,
            disk_full=self._room.missing,
            disk_slow=self._pace.slow_text,
            others_may_lead=self._others.others_may_lead,
        )


def _leaderless(replicas: Mapping[int, Replica]) -> int:
    """Count the replicas that know no leader, or are their set's leader and may not decide yet."""
    count = 0
    for replica in replicas.values():
        leader = replica.node.leader_id
        if not leader or (leader == replica.node.node_id and not replica.leads):
            count += 1
    return count


__all__ = ["Facts", "Readiness", "Verdict", "judge"]
