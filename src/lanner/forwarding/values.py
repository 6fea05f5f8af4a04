"""Plain values of doors whose callers hand in and take single messages, and leases as the desks have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, overload

import msgspec

from lanner.calls import Answer
from lanner.model import PRIORITY_NORMAL, Message
from lanner.wire.messages import Polled


class NewMessage(msgspec.Struct, frozen=True):
    """A message as a door without batches (REST) hands it in."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = {}
    priority: int = PRIORITY_NORMAL
    partition: int | None = None
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    dedup_id: bytes = b""

    @property
    def size(self) -> int:
        """About so many bytes of a batch."""
        size = len(self.value) if self.key is None else len(self.value) + len(self.key)
        if self.headers:
            size += sum(len(name.encode("utf-8", "replace")) + len(value) for name, value in self.headers.items())
        return size


class PlainMessages(Sequence[NewMessage]):
    """Messages that are nothing but their values, as one column: most requests hold no others."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[NewMessage]:
        return map(NewMessage, self.values)

    @overload
    def __getitem__(self, place: int) -> NewMessage: ...
    @overload
    def __getitem__(self, place: slice) -> PlainMessages: ...
    def __getitem__(self, place: int | slice) -> NewMessage | PlainMessages:
        return PlainMessages(self.values[place]) if isinstance(place, slice) else NewMessage(self.values[place])


class Stored(NamedTuple):
    """Where one message went."""

    partition: int
    offset: int
    append_ms: int
    duplicate: bool


class Run(NamedTuple):
    """Messages of one call, one behind the other, whose offsets are so too."""

    partition: int
    offsets: range
    append_ms: int
    duplicate: bool


class Placed(Sequence[Stored]):
    """Where the messages of a call went, in the order given: few runs instead of many single places."""

    __slots__ = ("_each", "runs")

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._each: list[Stored] | None = None

    def __len__(self) -> int:
        return sum([len(run.offsets) for run in self.runs])

    def __iter__(self) -> Iterator[Stored]:
        return iter(self.each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.each == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, place: int) -> Stored: ...
    @overload
    def __getitem__(self, place: slice) -> list[Stored]: ...
    def __getitem__(self, place: int | slice) -> Stored | list[Stored]:
        return self.each[place]

    @property
    def each(self) -> list[Stored]:
        """The place of every message."""
        if self._each is None:
            self._each = [
                Stored(run.partition, offset, run.append_ms, run.duplicate)
                for run in self.runs
                for offset in run.offsets
            ]
        return self._each


class Delivered(NamedTuple):
    """One leased (or taken) message, decoded. `token` settles it, together with its partition and offset."""

    message: Message
    token: int
    deadline_ms: int


class Range(NamedTuple):
    """Leased messages of one batch: offsets first_offset .. first_offset + count - 1."""

    first_offset: int
    count: int  # type: ignore[assignment]
    attempt: int


class LeasedBatch(NamedTuple):
    """Leased messages of one batch with its bytes, as the producer encoded them or as an extract."""

    partition: int
    token: int
    base_offset: int
    append_ms: int
    deadline_ms: int
    priority: int
    data: bytes | memoryview
    ranges: Sequence[Range]


def leased_batches(answer: Answer[Polled]) -> list[LeasedBatch]:
    """What a poll leased, each batch with its bytes."""
    return [
        LeasedBatch(
            one.partition,
            one.token,
            one.base_offset,
            one.append_ms,
            one.deadline_ms,
            one.priority,
            data,
            [Range(part.first_offset, part.count, part.attempt) for part in one.ranges],
        )
        for one, data in zip(answer.control.batches, answer.bulk, strict=True)
    ]


def age_ms(since_ms: int, now_ms: int) -> int:
    """How long something is there; 0 for nothing, and for what a clock that was set calls the future."""
    return max(0, now_ms - since_ms) if since_ms else 0
