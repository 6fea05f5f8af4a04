from __future__ import annotations

from typing import Any

import pytest

from lanner.model import GroupKind
from lanner.partition.batches import LaneIndex
from lanner.partition.groups import Group
from lanner.partition.keys import lease_key, places_key
from lanner.partition.leases import Held
from lanner.partition.places import Standing
from lanner.partition.records import Segment

READY, WAITING, DEAD = Standing.READY, Standing.WAITING, Standing.DEAD


@pytest.fixture
def lanes(empty_rows: Any) -> list[LaneIndex]:
    return [LaneIndex(empty_rows, lane) for lane in range(10)]


@pytest.fixture
def group(lanes: list[LaneIndex]) -> Group:
    """Ten messages of lane 4 leased under token 7; offsets are places plus 100."""
    group = Group(1, "g", GroupKind.QUEUE, lanes)
    group.lease(7, [Segment(100, 4, 0, 10, 1)], 500, "m", 1)
    return group


def counts(group: Group) -> tuple[int, int, int, int]:
    return group.leased, group.waiting, group.ready, group.dead


def test_messages_move_between_standings_and_are_counted(group: Group) -> None:
    group.ack(7, 0b1)
    group.give_back(7, 0b10, WAITING, 900, "", uncount=False)
    group.give_back(7, 0b100, READY, 0, "", uncount=True)
    group.give_back(7, 0b1000, DEAD, 50, "why", uncount=False)
    assert counts(group) == (6, 1, 1, 1) and group.outstanding == 8
    group.end_wait(4, 1)
    assert counts(group) == (6, 0, 2, 1)
    assert [(entry.place, entry.attempts) for entry in group.lanes[4].ready_entries()] == [(1, 1), (2, 0)]
    group.take(4, 1, 2)
    assert counts(group) == (6, 0, 0, 1)


def test_a_waiting_range_can_be_settled_as_a_whole(group: Group) -> None:
    group.give_back(7, 0b1111, WAITING, 900, "", uncount=False)
    group.take(4, 0, 4)
    assert counts(group) == (6, 0, 0, 0) and group.due.first_ms() is None


def test_the_first_of_lease_end_and_retry_is_due(group: Group) -> None:
    assert group.next_due_ms() == 500
    group.give_back(7, 0b1, WAITING, 300, "", uncount=False)
    assert group.next_due_ms() == 300
    group.ack(7, group.leases[7].live)
    assert group.next_due_ms() == 300
    group.end_wait(4, 0)
    assert group.next_due_ms() is None


def test_what_each_member_holds_is_what_is_still_leased_to_it(group: Group) -> None:
    group.lease(8, [Segment(110, 4, 10, 3, 1)], 700, "n", 1)
    group.lease(9, [Segment(113, 4, 13, 2, 1)], 600, "m", 2)
    assert group.held_by_member() == {"m": Held(12, 600, 2), "n": Held(3, 700, 1)}
    group.extend(7, 0b11, 900)
    group.ack(7, 0b1)
    group.ack(8, 0b111)
    assert group.held_by_member() == {"m": Held(11, 900, 3)}


def test_a_poll_is_remembered_while_any_part_of_it_is_leased(group: Group) -> None:
    group.extend(7, 0b11, 800)
    group.ack(7, 0b1111111100)
    assert group.polls == {("m", 1): 7} and group.deadlines.first_ms() == 800
    group.ack(7, 0b11)
    assert group.polls == {} and group.leases == {}


def test_a_poll_leased_again_under_a_newer_token_is_not_forgotten_with_the_old_one(group: Group) -> None:
    group.lease(9, [Segment(110, 4, 10, 1, 1)], 600, "m", 1)
    group.ack(7, 0b1111111111)
    assert group.polls == {("m", 1): 9}


def test_retries_and_fresh_messages_are_leased_together(group: Group) -> None:
    group.give_back(7, 0b11, READY, 0, "", uncount=False)
    group.lease(
        9,
        [Segment(100, 4, 0, 2, 2), Segment(110, 4, 10, 2, 1), Segment(112, 4, 12, 1, 1), Segment(50, 2, 0, 1, 1)],
        600,
        "n",
        1,
    )
    assert group.lanes[4].next == 13 and group.lanes[2].next == 1
    assert counts(group) == (14, 0, 0, 0)
    group.ack(9, 0b111111)
    assert counts(group) == (8, 0, 0, 0)
    assert group.lanes[4].floor() == 2 and group.lanes[2].floor() == 1


