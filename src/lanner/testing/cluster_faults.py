"""Faults of the brokers of a simulated cluster and of the network between them: power, disks, clocks, splits.

Each fault is a method that returns whether it could strike; it ends by itself after a while.
"""

from __future__ import annotations

from random import Random
from typing import Final

from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_calls import CLIENT
from lanner.testing.sim_cluster import SimCluster

LONG_MS: Final = 3_600_000


class Faults:
    """Faults of one cluster."""

    cluster: SimCluster
    rng: Random

    def running(self) -> list[ClusterBroker]:
        return [broker for broker in self.cluster.brokers.values() if broker.opened and not broker.paused]

    def _victim(self) -> ClusterBroker | None:
        """Often one that leads, because that is where trouble is felt."""
        running = self.running()
        if not running:
            return None
        if self.rng.random() < 0.5:
            leading = [broker for broker in running if any(one.leads for one in broker.engine.replicas.values())]
            return self.rng.choice(leading or running)
        return self.rng.choice(running)

    # ------------------------------------------------------------------ power, disks, clocks

    def _crash(self) -> bool:
        broker = self._victim()
        if broker is not None:
            self.cluster.crash(broker)
        return broker is not None

    def _kill(self) -> bool:
        broker = self._victim()
        if broker is not None:
            self.cluster.crash(broker, power=False)
        return broker is not None

    def _flicker(self) -> bool:
        """A process is killed before a sync and starts again at once; and then the power goes."""
        writing = [broker for broker in self.running() if broker.is_writing and not broker.hung]
        if not writing:
            return False
        broker = self.rng.choice(writing)
        self.cluster.guard(broker, broker.write_without_sync)
        self.cluster.crash(broker, power=False, down_ms=1)
        life = broker.life + 1
        self.cluster.later(self.rng.randint(10, 150), lambda: self._end_flicker(broker, life))
        return True

    def _end_flicker(self, broker: ClusterBroker, life: int) -> None:
        if broker.life == life:
            self.cluster.crash(broker)

    def _plug(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.crash_in(self.rng.randint(1, 40))
        return broker is not None

    def _outage(self) -> bool:
        """The power goes everywhere at once."""
        for broker in self.running():
            self.cluster.crash(broker)
        return True

    def _slow(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.slow_until_ms = self.cluster.clock.elapsed_ms + self.rng.randint(100, 3_000)
        return broker is not None

    def _slow_syncs(self) -> bool:
        """Of one disk, or of all: they take a tenth of a second, or three."""
        broker = self._victim()
        if broker is None:
            return False
        brokers = [broker] if self.rng.random() < 0.7 else self.running()
        bounds = self.rng.choice(((100, 700), (600, 1_500), (1_500, 3_000)))
        for one in brokers:
            one.sync_ms = bounds
        self.cluster.counts["slow_syncs"] += 1
        self.cluster.later(self.rng.randint(1_000, 6_000), lambda: self._mend_syncs(brokers))
        return True

    @staticmethod
    def _mend_syncs(brokers: list[ClusterBroker]) -> None:
        for broker in brokers:
            broker.sync_ms = (0, 0)

    def _hung_syncs(self) -> bool:
        """A disk takes nothing any more, until somebody starts its broker anew."""
        broker = self._victim()
        if broker is None:
            return False
        broker.hang()
        self.cluster.counts["hung_syncs"] += 1
        life = broker.life
        self.cluster.later(self.rng.choice((1_000, 4_000, 8_000)), lambda: self._end_hang(broker, life))
        return True

    def _end_hang(self, broker: ClusterBroker, life: int) -> None:
        if broker.hung and broker.life == life:
            self.cluster.crash(broker, power=self.rng.random() < 0.5)

    def _sync_failure(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.sync_failures = 1
        return broker is not None

    def _full(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.write_room_bytes = self.rng.randrange(2_000)
            broker.disk.table_full = True
        return broker is not None

    def _stop(self) -> bool:
        """An operator stops a broker in good order: it hands over what it leads, waits a little for that, and goes."""
        broker = self._victim()
        if broker is not None:
            self._hand_over(broker, broker.life, self.rng.randint(1, 40))
        return broker is not None

    def _hand_over(self, broker: ClusterBroker, life: int, patience: int) -> None:
        if not broker.opened or broker.life != life:
            return
        left = broker.steward.hand_over()
        self.cluster.guard(broker, broker.work)
        if left and patience and not broker.paused:
            self.cluster.later(50, lambda: self._hand_over(broker, life, patience - 1))
        else:
            self.cluster.crash(broker, power=False)

    def _pause(self) -> bool:
        """The process stops, and goes on as if nothing had happened."""
        broker = self._victim()
        if broker is not None:
            duration_ms = self.rng.choice((100, 800, 2_500, 5_000))
            broker.paused_until_ms = self.cluster.clock.elapsed_ms + duration_ms
        return broker is not None

    def _jump(self) -> bool:
        """Somebody sets a clock, by an hour perhaps; but not the clocks of a majority, which nothing could detect."""
        broker = self._victim()
        if broker is None:
            return False
        right_ms = self.cluster.clock.now_ms()
        wrong = [one for one in self.cluster.brokers.values() if abs(one.own_clock.now_ms() - right_ms) > 1_000]
        if wrong and broker is not wrong[0]:
            broker.own_clock.jump(self.rng.choice((-200, 200)))
        elif wrong:
            broker.own_clock.mend()
        else:
            broker.own_clock.jump(self.rng.choice((-LONG_MS, -3_000, 3_000, LONG_MS)))
        return True

    # ------------------------------------------------------------------ network

    def _split(self) -> bool:
        numbers = [*self.cluster.brokers, CLIENT]
        self.rng.shuffle(numbers)
        cut = self.rng.randint(1, len(numbers) - 1)
        self.cluster.network.split(numbers[:cut], numbers[cut:])
        self._heal_later("splits")
        return True

    def _isolate(self) -> bool:
        """One broker hears nobody; its clients may still reach it."""
        broker = self._victim()
        if broker is None:
            return False
        self.cluster.network.split([broker.number], [one for one in self.cluster.brokers if one != broker.number])
        self._heal_later("splits")
        return True

    def _one_way(self) -> bool:
        broker = self._victim()
        if broker is None:
            return False
        for other in self.cluster.brokers:
            if other != broker.number and self.rng.random() < 0.7:
                pair = (broker.number, other) if self.rng.random() < 0.5 else (other, broker.number)
                self.cluster.network.cut(*pair)
        self._heal_later("one_way_splits")
        return True

    def _heal_later(self, what: str) -> None:
        self.cluster.counts[what] += 1
        self.cluster.later(self.rng.choice((200, 1_500, 4_000)), self.cluster.network.heal)

    def _roughen(self) -> bool:
        network, rng = self.cluster.network, self.rng
        network.loss, network.doubling = rng.choice((0.0, 0.05, 0.2)), rng.choice((0.0, 0.05))
        network.detour = rng.choice((0.0, 0.1, 0.3))
        return True
