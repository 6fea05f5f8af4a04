"""What rots on the disks of a simulated cluster, and what must follow.

- *The last record of a journal*, after a crash: the broker must refuse to start. An operator repairs it, and it comes
  back with an empty disk.
- *A row of one partition*, after a crash: the broker starts without that copy, and the copy is replaced.
- *A saved entry*: some reader finds it, the scrubber at the latest. From then on that copy does not stand for leader
  while others could (`cluster_witness`), clients are told to ask again, and the copy is replaced (`is_mended`).

One copy rots at a time, and not while what was lost before is being replaced: no replicated system survives more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.steward import DAMAGE_LEVEL
from lanner.cluster import Cluster
from lanner.errors import StorageDamaged
from lanner.ledger import Ledger
from lanner.ledger.rows import decode_set, generation_of_key, set_key, set_of_key
from lanner.ledger.seals import SealedTable
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_faults import LONG_MS
from lanner.testing.cluster_operators import Operators
from lanner.testing.decay import Decayed, decay, scrub
from lanner.testing.disk import SimDisk
from lanner.testing.flips import flip_record, holds_record
from lanner.testing.sim_broker import Broken

_PAUSE_MS: Final = 8_000
_RETRY_MS: Final = 500
_SCRUB_MS: Final = 3_000
_RECORD_MS: Final = 6_000
_ROW_MS: Final = 4_000
_ROW_RETRY_MS: Final = 100
_KINDS: Final = (b"m", b"e", b"b", b"s")
SeenT = TypeVar("SeenT")


class Rot:
    """One cluster's rot."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self.cluster = operators.cluster
        # Of its own, so that it leaves other troubles where they are.
        self._flips = Random(str(operators.rng.getstate()[1][:9]))
        self._decays = Random(self._flips.getstate()[1][0])
        self._rows = Random(self._flips.getstate()[1][1])
        self._decayed: list[Decayed | Spoiled] = []

    def begin(self) -> None:
        if self._flips.random() < 0.6:
            self.cluster.later(self._flips.randint(1, _RECORD_MS), self._rot_record)
        self.cluster.later(self._decays.randint(1, _PAUSE_MS), self.rot_entry)
        if self._rows.random() < 0.5:
            self.cluster.later(self._rows.randint(1, _ROW_MS), self._rot_row)

    @property
    def going_on(self) -> bool:
        """Whether some copy is damaged, found or not."""
        return any(map(self._is_there, self._decayed))  # all of them: what is not there may come back with a crash

    def is_mended(self, metadata: Cluster, members: Iterable[ClusterBroker]) -> bool:
        """Whether every copy that was damaged is replaced."""
        if self.going_on or any(record.damaged for record in metadata.sets.values()):
            return False
        return not any(broker.engine.damages.sets for broker in members)

    def may_rot(self) -> bool:
        """Whether a damaged copy would be replaced: older brokers do not know how."""
        metadata = self._operators.metadata()
        return metadata is not None and metadata.feature_level >= DAMAGE_LEVEL and self._operators.may_lose_a_disk()

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

    # ------------------------------------------------------------------ rows

    def _rot_row(self) -> None:
        """A crash, and one bit of a row of some partition flips, in its key or its value."""
        cluster, rng = self.cluster, self._rows
        if cluster.calm:
            return
        running = self._operators.running() if self.may_rot() else []
        copies = [
            (broker, set_id)
            for broker in running
            for set_id in broker.engine.replicas
            if set_id in cluster.traffic.settings and broker.node_id in cluster.members()
        ]
        if copies:
            self.rot_row(*rng.choice(copies))
        cluster.later(rng.randint(1, _PAUSE_MS if copies else _ROW_RETRY_MS), self._rot_row)

    def rot_row(self, broker: ClusterBroker, set_id: int) -> None:
        """Flip a bit of a row of a broker's copy of a set: the broker must start without that copy, or not at all."""
        cluster, disk, rng = self.cluster, broker.disk, self._rows
        cluster.crash(broker)
        disk.crash_in(None)
        keys = rows_of(disk, set_id)
        if not keys:
            return
        key = rng.choice(keys)
        disk.flip_row_bit(key, rng.randrange(disk.row_bits(key)))
        cluster.counts["rotten_rows"] += 1
        cluster.count()
        copy = disk.snapshot()
        try:
            ledger = Ledger.recover(copy.files, copy.table, random_bytes=rng.randbytes, close_damaged=True)
        except StorageDamaged:  # nothing else is there of the set, so that its key may be what has changed
            cluster.counts["row_refusals"] += 1
            cluster.retire(broker)
            self._operators.arrive(broker.name)
            return
        if set_id in ledger.sets():
            if generation_of_key(key) not in (None, ledger.state(set_id).generation):
                return  # of a copy that was replaced since the save: nobody reads it any more
            raise Broken("damage accepted", set_id, f"a bit of the row {key.hex()} was flipped on {broker.name}")
        broker.spoiled.add(set_id)
        self._decayed.append(Spoiled(broker, set_id))

    # ------------------------------------------------------------------ entries

    def rot_entry(self) -> None:
        """One bit of an entry flips, in the copy of some broker; more often of the one that leads."""
        cluster, rng = self.cluster, self._decays
        if cluster.calm:
            return
        found = self._decay_somewhere() if self.may_rot() else None
        if found is not None:
            cluster.counts["rotten_entries"] += 1
            cluster.count()
            self._decayed.append(found)
            cluster.later(rng.randint(1, _SCRUB_MS), lambda: self._scrub(found))
        cluster.later(rng.randint(1, _PAUSE_MS if found is not None else _RETRY_MS), self.rot_entry)

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
        return self._read(broker, lambda: decay(broker, replica.set_id, rng), None)

    def _scrub(self, decayed: Decayed) -> None:
        """As often as it takes: a restart forgets what was found before it."""
        cluster, broker = self.cluster, decayed.broker
        assert isinstance(broker, ClusterBroker)
        if broker.retired:
            return
        if not self._is_there(decayed):
            cluster.later(_SCRUB_MS, lambda: self._scrub(decayed))  # it may come back
            return
        if broker.opened:
            cluster.guard(broker, lambda: cluster.counts.update(damages_found=scrub(broker, decayed.set_id)))
        cluster.later(self._decays.randint(1, _SCRUB_MS), lambda: self._scrub(decayed))

    def _is_there(self, decayed: Decayed | Spoiled) -> bool:
        broker = decayed.broker
        assert isinstance(broker, ClusterBroker)
        if broker.retired or not broker.up:
            return not broker.retired
        return self._read(broker, lambda: decayed.is_there, True)

    def _read(self, broker: ClusterBroker, read: Callable[[], SeenT], unseen: SeenT) -> SeenT:
        """What is seen on a broker's disk; its power may go while it is read, as for any reader."""
        seen = [unseen]

        def look() -> None:
            seen[0] = read()

        self.cluster.guard(broker, look)
        return seen[0]


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A copy of a set of which a row has rotted."""

    broker: ClusterBroker
    set_id: int

    @property
    def is_there(self) -> bool:
        """Whether the copy is still closed."""
        return self.set_id in self.broker.engine.ledger.damaged


def rows_of(disk: SimDisk, set_id: int) -> list[bytes]:
    """The rows of a set's present log and machine, by key."""
    key = set_key(set_id)
    row = SealedTable(disk.table).get(key)
    if row is None:
        return []
    generation = decode_set(key, row).generation
    keys = [one for one in disk.row_keys() if one[:1] in _KINDS and set_of_key(one) == set_id]
    return [one for one in keys if generation_of_key(one) in (None, generation)]
