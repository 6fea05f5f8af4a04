"""One consumer group on one partition: its progress in each lane, its leases, its retries, its dead letters.

A group is a stream group (one offset) or a queue group (lanes) for as long as it lives. This module moves messages
between standings (fresh, leased, waiting, ready, dead, settled) and keeps the counts right. It decides nothing: whether
a retry is due or a message has died was decided before, and arrives here as a fact.

`freed` collects ranges that stopped being held below what retention has passed: their batches may now go. `ended`
collects leases that are over and whose holders were answered something: that is remembered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from lanner.limits import COMMIT_READERS_KEPT
from lanner.model import LANES, GroupKind
from lanner.partition.batches import LaneIndex
from lanner.partition.fences import NO_FENCE, Fence
from lanner.partition.keys import group_key, lease_key, places_key, settles_key
from lanner.partition.leases import NOTHING_HELD, Held, LeaseRecord, Part
from lanner.partition.memory import SettleMemory
from lanner.partition.numbers import DeadNumbers
from lanner.partition.places import ROW_PLACES, ROW_SHIFT, Entry, LaneProgress, Standing, split_by_row
from lanner.partition.records import Segment
from lanner.partition.timetable import Timetable

_WITHIN_ROW: Final = ROW_PLACES - 1
_encoder: Final = msgspec.msgpack.Encoder()


class _HeaderRow(msgspec.Struct, array_like=True):
    name: str
    kind: str
    active_ms: int
    start_offset: int
    committed: int
    nexts: list[int]
    readers: list[tuple[str, int]] = []  # written only when there are any: brokers of level 1 read six fields
    dead_end: int = -1  # written only when the dead are numbered: brokers of level 2 read seven fields
    fence: Fence = NO_FENCE  # written only when there is one: brokers of level 3 read eight fields
    metadata: bytes = b""


_header_decoder: Final = msgspec.msgpack.Decoder(_HeaderRow)


class Group:
    def __init__(self, group_id: int, name: str, kind: GroupKind, index: Sequence[LaneIndex]) -> None:
        self.id = group_id
        self.name = name
        self.kind = kind
        self.active_ms = 0
        self.start_offset = 0  # what was appended before is not delivered, also when its delay ends later
        self.committed = -1  # stream: the next offset to read; -1: never committed
        self.metadata = b""  # stream: what the latest commit brought along
        self.fence = NO_FENCE  # the highest that was accepted
        self.readers: dict[str, int] = {}  # stream: the sequence of each reader's latest commit, the latest reader last
        self.lanes = [LaneProgress() for _ in range(LANES)]
        self.leases: dict[int, LeaseRecord] = {}
        self.leased = self.waiting = self.ready = self.dead = 0
        self.memory = SettleMemory()
        # derived, never stored
        self.deadlines: Timetable[int] = Timetable()  # token → its first deadline
        self.due: Timetable[tuple[int, int]] = Timetable()  # (lane, place) of waiting entries
        self.polls: dict[tuple[str, int], int] = {}  # (member, sequence) → token
        self.dead_offsets: list[int] = []  # first offsets of dead entries, in order
        self.dead_places: dict[int, tuple[int, int]] = {}  # first offset → (lane, place)
        self.dead_numbers = DeadNumbers()  # its end is stored
        self.freed: list[tuple[int, int]] = []
        self.ended: list[LeaseRecord] = []
        self._index = index
        self._dirty_leases: set[int] = set()
        self._dirty_rows: set[tuple[int, int]] = set()
        self._stored: set[bytes] = set()

    @property
    def outstanding(self) -> int:
        return self.leased + self.waiting + self.ready

    def next_due_ms(self) -> int | None:
        """When a lease ends or a retry is due, whichever is first."""
        first, second = self.deadlines.first_ms(), self.due.first_ms()
        if first is None or (second is not None and second < first):
            return second
        return first

    def held_by_member(self) -> dict[str, Held]:
        """What each member holds leased."""
        found: dict[str, Held] = {}
        for lease in self.leases.values():
            for part in lease.parts:
                count = (part.mask & lease.live).bit_count()
                messages, until_ms, parts = found.get(part.member, NOTHING_HELD)
                if count:
                    found[part.member] = Held(messages + count, max(until_ms, part.deadline_ms), parts + 1)
        return found

    # ------------------------------------------------------------------ out: leased, taken, passed

    def lease(self, token: int, segments: Sequence[Segment], deadline_ms: int, member: str, sequence: int) -> None:
        lease = self.leases.get(token)
        if lease is None:
            lease = self.leases[token] = LeaseRecord(token)
        mask = lease.add(segments)
        lease.parts.append(Part(mask, deadline_ms, member, sequence))
        self.polls[member, sequence] = token
        self.deadlines.put(token, lease.first_deadline_ms())
        self._dirty_leases.add(token)
        self.leased += mask.bit_count()
        self._take_places(segments)

    def _take_places(self, segments: Sequence[Segment]) -> None:
        """Fresh places of a lane follow each other: they are held as one range, however many batches they are of."""
        run_lane, run_place, run_end = -1, 0, 0
        for _, lane, place, count, _ in segments:
            if lane == run_lane and place == run_end:
                run_end += count
            elif place >= self.lanes[lane].next:
                if run_lane >= 0:
                    self._hold_fresh(run_lane, run_place, run_end)
                run_lane, run_place, run_end = lane, place, place + count
            else:
                self._cut_ready(lane, place, count)
        if run_lane >= 0:
            self._hold_fresh(run_lane, run_place, run_end)

    def _hold_fresh(self, lane: int, place: int, end: int) -> None:
        progress = self.lanes[lane]
        progress.next = end
        for at, count in split_by_row(place, end - place):
            progress.hold(at, count)

    def take(self, lane: int, place: int, count: int) -> None:
        """Settled without a lease: fresh places, or ready or waiting entries."""
        progress = self.lanes[lane]
        if place >= progress.next:
            progress.next = place + count
            return
        entry = progress.entry_at(place, Standing.WAITING)
        pieces = self._end_wait(lane, entry) if entry is not None else self._cut_ready(lane, place, count)
        for piece in pieces:
            self._let_go(lane, piece)

    def _cut_ready(self, lane: int, place: int, count: int) -> list[Entry]:
        pieces = self.lanes[lane].cut(place, count, Standing.READY)
        self.ready -= sum(piece.count for piece in pieces)
        self._dirty_rows.add((lane, place >> ROW_SHIFT))
        return pieces

    def _let_go(self, lane: int, piece: Entry) -> None:
        self.lanes[lane].let_go(piece.place, (1 << piece.count) - 1)
        if piece.place < self._index[lane].first:
            self.freed.append((piece.first_offset, piece.count))

    # ------------------------------------------------------------------ back: settled, nacked, ended, dead

    def ack(self, token: int, mask: int, asked: int = 0) -> None:
        """Leased messages are settled. `asked`: the kind of settle by which the holder wanted it; 0: none."""
        lease = self.leases.get(token)
        if lease is None:
            return
        mask &= lease.live
        if asked:
            lease.note_answer(asked, mask)
        run_lane, run_place, run_end, run_mask = -1, 0, 0, 0
        for (first_offset, lane, place, count, _), own in lease.touched(mask):
            if place == run_end and lane == run_lane and place & _WITHIN_ROW:
                run_mask |= own << (place - run_place)
            else:
                if run_mask:
                    self.lanes[run_lane].let_go(run_place, run_mask)
                run_lane, run_place, run_mask = lane, place, own
            run_end = place + count
            if place < self._index[lane].first:
                self.freed.append((first_offset, count))
        if run_mask:
            self.lanes[run_lane].let_go(run_place, run_mask)
        self._settle(lease, mask)

    def give_back(
        self, token: int, mask: int, standing: Standing, time_ms: int, reason: str, uncount: bool, asked: int = 0
    ) -> None:
        """Leased messages become waiting, ready or dead entries."""
        lease = self.leases.get(token)
        if lease is None:
            return
        mask &= lease.live
        if asked:
            lease.note_answer(asked, mask)
        for lane, place, count, first_offset, attempt in lease.runs(mask):
            attempts = attempt - 1 if uncount else attempt
            number = self._next_number(count) if standing is Standing.DEAD else -1
            self._add(lane, Entry(place, count, first_offset, attempts, standing, time_ms, reason, number))
        self._settle(lease, mask)

    def extend(self, token: int, mask: int, deadline_ms: int, asked: int = 0) -> None:
        lease = self.leases.get(token)
        if lease is not None and mask & lease.live:
            if asked:
                lease.note_answer(asked, mask & lease.live)
            lease.extend(mask & lease.live, deadline_ms)
            self.deadlines.put(token, lease.first_deadline_ms())
            self._dirty_leases.add(token)

    def end_wait(self, lane: int, place: int) -> None:
        """A waiting entry becomes ready."""
        entry = self.lanes[lane].entry_at(place, Standing.WAITING)
        if entry is not None:
            for piece in self._end_wait(lane, entry):
                self._add(lane, piece._replace(standing=Standing.READY, time_ms=0, reason=""))

    def _end_wait(self, lane: int, entry: Entry) -> list[Entry]:
        self.due.drop((lane, entry.place))
        self.waiting -= entry.count
        self._dirty_rows.add((lane, entry.place >> ROW_SHIFT))
        return self.lanes[lane].cut(entry.place, entry.count, Standing.WAITING)

    def _add(self, lane: int, entry: Entry) -> None:
        self.lanes[lane].add(entry)
        self._dirty_rows.add((lane, entry.place >> ROW_SHIFT))
        self._note(lane, entry)

    def _note(self, lane: int, entry: Entry) -> None:
        """Count an entry and list it where it is looked up."""
        if entry.standing == Standing.WAITING:
            self.waiting += entry.count
            self.due.put((lane, entry.place), entry.time_ms)
        elif entry.standing == Standing.READY:
            self.ready += entry.count
        else:
            self.dead += entry.count
            insort(self.dead_offsets, entry.first_offset)
            self.dead_places[entry.first_offset] = (lane, entry.place)
            if entry.number >= 0:
                self.dead_numbers.add(entry.number, lane, entry.place)

    def _settle(self, lease: LeaseRecord, mask: int) -> None:
        self.leased -= mask.bit_count()
        token = lease.token
        over = lease.settle(mask)
        self._dirty_leases.add(token)
        for part in over:
            key = (part.member, part.sequence)
            if self.polls.get(key) == token and not any(left[2:] == key for left in lease.parts):
                del self.polls[key]
        if not lease.live:
            del self.leases[token]
            self.deadlines.drop(token)
            if lease.answered:
                self.ended.append(lease)
        elif over:
            self.deadlines.put(token, lease.first_deadline_ms())

    # ------------------------------------------------------------------ the dead

    def dead_from(self, offset: int) -> Iterator[tuple[int, Entry]]:
        """(lane, entry) of the dead in offset order; the first may begin before the offset."""
        at = max(0, bisect_right(self.dead_offsets, offset) - 1)
        while at < len(self.dead_offsets):
            lane, place = self.dead_places[self.dead_offsets[at]]
            entry = self.lanes[lane].rows[place >> ROW_SHIFT].entries[place]
            if offset < entry.first_offset + entry.count:
                yield lane, entry
            at += 1

    def cut_dead(self, lane: int, place: int, count: int, redrive: bool) -> None:
        """Dead places become ready as if never delivered, or are settled for good."""
        progress = self.lanes[lane]
        end = place + count
        while place < end:
            entry = progress.entry_at(place, Standing.DEAD)
            if entry is None:
                place = progress.next_entry(place, Standing.DEAD)
                continue
            stop = min(end, entry.place + entry.count)
            self._unlist_dead(entry)
            [piece] = progress.cut(place, stop - place, Standing.DEAD)
            if entry.place < place:
                self._note(lane, entry.part(entry.place, place - entry.place))
            if stop < entry.place + entry.count:
                self._note(lane, entry.part(stop, entry.place + entry.count - stop))
            self._dirty_rows.add((lane, place >> ROW_SHIFT))
            if redrive:
                redriven = piece._replace(standing=Standing.READY, attempts=0, time_ms=0, reason="", number=-1)
                self._add(lane, redriven)
            else:
                self._let_go(lane, piece)
            place = stop

    def _unlist_dead(self, entry: Entry) -> None:
        self.dead -= entry.count
        del self.dead_offsets[bisect_left(self.dead_offsets, entry.first_offset)]
        del self.dead_places[entry.first_offset]
        if entry.number >= 0:
            self.dead_numbers.remove(entry.number)

    def number_dead(self) -> None:
        """Give those that are dead their numbers, in the order in which they died, and from now on each that dies."""
        if self.dead_numbers.end >= 0:
            return
        self.dead_numbers.end = 0
        for _, _, lane, place in sorted(self._deaths()):
            entries = self.lanes[lane].rows[place >> ROW_SHIFT].entries
            entry = entries[place]
            number = self._next_number(entry.count)
            entries[place] = Entry(*entry[:-1], number)
            self.dead_numbers.add(number, lane, place)
            self._dirty_rows.add((lane, place >> ROW_SHIFT))

    def _deaths(self) -> Iterator[tuple[int, int, int, int]]:
        """(time, first offset, lane, place) of every dead entry."""
        for offset, (lane, place) in self.dead_places.items():
            yield self.lanes[lane].rows[place >> ROW_SHIFT].entries[place].time_ms, offset, lane, place

    def _next_number(self, count: int) -> int:
        number = self.dead_numbers.end
        if number >= 0:
            self.dead_numbers.end = number + count
        return number

    def dead_from_number(self, number: int) -> Iterator[Entry]:
        """The dead in the order of their numbers; the first may begin before the number."""
        for lane, place in self.dead_numbers.places_from(number):
            entry = self.lanes[lane].rows[place >> ROW_SHIFT].entries[place]
            if number < entry.number + entry.count:
                yield entry

    # ------------------------------------------------------------------ committing and seeking

    def commit(self, offset: int, reader: str, sequence: int) -> None:
        self.committed = offset
        self.metadata = b""
        if reader:
            self.readers.pop(reader, None)
            self.readers[reader] = sequence
            if len(self.readers) > COMMIT_READERS_KEPT:
                del self.readers[next(iter(self.readers))]

    def seek(self, offset: int, nexts: Sequence[int]) -> None:
        """Begin again at these places. Leases end. What is held below them stays only if it would otherwise be out
        of reach: messages at or after the offset whose batches retention has passed are ready again, as if never
        delivered."""
        self.start_offset = offset
        for token in list(self.leases):
            self.give_back(token, self.leases[token].live, Standing.READY, 0, "", uncount=False)
        for lane, progress in enumerate(self.lanes):
            for entry in list(progress.entries()):
                if entry.standing == Standing.WAITING:
                    self.end_wait(lane, entry.place)
            for entry in list(progress.entries()):
                self._seek_entry(lane, entry, offset, nexts[lane])
            progress.next = nexts[lane]

    def _seek_entry(self, lane: int, entry: Entry, offset: int, next_place: int) -> None:
        end = entry.place + entry.count
        fresh = min(max(next_place, entry.place), end)
        if entry.standing == Standing.DEAD:
            self.cut_dead(lane, fresh, end - fresh, redrive=False)
            return
        behind = min(max(offset - entry.first_offset, 0), entry.count)
        if behind:
            self.take(lane, entry.place, behind)
        kept = entry.place + behind
        fresh = max(fresh, kept)
        if fresh < end:
            self.take(lane, fresh, end - fresh)
        if kept < fresh:
            for piece in self._cut_ready(lane, kept, fresh - kept):
                self._add(lane, piece._replace(attempts=0))

    # ------------------------------------------------------------------ rows

    def header(self) -> bytes:
        nexts = [progress.next for progress in self.lanes]
        row = (self.name, self.kind, self.active_ms, self.start_offset, self.committed, nexts)
        readers = list(self.readers.items())
        if self.fence != NO_FENCE or self.metadata:
            return _encoder.encode((*row, readers, self.dead_numbers.end, self.fence, self.metadata))
        if self.dead_numbers.end >= 0:
            return _encoder.encode((*row, readers, self.dead_numbers.end))
        return _encoder.encode((*row, readers) if readers else row)

    @classmethod
    def decode(cls, group_id: int, data: bytes, index: Sequence[LaneIndex]) -> Group:
        row = _header_decoder.decode(data)
        group = cls(group_id, row.name, GroupKind(row.kind), index)
        group.active_ms, group.start_offset, group.committed = row.active_ms, row.start_offset, row.committed
        group.readers = dict(row.readers)
        group.dead_numbers.end = row.dead_end
        group.fence, group.metadata = row.fence, row.metadata
        for progress, next_place in zip(group.lanes, row.nexts, strict=True):
            progress.next = next_place
        return group

    def load_lease(self, key: bytes, token: int, data: bytes) -> None:
        lease = self.leases[token] = LeaseRecord.decode(token, data)
        self._stored.add(key)
        self.leased += lease.live.bit_count()
        self.deadlines.put(token, lease.first_deadline_ms())
        for part in lease.parts:
            self.polls[part.member, part.sequence] = token
        for run in lease.runs(lease.live):
            self.lanes[run.lane].hold(run.place, run.count)

    def load_places(self, key: bytes, lane: int, data: bytes) -> None:
        self._stored.add(key)
        for entry in self.lanes[lane].load_row(data):
            self._note(lane, entry)

    def load_settles(self, key: bytes, number: int, data: bytes) -> None:
        self._stored.add(key)
        self.memory.load(number, data)

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        into[group_key(self.id)] = self.header()
        self.memory.take_dirty(lambda number, data: self._put(into, settles_key(self.id, number), data))
        for token in self._dirty_leases:
            lease = self.leases.get(token)
            self._put(into, lease_key(self.id, token), None if lease is None else lease.encode())
        for lane, number in self._dirty_rows:
            row = self.lanes[lane].rows.get(number)
            data = row.encode() if row is not None and row.entries else None
            self._put(into, places_key(self.id, lane, number), data)
        self._dirty_leases = set()
        self._dirty_rows = set()

    def _put(self, into: dict[bytes, bytes | None], key: bytes, data: bytes | None) -> None:
        """A row that came and went between two saves was never stored, so nothing has to be deleted."""
        if data is not None:
            into[key] = data
            self._stored.add(key)
        elif key in self._stored:
            into[key] = None
            self._stored.remove(key)

    def stored_keys(self) -> list[bytes]:
        return [group_key(self.id), *self._stored]

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        into[group_key(self.id)] = self.header()
        for token, lease in self.leases.items():
            into[lease_key(self.id, token)] = lease.encode()
        for lane, progress in enumerate(self.lanes):
            for number, row in progress.rows.items():
                if row.entries:
                    into[places_key(self.id, lane, number)] = row.encode()
        for number, data in self.memory.all_rows().items():
            into[settles_key(self.id, number)] = data
