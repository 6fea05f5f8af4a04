"""What a producer hears back: where each message went."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, overload

from lanner.client.pending import PendingBatch
from lanner.errors import LannerError


class Receipt(NamedTuple):
    """One message is stored: synced on a majority, at this offset.

    A duplicate was stored before, and this is where; -1 when the broker knows that it has it but no longer where.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    duplicate: bool = False

    @property
    def id(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def receipt_of(batch: PendingBatch, position: int) -> Receipt:
    """The outcome of one message of a settled batch: its receipt, or its error raised."""
    if batch.error is not None:
        error = batch.error  # shared by the whole batch: each who raises it gets one with a traceback of its own
        raise type(error)(error.message, **error.details)
    lane = batch.lane
    offset = batch.base_offset + position if batch.base_offset >= 0 else -1
    return Receipt(lane.topic, lane.partition, offset, batch.timestamp_ms, batch.duplicate)


class Sending:
    """The outcome of one message, as an awaitable: `await` gives its Receipt or raises why it failed."""

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: PendingBatch, position: int) -> None:
        self._batch = batch
        self._position = position

    def __await__(self) -> Generator[Any, None, Receipt]:
        batch = self._batch
        if not batch.settled:
            batch.observed = True
            yield from batch.waiters.wait().__await__()
        return receipt_of(batch, self._position)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.settled


class Placed(NamedTuple):
    """Which of the given messages, by place, went into which batch."""

    batch: PendingBatch
    places: Sequence[int]


class Receipts(Sequence[Receipt]):
    """The outcomes of many messages, in the order they were given. Made when looked at: mostly nobody does."""

    def __init__(self, placed: Sequence[Placed], count: int) -> None:
        self._placed = placed
        self._count = count
        self._made: list[Receipt | LannerError] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Receipt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Receipt]: ...
    def __getitem__(self, place: int | slice) -> Receipt | Sequence[Receipt]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        outcome = self.outcomes()[place]
        if isinstance(outcome, LannerError):
            raise type(outcome)(outcome.message, **outcome.details)
        return outcome

    def __iter__(self) -> Iterator[Receipt]:
        return (self[place] for place in range(self._count))

    def outcomes(self) -> list[Receipt | LannerError]:
        """For each message its receipt, or why it failed."""
        if self._made is None:
            made: list[Receipt | LannerError | None] = [None] * self._count
            for batch, places in self._placed:
                for position, place in enumerate(places):
                    made[place] = batch.error or receipt_of(batch, position)
            self._made = [outcome for outcome in made if outcome is not None]
            assert len(self._made) == self._count
        return self._made

    fates = outcomes  # its name until 0.4

    @property
    def failed(self) -> int:
        """How many messages have failed."""
        return sum(len(places) for batch, places in self._placed if batch.error is not None)

    @property
    def error(self) -> LannerError | None:
        """Why the first that failed did."""
        return next((batch.error for batch, _ in self._placed if batch.error is not None), None)
