from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.errors import (
    LannerError,
    MalformedBatch,
    ProducerUnknown,
    UnknownRecord,
    UnsupportedVersion,
    ValidationError,
)
from lanner.limits import BATCH_MESSAGES_MAX
from lanner.partition import Appended, Partition, encode_append, records


def test_offsets_and_places_are_dense(bench: Any) -> None:
    results = [bench.append(count=count, priority=priority) for count, priority in ((3, 4), (1, 9), (2, 4))]
    assert [result.base_offset for result in results] == [0, 3, 4]
    refs = bench.partition.batches_from(0, 1 << 20)
    assert [(ref.lane, ref.lane_base) for ref in refs] == [(4, 0), (9, 0), (4, 3)]
    assert bench.partition.end_offset == 6 and bench.partition.batch_count == 3


def test_append_times_never_fall(bench: Any) -> None:
    bench.now_ms = 5_000
    bench.append()
    bench.now_ms = 4_000
    assert bench.append().append_ms == 5_000
    assert bench.partition.machine_ms == 5_000


def test_a_deliver_at_in_the_past_is_no_delay(bench: Any) -> None:
    bench.append(deliver_at_ms=1_000)
    [ref] = bench.partition.batches_from(0, 1)
    assert ref.lane_base == 0


def test_a_repeated_batch_is_stored_once(bench: Any) -> None:
    first = bench.append(producer_id=3, sequence=0, count=4)
    again = bench.append(producer_id=3, sequence=0, count=4)
    assert again == first._replace(duplicate=True)
    assert bench.partition.end_offset == 4 and bench.live.keys() == {1}


def test_a_repeat_whose_place_is_forgotten_is_still_no_new_batch(bench: Any) -> None:
    for sequence in range(7):
        bench.append(producer_id=3, sequence=sequence)
    assert bench.append(producer_id=3, sequence=0) == Appended(-1, 1, 0, True)
    assert bench.partition.end_offset == 7


def test_a_dedup_id_counts_also_for_a_producer(bench: Any) -> None:
    first = bench.append(dedup_id=b"order-1")
    assert bench.append(dedup_id=b"order-1", producer_id=3, sequence=0) == first._replace(duplicate=True)
    assert bench.append(dedup_id=b"order-1", producer_id=3, sequence=0) == first._replace(duplicate=True)
    assert not bench.append(producer_id=3, sequence=1).duplicate


def test_a_refused_append_leaves_no_trace(bench: Any) -> None:
    bench.append(producer_id=3, sequence=0)
    before = bench.partition.end_offset
    assert isinstance(bench.append(producer_id=9, sequence=4), ProducerUnknown)
    assert bench.partition.end_offset == before and bench.live.keys() == {1}


