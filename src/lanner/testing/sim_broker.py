"""One broker on a simulated disk: the shell that the engine needs, without threads, and with a plug to pull.

It does in small steps what `broker.node` does with threads: a commit is begun, written, reported; a save is gathered,
committed, reported; a segment is prepared; a file is rewritten. Between any two steps something else may happen, and
the power may go inside any of them (`PowerLost` comes out of the step). `restart` then starts over from the disk.

It also watches. Every entry that any machine applies passes by here, across all restarts: it must never differ from
what was applied before at the same index, nothing that was applied may be gone after a restart, and a machine that was
loaded from its rows and brought up to date must equal, byte for byte, one that applied the whole log from the start.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any, Final

from lanner import batch
from lanner.broker.replicas.engine import CLUSTER_SET, SOLE_SEAT, Engine, Seat
from lanner.broker.replicas.keeping import transform
from lanner.broker.replicas.replica import Replica
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.broker.wall_clock import PACE, FollowingClock
from lanner.cluster import Cluster
from lanner.errors import LannerError, StorageDamaged, StorageFull
from lanner.ledger import Commit, FileMissing, Ledger, journal, perform_preparation, read_entry
from lanner.ledger.records import position_at
from lanner.ledger.rows import JOURNAL_KEY, decode_journal
from lanner.ledger.seals import SealedTable
from lanner.partition import BatchRef, Partition, batch_start
from lanner.partition.records import DECISION_KIND, Decision, decode_decision
from lanner.raft import Entry, EntryKind
from lanner.testing.clock import SimClock
from lanner.testing.disk import SimDisk
from lanner.testing.queue_model import Violation

SEGMENT_BYTES: Final = 32 * 1024
_CACHE_BYTES: Final = 8 * 1024
_READ_ATTEMPTS: Final = 3
_STEPS_TO_LEAD_MAX: Final = 10_000
Work = Generator[None, None, None]


class Broken(Exception):
    """The broker broke a rule that only the simulator can see."""

    def __init__(self, rule: str, set_id: int, text: str) -> None:
        self.violation = Violation(rule, set_id, text)
        super().__init__(str(self.violation))


class _NoRows:
    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class Witness:
    """What was ever applied, and machines that applied all of it without a restart."""

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()
        self.machines: dict[int, Cluster | Partition] = {}
        self.decided_ms: dict[int, int] = {}  # set → the time of its latest decision
        self.on_metadata: Callable[[int, bytes | None], None] | None = None  # sees its entries, each once
        self.on_decision: Callable[[int, Decision], None] | None = None  # and those of partitions
        self._applied: dict[int, list[int]] = {}  # set → a checksum for each index, from 1 on

    def watch(self, replica: Replica) -> None:
        """Look at every entry that this replica's Raft node hands out to be applied."""
        node = replica.node
        hand_out = node.ready
        set_id = replica.set_id

        def ready() -> Any:
            made = hand_out()
            for entry in made.committed:
                self._see(set_id, entry)
            return made

        node.ready = ready  # type: ignore[method-assign]

    def _see(self, set_id: int, entry: Entry) -> None:
        seen = self._applied.setdefault(set_id, [])
        checksum = zlib.crc32(entry.payload, entry.term)
        if entry.index <= len(seen):
            if seen[entry.index - 1] != checksum:
                raise Broken("committed entry changed", set_id, f"entry {entry.index} is not what it was")
            return
        if entry.index != len(seen) + 1:
            raise Broken("committed entry lost", set_id, f"{entry.index} came after {len(seen)}")
        seen.append(checksum)
        payload = entry.payload if entry.kind == EntryKind.NORMAL else None
        machine = self.machines.get(set_id)
        if machine is None:
            machine = Cluster(_NoRows()) if set_id == CLUSTER_SET else Partition(_NoRows(), batch.read_header)
            self.machines[set_id] = machine
        machine.apply(entry.index, payload)
        if set_id == CLUSTER_SET and self.on_metadata is not None:
            self.on_metadata(entry.index, payload)
        if payload and set_id != CLUSTER_SET and payload[0] == DECISION_KIND:
            decision = decode_decision(payload)
            if self.on_decision is not None:
                self.on_decision(set_id, decision)
            self.decided_ms[set_id] = decision.now_ms
            self.facts.update(type(fact).__name__ for fact in decision.facts)

    def compare(self, replica: Replica) -> None:
        """After a restart: nothing is missing, and the state is the same, byte for byte."""
        set_id = replica.set_id
        last = len(self._applied.get(set_id, []))
        if replica.node.applied_index < last:
            raise Broken(
                "committed entry lost",
                set_id,
                f"{last} entries had been applied, {replica.node.applied_index} are left",
            )
        witness = self.machines.get(set_id)
        machine: Any = replica.machine
        if witness is None or witness.applied_index != machine.applied_index:
            raise Broken("state differs after a restart", set_id, f"it stands at {machine.applied_index}")
        if witness.all_rows() != machine.all_rows():
            theirs, ours = machine.all_rows(), witness.all_rows()
            wrong = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
            raise Broken(
                "state differs after a restart", set_id, f"{len(wrong)} rows differ, the first is {wrong[0]!r}"
            )


