"""Plain values of doors whose callers hand in and take single messages, and leases as the desks have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class Stored(NamedTuple):
    """Where one message went."""

    partition: int
    offset: int
    append_ms: int
    duplicate: bool


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
