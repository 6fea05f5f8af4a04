"""What a producer hears back: where each message went."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, overload

from lanner.client.parcel import Parcel
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


def receipt_of(parcel: Parcel, position: int) -> Receipt:
    """The fate of one message of a settled parcel: its receipt, or its error raised."""
    if parcel.error is not None:
        error = parcel.error  # shared by the whole parcel: each who raises it gets one with a traceback of its own
        raise type(error)(error.message, **error.details)
    lane = parcel.lane
    offset = parcel.base_offset + position if parcel.base_offset >= 0 else -1
    return Receipt(lane.topic, lane.partition, offset, parcel.timestamp_ms, parcel.duplicate)


class Sending:
    """The fate of one message, as an awaitable: `await` gives its Receipt or raises why it failed."""

    __slots__ = ("_parcel", "_position")

    def __init__(self, parcel: Parcel, position: int) -> None:
        self._parcel = parcel
        self._position = position

    def __await__(self) -> Generator[Any, None, Receipt]:
        parcel = self._parcel
        if not parcel.settled:
            parcel.observed = True
            yield from parcel.waiters.wait().__await__()
        return receipt_of(parcel, self._position)

    def done(self) -> bool:
        """Whether the fate is known."""
        return self._parcel.settled


class Placed(NamedTuple):
    """Which of the given messages, by place, went into which parcel."""

    parcel: Parcel
    places: Sequence[int]


class Receipts(Sequence[Receipt]):
    """The fates of many messages, in the order they were given. Made when looked at: mostly nobody does."""

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
        fate = self.fates()[place]
        if isinstance(fate, LannerError):
            raise type(fate)(fate.message, **fate.details)
        return fate

    def __iter__(self) -> Iterator[Receipt]:
        return (self[place] for place in range(self._count))

    def fates(self) -> list[Receipt | LannerError]:
        """For each message its receipt, or why it failed."""
        if self._made is None:
            made: list[Receipt | LannerError | None] = [None] * self._count
            for parcel, places in self._placed:
                for position, place in enumerate(places):
                    made[place] = parcel.error or receipt_of(parcel, position)
            self._made = [fate for fate in made if fate is not None]
            assert len(self._made) == self._count
        return self._made

    @property
    def failed(self) -> int:
        """How many messages have failed."""
        return sum(len(places) for parcel, places in self._placed if parcel.error is not None)

    @property
    def error(self) -> LannerError | None:
        """Why the first that failed did."""
        return next((parcel.error for parcel, _ in self._placed if parcel.error is not None), None)
