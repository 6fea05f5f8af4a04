"""What this broker does when its metadata says something new.

The steward opens and closes replicas; lines are kept to the brokers that there are; tries go on; groups are looked
at. A feature level that this release does not know ends the broker. Looking is cheap when
nothing is new, so it is done after every turn.
"""

from __future__ import annotations

from lanner.broker.coordination.coordination import Coordination
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.peers import Peers
from lanner.broker.ports import Clock, Fail, Kick, Leaders
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.errors import UnknownRecord
from lanner.features import HIGHEST, START_NEWER


class MetadataWatch:
    """One broker's look at its metadata."""

    def __init__(
        self,
        engine: Engine,
        steward: Steward,
        tries: Tries,
        coordination: Coordination,
        membership: ClusterMembership,
        leaders: Leaders,
        peers: Peers,
        clock: Clock,
        *,
        kick: Kick,
        fail: Fail,
    ) -> None:
        self._engine = engine
        self._steward = steward
        self._tries = tries
        self._coordination = coordination
        self._membership = membership
        self._leaders = leaders
        self._peers = peers
        self._clock = clock
        self._kick = kick
        self._fail = fail
        self._followed = (-1, -1)

    def follow(self) -> None:
        """Do what the metadata says, if it says something new."""
        engine = self._engine
        if CLUSTER_SET not in engine.replicas:
            return
        self._steward.follow()
        level = engine.feature_level
        if level > HIGHEST:
            self._fail(
                UnknownRecord(f"the cluster is at feature level {level}, and {HIGHEST} is known here; {START_NEWER}")
            )
            return
        now = (engine.cluster.shape_index, len(engine.replicas))
        if now != self._followed:
            self._followed = now
            self._peers.set_peers(self._membership.brokers())
            self._peers.forget_leaders(engine.cluster.sets)
            self._kick()
        if self._tries.follow(self._clock.now_ms()):
            self._kick()
        self._coordination.follow()
        reports = self._tries.take_reports()
        if reports:
            self._peers.report(self._leaders.leader_of(CLUSTER_SET), reports)


__all__ = ["MetadataWatch"]
