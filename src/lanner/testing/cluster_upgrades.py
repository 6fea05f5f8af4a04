"""A simulated cluster that begins at an older feature level and is upgraded while everything else goes on.

One broker after the other is stopped and started with the new release; then the operator raises the level, and from
then on there may be records that the old release does not know. Then somebody starts the old release on one broker by
mistake. Its replicas must stop where they meet such a record (`UnknownRecord`), and go on from there as soon as the new
release is started again: one that had skipped it would differ from the others for ever.

All brokers run the same code here. What an old release does not know is refused where a machine applies it: see
`old_release`.
"""

from __future__ import annotations

from random import Random
from typing import Final

from lanner import features
from lanner.cluster import BrokerState, encode_raise_feature_level, encode_update_broker
from lanner.partition import NumberDead
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_operators import Operators
from lanner.testing.traffic import QUEUE_GROUPS

OLD: Final = features.STAGES - 1
_BEGIN_MS: Final = 3_000
_PAUSE_MS: Final = 400
_AGAIN_MS: Final = 500
_MISTAKE_MS: Final = 1_500


class Upgrade:
    """One cluster's way to the present level, and a mistake after it."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.cluster = operators.cluster
        self._rng = Random(str(operators.rng.getstate()[1][9:18]))  # of its own
        self.mistaken: ClusterBroker | None = None
        self.over = self.cluster.release == features.HIGHEST

    def begin(self) -> None:
        if not self.over:
            self.cluster.later(self._rng.randint(1, _BEGIN_MS), self._start_newer)

    def _start_newer(self) -> None:
        cluster = self.cluster
        cluster.release = features.HIGHEST  # of brokers that come from now on
        old = [one for one in cluster.brokers.values() if not one.retired and one.release < features.HIGHEST]
        if not old:
            self._raise_level()
            return
        old[0].release = features.HIGHEST
        cluster.crash(old[0], power=False)
        cluster.later(self._rng.randint(1, _PAUSE_MS), self._start_newer)

    def _raise_level(self) -> None:
        """Ask until it is so, as an operator would."""
        cluster, metadata = self.cluster, self._operators.metadata()
        if metadata is not None and metadata.feature_level == features.HIGHEST:
            cluster.counts["upgrades"] += 1
            cluster.later(self._rng.randint(1, _AGAIN_MS), self._mistake)
            return
        for one in () if metadata is None else metadata.brokers.values():
            if one.feature_max < features.HIGHEST and one.state is not BrokerState.REMOVED and not one.lost:
                cluster.traffic.change(encode_update_broker(one.node_id, feature_max=features.HIGHEST))
        cluster.traffic.change(encode_raise_feature_level(features.HIGHEST))
        cluster.later(_AGAIN_MS, self._raise_level)

    def _mistake(self) -> None:
        """The old release is started on one broker, while groups get what it does not know."""
        cluster, rng = self.cluster, self._rng
        running = [one for one in self._operators.running() if one.node_id in cluster.members()]
        if not self._operators.may_lose_a_disk() or not running:
            if cluster.calm:
                self.over = True
            else:
                cluster.later(rng.randint(1, 100), self._mistake)
            return
        self.mistaken = broker = rng.choice(running)
        broker.release = OLD
        cluster.crash(broker, power=False, down_ms=1)
        for delay_ms in (300, 600, 1_000):
            cluster.later(delay_ms, self._number_dead)
        cluster.later(_MISTAKE_MS, self._correct)

    def _number_dead(self) -> None:
        traffic = self.cluster.traffic
        for set_id in traffic.settings:
            for group in QUEUE_GROUPS:
                traffic._ask(set_id, NumberDead(group), lambda _answer, _index: None)

    def _correct(self) -> None:
        broker, self.mistaken, self.over = self.mistaken, None, True
        assert broker is not None
        broker.release = features.HIGHEST
        if broker.opened:
            self.cluster.counts["stopped_replicas"] += len(broker.engine.stopped)
        self.cluster.crash(broker, power=False, down_ms=1)


__all__ = ["OLD", "Upgrade"]
