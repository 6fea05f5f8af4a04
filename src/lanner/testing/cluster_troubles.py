"""Troubles of a simulated cluster: faults of disks, power, clocks and network, and operators who change it meanwhile.

Every trouble begins at a moment of the seed's choosing and ends by itself, so that several are going on at a time. What
no replicated system survives is not done to this one: see `cluster_operators` and `cluster_rot`.
"""

from __future__ import annotations

from collections.abc import Callable

from lanner.testing.cluster_operators import Operators
from lanner.testing.cluster_rot import Rot
from lanner.testing.cluster_upgrades import Upgrade
from lanner.testing.sim_cluster import SimCluster


class Troubles(Operators):
    """One cluster's bad luck. Each trouble is a method; `weights` says how often it strikes."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.rng = rng = cluster.rng
        self.weights: dict[str, float] = {
            "crash": rng.choice((1.0, 3.0)),
            "kill": 0.5,
            "flicker": 1.0,
            "plug": rng.choice((0.5, 2.0)),
            "outage": rng.choice((0.0, 0.3)),
            "split": rng.choice((0.5, 2.0)),
            "isolate": rng.choice((0.5, 2.0)),
            "one_way": rng.choice((0.3, 1.5)),
            "pause": rng.choice((0.3, 1.5)),
            "slow": 0.7,
            "slow_syncs": rng.choice((0.3, 1.0)),
            "hung_syncs": rng.choice((0.0, 0.3)),
            "sync_failure": 0.2,
            "full": 0.2,
            "stop": rng.choice((0.3, 1.0)),
            "jump": 0.5,
            "roughen": 0.7,
            "transfer": rng.choice((0.5, 2.0)),
            "move": rng.choice((0.5, 2.0)),
            "rebalance": 0.3,
            "join": 0.4,
            "drain": 0.5,
            "undrain": 0.2,
            "cancel": 0.2,
            "remove": 0.5,
            "wipe": rng.choice((0.2, 0.8)),
            "alter": 0.3,
        }
        self.pause_ms = rng.choice((300, 700, 1_500))
        self.rot = Rot(self)
        self.upgrade = Upgrade(self)

    def begin(self) -> None:
        self.cluster.later(self.rng.randint(1, 2 * self.pause_ms), self._strike)
        self.rot.begin()
        self.upgrade.begin()
        self._tend()

    def is_damaged(self) -> bool:
        return self.rot.going_on or self.upgrade.mistaken is not None

    def _strike(self) -> None:
        cluster = self.cluster
        if cluster.calm:
            return
        name = self.rng.choices(tuple(self.weights), tuple(self.weights.values()))[0]
        strike: Callable[[], bool] = getattr(self, f"_{name}")
        if strike():
            cluster.count()
            cluster.counts[f"trouble_{name}"] += 1
        cluster.later(self.rng.randint(1, 2 * self.pause_ms), self._strike)

    def end(self) -> None:
        """Let everything work from now on; who is down is started."""
        cluster = self.cluster
        cluster.calm = True
        cluster.network.calm()
        for broker in cluster.brokers.values():
            broker.paused_until_ms = broker.slow_until_ms = 0
            broker.sync_ms = (0, 0)
            if broker.hung:
                cluster.crash(broker)
            broker.disk.crash_in(None)
            broker.disk.sync_failures = 0
            broker.disk.write_room_bytes = None
            broker.disk.table_full = False
            broker.own_clock.mend()
