"""Three engines and a newcomer, tiny tails, a network that loses and reorders, disks that lose power, all from a seed.

Commits, saves and pieces take several steps, and anything may come between. What any machine applied is compared over
all brokers and lives; when the faults end, everything acknowledged is on every broker, byte for byte, and readable.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from lanner import batch
from lanner.broker.replicas import snapshots
from lanner.broker.replicas.engine import Engine, Seat
from lanner.broker.replicas.installs import Incoming
from lanner.broker.replicas.snapshots import Piece, Reply, SnapshotSender, decode, encode
from lanner.errors import LannerError
from lanner.ledger import FileMissing, Ledger, read_entry
from lanner.ledger.books import Books
from lanner.model import TopicSettings
from lanner.partition import Appended, Poll, Settle, batch_start, encode_append
from lanner.raft import Change, Membership, Message, RaftNode
from lanner.testing.clock import SimClock
from lanner.testing.disk import PowerLost
from lanner.testing.sim_broker import Broken, SimBroker, Witness

FOUNDERS = frozenset({1, 2, 3})
NEWCOMER = 4
NUMBERS = (1, 2, 3, NEWCOMER)
SET = 1
SETTINGS = TopicSettings(retention_ms=60_000, lease_ms=40_000)


class Storm:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = SimClock()
        self.witness = Witness()  # one for all: what any of them applied, each must apply
        self.acknowledged: dict[int, bytes] = {}
        self.network: list[tuple[int, tuple[int, Message] | bytes]] = []
        self.faults = True
        self.counts: Counter[str] = Counter()
        self.brokers = {number: Member(self, number) for number in NUMBERS}
        self.cut: set[int] = set()

    def send(self, receiver: int, value: tuple[int, Message] | bytes) -> None:
        if self.faults and self.rng.random() < 0.03:
            return
        self.network.append((receiver, value))
        if self.faults and self.rng.random() < 0.03:
            self.network.append((receiver, value))

    def deliver(self) -> None:
        place = self.rng.randrange(min(len(self.network), 6)) if self.faults and self.rng.random() < 0.2 else 0
        receiver, value = self.network.pop(place)
        if receiver in self.cut:
            return
        self.brokers[receiver].hear(value)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            chance = self.rng.random()
            broker = self.brokers[self.rng.choice(NUMBERS)]
            try:
                if self.network and chance < 0.45:
                    self.deliver()
                elif chance < 0.998:
                    broker.step()
                elif self.faults:
                    self.trouble(broker)
            except PowerLost:
                for member in self.brokers.values():
                    if member.disk.is_off:
                        member.crash()

    def trouble(self, broker: Member) -> None:
        chance = self.rng.random()
        if chance < 0.6:
            self.cut = {self.rng.choice(NUMBERS)} if not self.cut else set()
        elif chance < 0.7:
            broker.crash()
        else:
            broker.disk.crash_in(self.rng.randint(1, 30))

    def finish(self) -> None:
        self.faults = False
        self.cut = set()
        for broker in self.brokers.values():
            broker.disk.crash_in(None)
        for _ in range(400):
            self.run(400)
            for broker in self.brokers.values():
                if broker.replica.leads and NEWCOMER not in broker.replica.node.voters:
                    broker.change_membership()
            if self.converged():
                return
        raise AssertionError(f"no convergence: {[broker.engine.status(SET) for broker in self.brokers.values()]}")

    def converged(self) -> bool:
        nodes = [broker.replica.node for broker in self.brokers.values()]
        last = max(node.last_index for node in nodes)
        led = any(node.own_term_applied and NEWCOMER in node.voters for node in nodes)
        return led and all(node.applied_index == last for node in nodes)


class Member(SimBroker):
    """One broker, taken apart into small steps."""

    def __init__(self, storm: Storm, number: int) -> None:
        super().__init__(storm.rng, storm.clock)
        self.storm, self.number, self.witness = storm, number, storm.witness
        self.start()

    def start(self) -> None:
        ledger = Ledger.recover(self.disk.files, self.disk.table, random_bytes=self.rng.randbytes, segment_bytes=8_192)
        self.engine = Engine(
            ledger,
            self.disk.files,
            rng=self.rng,
            now_ms=self.clock.now_ms,
            cache_bytes=1,
            tail_entries=4,
            tail_bytes_max=3_000,
        )
        self.engine.settings[SET] = SETTINGS
        self.replica = self.engine.open_set(SET, Seat(self.number, FOUNDERS))
        self.witness.watch(self.replica)

    def crash(self) -> None:
        self.storm.counts["installs"] += self.engine.installs.completed
        self.storm.counts["abandoned"] += self.engine.installs.abandoned + (SET in self.engine.installs)
        while True:
            super().crash()
            try:
                self.start()
                break
            except PowerLost:
                pass
        self.engine.ledger.check()

    def hear(self, value: tuple[int, Message] | bytes) -> None:
        if isinstance(value, bytes):
            self.engine.step_snapshot(decode(value))
        else:
            self.engine.step(*value)

    def step(self) -> None:
        chance = self.storm.rng.random()
        if chance < 0.45:
            self.step_commit()
        elif chance < 0.58:
            self.step_work("save")
        elif chance < 0.62:
            self.step_work("rewrite")
        elif chance < 0.82:
            self.engine.tick()
            self.clock.advance(50)
        elif self.replica.leads and self.storm.faults:
            self.use()
        self.talk()

    def talk(self) -> None:
        for set_id, message in self.engine.take_messages():
            self.storm.send(message.receiver, (set_id, message))
        values: list[Piece | Reply] = list(self.engine.take_replies())
        for unread in self.engine.take_unread_pieces():
            try:
                values.append(unread.load(self.disk.files))
            except FileMissing:
                self.engine.sending.retry(unread)
        for value in values:
            self.storm.send(value.receiver, encode(value))

    def use(self) -> None:
        rng, engine = self.storm.rng, self.engine
        try:
            chance = rng.random()
            if chance < 0.01:
                self.change_membership()
            elif chance < 0.7:
                values = [rng.randbytes(rng.choice((3, 200))) for _ in range(rng.randint(1, 4))]

                def told(result: Any) -> None:
                    if isinstance(result, Appended):
                        for place, value in enumerate(values):
                            self.storm.acknowledged[result.base_offset + place] = value

                engine.propose(SET, encode_append(self.clock.now_ms(), batch.encode(values)), told)
            else:
                engine.ask(SET, Poll("g", "m", rng.randrange(1 << 40), max_messages=rng.randint(1, 9)), self.polled)
        except LannerError:
            pass
        self.clock.advance(rng.choice((0, 0, 1_000, 5_000)))

    def change_membership(self) -> None:
        """The newcomer learns, is promoted, and demoted again."""
        node = self.replica.node
        if NEWCOMER in node.learners:
            step = Change.PROMOTE
        else:
            step = Change.DEMOTE if NEWCOMER in node.voters else Change.ADD_LEARNER
        try:
            node.change_membership(step, NEWCOMER)
            self.engine.step(
                SET, Message(kind=0, sender=0, receiver=0, term=0)
            )  # to nobody: it only makes the engine look at the replica
        except LannerError:
            pass

    def polled(self, answer: Any, index: int) -> None:
        leases = getattr(answer, "leases", ())
        token = getattr(answer, "token", None) or index
        items = [
            (token, lease.first_offset, 1, self.storm.rng.choice((1, 2)), 100, "")
            for lease in leases
            if self.storm.rng.random() < 0.6
        ]
        if items:
            self.engine.ask(SET, Settle("g", items), lambda _answer, _index: None)

    def values(self) -> dict[int, bytes]:
        """Every message that the partition holds, from the disk."""
        partition = self.replica.partition
        found = {}
        batches = {partition.batch_at(offset) for offset in range(partition.end_offset)}
        for ref in sorted(ref for ref in batches if ref is not None):
            payload = read_entry(self.disk.files, self.engine.ledger.locate(SET, ref.index))
            decoded = batch.decode(payload[batch_start(payload) :])
            places = decoded.positions if decoded.positions is not None else range(decoded.count)
            for place, value in zip(places, decoded.values(), strict=True):
                if ref.kept is None or place in ref.kept:
                    found[ref.base_offset + place] = value
        return found


def weather(seed: int, steps: int) -> Storm:
    storm = Storm(seed)
    storm.run(steps)
    storm.finish()
    first, *others = storm.brokers.values()
    held = first.values()
    for offset, value in storm.acknowledged.items():
        assert offset < first.replica.partition.end_offset
        assert held.get(offset, value) == value
        assert offset < first.replica.partition.first_offset or offset in held
    for broker in storm.brokers.values():
        broker.replica.partition.check()
        broker.engine.ledger.check()
        storm.counts["installs"] += broker.engine.installs.completed
        storm.counts["abandoned"] += broker.engine.installs.abandoned
    for other in others:
        assert other.replica.partition.all_rows() == first.replica.partition.all_rows()
        assert other.values() == held
        assert (other.replica.node.voters, other.replica.node.learners) == (set(NUMBERS), set())
    return storm


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 500)
    monkeypatch.setattr(snapshots, "PIECE_ROWS_BYTES", 300)
    monkeypatch.setattr(snapshots, "SCAN_ROWS", 2)
    monkeypatch.setattr(snapshots, "RESEND_TICKS", 15)
    monkeypatch.setattr(snapshots, "SILENT_TICKS_MAX", 90)
    monkeypatch.setattr("lanner.broker.replicas.installs.SILENT_TICKS_MAX", 120)


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_while_snapshots_travel_nothing_acknowledged_is_lost(seed: int) -> None:
    storm = weather(seed, 12_000)
    assert storm.counts["installs"] > 0 and len(storm.acknowledged) > 20


def half_built(incoming: Incoming) -> bool:
    return incoming.last_index > 0 and not (incoming.storing or incoming.entries or incoming.rows)


announce = RaftNode.snapshot_message


def forget_members(node: RaftNode, peer: int, index: int) -> Message:
    message = announce(node, peer, index)
    founders = Membership(FOUNDERS, frozenset()).encode()
    return replace(message, entries=(message.entries[0]._replace(payload=founders),))


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (Incoming, "complete", property(half_built)),
        (SnapshotSender, "holds", lambda _self, _set_id: False),
        (Books, "discard_builds", lambda self: [self.flip(SET, build.state.generation) for build in self.builds]),
        (RaftNode, "snapshot_message", forget_members),
    ],
    ids=["flips half built", "rows of several moments", "a start takes what was half built", "forgets the members"],
)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: Any) -> None:
    monkeypatch.setattr(owner, name, planted)
    for seed in range(30):
        try:
            weather(seed, 12_000)
        except (AssertionError, Broken, KeyError, ValueError):
            return
    pytest.fail("thirty seeds have not noticed it")
