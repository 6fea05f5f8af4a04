"""What rots on the disks of a simulated cluster, and what must follow.

- *The last record of a journal*, after a crash: the broker must refuse to start. An operator repairs it, and it comes
  back with an empty disk.
- *A saved entry*: some reader finds it, the scrubber at the latest. From then on that copy does not stand for leader
  while others could (`cluster_witness`), clients are told to ask again, and the copy is replaced (`is_mended`).

One copy rots at a time, and not while what was lost before is being replaced: no replicated system survives more.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Cluster
from lanner.errors import StorageDamaged
from lanner.ledger import Ledger
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_faults import LONG_MS
from lanner.testing.cluster_operators import Operators
from lanner.testing.decay import Decayed, decay, scrub
from lanner.testing.flips import flip_record, holds_record
from lanner.testing.sim_broker import Broken

_PAUSE_MS: Final = 8_000
_RETRY_MS: Final = 500
_SCRUB_MS: Final = 3_000


class Rot:
    """One cluster's rot."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.cluster = operators.cluster
        # Of its own, so that it leaves other troubles where they are.
        self._flips = Random(str(operators.rng.getstate()[1][:9]))
        self._decays = Random(self._flips.getstate()[1][0])
        self._decayed: list[Decayed] = []

    def begin(self) -> None:
        if self._flips.random() < 0.6:
            self.cluster.later(self._flips.randint(1, 20_000), self._rot_record)
        self.cluster.later(self._decays.randint(1, _PAUSE_MS), self._rot_entry)

    @property
    def going_on(self) -> bool:
        """Whether some copy is damaged, found or not."""
        self._decayed = [one for one in self._decayed if _is_there(one)]
        return bool(self._decayed)

    def is_mended(self, metadata: Cluster, members: Iterable[ClusterBroker]) -> bool:
        """Whether every copy that was damaged is replaced."""
        if self.going_on or any(record.damaged for record in metadata.sets.values()):
            return False
        return not any(broker.engine.damages.sets for broker in members)

    # ------------------------------------------------------------------ records

    def _rot_record(self) -> None:
        """A crash, and one bit of the last record that was durable flips: the broker must refuse to start. Then an
        operator repairs it: what it had is set aside, and it comes back as one with an empty disk."""
        cluster, rng = self.cluster, self._flips
        if cluster.calm:
            return
        running = self._operators.running() if self._operators.may_lose_a_disk() else []
        unsaved = [one for one in running if one.node_id in cluster.members() and one.unsaved]
        if unsaved:
            self.rot_record(rng.choice(unsaved))
        else:
            cluster.later(rng.randint(1, 100), self._rot_record)

    def rot_record(self, broker: ClusterBroker) -> ClusterBroker:
        """Flip a bit of a broker's last record; the one that comes back under its name."""
        cluster = self.cluster
        cluster.crash(broker, down_ms=LONG_MS)
        broker.disk.crash_in(None)
        records = broker.durable_records()
        if records and holds_record(broker.disk, records[-1]):
            flip_record(broker.disk, records[-1], self._flips)
            try:
                Ledger.recover(broker.disk.files, broker.disk.table, random_bytes=self._flips.randbytes)
            except StorageDamaged:
                cluster.counts["last_record_refusals"] += 1
            else:
                text = f"the last record of {broker.name}, at {records[-1][0]}:{records[-1][1]}, was flipped"
                raise Broken("damage accepted", CLUSTER_SET, text)
        cluster.retire(broker)
        cluster.counts["repairs"] += 1
        cluster.count()
        return self._operators.arrive(broker.name)

    # ------------------------------------------------------------------ entries

    def _rot_entry(self) -> None:
        """One bit of an entry flips, in the copy of some broker; more often of the one that leads."""
        cluster, rng = self.cluster, self._decays
        if cluster.calm:
            return
        found = self._decay_somewhere() if self._operators.may_lose_a_disk() else None
        if found is not None:
            cluster.counts["rotten_entries"] += 1
            cluster.count()
            self._decayed.append(found)
            cluster.later(rng.randint(1, _SCRUB_MS), lambda: self._scrub(found))
        cluster.later(rng.randint(1, _PAUSE_MS if found is not None else _RETRY_MS), self._rot_entry)

    def _decay_somewhere(self) -> Decayed | None:
        rng = self._decays
        running = self._operators.running()
        read = self.cluster.traffic.settings  # what clients read
        sets = [(broker, one) for broker in running for one in broker.engine.replicas.values() if one.set_id in read]
        if rng.random() < 0.6:
            sets = [(broker, one) for broker, one in sets if one.leads] or sets
        if not sets:
            return None
        broker, replica = rng.choice(sets)
        return decay(broker, replica.set_id, rng)

    def _scrub(self, decayed: Decayed) -> None:
        """As often as it takes: a restart forgets what was found before it."""
        cluster, broker = self.cluster, decayed.broker
        assert isinstance(broker, ClusterBroker)
        if not _is_there(decayed):
            return
        if broker.opened:
            cluster.guard(broker, lambda: cluster.counts.update(damages_found=scrub(broker, decayed.set_id)))
        cluster.later(self._decays.randint(1, _SCRUB_MS), lambda: self._scrub(decayed))


def _is_there(decayed: Decayed) -> bool:
    broker = decayed.broker
    assert isinstance(broker, ClusterBroker)
    return not broker.retired and (not broker.up or decayed.is_there)