def test_what_is_settled_below_the_lanes_first_place_is_freed(group: Group, lanes: list[LaneIndex]) -> None:
    lanes[4].first = 10
    group.ack(7, 0b1)
    group.give_back(7, 0b10, DEAD, 0, "", uncount=False)
    assert group.freed == [(100, 10)]
    group.cut_dead(4, 1, 1, redrive=False)
    assert group.freed == [(100, 10), (101, 1)]


def test_dead_ranges_are_cut_in_the_middle_and_listed_in_offset_order(group: Group) -> None:
    group.give_back(7, 0b111111, DEAD, 50, "why", uncount=False)
    group.cut_dead(4, 2, 2, redrive=True)
    assert [entry.first_offset for _, entry in group.dead_from(0)] == [100, 104]
    assert [entry.first_offset for _, entry in group.dead_from(102)] == [104]
    assert counts(group) == (4, 0, 2, 4)
    group.cut_dead(4, 0, 100, redrive=False)
    assert counts(group) == (4, 0, 2, 0) and list(group.dead_from(0)) == []


def test_unknown_tokens_and_empty_masks_do_nothing(group: Group) -> None:
    group.ack(99, 1)
    group.give_back(99, 1, READY, 0, "", uncount=False)
    group.extend(99, 1, 1)
    group.extend(7, 1 << 50, 1)
    group.end_wait(4, 3)
    assert counts(group) == (10, 0, 0, 0) and group.deadlines.first_ms() == 500


def test_seeking_sorts_every_held_message(group: Group, lanes: list[LaneIndex]) -> None:
    """Below the new next (6), what lies behind offset 102 is settled and the rest is ready; from it on all is fresh."""
    group.give_back(7, 0b0000000011, WAITING, 900, "", uncount=False)
    group.give_back(7, 0b1100000000, DEAD, 50, "", uncount=False)
    group.give_back(7, 0b0000100000, DEAD, 50, "", uncount=False)
    group.seek(102, [0, 0, 0, 0, 6, 0, 0, 0, 0, 0])
    assert counts(group) == (0, 0, 3, 1)
    assert [(entry.place, entry.count, entry.attempts) for entry in group.lanes[4].ready_entries()] == [(2, 3, 0)]
    assert group.lanes[4].next == 6 and group.start_offset == 102


def test_a_group_survives_its_rows(group: Group, lanes: list[LaneIndex]) -> None:
    group.give_back(7, 0b0011, WAITING, 900, "", uncount=False)
    group.give_back(7, 0b1100, DEAD, 50, "why", uncount=False)
    group.committed, group.active_ms = 5, 77
    taken: dict[bytes, bytes | None] = {}
    group.take_dirty(taken)
    again = Group.decode(1, group.header(), lanes)
    for key, data in taken.items():
        assert data is not None
        if key == lease_key(1, 7):
            again.load_lease(key, 7, data)
        elif key == places_key(1, 4, 0):
            again.load_places(key, 4, data)
    assert counts(again) == counts(group) and again.polls == group.polls
    assert again.due.times == group.due.times and again.deadlines.times == group.deadlines.times
    assert sorted(again.stored_keys()) == sorted(taken)
    first: dict[bytes, bytes] = {}
    second: dict[bytes, bytes] = {}
    group.all_rows(first)
    again.all_rows(second)
    assert first == second == taken


def test_a_lease_that_came_and_went_between_two_saves_costs_no_row(group: Group) -> None:
    group.ack(7, 0b1111111111)
    taken: dict[bytes, bytes | None] = {}
    group.take_dirty(taken)
    assert lease_key(1, 7) not in taken
    group.lease(9, [Segment(110, 4, 10, 1, 1)], 600, "m", 1)
    taken = {}
    group.take_dirty(taken)
    assert taken[lease_key(1, 9)] is not None
    group.ack(9, 1)
    taken = {}
    group.take_dirty(taken)
    assert taken[lease_key(1, 9)] is None
