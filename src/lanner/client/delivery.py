"""What a consumer is handed: leased messages, singly and in batches.

A *part* is the messages of one stored batch that were leased together. It keeps columns; a message is a thin window
on one place of a part, made only when somebody looks at it. Settling a whole part costs the same for one message and
for a thousand: it is said in ranges.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from lanner import limits
from lanner.batch import Batch, decode
from lanner.errors import LannerError, LeaseLost, MalformedBatch, ValidationError
from lanner.net.waiters import Waiters
from lanner.wire.messages import PolledBatch, SettleItem, SettleKind


class Settler(Protocol):
    """Who takes settles: the consumer that polled."""

    topic: str
    group: str

    def settle(self, items: list[SettleItem]) -> Settling: ...
    def forget(self, part: Part) -> None: ...


class Settling:
    """The outcome of a settle, as an awaitable. The settle is under way whether or not somebody awaits it."""

    __slots__ = ("deadline", "done", "error", "items", "pieces", "settled_count", "uncertain", "waiters")

    def __init__(self, items: list[SettleItem], deadline: float) -> None:
        self.items = items
        self.deadline = deadline
        self.done = False
        self.pieces = 1  # that have no outcome yet
        self.error: LannerError | None = None
        self.settled_count = 0  # messages it took effect on
        self.uncertain = False  # an earlier sending may have taken effect
        self.waiters = Waiters()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done:
            yield from self.waiters.wait().__await__()
        if self.error is not None:
            raise type(self.error)(self.error.message, **self.error.details)

    def finish(self, error: LannerError | None) -> None:
        self.done = True
        self.error = error
        self.waiters.wake_all()


class Part:
    """Messages of one batch, leased together under one token."""

    __slots__ = (
        "_attempts",
        "_headers",
        "_keys",
        "_rows",
        "batch",
        "closed",
        "count",
        "deadline_ms",
        "offsets",
        "partition",
        "priority",
        "seen",
        "settled",
        "settler",
        "timestamp_ms",
        "token",
        "values",
    )

    def __init__(self, settler: Settler, polled: PolledBatch, data: memoryview) -> None:
        batch = decode(data)
        if batch.header.is_extract:
            batch.verify_messages()
        self.settler = settler
        self.batch: Batch = batch
        self.partition = polled.partition
        self.token = polled.token
        self.priority = polled.priority
        self.timestamp_ms = polled.append_ms
        self.deadline_ms = polled.deadline_ms
        self.values: list[bytes] = batch.values()
        self.offsets: Sequence[int]
        self._rows: Sequence[int] | None = None
        self._attempts: int | list[int]
        self._read_ranges(polled, batch)
        self.count = len(self.values)
        self.seen = 0  # places handed to the application so far
        self.settled: set[int] = set()  # places settled singly
        self.closed = False  # settled as a whole, or given back
        self._keys: list[bytes | None] | None = None
        self._headers: list[dict[str, bytes]] | None = None

    def _read_ranges(self, polled: PolledBatch, batch: Batch) -> None:
        """Find the rows of what is leased. Mostly that is everything, or one run, and then nothing is done per row."""
        base = polled.base_offset
        first = polled.ranges[0]
        if len(polled.ranges) == 1:
            self._attempts = first.attempt
            self.offsets = range(first.first_offset, first.first_offset + first.count)
        else:
            self._attempts = [one.attempt for one in polled.ranges for _ in range(one.count)]
            self.offsets = [
                offset for one in polled.ranges for offset in range(one.first_offset, one.first_offset + one.count)
            ]
        low, high = min(self.offsets) - base, max(self.offsets) - base
        positions = batch.positions
        if positions is None:
            if low < 0 or high >= batch.count:
                raise MalformedBatch("the leased range lies outside its batch", field="ranges")
            if isinstance(self.offsets, range):
                if len(self.offsets) < batch.count:
                    self._rows = range(low, high + 1)
                    self.values = self.values[low : high + 1]
                return
            rows = [offset - base for offset in self.offsets]
        elif len(positions) == len(self.offsets) and self.offsets == _like(self.offsets, base, positions):
            return  # it is all that the extract holds, in that order
        else:
            row_of = {position: row for row, position in enumerate(positions)}
            try:
                rows = [row_of[offset - base] for offset in self.offsets]
            except KeyError:
                raise MalformedBatch("the extract lacks a message that was leased", field="positions") from None
        self._rows = rows
        values = self.values
        self.values = [values[row] for row in rows]

    def attempt(self, place: int) -> int:
        return self._attempts if isinstance(self._attempts, int) else self._attempts[place]

    def keys(self) -> list[bytes | None]:
        if self._keys is None:
            self._keys = self._chosen(self.batch.keys())
        return self._keys

    def headers(self) -> list[dict[str, bytes]]:
        if self._headers is None:
            self._headers = self._chosen(self.batch.headers())
        return self._headers

    def producer_timestamp_ms(self, place: int) -> int | None:
        column = self.batch.timestamp_column()
        return None if column is None else column[place if self._rows is None else self._rows[place]]

    def _chosen(self, column: list[Any]) -> list[Any]:
        return column if self._rows is None else [column[row] for row in self._rows]

    # ------------------------------------------------------------------ settling

    def items(self, kind: int, delay_ms: int, reason: str, places: Iterable[int] | None = None) -> list[SettleItem]:
        """Settle items for those of these places (or of all) that are not settled yet."""
        if places is None and not self.settled:
            offsets = self.offsets
            if isinstance(offsets, range):
                runs: list[tuple[int, int]] = [(offsets.start, len(offsets))]
            else:
                runs = ranges_of(offsets)
        else:
            chosen = range(self.count) if places is None else places
            runs = ranges_of([self.offsets[place] for place in chosen if place not in self.settled])
        return [SettleItem(self.partition, self.token, first, count, kind, delay_ms, reason) for first, count in runs]

    def settle_all(self, kind: int, delay_ms: int, reason: str) -> list[SettleItem]:
        check_settle(kind, delay_ms, reason)
        if self.closed:
            return []
        items = self.items(kind, delay_ms, reason)
        if kind != SettleKind.EXTEND:
            self.closed = True
            self.settler.forget(self)
        return items

    def settle_one(self, place: int, kind: int, delay_ms: int, reason: str) -> Settling:
        check_settle(kind, delay_ms, reason)
        if self.closed or place in self.settled:
            raise LeaseLost(
                f"{self.settler.topic}/{self.partition}/{self.offsets[place]} is settled already, or was given back"
            )
        item = SettleItem(self.partition, self.token, self.offsets[place], 1, kind, delay_ms, reason)
        if kind != SettleKind.EXTEND:
            self.give_up((place,))
        return self.settler.settle([item])

    def give_up(self, places: Iterable[int]) -> None:
        """These places are no longer the application's."""
        self.settled.update(places)
        if len(self.settled) == self.count:
            self.closed = True
            self.settler.forget(self)


