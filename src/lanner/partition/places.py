"""One group's progress in one lane.

Everything below `next` has been handed out once. Of that, a place is *held* while it is leased, waiting for a retry,
ready for one, or dead; every other place below `next` is settled. So a group that settles what it takes costs one
integer per lane, and what it holds costs a row per 4,096 places: a bit for each held place, and entries (ranges) for
those that are waiting, ready or dead. The leased ones are the leases' own business; here they are only bits.

An entry never crosses the border of its row, so the row of a place is found by a shift. Rows with nothing to store
(leases only) are not stored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

ROW_SHIFT: Final = 12
ROW_PLACES: Final = 1 << ROW_SHIFT
_WITHIN: Final = ROW_PLACES - 1


class Standing(IntEnum):
    WAITING = 1
    READY = 2
    DEAD = 3


class Entry(NamedTuple):
    """Messages that follow each other in lane and partition and have the same state."""

    place: int
    count: int  # type: ignore[assignment]
    first_offset: int
    attempts: int
    standing: int
    time_ms: int = 0  # waiting: due; dead: died
    reason: str = ""
    number: int = -1  # dead: of the first message, in the order of deaths; the others follow. -1: not numbered

    def part(self, place: int, count: int) -> Entry:
        behind = place - self.place
        number = self.number + behind if self.number >= 0 else -1
        return self._replace(place=place, count=count, first_offset=self.first_offset + behind, number=number)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Entry])


def split_by_row(place: int, count: int) -> Iterator[tuple[int, int]]:
    """The same places as ranges that each lie in one row."""
    while count > 0:
        fits = min(count, ROW_PLACES - (place & _WITHIN))
        yield place, fits
        place += fits
        count -= fits


class PlaceRow:
    """What is held among 4,096 places. `ready` and `dead` list the entries of that standing by place, in order."""

    __slots__ = ("dead", "entries", "held", "ready")

    def __init__(self) -> None:
        self.held = 0
        self.entries: dict[int, Entry] = {}
        self.ready: list[int] = []
        self.dead: list[int] = []

    def listed(self, standing: int) -> list[int] | None:
        if standing == Standing.READY:
            return self.ready
        return self.dead if standing == Standing.DEAD else None

    def encode(self) -> bytes:
        """Without numbers where there are none: brokers of levels 1 and 2 read seven fields."""
        entries = [self.entries[place] for place in sorted(self.entries)]
        return _encoder.encode([entry if entry.number >= 0 else entry[:-1] for entry in entries])


class LaneProgress:
    __slots__ = ("next", "ready_rows", "row_numbers", "rows")

    def __init__(self, next_place: int = 0) -> None:
        self.next = next_place
        self.rows: dict[int, PlaceRow] = {}
        self.row_numbers: list[int] = []  # of all rows, in order
        self.ready_rows: list[int] = []  # of those with a ready entry, in order

    # ------------------------------------------------------------------ held places; a range lies in one row

    def hold(self, place: int, count: int) -> None:
        number = place >> ROW_SHIFT
        row = self.rows.get(number) or self._add_row(number)
        row.held |= ((1 << count) - 1) << (place & _WITHIN)

    def let_go(self, place: int, mask: int) -> None:
        """The places `place + n` for each bit n of the mask are settled."""
        number = place >> ROW_SHIFT
        row = self.rows.get(number)
        if row is not None:
            row.held &= ~(mask << (place & _WITHIN))
            if not row.held:
                self._remove_row(number)

    def held_mask(self, place: int, count: int) -> int:
        """Bit n: place + n is held. The range may cross rows."""
        if not self.row_numbers:
            return 0
        mask = 0
        for at, fits in split_by_row(place, count):
            row = self.rows.get(at >> ROW_SHIFT)
            if row is not None:
                mask |= ((row.held >> (at & _WITHIN)) & ((1 << fits) - 1)) << (at - place)
        return mask

    def lowest_held(self) -> int | None:
        if not self.row_numbers:
            return None
        number = self.row_numbers[0]
        held = self.rows[number].held
        return (number << ROW_SHIFT) + (held & -held).bit_length() - 1

    def floor(self) -> int:
        """Every place below is settled."""
        lowest = self.lowest_held()
        return self.next if lowest is None else lowest

    def lowest_unsettled(self) -> int:
        """As the floor, but the dead do not count: they are parked."""
        for number in self.row_numbers:
            row = self.rows[number]
            held = row.held
            for place in row.dead:
                entry = row.entries[place]
                held &= ~(((1 << entry.count) - 1) << (place & _WITHIN))
            if held:
                return (number << ROW_SHIFT) + (held & -held).bit_length() - 1
        return self.next

    # ------------------------------------------------------------------ entries

    def add(self, entry: Entry) -> None:
        """Note an entry; its places are held already, or are from now on."""
        number = entry.place >> ROW_SHIFT
        row = self.rows.get(number) or self._add_row(number)
        if entry.place in row.entries:  # only a senseless record says so; what is listed must be there all the same
            self._forget(row.entries[entry.place])
        row.held |= ((1 << entry.count) - 1) << (entry.place & _WITHIN)
        row.entries[entry.place] = entry
        listed = row.listed(entry.standing)
        if listed is not None:
            if listed is row.ready and not listed:
                insort(self.ready_rows, number)
            insort(listed, entry.place)

    def entry_at(self, place: int, standing: int) -> Entry | None:
        """The ready or dead entry that holds this place, or the waiting one that begins there."""
        row = self.rows.get(place >> ROW_SHIFT)
        if row is None:
            return None
        listed = row.listed(standing)
        if listed is not None:
            at = bisect_right(listed, place) - 1
            if at < 0:
                return None
            entry = row.entries[listed[at]]
            return entry if place < entry.place + entry.count else None
        found = row.entries.get(place)
        return found if found is not None and found.standing == standing else None

    def cut(self, place: int, count: int, standing: int) -> list[Entry]:
        """Take these places out of the entries of that standing; the rest of each entry stays. Still held."""
        pieces: list[Entry] = []
        end = place + count
        while place < end:
            entry = self.entry_at(place, standing)
            if entry is None:
                place = self.next_entry(place, standing)
                continue
            self._forget(entry)
            if entry.place < place:
                self.add(entry.part(entry.place, place - entry.place))
            stop = min(end, entry.place + entry.count)
            if stop < entry.place + entry.count:
                self.add(entry.part(stop, entry.place + entry.count - stop))
            pieces.append(entry.part(place, stop - place))
            place = stop
        return pieces

    def next_entry(self, place: int, standing: int) -> int:
        """Where the next entry of that standing in this row begins, or the next row."""
        row = self.rows.get(place >> ROW_SHIFT)
        listed = (row.listed(standing) if row is not None else None) or []
        at = bisect_right(listed, place)
        return listed[at] if at < len(listed) else ((place >> ROW_SHIFT) + 1) << ROW_SHIFT

    def ready_entries(self) -> Iterator[Entry]:
        for number in self.ready_rows:
            row = self.rows[number]
            for place in row.ready:
                yield row.entries[place]

    def entries(self) -> Iterator[Entry]:
        for number in self.row_numbers:
            row = self.rows[number]
            for place in sorted(row.entries):
                yield row.entries[place]

    def _forget(self, entry: Entry) -> None:
        number = entry.place >> ROW_SHIFT
        row = self.rows[number]
        del row.entries[entry.place]
        listed = row.listed(entry.standing)
        if listed is not None:
            del listed[bisect_left(listed, entry.place)]
            if listed is row.ready and not listed:
                del self.ready_rows[bisect_left(self.ready_rows, number)]

    # ------------------------------------------------------------------ rows

    def _add_row(self, number: int) -> PlaceRow:
        row = self.rows[number] = PlaceRow()
        insort(self.row_numbers, number)
        return row

    def _remove_row(self, number: int) -> None:
        del self.rows[number]
        del self.row_numbers[bisect_left(self.row_numbers, number)]

    def load_row(self, data: bytes) -> list[Entry]:
        entries = _decoder.decode(data)
        for entry in entries:
            self.add(entry)
        return entries
