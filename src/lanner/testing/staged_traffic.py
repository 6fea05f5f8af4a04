"""Writers of staged publish in a simulation: they stage, begin, prepare, look, give up, come back and never learn.

A writer works on one sequence of one transaction after the other. Each *round* stages under new attempts, as the tasks
of a job would, and commits them. A writer that dies leaves a zombie, which goes on from where it stood, while its
successor does the same work again; another owner may claim the transaction in the middle of it. Whatever was ever sent
may be sent again, much later. Every answer that a writer gets is given to the judge.

Calls go through a port: to one broker, or to a cluster in which they may be lost.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from lanner import batch
from lanner.cluster import (
    Begun,
    Cluster,
    CommitEnded,
    Repeated,
    encode_abort_commit,
    encode_begin_try,
    encode_claim_transaction,
)
from lanner.errors import (
    FenceConflict,
    LannerError,
    SequencePassed,
    StageExpired,
    TopicFull,
    TransactionUnknown,
    ValidationError,
)
from lanner.partition import DropStages, Staged, StageNote
from lanner.testing.parties import LOST
from lanner.testing.staged_checkers import Round, StagedJudge, StagedName

TOPIC: Final = "staged"
_TRANSACTIONS: Final = ("bills", "mails")
_REMEMBERED: Final = 60  # calls that may come again
_ZOMBIES_MAX: Final = 3
_LOOKS_MAX: Final = 40  # then it begins once more, which tells the same

Told = Callable[[Any], None]


def takes_part(seed: int) -> bool:
    """Whether writers stage in the runs of a seed. Not in all: a run without them is another run."""
    return seed % 3 == 2


def value_of(name: StagedName, message: int) -> bytes:
    return f"staged|{name.attempt}|{name.set_id}|{name.number}|{message}".encode()


def name_in(value: bytes) -> StagedName | None:
    """Which staged batch a message belongs to; None: it was published as any other."""
    if not value.startswith(b"staged|"):
        return None
    _, attempt, set_id, number, _ = value.decode().split("|")
    return StagedName(attempt, int(set_id), int(number))


class StagedPort(Protocol):
    """The broker or cluster that writers call. Each call is told once what came of it, or that nobody knows (LOST)."""

    def change(self, command: bytes, told: Told) -> None: ...
    def stage(self, set_id: int, note: StageNote, data: bytes, told: Told) -> None: ...
    def append(self, set_id: int, data: bytes, told: Told) -> None: ...
    def prepare(self, set_id: int, token: int, manifest: list[tuple[int, bytes, int]], told: Told) -> None: ...
    def drop(self, set_id: int, request: DropStages, told: Told) -> None: ...
    def copy(self) -> Cluster | None: ...
    def now_ms(self) -> int: ...


class _Begun(NamedTuple):
    """What a round that has begun has sent to its partitions."""

    token: int
    manifests: dict[int, list[tuple[int, bytes, int]]]
    staged: dict[int, list[tuple[StageNote, bytes]]]


@dataclass(slots=True)
class Writer:
    """One who writes, from the moment it came to the moment it is told to stop."""

    name: str
    transaction: str
    owner: str
    sequence: int
    zombie: bool = False
    busy: bool = False  # waits for an answer
    phase: str = "new"
    round: Round | None = None
    token: int = 0
    looks: int = 0
    unstaged: deque[tuple[StagedName, StageNote, bytes]] = field(default_factory=deque)
    sent: dict[int, list[tuple[StageNote, bytes]]] = field(default_factory=dict)
    manifests: dict[int, list[tuple[int, bytes, int]]] = field(default_factory=dict)
    unprepared: set[int] = field(default_factory=set)
    participants: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    stopped: bool = False


class StagedTraffic:
    """All writers of one simulation."""

    def __init__(self, rng: Random, port: StagedPort, judge: StagedJudge) -> None:
        self.rng = rng
        self.judge = judge
        self.counts: Counter[str] = Counter()
        self.writers: list[Writer] = []
        self.set_ids: tuple[int, ...] = ()
        self._port = port
        self._incarnation = 0
        self._made = 0
        self._late: deque[Callable[[], None]] = deque(maxlen=_REMEMBERED)
        self._again: list[Callable[[], None]] = []  # what was refused, and is to be asked again
        self._rounds: deque[_Begun] = deque(maxlen=4)  # the latest that have begun
        self._waiting: dict[int, Told] = {}

    def serve(self, set_ids: tuple[int, ...], incarnation: int) -> None:
        """Begin to use a topic."""
        self.set_ids, self._incarnation = set_ids, incarnation
        self.writers = [self._writer(transaction, "first", 0) for transaction in _TRANSACTIONS]

    def _writer(self, transaction: str, owner: str, sequence: int) -> Writer:
        self._made += 1
        return Writer(f"writer-{self._made}", transaction, owner, sequence)

    # ------------------------------------------------------------------ calls

    def _call(self, make: Callable[[Told], None], told: Told) -> None:
        """Make a call now, and perhaps again at any time, when nobody listens to its answer any more."""
        self._made += 1
        number = self._made
        self._waiting[number] = told

        def answered(result: Any) -> None:
            listener = self._waiting.pop(number, None)
            if listener is not None:
                listener(result)

        self._late.append(lambda: self._try(make, lambda _result: None))
        self._try(make, answered)

    @staticmethod
    def _try(make: Callable[[Told], None], told: Told) -> None:
        try:
            make(told)
        except LannerError as error:
            told(error)

    def crashed(self) -> None:
        """The broker has lost its memory: who waits hears nothing."""
        waiting, self._waiting = self._waiting, {}
        for told in waiting.values():
            told(LOST)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    # ------------------------------------------------------------------ what happens

    def act(self) -> bool:
        """Let some writer go on, or something unforeseen happen; False: nobody could."""
        rng = self.rng
        if self._again:
            self._again.pop(0)()
            return True
        chance = rng.random()
        if chance < 0.06 and self._late:
            self.counts["late_calls"] += 1
            rng.choice(self._late)()
            return True
        if chance < 0.065:
            self._claim()
            return True
        if chance < 0.09:
            self._append()
            return True
        ready = [writer for writer in self.writers if not writer.busy and not writer.stopped]
        if not ready:
            return False
        writer = rng.choice(ready)
        if writer.zombie and rng.random() < 0.5:
            return False
        if chance < 0.1 and not writer.zombie:
            self._die(writer)
            return True
        self._go_on(writer)
        return True

    def repeat(self, token: int, set_id: int) -> None:
        """All that a round has sent to one partition comes once more, long after it was answered."""
        round_ = next((one for one in self._rounds if one.token == token), None)
        if round_ is None:
            return
        self.counts["late_rounds"] += 1
        for note, data in round_.staged[set_id]:
            self._try(partial(self._port.stage, set_id, note, data), lambda _result: None)
        prepare = partial(self._port.prepare, set_id, round_.token, round_.manifests[set_id])
        self._try(prepare, lambda _result: self._try(prepare, lambda _again: None))

    def _append(self) -> None:
        """Others publish meanwhile: nothing holds them back."""
        self._made += 1
        data = batch.encode([f"plain|{self._made}".encode()], priority=self.rng.choice((9, 4, 0)))
        set_id = self.rng.choice(self.set_ids)
        self._call(lambda told: self._port.append(set_id, data, told), lambda _result: None)

    def _die(self, writer: Writer) -> None:
        """It is taken for dead, and another one does its work again from the start; it goes on all the same."""
        successor = self._writer(writer.transaction, writer.owner, writer.sequence)
        writer.zombie = True
        self.writers.append(successor)
        self.counts["replays"] += 1
        zombies = [one for one in self.writers if one.zombie or one.stopped]
        for gone in zombies[:-_ZOMBIES_MAX]:
            self.writers.remove(gone)

    def _claim(self) -> None:
        """Another owner takes a transaction over; the one before it will hear of that in its own time."""
        rng = self.rng
        transaction = rng.choice(_TRANSACTIONS)
        self._made += 1
        owner, restart = f"owner-{self._made}", rng.random() < 0.2
        for writer in self.writers:
            writer.zombie = writer.zombie or writer.transaction == transaction
        now_ms = self._port.now_ms()
        command = encode_claim_transaction(transaction, owner, restart=restart, now_ms=now_ms)

        def ask() -> None:
            self._call(lambda again: self._port.change(command, again), told)

        def told(result: Any) -> None:
            if result is LOST:
                ask()
                return
            if isinstance(result, LannerError):  # who is refused asks later: the broker may be starting
                self._again.append(ask)
                return
            self.counts["claims"] += 1
            self.writers.append(self._writer(transaction, owner, result.latest + 1))
            if len(self.writers) > 8:
                del self.writers[0]

        ask()

    # ------------------------------------------------------------------ one writer

    def _go_on(self, writer: Writer) -> None:
        if writer.phase == "new":
            self._plan(writer)
        elif writer.phase == "staging":
            self._stage(writer)
        elif writer.phase == "begin":
            self._begin(writer)
        elif writer.phase == "prepare":
            self._prepare(writer)
        else:
            self._look(writer)

    def _plan(self, writer: Writer) -> None:
        """A round: what each task stages where, and a loser beside one of them now and then."""
        rng = self.rng
        writer.unstaged.clear()
        writer.sent = {}
        stages: dict[int, list[StagedName]] = {}
        writer.manifests = {}
        hold_ms = rng.choice((400, 3_000, 20_000))
        for task in range(rng.randint(1, 3)):
            loser = rng.random() < 0.15
            for counts in (True, False) if loser else (True,):
                attempt = rng.randbytes(16)
                for set_id in rng.sample(self.set_ids, rng.randint(1, min(2, len(self.set_ids)))):
                    names = [StagedName(attempt.hex(), set_id, number) for number in range(rng.randint(1, 3))]
                    for name in names:
                        note = StageNote(
                            writer.transaction, writer.owner, writer.sequence, task, attempt, name.number, hold_ms
                        )
                        writer.unstaged.append((name, note, self._batch(name)))
                        if counts:
                            writer.sent.setdefault(set_id, []).append((note, writer.unstaged[-1][2]))
                    if counts:
                        stages.setdefault(set_id, []).extend(names)
                        writer.manifests.setdefault(set_id, []).append((task, attempt, len(names)))
        digest = hashlib.blake2b(digest_size=16)
        digest.update(
            repr((writer.transaction, writer.owner, writer.sequence, sorted(writer.manifests.items()))).encode()
        )
        writer.round = Round(writer.transaction, writer.owner, writer.sequence, digest.digest(), stages)
        partitions = tuple(sorted(self.set_ids.index(set_id) for set_id in writer.manifests))
        writer.participants = ((TOPIC, self._incarnation, partitions),)
        writer.unprepared = set(writer.manifests)
        writer.token = writer.looks = 0
        writer.phase = "staging"
        self.judge.meant(writer.round)
        self.counts["rounds"] += 1

    def _batch(self, name: StagedName) -> bytes:
        rng = self.rng
        values = [
            value_of(name, message).ljust(rng.choice((10, 60, 300)), b".") for message in range(rng.randint(1, 3))
        ]
        deliver_at_ms = self._port.now_ms() + 300 if rng.random() < 0.1 else 0
        return batch.encode(values, priority=rng.choice((9, 4, 4, 0)), deliver_at_ms=deliver_at_ms)

    def _stage(self, writer: Writer) -> None:
        if not writer.unstaged:
            writer.phase = "begin"
            return
        if self.rng.random() < 0.01:
            self._discard(writer)
            return
        name, note, data = writer.unstaged[0]

        def told(result: Any) -> None:
            if isinstance(result, Staged):
                writer.unstaged.popleft()
                self.counts["staged"] += not result.duplicate
            elif isinstance(result, StageExpired | ValidationError):
                writer.phase = "new"

        self._busy(writer, lambda again: self._port.stage(name.set_id, note, data, again), told)

    def _discard(self, writer: Writer) -> None:
        """It gives its stages up, and does the work again."""
        assert writer.round is not None
        attempts = [attempt for lines in writer.manifests.values() for _, attempt, _ in lines]
        request = DropStages(attempts)
        for set_id in writer.manifests:
            self._call(partial(self._port.drop, set_id, request), lambda _result: None)
        writer.phase = "new"
        self.counts["discards"] += 1

    def _busy(self, writer: Writer, make: Callable[[Told], None], told: Told) -> None:
        writer.busy = True

        def heard(result: Any) -> None:
            writer.busy = False
            told(result)

        self._call(make, heard)

    # ------------------------------------------------------------------ commits

    def _begin(self, writer: Writer) -> None:
        one = writer.round
        assert one is not None
        command = encode_begin_try(
            one.transaction,
            one.owner,
            one.sequence,
            one.commit_id,
            writer.participants,
            timeout_ms=self.rng.choice((1_000, 1_000, 3_000)),
            now_ms=self._port.now_ms(),
        )
        self._busy(writer, lambda again: self._port.change(command, again), lambda result: self._begun(writer, result))

    def _begun(self, writer: Writer, result: Any) -> None:
        one = writer.round
        assert one is not None
        if isinstance(result, Begun):
            writer.token = result.token
            self._rounds.append(_Begun(result.token, writer.manifests, writer.sent))
            writer.phase = "prepare" if writer.unprepared else "look"
            writer.looks = 0
        elif isinstance(result, Repeated):
            self.counts["repeated"] += 1
            self._committed(writer)
        elif isinstance(result, CommitEnded):
            if result.committed:
                self._committed(writer)
            else:
                self._aborted(writer)
        elif isinstance(result, SequencePassed):
            self.judge.told_passed(one)
            self.counts["passed"] += 1
            writer.sequence = int(result.details["latest"]) + 1
            writer.phase = "new"
        elif isinstance(result, FenceConflict):
            self.counts["fenced"] += 1
            writer.stopped = True
        elif isinstance(result, TransactionUnknown | ValidationError):
            writer.stopped = True

    def _prepare(self, writer: Writer) -> None:
        set_id = min(writer.unprepared)
        token, manifest = writer.token, writer.manifests[set_id]

        def told(result: Any) -> None:
            if result is None:
                writer.unprepared.discard(set_id)
            elif isinstance(result, StageExpired | TopicFull | TransactionUnknown | ValidationError):
                writer.phase = "look"
            if not writer.unprepared:
                writer.phase = "look"

        self._busy(writer, lambda again: self._port.prepare(set_id, token, manifest, again), told)

    def _look(self, writer: Writer) -> None:
        """How did it end? As some broker's copy says, or by asking for the same commit again, or by giving it up."""
        one = writer.round
        assert one is not None
        writer.looks += 1
        if writer.looks > _LOOKS_MAX or self.rng.random() < 0.1:
            writer.phase = "begin"
            return
        if self.rng.random() < 0.03:
            command = encode_abort_commit(one.transaction, one.owner, one.commit_id, self._port.now_ms())
            self.counts["given_up"] += 1
            self._busy(
                writer, lambda again: self._port.change(command, again), lambda result: self._given_up(writer, result)
            )
            return
        copy = self._port.copy()
        row = None if copy is None else copy.transaction(one.transaction)
        ended = None if row is None else row.ended_as(one.commit_id)
        if ended is not None:
            (self._committed if ended.committed else self._aborted)(writer)

    def _given_up(self, writer: Writer, result: Any) -> None:
        if isinstance(result, CommitEnded):
            (self._committed if result.committed else self._aborted)(writer)

    def _committed(self, writer: Writer) -> None:
        assert writer.round is not None
        self.judge.told(writer.name, writer.round.commit_id, "committed")
        self.counts["committed"] += 1
        writer.phase = "new"
        if self.rng.random() < 0.85:  # else it does not know that it was done, and does the same work again
            writer.sequence += self.rng.choice((1, 1, 1, 3))

    def _aborted(self, writer: Writer) -> None:
        assert writer.round is not None
        self.judge.told(writer.name, writer.round.commit_id, "aborted")
        self.counts["aborted"] += 1
        writer.phase = "new"
