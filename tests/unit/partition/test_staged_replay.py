"""Random staged traffic against one partition, under a metadata log of its own whose copies lag: what shows is what was
committed, whole, once and in order; and saved rows plus replay equal the live state byte for byte."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from lanner.errors import LannerError, ServiceUnavailable
from lanner.partition import (
    Appended,
    DropStages,
    Poll,
    Prepare,
    PublishStages,
    Request,
    Staged,
    Tick,
    WithdrawStages,
    batches,
    stage_decisions,
    staging,
)

WRITERS = (("t", "o"), ("t", "p"), ("u", "o"))


class Work(NamedTuple):
    """One attempt of one task, and the indexes of its stages."""

    writer: tuple[str, str]
    sequence: int
    task: int
    name: str
    indexes: list[int]


class Traffic:
    """Writers, a metadata log that is only a list of (token, what it became), and a leader with a lagging copy."""

    def __init__(self, bench: Any, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.works: list[Work] = []
        self.metadata: list[tuple[int, str]] = []  # by index - 1: the token that the entry is about, and its new state
        self.manifests: dict[int, list[Work]] = {}
        self.prepared: set[int] = set()
        self.shown: list[int] = []  # indexes of published stages, in the order expected
        self.appended: set[int] = set()
        self.numbered = 0

    # ------------------------------------------------------------------ metadata

    def note(self, token: int, state: str) -> None:
        self.metadata.append((token, state))

    def states_at(self, index: int) -> dict[int, str]:
        return dict(self.metadata[:index])

    def begin(self) -> None:
        writer, sequence = self.chance.choice(WRITERS), self.chance.randrange(3)
        found = [work for work in self.works if (work.writer, work.sequence) == (writer, sequence)]
        by_task = {work.task: work for work in self.chance.sample(found, len(found))}
        if by_task:
            token = len(self.metadata) + 1
            self.note(token, "preparing")
            self.manifests[token] = [by_task[task] for task in sorted(by_task)]

    def end(self) -> None:
        """Commit only what the partition has prepared, as a conductor does."""
        states = self.states_at(len(self.metadata))
        undecided = [token for token, state in states.items() if state == "preparing"]
        if undecided:
            token = self.chance.choice(undecided)
            commits = token in self.bench.partition.prepared() and self.chance.random() < 0.7
            self.note(token, "committed" if commits else "aborted")
            if commits:
                assert self.bench.partition.prepared()[token].dealt == 0

    # ------------------------------------------------------------------ the partition

    def stage(self) -> None:
        if not self.works or self.chance.random() < 0.5:
            self.numbered += 1
            writer = self.chance.choice(WRITERS)
            self.works.append(Work(writer, self.chance.randrange(3), self.chance.randrange(3), f"a{self.numbered}", []))
        work = self.chance.choice(self.works[-6:])
        number = self.chance.choice([len(work.indexes), self.chance.randrange(len(work.indexes) + 1)])
        result = self.bench.stage(
            work.name,
            number,
            transaction=work.writer[0],
            owner=work.writer[1],
            sequence=work.sequence,
            task=work.task,
            hold_ms=3_000,
            count=1 + number,
            priority=self.chance.choice((0, 4, 9)),
            deliver_at_ms=self.bench.now_ms + 500 if self.chance.random() < 0.2 else 0,
        )
        if isinstance(result, Staged) and not result.duplicate:
            del work.indexes[number:]  # what was there is gone, or this is what comes next
            work.indexes.append(len(self.bench.log))

    def append(self) -> None:
        if isinstance(self.bench.append(count=2), Appended):
            self.appended.add(len(self.bench.log))

    def requests(self, copy: int) -> list[Request]:
        """What an attendant with this copy asks, and a late repeat of anything."""
        states = self.states_at(copy)
        asked: list[Request] = [Tick()]
        for token, works in self.manifests.items():
            lines = [(work.task, work.name.encode().ljust(16, b"."), len(work.indexes)) for work in works]
            transaction, owner = works[0].writer
            if states.get(token) == "preparing" and self.chance.random() < 0.4 and all(line[2] for line in lines):
                asked.append(Prepare(token, transaction, owner, works[0].sequence, lines, copy))
        for token in self.bench.partition.prepared():
            if states.get(token) == "committed":
                asked.append(PublishStages(token, copy))
            elif states.get(token) != "preparing" and copy >= token:
                asked.append(WithdrawStages(token, copy))
        if self.works and self.chance.random() < 0.2:
            asked.append(DropStages([self.chance.choice(self.works).name.encode().ljust(16, b".")]))
        asked.append(Poll("g", "m", len(self.bench.log), 5))
        self.chance.shuffle(asked)
        return asked

    def decide(self) -> None:
        lag = self.chance.choice((0, 0, 0, 1, 3, 9))
        copy = max(0, len(self.metadata) - lag)
        before = {token: self._indexes(token) for token in self.bench.partition.prepared()}
        seen = self.bench.partition.metadata_index
        answers = self.bench.ask(
            *self.requests(copy), between=self.chance.choice([None, None, self.stage, self.append])
        )
        if copy < seen:
            errors = [answer for answer in answers if isinstance(answer, LannerError)]
            assert all(isinstance(error, ServiceUnavailable) or "manifest" in error.message for error in errors)
        assert self.bench.partition.metadata_index >= seen
        self._show(before)

    def _indexes(self, token: int) -> list[int]:
        stages = self.bench.partition._state.stages
        return [batch.index for batch in stages.next_of(token, 10_000)]

    def _show(self, before: dict[int, list[int]]) -> None:
        """Whatever left the prepared rows is published if its try was committed, and gone if it was aborted."""
        final = self.states_at(len(self.metadata))
        published = {ref.index for ref in self.bench.partition.batches_from(0, 1 << 40)}
        for token, indexes in before.items():
            left = self._indexes(token) if token in self.bench.partition.prepared() else []
            dealt = indexes[: len(indexes) - len(left)]
            assert indexes[len(dealt) :] == left, "dealt with out of order"
            if dealt:
                assert final[token] != "preparing", "acted on before its outcome"
                if final[token] == "committed":
                    assert published >= set(dealt)
                    self.shown += dealt
                else:
                    assert not published & set(dealt), "an aborted stage shows"
        staged = [ref for ref in self.bench.partition.batches_from(0, 1 << 40) if ref.index not in self.appended]
        assert {ref.index for ref in staged} == set(self.shown), "something shows that no commit brought"
        assert len(staged) == len(self.shown), "a stage shows twice"

    def run(self, steps: int) -> None:
        bench = self.bench
        actions = [self.stage] * 6 + [self.append, self.begin, self.begin, self.end] + [self.decide] * 4
        actions += [lambda: bench.wait(400), bench.save, bench.restart]
        for _ in range(steps):
            self.chance.choice(actions)()
        self._come_to_rest()

    def _come_to_rest(self) -> None:
        """With the faults over, nothing stays prepared and nothing half shown."""
        for token, state in self.states_at(len(self.metadata)).items():
            if state == "preparing":
                self.note(token, "aborted")
        for _ in range(200):
            if not self.bench.partition.prepared():
                break
            copy = len(self.metadata)
            states = self.states_at(copy)
            before = {token: self._indexes(token) for token in self.bench.partition.prepared()}
            for token in list(self.bench.partition.prepared()):
                make = PublishStages if states[token] == "committed" else WithdrawStages
                self.bench.ask(make(token, copy))
            self._show(before)
        assert not self.bench.partition.prepared() and self.bench.partition.prepared_bytes == 0
        self.bench.wait(10_000)
        for _ in range(50):
            self.bench.ask(Tick())
        assert self.bench.partition.staged_bytes == 0
        self.bench.restart()


@pytest.mark.parametrize("seed", range(25))
def test_what_shows_is_what_was_committed_whole_once_and_in_order(
    seed: int, make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CHUNK_ENTRIES_MAX", 3)
    monkeypatch.setattr(staging, "CHUNK_STAGES", 2)
    monkeypatch.setattr(stage_decisions, "DEALT_MAX", 2)
    monkeypatch.setattr(stage_decisions, "DROPPED_MAX", 2)
    Traffic(make_bench(), random.Random(seed)).run(250)


def test_the_traffic_meets_what_it_is_for(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, aborts, expiries and refused metadata all happen in it: else the test above says little."""
    monkeypatch.setattr(stage_decisions, "DEALT_MAX", 2)
    published = withdrawn = refused = 0
    for seed in range(6):
        traffic = Traffic(make_bench(), random.Random(seed))
        ask = traffic.bench.ask

        def watch(*requests: Request, ask: Any = ask, **more: Any) -> list[Any]:
            nonlocal withdrawn, refused
            answers: list[Any] = ask(*requests, **more)
            for request, answer in zip(requests, answers, strict=True):
                withdrawn += isinstance(request, WithdrawStages) and not isinstance(answer, LannerError)
                refused += isinstance(answer, ServiceUnavailable)
            return answers

        traffic.bench.ask = watch
        traffic.run(250)
        published += len(traffic.shown)
    assert published > 10 and withdrawn > 10 and refused > 10