@pytest.mark.parametrize(
    "header",
    [
        {"count": 0},
        {"count": -1},
        {"count": BATCH_MESSAGES_MAX + 1},
        {"priority": 10},
        {"priority": -1},
        {"deliver_at_ms": -1},
        {"expires_at_ms": 2**60},
        {"producer_id": 1, "sequence": -1},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(bench: Any, header: dict[str, int]) -> None:
    assert isinstance(bench.append(**header), MalformedBatch)
    assert bench.partition.end_offset == 0


def test_bytes_that_are_no_batch_are_refused_whatever_the_reader_raises(bench: Any) -> None:
    assert isinstance(bench.apply(encode_append(1, b"\xc1 garbage")).result, MalformedBatch)
    assert isinstance(bench.apply(encode_append(1, b"")).result, MalformedBatch)

    def refuse(_: memoryview) -> Any:
        raise UnsupportedVersion("a batch from the future")

    partition = Partition(bench.rows, refuse)
    with pytest.raises(UnknownRecord, match="a batch from the future"):
        partition.apply(1, encode_append(1, b"x"))
    assert partition.applied_index == 0


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_no_payload_breaks_the_log(data: bytes) -> None:
    from types import SimpleNamespace

    partition = Partition(_Nothing(), lambda view: SimpleNamespace(**msgspec.msgpack.decode(view)))
    for payload in (data, b"\x01" + data, b"\x01\x01" + data, b"\x02\x01" + data, b"\x02" + data):
        before = partition.applied_index
        try:
            outcome = partition.apply(before + 1, payload)
        except UnknownRecord:
            assert partition.applied_index == before, "of another release: it stays where it is"
            continue
        assert partition.applied_index == before + 1
        assert outcome.result is None or isinstance(outcome.result, LannerError)
        assert not outcome.live


class _Nothing(dict[bytes, bytes]):
    def scan(self, start: bytes, stop: bytes) -> Any:
        return iter(())


def test_an_undecodable_decision_changes_nothing_but_the_index(bench: Any) -> None:
    bench.append()
    outcome = bench.apply(b"\x02\x01\xc1")
    assert isinstance(outcome.result, ValidationError)
    assert bench.partition.applied_index == 2


def test_facts_about_what_is_not_there_have_no_effect(bench: Any) -> None:
    bench.append(count=2)
    bench.poll(messages=1)
    mask = b"\x01"
    facts: list[records.AnyFact] = [
        records.GroupDropped("x"),
        records.GroupTouched("x"),
        records.Committed("x", 1),
        records.Sought("x", 0, [0] * 10),
        records.Leased("x", "m", 1, 1, [records.Segment(0, 4, 0, 1, 1)]),
        records.Leased("g", "m", 1, 1, []),
        records.Taken("x", [(4, 0, 1)]),
        records.Skipped("x", [(4, 0, 1)]),
        records.Skipped("g", [(4, 0, 1)]),
        *(kind("x", 1, mask) for kind in (records.Acked, records.Released, records.LeaseEnded)),
        *(kind("g", 99, mask) for kind in (records.Acked, records.Released, records.LeaseEnded)),
        records.Nacked("x", 1, mask, 5),
        records.Nacked("g", 99, mask, 5),
        records.Died("x", 1, mask, ""),
        records.Extended("x", 1, mask, 5),
        records.Extended("g", 99, mask, 5),
        records.WaitOver("x", [(4, 0)]),
        records.WaitOver("g", [(4, 0)]),
        records.Redriven("x", [(4, 0, 1)]),
        records.Redriven("g", [(4, 0, 1)]),
        records.Discarded("x", [(4, 0, 1)]),
        records.DelayOver([0, 99]),
        records.ProducersForgotten([(1, 1)]),
        records.DedupForgotten(5),
        records.GroupMade("g", "queue", 0, [0] * 10),
    ]
    before = bench.partition.describe_group("g", bench.now_ms)
    bench.apply(records.encode_decision(bench.now_ms, 0, facts))
    assert bench.partition.describe_group("g", bench.now_ms) == before
    assert bench.partition.groups() == ["g"]


def test_a_group_made_twice_between_decision_and_application_is_made_once(bench: Any) -> None:
    from lanner.partition import MakeGroup

    decided = bench.decide(MakeGroup("g", "queue"))
    bench.apply(decided.record)
    bench.apply(decided.record)
    assert bench.partition.groups() == ["g"]


def test_a_seek_of_a_stream_group_wakes_nobody(bench: Any) -> None:
    from lanner.partition import CommitOffset, Seek

    bench.append()
    bench.ask(CommitOffset("s", 1))
    bench.ask(Seek("s", 0))
    assert not bench.outcome.deliverable


def test_facts_about_a_group_dropped_earlier_in_the_record_are_ignored(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll().token
    facts: list[records.AnyFact] = [
        records.Acked("g", token, b"\x01"),
        records.GroupDropped("g"),
        records.Acked("g", token, b"\x02"),
    ]
    bench.apply(records.encode_decision(bench.now_ms, 0, facts))
    assert bench.partition.groups() == []


_names = st.sampled_from(["g", "s", "x"])
_numbers = st.integers(0, 12)
_lanes = st.sampled_from([0, 4, 9])
_masks = st.integers(0, 2**12).map(records.mask_bytes)
_ranges = st.lists(st.tuples(_lanes, _numbers, _numbers), max_size=3)
_nexts = st.lists(_numbers, min_size=10, max_size=10)
_segments = st.lists(st.builds(records.Segment, _numbers, _lanes, _numbers, st.integers(1, 4), st.integers(1, 3)))
_facts: Any = st.one_of(
    st.builds(records.GroupMade, _names, st.sampled_from(["queue", "stream", "?"]), _numbers, _nexts),
    st.builds(records.GroupDropped, _names),
    st.builds(records.Committed, _names, _numbers),
    st.builds(records.Sought, _names, _numbers, _nexts),
    st.builds(records.Leased, _names, st.just("m"), _numbers, _numbers, _segments),
    st.builds(records.Taken, _names, _ranges),
    st.builds(records.Skipped, _names, _ranges),
    *(st.builds(kind, _names, _numbers, _masks) for kind in (records.Acked, records.Released, records.LeaseEnded)),
    st.builds(records.Nacked, _names, _numbers, _masks, _numbers),
    st.builds(records.Died, _names, _numbers, _masks, st.just("why")),
    st.builds(records.Extended, _names, _numbers, _masks, _numbers),
    st.builds(records.WaitOver, _names, st.lists(st.tuples(_lanes, _numbers), max_size=3)),
    st.builds(records.Redriven, _names, _ranges),
    st.builds(records.Discarded, _names, _ranges),
    st.builds(records.DelayOver, st.lists(_numbers, max_size=3)),
    st.builds(records.Trimmed, st.lists(st.tuples(_lanes, _numbers), max_size=3), st.booleans()),
)


@settings(max_examples=200, deadline=None)
@given(decisions=st.lists(st.lists(_facts, max_size=6), max_size=8))
def test_no_decision_however_senseless_stops_the_log(decisions: list[list[records.AnyFact]], make_bench: Any) -> None:
    """Such facts would only come from a broken leader. They may do harm, but applying goes on, and rows still load."""
    bench = make_bench()
    bench.thorough = False
    for priority in (0, 4, 9, 4):
        bench.append(count=3, priority=priority)
    for facts in decisions:
        outcome = bench.partition.apply(bench.partition.applied_index + 1, records.encode_decision(2_000, 0, facts))
        assert outcome.result is None
    bench.save()
    assert bench.reload().applied_index == bench.partition.applied_index
