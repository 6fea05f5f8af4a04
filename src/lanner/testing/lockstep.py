"""Brokers in one process that move in lockstep: nothing happens by itself, and nothing is left to chance.

What an engine asks of its shell is done here without threads, sockets and clocks: commits are written, tables saved,
messages carried as bytes, all within `settle`, and time passes only by `pass_time`. Nothing is lost unless a test says
so. `Engines` are engines alone, whose sets the caller opens; `flock` puts the rest of a broker above them. Where time,
faults and the order of events should come from a seed, take `sim_cluster`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, Generic, TypeVar

from lanner import batch
from lanner.broker.replicas.engine import Engine, Seat
from lanner.broker.replicas.replica import Replica
from lanner.broker.replicas.snapshots import Piece, Reply, decode, encode
from lanner.ledger import Files, Ledger, Table, perform
from lanner.partition import encode_append
from lanner.raft import Message, decode_message, encode_message
from lanner.storage import MemoryFiles, MemoryTable

START_MS: Final = 1_000_000
SEGMENT_BYTES: Final = 1 << 16
_STEPS_MAX: Final = 10_000
_TICKS_MAX: Final = 2_000


class EngineBroker:
    """One engine and its disk. The disk survives a start; what was not saved is replayed."""

    clocks: Callable[[], int] | None = None  # what time others have, as far as anybody says
    closes_damaged = False  # else a start refuses a damaged disk

    def __init__(
        self,
        name: str,
        files: Files | None = None,
        table: Table | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        **bounds: int,
    ) -> None:
        """`bounds` are those of the engine."""
        self.name, self.segment_bytes, self.bounds = name, segment_bytes, bounds
        self.files = MemoryFiles() if files is None else files
        self.table = MemoryTable() if table is None else table
        self.now_ms = START_MS
        self.lives = 0
        self.engine: Engine

    def start(self) -> None:
        """Recover from the disk, with nothing in memory."""
        self.lives += 1
        rng = self.rng()
        ledger = Ledger.recover(
            self.files,
            self.table,
            random_bytes=rng.randbytes,
            segment_bytes=self.segment_bytes,
            close_damaged=self.closes_damaged,
        )
        self.engine = Engine(ledger, self.files, rng=rng, now_ms=self.leader_ms, clocks=self.clocks, **self.bounds)

    def rng(self) -> Random:
        """The chance of this life."""
        return Random(f"{self.name}/{self.lives}")

    def leader_ms(self) -> int:
        return self.now_ms

    def work(self) -> None:
        """Store and apply all there is to; save when an install waits for it."""
        while self.commit():
            pass
        if self.engine.installs.save_wanted:
            self.save()

    def commit(self) -> bool:
        """Carry out the next commit, if there is one."""
        commit = self.engine.pump()
        if commit is None:
            return False
        perform(commit, self.files)
        self.engine.committed(commit)
        return True

    def save(self) -> None:
        """Bring the table up to date, and drop the files that nobody needs then."""
        job = self.engine.begin_save()
        if job is None:
            return
        while self.engine.save_step(job):
            pass
        self.table.commit(job.puts)
        self.engine.saved(job)
        for file_id in self.engine.ledger.droppable():
            self.files.remove(file_id)
            self.engine.ledger.dropped(file_id)

    def replica(self, set_id: int) -> Replica:
        return self.engine.replica(set_id)

    def leads(self, set_id: int) -> bool:
        return set_id in self.engine.replicas and self.replica(set_id).leads

    def publish(self, set_id: int, *values: bytes, priority: int = 4) -> list[Any]:
        """Publish a batch; what its publisher is told goes into the list."""
        told: list[Any] = []
        data = batch.encode(list(values), priority=priority)
        self.engine.propose(set_id, encode_append(self.leader_ms(), data), told.append)
        return told

    def ask(self, set_id: int, request: Any) -> list[Any]:
        """Ask the partition's leader; what it answers goes into the list, with the index of the decision."""
        told: list[Any] = []
        self.engine.ask(set_id, request, lambda answer, index: told.append((answer, index)))
        return told