def check_settle(kind: int, delay_ms: object, reason: object) -> None:
    """Refuse what no broker takes, before the message is given up, and before it spoils what travels with it."""
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int) or not -1 <= delay_ms <= limits.DELAY_MS_MAX:
        what = "lease_ms" if kind == SettleKind.EXTEND else "delay_ms"
        raise ValidationError(
            f"{what} is {delay_ms!r}: give a whole number of milliseconds, up to {limits.DELAY_MS_MAX}", field=what
        )
    if not isinstance(reason, str):
        raise ValidationError(f"reason is {reason!r}: give a text", field="reason")
    if len(reason) > limits.REASON_LENGTH_MAX:
        raise ValidationError(
            f"reason has {len(reason)} characters; at most {limits.REASON_LENGTH_MAX}", field="reason"
        )


def _like(offsets: Sequence[int], base: int, positions: Sequence[int]) -> Sequence[int]:
    """The offsets of an extract's messages; as a range where that is what they are compared with."""
    if isinstance(offsets, range) and positions[-1] - positions[0] == len(positions) - 1:
        return range(base + positions[0], base + positions[-1] + 1)
    return [base + position for position in positions]


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Rising offsets as (first, count) runs."""
    runs: list[tuple[int, int]] = []
    first = count = 0
    for offset in offsets:
        if count and offset == first + count:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = offset, 1
    if count:
        runs.append((first, count))
    return runs


class Delivery:
    """One leased message: what it says, where it comes from, how often it was tried."""

    __slots__ = ("_part", "_place", "value")

    def __init__(self, part: Part, place: int, value: bytes) -> None:
        self._part = part
        self._place = place
        self.value = value

    @property
    def topic(self) -> str:
        return self._part.settler.topic

    @property
    def partition(self) -> int:
        return self._part.partition

    @property
    def offset(self) -> int:
        return self._part.offsets[self._place]

    @property
    def id(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def key(self) -> bytes | None:
        return self._part.keys()[self._place]

    @property
    def headers(self) -> dict[str, bytes]:
        return self._part.headers()[self._place]

    @property
    def priority(self) -> int:
        return self._part.priority

    @property
    def attempt(self) -> int:
        """1 the first time it is delivered."""
        return self._part.attempt(self._place)

    @property
    def timestamp_ms(self) -> int:
        """When the broker appended it."""
        return self._part.timestamp_ms

    @property
    def producer_timestamp_ms(self) -> int | None:
        return self._part.producer_timestamp_ms(self._place)

    @property
    def deliver_at_ms(self) -> int:
        return self._part.batch.header.deliver_at_ms

    @property
    def expires_at_ms(self) -> int:
        return self._part.batch.header.expires_at_ms

    @property
    def deadline_ms(self) -> int:
        """When the lease ends by the broker's clock, unless it is extended."""
        return self._part.deadline_ms

    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} priority={self.priority} attempt={self.attempt} {self.value[:40]!r}>"