class _QuietClock(FollowingClock):
    """Its clock is set so often that nobody wants to read of it."""

    def _tell(self, step_ms: float) -> None:
        pass


class SimBroker:
    """The shell, the disk beneath it, and the witness."""

    def __init__(self, rng: Random, clock: SimClock) -> None:
        self.rng = rng
        self.clock = clock
        self.disk = SimDisk()
        self.witness = Witness()
        self.counts: Counter[str] = Counter()
        self.commits: list[tuple[int, int, int]] = []  # (file, offset, size) of durable records, since the start
        self.decayed: set[tuple[Any, Any]] = set()  # (file, offset) of saved entries that have rotted on the disk
        self.spoiled: set[int] = set()  # sets of which a row has rotted
        self.remembered: dict[
            tuple[int, int], Mapping[int, bytes]
        ] = {}  # (set, index) of a rotten batch → what it held
        self.followed: FollowingClock
        self._began = (0, 0)  # what the wall clock and the steady one showed at the start
        self.engine: Engine
        self.steward: Steward
        self.tries: Tries
        self._commit: Commit | None = None
        self._performed = False
        self._work: dict[str, Work] = {}
        self._saving = False

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Recover from the disk and lead every partition. The power may go in the middle of it."""
        ledger = Ledger.recover(
            self.disk.files, self.disk.table, random_bytes=self.rng.randbytes, segment_bytes=SEGMENT_BYTES
        )
        self.counts["torn_tails"] += ledger.recovery.torn_bytes_cut > 0
        self.followed = _QuietClock(self.clock.now_ms, lambda: self.clock.elapsed_ms)
        self._began = self.clock.now_ms(), self.clock.elapsed_ms
        self.engine = Engine(ledger, self.disk.files, rng=self.rng, now_ms=self.now_ms, cache_bytes=_CACHE_BYTES)
        self.tries = Tries(self.engine)
        self.engine.damages.told.append(self.explain)
        self._forget()
        self.commits = []
        self._watch_sets()
        self.steward = Steward(self.engine, "sim")
        self.steward.open_metadata()
        self._run_until(lambda: self.engine.replica(CLUSTER_SET).leads)
        self.reconcile()
        self._run_until(lambda: self.engine.led)
        for replica in self.engine.replicas.values():
            self.witness.compare(replica)
        ledger.check()

    def now_ms(self) -> int:
        """The broker's own time. However the wall clock is set, it passes about as fast as time does."""
        now_ms = self.followed.now_ms()
        wall_ms, elapsed_ms = self._began
        passed_ms = self.clock.elapsed_ms - elapsed_ms
        if abs(now_ms - wall_ms - passed_ms) > PACE * passed_ms + 1:
            raise Broken("time jumped", CLUSTER_SET, f"by {now_ms - wall_ms} ms while {passed_ms} ms passed")
        return now_ms

    def _watch_sets(self) -> None:
        """Whatever the steward opens is watched; what it lets go of is forgotten."""
        engine, witness = self.engine, self.witness
        open_set, close_set = engine.open_set, engine.close_set

        def opened(set_id: int, seat: Seat = SOLE_SEAT) -> Replica:
            replica = open_set(set_id, seat)
            witness.watch(replica)
            return replica

        def closed(set_id: int, error: LannerError) -> None:
            close_set(set_id, error)
            witness.machines.pop(set_id, None)

        engine.open_set = opened  # type: ignore[method-assign]
        engine.close_set = closed  # type: ignore[method-assign]

    def _run_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(_STEPS_TO_LEAD_MAX):
            if condition():
                return
            self.step_commit()
        raise Broken("broker never leads", CLUSTER_SET, f"after {_STEPS_TO_LEAD_MAX} steps without any fault")

    def reconcile(self) -> None:
        """Serve exactly the partitions that the cluster's metadata names."""
        self.steward.follow()
        while not self.steward.settled:
            self.steward.follow()

    # ------------------------------------------------------------------ small steps

    @property
    def busy(self) -> bool:
        return self._commit is not None

    def step_commit(self) -> bool:
        """Begin a commit, or write the one that was begun, or report the one that was written."""
        if self._commit is None:
            self._commit = self.engine.pump()
            self._performed = False
            return self._commit is not None
        if not self._performed:
            self.engine.pump()  # what needs no disk does not wait for it
            try:
                journal.perform(self._commit, self.disk.files)
            except StorageFull:  # the same record goes to the same position once there is room
                self.make_room()
                return True
            self._performed = True
            return True
        commit, self._commit = self._commit, None
        self.commits.append((commit.file, commit.offset, commit.size))
        self.engine.committed(commit)
        return True

    def tend(self) -> None:
        """Do what the outcomes of tries call for."""
        self.tries.follow(self.now_ms())

    def make_room(self) -> None:
        """Somebody was told that the disk is full, and has seen to it."""
        self.disk.write_room_bytes = None
        self.counts["disk_full"] += 1

    def step_work(self, name: str) -> bool:
        """Go on with, or begin, some background work: save, rewrite or prepare."""
        work = self._work.get(name)
        if work is None:
            work = self._work[name] = _BEGIN[name](self)
        try:
            next(work)
        except StopIteration:
            del self._work[name]
            return False
        return True

    def finish_work(self) -> None:
        """Bring everything that is under way to its end, and the table up to date."""
        for name in ("prepare", "rewrite", "save"):
            while self.step_work(name):
                pass

    def _save(self) -> Work:
        if self._saving:  # one at a time
            return
        self._saving = True
        yield from self._save_all()
        self._saving = False

    def _save_all(self) -> Work:
        engine = self.engine
        more = True
        while more:
            job = engine.begin_save()
            if job is None:
                return
            while more and self.rng.random() < 0.9:  # a turn of the loop may end before every set is in
                more = engine.save_step(job)
            while self.rng.random() < 0.8 and job.save.encode_some(1):  # and the encoding over several
                if self.rng.random() < 0.5:
                    yield
            yield
            yield from self._commit_rows(job.puts)
            engine.saved(job)
            self.counts["saves"] += 1
            for file_id in engine.ledger.droppable():
                self.disk.files.remove(file_id)
                yield
                engine.ledger.dropped(file_id)
                self.counts["dropped_files"] += 1

    def _commit_rows(self, puts: Mapping[bytes, bytes | None]) -> Work:
        """One commit of the table, repeated until the disk has room for it."""
        while True:
            try:
                self.disk.table.commit(puts)
            except StorageFull:
                self.counts["disk_full"] += 1
                self.disk.table_full = self.rng.random() < 0.7
                yield
                continue
            yield
            return

    def _rewrite(self) -> Work:
        ledger, files = self.engine.ledger, self.disk.files
        while (file_id := ledger.rewrite_candidate()) is not None:
            rewrite = ledger.plan_rewrite(file_id)
            yield
            while not rewrite.done:
                rewrite.read(files)
                yield
                rewrite.choose(ledger)
                yield
                try:
                    rewrite.write(files, transform)
                except StorageFull:  # repeat it when there is room, or give up: what was copied counts
                    self.make_room()
                    if self.rng.random() < 0.5:
                        ledger.rewritten(rewrite)
                        return
                yield
            ledger.rewritten(rewrite)
            self.counts["rewritten_segments"] += len(rewrite.sources)
            yield
            yield from self._save()

    def _prepare(self) -> Work:
        preparation = self.engine.ledger.prepare()
        if preparation is None:
            return
        yield
        try:
            perform_preparation(preparation, self.disk.files)
        except StorageFull:  # no commit waits for it: asked for again later
            self.make_room()
            self.engine.ledger.preparation_failed(preparation)
            return
        yield
        self.engine.ledger.prepared(preparation)

    # ------------------------------------------------------------------ the end of the power

    def crash(self) -> None:
        """Lose memory, and of the disk what was not synced."""
        self.counts["crashes"] += 1
        self.disk.crash(self.rng)
        self._forget()

    def kill(self) -> None:
        """End the process: what was written stays written, synced or not."""
        self.counts["kills"] += 1
        self.disk.kill()
        self._forget()

    def _forget(self) -> None:
        self._commit = None
        self._work = {}
        self._saving = False

    def write_without_sync(self) -> None:
        """Let a commit that was begun reach the disk's cache and no further, so that a crash may tear it."""
        if self._commit is not None and not self._performed and self._commit.create is None:
            with suppress(StorageFull):  # then a part of it has
                self.disk.files.write(self._commit.file, self._commit.offset, self._commit.buffers)

    @property
    def is_writing(self) -> bool:
        """Whether a commit has begun that is not on the disk yet."""
        return self._commit is not None and not self._performed

    @property
    def unsaved(self) -> bool:
        """Whether a restart would have a record of this life to replay."""
        return bool(self.commits) and self.engine.ledger.saved_position < position_at(*self.commits[-1][:2])

    def durable_records(self) -> list[tuple[int, int, int]]:
        """Records of this life that are durable and that a restart must replay: damage to any of them is refused."""
        row = SealedTable(self.disk.table).get(JOURNAL_KEY)
        saved = 0 if row is None else decode_journal(row).position
        return [record for record in self.commits if position_at(record[0], record[1]) >= saved]

    # ------------------------------------------------------------------ reading

    def has_decayed(self, set_id: int, index: int) -> bool:
        """Whether an entry has rotted where it lies."""
        return self.engine.ledger.locate(set_id, index)[:2] in self.decayed

    def explain(self, set_id: int, error: StorageDamaged) -> None:
        """Told of damage: there is none but what was done to the disk."""
        place = error.details.get("file"), error.details.get("offset")
        if place not in self.decayed and set_id not in self.spoiled:
            raise Broken("damage from nowhere", set_id, error.message)

    def read(self, set_id: int, ref: BatchRef) -> Mapping[int, bytes]:
        """The messages of a stored batch by offset. It must be there: somebody may ask for it. StorageDamaged: it was,
        and has rotted; the damage is noted, as it is by every reader.
        """
        return _values_of(self._payload(set_id, ref), ref.base_offset)

    def _payload(self, set_id: int, ref: BatchRef) -> bytes:
        payload = self.engine.payload_from_memory(set_id, ref.index)
        if payload is not None:
            return payload
        for _ in range(_READ_ATTEMPTS):
            try:
                location = self.engine.ledger.locate(set_id, ref.index)
                return read_entry(self.disk.files, location)
            except FileMissing:
                continue  # a rewrite moved it since the look-up
            except (KeyError, LannerError) as error:
                if isinstance(error, StorageDamaged) and location[:2] in self.decayed:
                    self.engine.damages.note(set_id, ref.index, error)
                    raise
                raise Broken(
                    "message cannot be read", set_id, f"the batch at offset {ref.base_offset}: {error}"
                ) from error
        raise Broken("message cannot be read", set_id, f"the file of the batch at offset {ref.base_offset} is gone")


@lru_cache(maxsize=1_024)
def _values_of(payload: bytes, base_offset: int) -> Mapping[int, bytes]:
    """The messages of a stored batch by offset; the same batches are read again and again."""
    decoded = batch.decode(payload[batch_start(payload) :])
    positions = decoded.positions if decoded.positions is not None else range(decoded.count)
    return {base_offset + place: value for place, value in zip(positions, decoded.values(), strict=True)}


_BEGIN: Final[dict[str, Callable[[SimBroker], Work]]] = {
    "save": SimBroker._save,
    "rewrite": SimBroker._rewrite,
    "prepare": SimBroker._prepare,
}
