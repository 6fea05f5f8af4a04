from __future__ import annotations

from typing import Any

from lanner.model import GroupKind
from lanner.partition.batches import LaneIndex
from lanner.partition.groups import Group
from lanner.partition.leases import LeaseRecord, Run
from lanner.partition.places import Entry, Standing
from lanner.partition.records import Segment
from lanner.partition.views import GroupView


def view_of(rows: Any) -> GroupView:
    return GroupView(Group(1, "g", GroupKind.QUEUE, [LaneIndex(rows, lane) for lane in range(10)]))


def test_new_and_old_ready_entries_come_in_place_order(empty_rows: Any) -> None:
    view = view_of(empty_rows)
    view.group.lanes[4].add(Entry(5, 2, 50, 1, Standing.READY))
    view.add_ready(Run(4, 9, 1, 90, 1), 1)
    view.add_ready(Run(4, 1, 1, 10, 1), 0)
    assert [entry.place for entry, _ in view.ready_entries(4)] == [1, 5, 9]
    assert view.has_ready(4) and not view.has_ready(3)


def test_what_is_taken_is_not_offered_again(empty_rows: Any) -> None:
    view = view_of(empty_rows)
    view.add_ready(Run(4, 1, 4, 10, 1), 0)
    view.add_ready(Run(4, 9, 1, 90, 1), 1)
    view.taken[4, 1] = 3
    assert [(entry.place, gone) for entry, gone in view.ready_entries(4)] == [(1, 3), (9, 0)]
    view.taken[4, 1] = 4
    assert [entry.place for entry, _ in view.ready_entries(4)] == [9]


def test_settling_in_a_view_leaves_the_lease_alone(empty_rows: Any) -> None:
    view = view_of(empty_rows)
    lease = LeaseRecord(3)
    lease.add([Segment(0, 4, 0, 3, 1)])
    view.settle(lease, 0b010)
    assert view.live_of(lease) == 0b101 and lease.live == 0b111 and view.touched