class Message(Delivery):
    """A leased message of an asynchronous consumer. Each settle is under way at once; await it for its outcome."""

    __slots__ = ()

    def ack(self) -> Settling:
        """It is done: the group never sees it again. Raises LeaseLost when the lease had ended."""
        return self._part.settle_one(self._place, SettleKind.ACK, -1, "")

    def nack(self, delay_ms: int | None = None, reason: str = "") -> Settling:
        """It failed: deliver it again after a delay (by default the topic's backoff)."""
        return self._part.settle_one(self._place, SettleKind.NACK, -1 if delay_ms is None else delay_ms, reason)

    def extend(self, lease_ms: int | None = None) -> Settling:
        """More time, from now (by default the topic's lease)."""
        return self._part.settle_one(self._place, SettleKind.EXTEND, -1 if lease_ms is None else lease_ms, "")

    def reject(self, reason: str = "") -> Settling:
        """It can never succeed: park it among the dead letters now."""
        return self._part.settle_one(self._place, SettleKind.REJECT, -1, reason)


MessageT = TypeVar("MessageT", bound=Delivery)


class Deliveries(Sequence[MessageT], Generic[MessageT]):
    """Leased messages in the order they should be handled: the most urgent first."""

    _kind: type[MessageT]

    def __init__(self, parts: Sequence[Part], limited: bool = False) -> None:
        self.parts = parts
        self.limited = limited  # the group is at its bound of outstanding messages: only retries are served
        self._count = sum([part.count for part in parts])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[MessageT]:
        kind = self._kind
        for part in self.parts:
            for place, value in enumerate(part.values):
                yield kind(part, place, value)

    @overload
    def __getitem__(self, place: int) -> MessageT: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[MessageT]: ...
    def __getitem__(self, place: int | slice) -> MessageT | Sequence[MessageT]:
        if isinstance(place, slice):
            return list(self)[place]
        rest = place + self._count if place < 0 else place
        if 0 <= rest < self._count:
            for part in self.parts:
                if rest < part.count:
                    return self._kind(part, rest, part.values[rest])
                rest -= part.count
        raise IndexError(f"there are {self._count} messages; no place {place}")

    def values(self) -> list[bytes]:
        """The values alone, without a message object each."""
        if len(self.parts) == 1:
            return self.parts[0].values
        return [value for part in self.parts for value in part.values]

    def unseen_from(self, place: int) -> None:
        """Nobody looked at what comes from this place on: left unsettled, it goes back without counting an attempt."""
        for part in self.parts:
            part.seen = min(part.count, max(0, place))
            place -= part.count

    def _items(self, kind: int, delay_ms: int | None = None, reason: str = "") -> list[SettleItem]:
        delay = -1 if delay_ms is None else delay_ms
        items: list[SettleItem] = []
        for part in self.parts:
            items += part.settle_all(kind, delay, reason)
        return items


class MessageBatch(Deliveries[Message]):
    """What one poll brought. Settles of the whole are by ranges; messages settled singly before are left out."""

    _kind = Message

    def ack(self) -> Settling:
        return self._settle(self._items(SettleKind.ACK))

    def nack(self, delay_ms: int | None = None, reason: str = "") -> Settling:
        return self._settle(self._items(SettleKind.NACK, delay_ms, reason))

    def extend(self, lease_ms: int | None = None) -> Settling:
        return self._settle(self._items(SettleKind.EXTEND, lease_ms))

    def reject(self, reason: str = "") -> Settling:
        return self._settle(self._items(SettleKind.REJECT, reason=reason))

    def _settle(self, items: list[SettleItem]) -> Settling:
        if not items:
            nothing = Settling([], 0.0)
            nothing.finish(None)
            return nothing
        return self.parts[0].settler.settle(items)
