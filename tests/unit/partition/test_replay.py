"""Random traffic against the whole machine: invariants after every entry, and saved rows plus replay equal the live
state byte for byte. A small plain model watches what is delivered."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanner.model import TopicSettings
from lanner.partition import (
    CommitOffset,
    Discard,
    DropGroup,
    MakeGroup,
    NumberDead,
    Poll,
    PollAnswer,
    Redrive,
    Release,
    Request,
    Seek,
    Settle,
    Tick,
    batches,
)

_SETTINGS = (
    {},
    {"retention": "acked", "max_deliveries": 2},
    {"retention_ms": 3_000, "max_deliveries": 2, "backoff_ms": 100, "lease_ms": 500},
    {"retention_bytes": 400, "pinned_bytes_max": 60, "max_deliveries": 1},
    {"outstanding_max": 5, "backoff_ms": 0, "dead_full": "reject", "pinned_bytes_max": 0, "retention_ms": 2_000},
    {"max_bytes": 300, "full_policy": "drop_oldest", "group_idle_ms": 4_000, "dedup_window_ms": 1_000},
    {"retention_ms": 1_000, "hold_for": ["s"], "hold_ms_max": 3_000, "group_idle_ms": 2_000},
    {"retention_bytes": 200, "hold_for": ["s", "a"], "hold_bytes_max": 400},
    {"retention": "acked", "hold_for": ["s", "b"], "hold_ms_max": 2_000},
    {"max_bytes": 300, "full_policy": "drop_oldest", "hold_for": ["s"], "hold_full": "release"},
    {"max_bytes": 300, "full_policy": "drop_oldest", "hold_for": ["a"], "hold_ms_max": 4_000, "retention_ms": 500},
)
_small = st.integers(0, 7)
_steps = st.lists(st.tuples(st.integers(0, 29), _small, _small, _small), min_size=1, max_size=70)


class Traffic:
    """Turns small numbers into requests, and judges the answers by a model of its own."""

    def __init__(self, bench: Any, offsets_of: Callable[[Any], list[int]]) -> None:
        self.bench = bench
        self.offsets_of = offsets_of
        self.waiting: list[Request] = []
        self.tokens: dict[str, list[tuple[int, list[int]]]] = {"a": [], "b": []}
        self.acked: set[tuple[str, int]] = set()
        self.lane_of: dict[int, int] = {}

    def append(self, a: int, b: int, c: int) -> None:
        bench = self.bench
        header: dict[str, Any] = {"count": 1 + a, "priority": (0, 4, 9)[b % 3]}
        if b == 5:
            header["count"] = 3_000
        if c == 1:
            header["deliver_at_ms"] = bench.now_ms + 400 * a
        elif c == 2:
            header["expires_at_ms"] = bench.now_ms + 300 * a
        elif c == 3:
            header["dedup_id"] = b"%d" % a
        elif c == 4:
            header |= {"producer_id": 1 + a % 2, "producer_epoch": b // 4, "sequence": a % 4}
        elif c == 5:
            header["count"] = 0
        result = bench.append(**header)
        if hasattr(result, "base_offset") and not result.duplicate:
            for offset in range(result.base_offset, result.base_offset + result.count):
                self.lane_of[offset] = header["priority"]

    def request(self, kind: int, a: int, b: int, c: int) -> Request:
        group = "ab"[a % 2]
        if kind < 5:
            return Poll(group, "mn"[b % 2], c, 1 + b * 7, auto_ack=c == 6, lease_ms=(None, 200, 5_000)[c % 3])
        if kind < 10:
            return self._settle(group, b, c)
        end = self.bench.partition.end_offset
        if kind == 10:
            return CommitOffset("s", end * b // 7)
        if kind == 11:
            return Seek(group, (end * b // 7, "earliest", "latest")[c % 3])
        if kind == 12:
            return Redrive(group, None if b < 3 else [end * c // 7])
        if kind == 13:
            return Discard(group, None if b < 2 else [end * c // 7])
        if kind == 14:
            if c > 4:
                return NumberDead(group)
            return DropGroup(group) if c == 3 else MakeGroup(group, "queue", "latest" if b < 2 else "earliest")
        return Tick()

    def _settle(self, group: str, b: int, c: int) -> Request:
        known = self.tokens[group]
        if not known:
            return Settle(group, [(1, 0, 1, 1, -1, "")])
        token, offsets = known[-1 - b % len(known)]
        first = offsets[c % len(offsets)]
        if b == 7:
            return Release(group, [(token, offsets[0], len(offsets), 1, -1, "")])
        kind = (1, 1, 2, 2, 3, 4, 1)[b]
        count = (1, 3, len(offsets))[c % 3]
        return Settle(group, [(token, first, count, kind, (-1, 0, 150)[c % 3], "")])

    def decide(self, between: Callable[[], None] | None = None) -> None:
        bench = self.bench
        self.judging = between is None
        requests, self.waiting = self.waiting, []
        acked = [self._acked_by(request) for request in requests]
        answers = bench.ask(*requests, between=between)
        for answer, settled in zip(answers, acked, strict=True):
            if settled and isinstance(answer, list) and answer == [(0, len(settled))]:
                self.acked |= settled
        for request in requests:
            if isinstance(request, (Seek, DropGroup)):
                self.acked = {each for each in self.acked if each[0] != request.group}
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request, Poll) and isinstance(answer, PollAnswer):
                self._served(request, answer)

    def _acked_by(self, request: Request) -> set[tuple[str, int]]:
        if isinstance(request, Settle) and request.items[0][3] == 1:
            _, first_offset, count, *_ = request.items[0]
            return {(request.group, first_offset + at) for at in range(count)}
        return set()

    def _served(self, request: Poll, answer: PollAnswer) -> None:
        offsets = self.offsets_of(answer)
        if not offsets:
            assert answer.limited, "an empty answer that does not say why"
            return
        assert len(offsets) == len(set(offsets))
        for lease in answer.leases:
            assert self.lane_of[lease.first_offset] == lease.ref.lane
        assert not self.acked & {(request.group, offset) for offset in offsets}, "acked, and delivered again"
        if request.auto_ack:
            self.acked |= {(request.group, offset) for offset in offsets}
        else:
            self.tokens[request.group].append((answer.token or 0, offsets))
        if answer.token == len(self.bench.log) and not answer.limited and self.judging:
            self._judge_priority(request.group, [lease.ref.lane for lease in answer.leases])

    def _judge_priority(self, name: str, lanes: list[int]) -> None:
        assert lanes == sorted(lanes, reverse=True), "a lower lane came before a higher one"
        state = self.bench.partition._state
        for lane in range(lanes[-1] + 1, 10):
            progress = state.groups[name].lanes[lane]
            assert not progress.ready_rows, "a retry of a higher lane was left behind"
            assert progress.next == state.lanes[lane].end, "a message of a higher lane was left behind"

    def run(self, steps: list[tuple[int, int, int, int]]) -> None:
        bench = self.bench
        for kind, a, b, c in steps:
            if kind < 16:
                self.waiting.append(self.request(kind, a, b, c))
            elif kind < 21:
                self.append(a, b, c)
            elif kind < 24:
                self.decide()
            elif kind == 24:
                self.decide(between=partial(self.append, a, b, c))
            elif kind == 25:
                bench.wait(100 * a + 1_000 * (b == 7))
            elif kind == 26:
                bench.save()
            elif kind == 27:
                bench.restart()
            elif kind == 28:
                self._settle_down()
            else:
                bench.settings = TopicSettings(**_SETTINGS[a % len(_SETTINGS)])
        self.decide()
        self._settle_down()
        bench.restart()

    def _settle_down(self) -> None:
        """As long as something is due, a tick finds it; and it ends."""
        bench = self.bench
        for _ in range(50):
            due_ms = bench.partition.next_due_ms(bench.settings, bench.now_ms)
            if due_ms is None or due_ms > bench.now_ms:
                return
            assert bench.decide(Tick()).record is not None, "due, but there is nothing to do"
            bench.ask(Tick())
        raise AssertionError("always something due")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_steps, chosen=st.integers(0, len(_SETTINGS) - 1))
def test_saved_rows_and_the_rest_of_the_log_give_the_same_state_whatever_happened(
    steps: list[tuple[int, int, int, int]], chosen: int, make_bench: Any, offsets_of: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "CHUNK_ENTRIES_MAX", 3)
        patch.setattr(batches, "CLEAN_CHUNKS_MAX", 2)
        Traffic(make_bench(**_SETTINGS[chosen]), offsets_of).run(steps)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_long_traffic_keeps_every_invariant(seed: int, make_bench: Any, offsets_of: Any) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "CHUNK_ENTRIES_MAX", 3)
        patch.setattr(batches, "CLEAN_CHUNKS_MAX", 2)
        steps = [(chance.randrange(30), *(chance.randrange(8) for _ in range(3))) for _ in range(300)]
        Traffic(make_bench(**_SETTINGS[seed % len(_SETTINGS)]), offsets_of).run(steps)
