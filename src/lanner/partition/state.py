"""Everything a partition knows, and how it lies in rows.

Each part (batch index, lanes, kept batches, groups, producers, dedup ids, stages) notes itself which of its rows
changed; one header row holds the counters. What is derived (timetables, counts) is rebuilt when rows are loaded. The
rows are a function of the applied entries alone: loading and replaying the rest gives the same bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lanner.model import LANES
from lanner.partition.batches import BatchIndex, BatchRef, LaneIndex, Rows
from lanner.partition.groups import Group
from lanner.partition.kept import KeptBatches
from lanner.partition.keys import GROUPS, HEADER, LEASES, PLACES, SETTLES, integer_of, prefix_end
from lanner.partition.producers import DedupIds, Producers
from lanner.partition.staging import Stages
from lanner.partition.timetable import Timetable

STATE_VERSION: Final = 1


class _Header(msgspec.Struct, array_like=True):
    version: int
    applied_index: int
    machine_ms: int
    end_offset: int
    stored_bytes: int
    batch_count: int
    expiring_count: int
    trimmed_ms: int
    trim_more: bool
    next_group_id: int
    dedup_numbered: int
    lanes: list[tuple[int, int, int]]
    staged_bytes: int = 0
    prepared_bytes: int = 0
    metadata_index: int = 0


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Header)


class State:
    def __init__(self, rows: Rows) -> None:
        self.applied_index = 0
        self.machine_ms = 0
        self.end_offset = 0
        self.stored_bytes = 0  # of the batches that retention has left
        self.batch_count = 0
        self.expiring_count = 0  # batches with an expiry, kept ones included
        self.trimmed_ms = 0  # when retention last took something
        self.trim_more = False  # and whether it stopped only because enough was done at once
        self.next_group_id = 1
        self.batches = BatchIndex(rows)
        self.lanes = [LaneIndex(rows, lane) for lane in range(LANES)]
        self.kept = KeptBatches()
        self.groups: dict[str, Group] = {}  # the longest idle first
        self.producers = Producers()
        self.dedup = DedupIds()
        self.stages = Stages()
        # derived
        self.delayed: Timetable[int] = Timetable()  # base offset → deliver_at
        self.group_due: Timetable[str] = Timetable()  # group → its next lease end or retry
        self._dirty_groups: dict[int, Group] = {}
        self._deleted_keys: set[bytes] = set()
        self._saved_index = -1
        self._load(rows)

    # ------------------------------------------------------------------ reading

    def batch(self, offset: int) -> BatchRef | None:
        """The batch of an offset, kept ones included."""
        return self.batches.get(offset) or self.kept.get(offset)

    def touch(self, group: Group, now_ms: int) -> None:
        """The group was in use, and its rows may have changed."""
        self.groups.pop(group.name)
        self.groups[group.name] = group
        group.active_ms = now_ms
        self._dirty_groups[group.id] = group
        due_ms = group.next_due_ms()
        if due_ms is None:
            self.group_due.drop(group.name)
        else:
            self.group_due.put(group.name, due_ms)

    def changed(self, group: Group) -> None:
        """Something outside the group's own doing (a trim, a retry that is due) changed its rows."""
        self._dirty_groups[group.id] = group
        due_ms = group.next_due_ms()
        if due_ms is None:
            self.group_due.drop(group.name)
        else:
            self.group_due.put(group.name, due_ms)

    def forget_group(self, group: Group) -> None:
        del self.groups[group.name]
        self.group_due.drop(group.name)
        self._dirty_groups.pop(group.id, None)
        self._deleted_keys.update(group.stored_keys())

    # ------------------------------------------------------------------ rows

    def _load(self, rows: Rows) -> None:
        data = rows.get(HEADER)
        if data is None:
            return
        header = _decoder.decode(data)
        assert header.version == STATE_VERSION, f"the rows have version {header.version}"
        self.applied_index = self._saved_index = header.applied_index
        self.machine_ms = header.machine_ms
        self.end_offset = header.end_offset
        self.stored_bytes = header.stored_bytes
        self.batch_count = header.batch_count
        self.expiring_count = header.expiring_count
        self.trimmed_ms, self.trim_more = header.trimmed_ms, header.trim_more
        self.next_group_id = header.next_group_id
        for lane, (first, end, highest_offset) in zip(self.lanes, header.lanes, strict=True):
            lane.first, lane.end, lane.highest_offset = first, end, highest_offset
            lane.load()
        for ref in self.batches.load():
            self.delayed.put(ref.base_offset, ref.deliver_at_ms)
        self.kept.load(rows)
        self.producers.load(rows)
        self.dedup.load(rows, header.dedup_numbered)
        self.stages.load(rows)
        self.stages.staged_bytes = header.staged_bytes
        self.stages.prepared_bytes = header.prepared_bytes
        self.stages.metadata_index = header.metadata_index
        self._load_groups(rows)

    def _load_groups(self, rows: Rows) -> None:
        groups: dict[int, Group] = {}
        for key, data in rows.scan(GROUPS, prefix_end(GROUPS)):
            group_id = integer_of(GROUPS, key)
            groups[group_id] = Group.decode(group_id, data, self.lanes)
        for key, data in rows.scan(LEASES, prefix_end(LEASES)):
            groups[int.from_bytes(key[1:9], "big")].load_lease(key, int.from_bytes(key[9:], "big"), data)
        for key, data in rows.scan(PLACES, prefix_end(PLACES)):
            groups[int.from_bytes(key[1:9], "big")].load_places(key, key[9], data)
        for key, data in rows.scan(SETTLES, prefix_end(SETTLES)):
            groups[int.from_bytes(key[1:9], "big")].load_settles(key, int.from_bytes(key[9:], "big"), data)
        for group in sorted(groups.values(), key=lambda each: (each.active_ms, each.id)):
            self.groups[group.name] = group
            due_ms = group.next_due_ms()
            if due_ms is not None:
                self.group_due.put(group.name, due_ms)

    def _encode_header(self) -> bytes:
        lanes = [(lane.first, lane.end, lane.highest_offset) for lane in self.lanes]
        return _encoder.encode(
            _Header(
                STATE_VERSION,
                self.applied_index,
                self.machine_ms,
                self.end_offset,
                self.stored_bytes,
                self.batch_count,
                self.expiring_count,
                self.trimmed_ms,
                self.trim_more,
                self.next_group_id,
                self.dedup.numbered,
                lanes,
                self.stages.staged_bytes,
                self.stages.prepared_bytes,
                self.stages.metadata_index,
            )
        )

    def take_dirty(self) -> dict[bytes, bytes | None]:
        taken: dict[bytes, bytes | None] = {}
        if self.applied_index == self._saved_index:
            return taken
        self._saved_index = self.applied_index
        taken[HEADER] = self._encode_header()
        for key in self._deleted_keys:
            taken[key] = None
        self._deleted_keys = set()
        self.batches.take_dirty(taken)
        for lane in self.lanes:
            lane.take_dirty(taken)
        self.kept.take_dirty(taken)
        self.producers.take_dirty(taken)
        self.dedup.take_dirty(taken)
        self.stages.take_dirty(taken)
        for group in self._dirty_groups.values():
            group.take_dirty(taken)
        self._dirty_groups = {}
        return taken

    def all_rows(self) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes] = {HEADER: self._encode_header()}
        self.batches.all_rows(rows)
        for lane in self.lanes:
            lane.all_rows(rows)
        self.kept.all_rows(rows)
        self.producers.all_rows(rows)
        self.dedup.all_rows(rows)
        self.stages.all_rows(rows)
        for group in self.groups.values():
            group.all_rows(rows)
        return rows
