from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.partition.leases import LeaseRecord, Part, Run, runs_of
from lanner.partition.records import Segment


def lease_of(*segments: tuple[int, int, int, int, int]) -> LeaseRecord:
    lease = LeaseRecord(7)
    mask = lease.add([Segment(*segment) for segment in segments])
    lease.parts.append(Part(mask, 100, "m", 1))
    return lease


def test_offsets_find_their_bits_in_whatever_order_they_were_leased() -> None:
    lease = lease_of((50, 9, 0, 3, 1), (10, 4, 8, 2, 1), (12, 4, 10, 1, 2), (99, 4, 20, 1, 1))
    assert lease.mask_between(50, 3) == 0b111
    assert lease.mask_between(51, 1) == 0b10
    assert lease.mask_between(10, 3) == 0b111000
    assert lease.mask_between(0, 1_000) == 0b1111111
    assert lease.mask_between(11, 41) == 0b110011
    assert lease.mask_between(13, 30) == 0
    assert lease.mask_between(0, 5) == 0
    assert lease.mask_between(200, 5) == 0


def test_a_second_poll_of_the_same_decision_gets_the_next_bits() -> None:
    lease = lease_of((50, 9, 0, 2, 1))
    assert lease.add([Segment(10, 4, 0, 3, 1)]) == 0b11100
    assert lease.live == 0b11111
    assert lease.mask_between(10, 3) == 0b11100


def test_runs_follow_the_live_bits() -> None:
    lease = lease_of((50, 9, 0, 4, 2), (10, 4, 8, 2, 1))
    assert list(lease.runs(0b101101)) == [Run(9, 0, 1, 50, 2), Run(9, 2, 2, 52, 2), Run(4, 9, 1, 11, 1)]
    assert list(lease.runs(0)) == []
    assert [own for _, own in lease.touched(0b100000)] == [0b10]
    assert [own for _, own in lease.touched(0b100001)] == [0b1, 0b10]


def test_a_mask_is_divided_by_how_often_messages_were_delivered() -> None:
    lease = lease_of((50, 9, 0, 2, 2), (10, 4, 8, 2, 1), (60, 9, 2, 2, 2))
    assert lease.by_attempt(0b111110) == {2: 0b110010, 1: 0b001100}
    assert lease.by_attempt(0) == {}
    single = lease_of((50, 9, 0, 2, 3))
    assert single.by_attempt(0b10) == {3: 0b10} and single.by_attempt(0) == {}


def test_segments_between_are_not_touched() -> None:
    lease = lease_of((0, 4, 0, 1, 1), (1, 4, 1, 1, 1), (2, 4, 2, 1, 1))
    assert [segment.first_offset for segment, _ in lease.touched(0b101)] == [0, 2]


def test_settling_ends_parts_that_have_nothing_left() -> None:
    lease = lease_of((0, 4, 0, 2, 1))
    lease.parts.append(Part(lease.add([Segment(5, 4, 2, 2, 1)]), 50, "n", 2))
    assert lease.first_deadline_ms() == 50
    assert lease.settle(0b0001) == []
    [over] = lease.settle(0b1100)
    assert over.member == "n" and lease.first_deadline_ms() == 100
    assert lease.live == 0b0010


def test_extending_some_splits_the_part() -> None:
    lease = lease_of((0, 4, 0, 4, 1))
    lease.extend(0b0011, 500)
    assert lease.parts == [Part(0b1100, 100, "m", 1), Part(0b0011, 500, "m", 1)]
    lease.extend(0b1111, 900)
    assert [part.deadline_ms for part in lease.parts] == [900, 900]


def test_extending_all_that_is_left_leaves_no_empty_part() -> None:
    lease = lease_of((0, 4, 0, 4, 1))
    lease.settle(0b1100)
    lease.extend(0b0011, 500)
    assert lease.parts == [Part(0b0011, 500, "m", 1)]
    lease.parts.append(Part(lease.add([Segment(9, 4, 9, 1, 1)]), 70, "n", 2))
    lease.extend(0b0011, 600)
    assert [part.deadline_ms for part in lease.parts] == [600, 70]


def test_a_lease_survives_its_row() -> None:
    lease = lease_of((50, 9, 0, 4, 2), (10, 4, 8, 2, 1))
    lease.settle(0b10)
    lease.extend(0b1, 300)
    again = LeaseRecord.decode(7, lease.encode())
    assert again.encode() == lease.encode()
    assert again.live == lease.live and again.parts == lease.parts
    assert again.mask_between(10, 2) == lease.mask_between(10, 2)


@settings(deadline=None)
@given(st.integers(0, 2**80))
def test_runs_cover_exactly_the_set_bits(mask: int) -> None:
    rebuilt = 0
    last_end = -1
    for at, count in runs_of(mask):
        assert at > last_end, "two runs touch"
        rebuilt |= ((1 << count) - 1) << at
        last_end = at + count
    assert rebuilt == mask
