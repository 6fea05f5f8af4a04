from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.errors import MalformedBatch, UnknownRecord, ValidationError
from lanner.limits import TIME_MS_MAX
from lanner.partition import records


def test_the_batch_lies_behind_the_prefix_untouched() -> None:
    payload = records.encode_append(123, b"batch bytes")
    assert payload[records.batch_start(payload) :] == b"batch bytes"
    assert records.decode_append(payload) == 123
    assert records.encode_append(123, memoryview(b"batch bytes")) == payload


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\x01\x01", MalformedBatch),
        (b"\x01\x09" + bytes(14), UnknownRecord),
        (records.encode_append(-1, b""), MalformedBatch),
        (records.encode_append(TIME_MS_MAX + 1, b""), MalformedBatch),
    ],
)
def test_an_append_that_is_none_is_refused(payload: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        records.decode_append(payload)


def test_facts_come_back_as_they_were_in_their_order() -> None:
    segment = records.Segment(7, 9, 3, 2, 1)
    facts: list[records.AnyFact] = [
        records.GroupMade("g", "queue", 0, [0] * 10),
        records.Leased("g", "m", 4, 99, [segment]),
        records.Acked("g", 5, records.mask_bytes(0b1011)),
        records.Trimmed([(4, 10)], False),
    ]
    decision = records.decode_decision(records.encode_decision(50, 7, facts))
    assert decision.now_ms == 50 and decision.seen_index == 7
    assert decision.facts == facts
    leased = decision.facts[1]
    assert isinstance(leased, records.Leased) and leased.segments[0].place == 3


def test_a_decision_of_another_version_is_refused() -> None:
    payload = records.encode_decision(1, 1, [])
    with pytest.raises(UnknownRecord, match="09"):
        records.decode_decision(b"\x02\x09" + payload[2:])


def test_a_decision_from_outside_of_time_is_refused() -> None:
    with pytest.raises(ValidationError, match="not a time"):
        records.decode_decision(records.encode_decision(TIME_MS_MAX + 1, 0, []))


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_or_are_a_decision(data: bytes) -> None:
    try:
        decision = records.decode_decision(b"\x02\x01" + data)
    except ValidationError:
        return
    assert isinstance(decision, records.Decision)


@settings(deadline=None)
@given(st.integers(0, 2**300))
def test_a_mask_survives_its_bytes(mask: int) -> None:
    assert records.mask_of(records.mask_bytes(mask)) == mask


def test_a_name_that_is_no_text_is_refused_like_any_other_rubbish() -> None:
    record = bytes((records.DECISION_KIND, records.DECISION_VERSION)) + b"\x93\x01\x01\x91\x92\x02\xa2\xff\xfe"
    with pytest.raises(ValidationError, match="does not decode"):
        records.decode_decision(record)


class AckedBefore(msgspec.Struct, array_like=True, tag=9):
    """As 0.1.0 knows it."""

    group: str
    token: int
    mask: bytes


class CommittedBefore(msgspec.Struct, array_like=True, tag=4):
    group: str
    offset: int


def test_a_release_that_does_not_know_the_last_fields_reads_the_others() -> None:
    facts = [records.Acked("g", 7, b"\x01", 1), records.Committed("g", 5, "reader", 3)]
    payload = records.encode_decision(1, 2, list(facts))
    _, _, found = msgspec.msgpack.decode(payload[2:], type=tuple[int, int, list[AckedBefore | CommittedBefore]])
    assert found == [AckedBefore("g", 7, b"\x01"), CommittedBefore("g", 5)]
    before = msgspec.msgpack.encode((1, 2, found))
    assert records.decode_decision(payload[:2] + before).facts == [
        records.Acked("g", 7, b"\x01", 0),
        records.Committed("g", 5, "", -1),
    ]
