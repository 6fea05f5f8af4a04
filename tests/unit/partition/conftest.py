"""A partition on a bench: its log, its rows, and a header format of its own, so that no other room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from lanner import features
from lanner.model import TopicSettings
from lanner.partition import (
    Answer,
    BatchRef,
    Decided,
    Outcome,
    Partition,
    Poll,
    PollAnswer,
    Request,
    Settle,
    StageNote,
    encode_append,
    encode_stage,
)


class Header(msgspec.Struct, array_like=True):
    count: int = 1
    priority: int = 4
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = -1
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    dedup_id: bytes = b""
    filling: bytes = b""


def header_of(data: memoryview) -> Header:
    return msgspec.msgpack.decode(data, type=Header)


def attempt_named(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class MemoryRows(dict[bytes, bytes]):
    """Rows as the ledger serves them."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self):
            if start <= key < stop:
                yield key, self[key]

    def put(self, changes: dict[bytes, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value


class Bench:
    """Drives one partition as a leader does. Checks every invariant after every entry."""

    def __init__(self, **settings: Any) -> None:
        self.rows = MemoryRows()
        self.partition = Partition(self.rows, header_of)
        self.settings = TopicSettings(**settings)
        self.now_ms = 1_000
        self.log: list[bytes | None] = []
        self.saved_index = 0
        self.live: dict[int, tuple[int, ...] | None] = {}  # index → kept positions; None: the whole batch
        self.thorough = True
        self.feature_level = features.HIGHEST

    # ---- entries

    def apply(self, payload: bytes | None) -> Outcome:
        self.log.append(payload)
        index = len(self.log)
        outcome = self.partition.apply(index, payload)
        if outcome.live:
            self.live[index] = None
        for released, kept, _ in outcome.released:
            assert released in self.live, "released what was not live"
            if kept is None:
                del self.live[released]
            else:
                self.live[released] = kept
        if self.thorough:
            self.check()
        return outcome

    def check(self) -> None:
        self.partition.check()
        state = self.partition._state
        expected = {ref.index: ref.kept for ref in state.batches.walk(0)} | {ref.index: ref.kept for ref in state.kept}
        expected |= dict.fromkeys(state.stages.indexes())
        assert self.live == expected, "what is live differs from what is indexed"

    def append(self, **header: Any) -> Any:
        payload = encode_append(self.now_ms, msgspec.msgpack.encode(Header(**header)))
        return self.apply(payload).result

    def stage(
        self,
        attempt: str,
        number: int,
        *,
        transaction: str = "t",
        owner: str = "o",
        sequence: int = 1,
        task: int = 0,
        hold_ms: int = 60_000,
        **header: Any,
    ) -> Any:
        note = StageNote(transaction, owner, sequence, task, attempt_named(attempt), number, hold_ms)
        payload = encode_stage(self.now_ms, note, msgspec.msgpack.encode(Header(**header)))
        return self.apply(payload).result

    def decide(self, *requests: Request) -> Decided:
        before = self.partition.all_rows() if self.thorough else None
        decided = self.partition.decide(requests, self.settings, self.now_ms, self.feature_level)
        if before is not None:
            assert self.partition.all_rows() == before, "deciding changed something"
        return decided

    def ask(self, *requests: Request, between: Callable[[], None] | None = None) -> list[Answer]:
        """Decide and apply; tokens that were open are filled in. `between` happens before the decision applies."""
        decided = self.decide(*requests)
        if between is not None:
            between()
        if decided.record is None:
            return decided.answers
        self.outcome = self.apply(decided.record)
        token = len(self.log)
        return [
            answer._replace(token=token) if isinstance(answer, PollAnswer) and answer.token is None else answer
            for answer in decided.answers
        ]

    # ---- shortcuts

    def poll(self, group: str = "g", messages: int = 100, sequence: int | None = None, **more: Any) -> Any:
        self.sequence = getattr(self, "sequence", 0) + 1
        number = self.sequence if sequence is None else sequence
        [answer] = self.ask(Poll(group, more.pop("member", "m"), number, messages, **more))
        return answer

    def settle(self, *items: tuple[Any, ...], group: str = "g") -> Any:
        """Items (token, first offset, count, kind[, delay[, reason]])."""
        full = [(*item, *(1, -1, "")[len(item) - 3 :]) for item in items]
        [answer] = self.ask(Settle(group, full))
        return answer

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    # ---- saving

    def save(self) -> dict[bytes, bytes | None]:
        dirty = self.partition.take_dirty()
        self.rows.put(dirty)
        self.saved_index = self.partition.applied_index
        return dirty

    def reload(self) -> Partition:
        """A second partition from the saved rows and the rest of the log."""
        rows = MemoryRows(self.rows)
        again = Partition(rows, header_of)
        for index in range(self.saved_index + 1, len(self.log) + 1):
            again.apply(index, self.log[index - 1])
        self.reloaded_rows = rows
        return again

    def restart(self) -> None:
        """Go on with what was saved and replayed, which must equal what was there."""
        again = self.reload()
        assert again.all_rows() == self.partition.all_rows()
        self.partition, self.rows = again, self.reloaded_rows


def offsets(answer: Any) -> list[int]:
    """The offsets of a poll's messages, in the order of delivery."""
    return [lease.first_offset + at for lease in answer.leases for at in range(lease.count)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def make_bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture(scope="session")
def offsets_of() -> Callable[[Any], list[int]]:
    return offsets


@pytest.fixture
def empty_rows() -> MemoryRows:
    return MemoryRows()


@pytest.fixture(scope="session")
def make_ref() -> Callable[..., BatchRef]:
    def make(base_offset: int, count: int = 1, **more: Any) -> BatchRef:
        fields = {
            "index": base_offset + 1,
            "size": 100,
            "lane": 4,
            "lane_base": base_offset,
            "append_ms": base_offset,
            "deliver_at_ms": 0,
            "expires_at_ms": 0,
        }
        return BatchRef(base_offset, count, **{**fields, **more})

    return make


@pytest.fixture(scope="session")
def make_rows() -> Callable[[Sequence[tuple[bytes, bytes]]], MemoryRows]:
    return MemoryRows
