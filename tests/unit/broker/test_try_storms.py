"""Tries in bad weather, all from a seed: brokers fall, stand still and wake up believing that they lead, parts of the
network are silent, writers repeat themselves, take each other's place and forget what they began.

Nobody is asked what happened: outcomes are read off every copy of the metadata as they come, and compared. When the
weather has passed, everything that was committed shows on every partition once, and nothing else shows anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from lanner import batch
from lanner.broker.attendant import Attendant
from lanner.cluster import METADATA_SET, Begun, Cluster, Try, encode_begin_try, encode_claim_transaction
from lanner.errors import LannerError
from lanner.ledger import read_entry
from lanner.partition import StageNote, batch_start, encode_stage
from lanner.raft import Message
from lanner.testing.flock import Broker, Flock

NAMES = ("t", "u")
PARTITIONS = 3
STEPS = 120


class Piece:
    """One commit: what it is called, and what of it should show on each set."""

    def __init__(self, number: int, name: str, owner: str, sequence: int, sets: tuple[int, ...]) -> None:
        self.number, self.name, self.owner, self.sequence, self.sets = number, name, owner, sequence, sets
        self.commit_id = number.to_bytes(16, "big")
        self.token = 0

    def attempt(self, set_id: int) -> bytes:
        return (1_000 * self.number + set_id).to_bytes(16, "big")

    def values(self, set_id: int) -> list[bytes]:
        return [b"%d/%d/%d" % (self.number, set_id, stage) for stage in range(2)]


class Storm(Flock):
    def __init__(self, seed: int) -> None:
        super().__init__("abc", seed=seed, tail_entries=60)
        self.rng = Random(seed)
        self.sets = self.create_topic("orders", partitions=PARTITIONS)
        self.pieces: dict[bytes, Piece] = {}
        self.owners = dict.fromkeys(NAMES, "a")
        self.next_sequence = dict.fromkeys(NAMES, 0)
        self.outcomes: dict[bytes, bool] = {}  # commit id → whether it is committed
        self.still: list[Broker] = []  # brokers that stand still
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ writers

    def leader_by_its_own_word(self, set_id: int) -> Broker | None:
        """Anybody who believes to lead; after a fall there may be two."""
        found = [broker for broker in self.up() if broker.leads(set_id)]
        return self.rng.choice(found) if found else None

    def begin_piece(self, *wanted: int) -> None:
        """Stage on some partitions and ask for the commit; either may fail."""
        name, rng = self.rng.choice(NAMES), self.rng
        if rng.random() < 0.7:
            self.next_sequence[name] += rng.random() < 0.7
        sets = tuple(sorted({*wanted, *rng.sample(self.sets, rng.randint(1, PARTITIONS))}))
        piece = Piece(len(self.pieces) + 1, name, self.owners[name], self.next_sequence[name], sets)
        self.pieces[piece.commit_id] = piece
        for set_id in sets:
            for number, value in enumerate(piece.values(set_id)):
                note = StageNote(name, piece.owner, piece.sequence, 0, piece.attempt(set_id), number, 3_600_000)
                self.ask(set_id, encode_stage(self.now_ms, note, batch.encode([value])))
            self.settle()
        self.ask_to_begin(piece)

    def ask(self, set_id: int, payload: bytes, told: Callable[[Any], None] = lambda _result: None) -> None:
        leader = self.leader_by_its_own_word(set_id)
        if leader is not None:
            try:
                leader.engine.propose(set_id, payload, told)
            except LannerError:
                self.counts["refused"] += 1

    def ask_to_begin(self, piece: Piece) -> None:
        numbers = [self.sets.index(set_id) for set_id in piece.sets]
        timeout_ms = self.rng.choice((1_000, 5_000, 60_000))
        command = encode_begin_try(
            piece.name,
            piece.owner,
            piece.sequence,
            piece.commit_id,
            [("orders", 1, numbers)],
            timeout_ms=timeout_ms,
            now_ms=self.now_ms,
        )

        def told(result: Any) -> None:
            if isinstance(result, Begun):
                piece.token = result.token

        self.ask(METADATA_SET, command, told)
        self.settle()

    def prepare_some(self) -> None:
        """One of the latest commits, or one from long ago, at a broker that believes it leads."""
        begun = [piece for piece in self.pieces.values() if piece.token]
        if not begun:
            return
        piece = self.rng.choice(begun[-3:] if self.rng.random() < 0.9 else begun)
        self.prepare(piece, [set_id for set_id in piece.sets if self.rng.random() < 0.85])
        if self.rng.random() < 0.7:
            self.settle()

    def prepare(self, piece: Piece, set_ids: Iterable[int]) -> None:
        for set_id in set_ids if piece.token else ():
            leader = self.leader_by_its_own_word(set_id)
            if leader is not None:
                try:
                    manifest = [(0, piece.attempt(set_id), 2)]
                    leader.tries.prepare(set_id, piece.token, manifest, lambda _answer, _index: None)
                except LannerError:
                    self.counts["not prepared"] += 1

    def repeat(self) -> None:
        if self.pieces:
            self.ask_to_begin(self.rng.choice(list(self.pieces.values())[-4:]))

    def claim(self) -> None:
        name = self.rng.choice(NAMES)
        owner = "b" if self.owners[name] == "a" else "a"

        def told(result: Any) -> None:
            if not isinstance(result, LannerError):
                self.owners[name] = owner

        self.ask(METADATA_SET, encode_claim_transaction(name, owner, restart=False, now_ms=self.now_ms), told)

    # ------------------------------------------------------------------ weather

    def fall(self) -> None:
        if len(self.up()) == 3:
            self.rng.choice(self.up()).stop()

    def stand_still(self) -> None:
        if len(self.up()) == 3:
            broker = self.rng.choice(self.up())
            broker.up = False
            self.still.append(broker)

    def get_up(self) -> None:
        """A broker that stood still goes on as if nothing had happened; one that fell begins anew."""
        for broker in self.brokers.values():
            if broker in self.still:
                broker.up = True
            elif not broker.up:
                broker.start()
        self.still.clear()

    def wake_up_deaf(self) -> None:
        """A leader stands still, is replaced, and wakes up hearing everything but the set that it led; in between
        a commit comes to its outcome. What it believes then is the most wrong that anybody can be."""
        self.get_up()
        self.clear_up()
        set_id = self.rng.choice(self.sets)
        leader = self.leader_of(set_id)
        if leader is None:
            return
        leader.up = False
        self.still.append(leader)
        self.pass_time(self.rng.choice((40, 80)))
        self.begin_piece(set_id)
        piece = list(self.pieces.values())[-1]
        self.prepare(piece, [set_id])
        self.settle()
        self.lost = lambda other, _message: other == set_id
        if self.rng.random() < 0.8:
            self.prepare(piece, piece.sets)
        self.settle()
        leader.up = True
        self.still.clear()
        self.pass_time(self.rng.choice((1, 2, 5, 25)))

    def silence(self) -> None:
        """The messages of some sets are lost, for a while; of some, only those to one broker."""
        quiet = set(self.rng.sample((METADATA_SET, *self.sets), self.rng.randint(1, 2)))
        receiver = self.rng.choice((0, 1, 2, 3))

        def lost(set_id: int, message: Message) -> bool:
            return set_id in quiet and receiver in (0, message.receiver)

        self.lost = lost

    def clear_up(self) -> None:
        self.lost = lambda _set_id, _message: False

    def save(self) -> None:
        for broker in self.up():
            broker.save()

    def wait(self) -> None:
        self.pass_time(self.rng.choice((1, 3, 10, 40)))

    # ------------------------------------------------------------------ what is seen

    def look(self) -> None:
        for broker in self.brokers.values():
            self.compare(broker.cluster)

    def compare(self, copy: Cluster) -> None:
        for name in NAMES:
            row = copy.transaction(name)
            for ended in () if row is None else row.ended:
                before = self.outcomes.setdefault(ended.commit_id, ended.committed)
                assert before == ended.committed, f"the outcome of commit {ended.commit_id.hex()} changed"

    def shown(self, broker: Broker, set_id: int) -> list[bytes]:
        found: list[bytes] = []
        for ref in broker.replica(set_id).partition.batches_from(0, 1 << 40):
            payload = read_entry(broker.files, broker.engine.ledger.locate(set_id, ref.index))
            found += batch.decode(payload[batch_start(payload) :]).values()
        return found

    def at_rest(self) -> bool:
        if any(self.leader_of(set_id) is None for set_id in (METADATA_SET, *self.sets)) or self.metadata.tries():
            return False
        if any(len(broker.held()) < PARTITIONS for broker in self.up()):
            return False
        applied = {broker.cluster.applied_index for broker in self.up()}
        ends = [{self.count(broker, set_id) for broker in self.up()} for set_id in self.sets]
        prepared = [broker.replica(set_id).partition.prepared() for broker in self.up() for set_id in self.sets]
        return len(applied) == 1 and all(len(end) == 1 for end in ends) and not any(prepared)

    def run(self) -> None:
        for _ in range(STEPS):
            getattr(self, self.rng.choice(ACTS))()
            self.look()
        self.get_up()
        self.clear_up()
        self.until(self.at_rest)
        self.look()
        expected: dict[int, list[bytes]] = {set_id: [] for set_id in self.sets}
        for commit_id, committed in self.outcomes.items():
            piece = self.pieces[commit_id]
            self.counts["committed" if committed else "aborted"] += 1
            for set_id in piece.sets if committed else ():
                expected[set_id] += piece.values(set_id)
        done = [
            (piece.name, piece.sequence) for piece in self.pieces.values() if self.outcomes.get(piece.commit_id, False)
        ]
        assert len(set(done)) == len(done), "a sequence was committed twice"
        for broker in self.up():
            for set_id in self.sets:
                assert sorted(self.shown(broker, set_id)) == sorted(expected[set_id]), f"set {set_id} on {broker.name}"


ACTS = (
    *("begin_piece",) * 5,
    *("prepare_some",) * 8,
    *("repeat",) * 2,
    "claim",
    "fall",
    *("stand_still",) * 2,
    *("get_up",) * 3,
    "wake_up_deaf",
    *("silence",) * 2,
    *("clear_up",) * 2,
    "save",
    *("wait",) * 6,
)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_committed_shows_everywhere_once_and_nothing_else_shows(seed: int) -> None:
    Storm(seed).run()


def test_both_outcomes_come_about() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4):
        storm = Storm(seed)
        storm.run()
        counts += storm.counts
    assert min(counts["committed"], counts["aborted"]) >= 4


def test_a_done_that_only_means_that_nothing_is_prepared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = Attendant._attend

    class Forgetful:
        """A copy that does not say when a try was committed, so that every partition has acted on it."""

        def __init__(self, copy: Cluster) -> None:
            self._copy = copy
            self.applied_index = copy.applied_index

        def tries_on(self, set_id: int) -> dict[int, Try]:
            return {token: replace(one, decided_index=0) for token, one in self._copy.tries_on(set_id).items()}

    def planted(self: Attendant, copy: Any, set_id: int) -> None:
        attend(self, Forgetful(copy), set_id)  # type: ignore[arg-type]

    monkeypatch.setattr(Attendant, "_attend", planted)
    with pytest.raises(AssertionError, match="set "):
        for seed in range(10):
            Storm(seed).run()