Each = TypeVar("Each", bound=EngineBroker)


class Lockstep(ABC, Generic[Each]):
    """Several of them, and what they say to each other."""

    @abstractmethod
    def up(self) -> list[Each]:
        """Those that work and hear."""

    @abstractmethod
    def receiver(self, sender: Each, set_id: int, replica_id: int) -> Each | None:
        """Who has a replica, if the sender reaches it."""

    def reachable(self) -> list[Each]:
        """Those that callers reach."""
        return self.up()

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(_STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("they never stop talking")

    def step(self) -> bool:
        """Everybody works, and hears what the others said; whether anybody said anything."""
        spoken = False
        for broker in self.up():
            broker.work()
            spoken = self.tell(broker) or spoken
        return spoken

    def tell(self, broker: Each) -> bool:
        """Carry what a broker has to say; whether it was anything."""
        messages = broker.engine.take_messages()
        for set_id, message in messages:
            self.carry(broker, set_id, message)
        values: list[Piece | Reply] = [unread.load(broker.files) for unread in broker.engine.take_unread_pieces()]
        values += broker.engine.take_replies()
        for value in values:
            self.carry_snapshot(broker, value)
        return bool(messages or values)

    def carry(self, sender: Each, set_id: int, message: Message) -> None:
        receiver = self.receiver(sender, set_id, message.receiver)
        if receiver is not None:
            self.hear(receiver, sender, set_id, decode_message(b"".join(encode_message(message))))

    def hear(self, receiver: Each, sender: Each, set_id: int, message: Message) -> None:
        receiver.engine.step(set_id, message)

    def carry_snapshot(self, sender: Each, value: Piece | Reply) -> None:
        receiver = self.receiver(sender, value.set_id, value.receiver)
        if receiver is not None:
            receiver.engine.step_snapshot(decode(encode(value)))

    def pass_time(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.tick()
            self.settle()

    def tick(self) -> None:
        for broker in self.up():
            broker.engine.tick()

    def until(self, condition: Callable[[], bool], ticks: int = _TICKS_MAX) -> None:
        for _ in range(ticks):
            if condition():
                return
            self.pass_time()
        raise AssertionError("it never comes true")

    def leader_of(self, set_id: int) -> Each | None:
        """Who leads a set; of several the one in the latest term."""
        leaders = [broker for broker in self.reachable() if broker.leads(set_id)]
        return max(leaders, key=lambda broker: broker.replica(set_id).node.term) if leaders else None


class EnginePeer(EngineBroker):
    """One of `Engines`. Its number is the id of its replica of every set."""

    def __init__(
        self,
        number: int,
        founders: frozenset[int],
        set_ids: Iterable[int],
        files: Files | None = None,
        table: Table | None = None,
        **bounds: int,
    ) -> None:
        super().__init__(str(number), files, table, **bounds)
        self.number, self.founders, self.set_ids = number, founders, tuple(set_ids)
        self.start()

    def start(self) -> None:
        super().start()
        for set_id in self.set_ids:
            self.engine.open_set(set_id, Seat(self.number, self.founders))


EachPeer = TypeVar("EachPeer", bound=EnginePeer)


class Engines(Lockstep[EachPeer]):
    """Engines alone; those in `down` neither work nor hear anything, and forget nothing."""

    def __init__(self, peers: Iterable[EachPeer]) -> None:
        self.all = {peer.number: peer for peer in peers}
        self.down: set[int] = set()

    def up(self) -> list[EachPeer]:
        return [peer for number, peer in self.all.items() if number not in self.down]

    def receiver(self, sender: EachPeer, set_id: int, replica_id: int) -> EachPeer | None:
        return None if replica_id in self.down else self.all[replica_id]

    def elect(self, set_id: int) -> EachPeer:
        """Let time pass until a set has a leader."""
        self.pass_time()
        self.until(lambda: self.leader_of(set_id) is not None)
        leader = self.leader_of(set_id)
        assert leader is not None
        return leader
