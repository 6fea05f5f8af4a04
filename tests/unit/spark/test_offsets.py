"""What a read covers, from the options of the Kafka connector."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.errors import OffsetOutOfRange, ValidationError
from lanner.spark.offsets import (
    ENDING,
    LATEST,
    STARTING,
    Held,
    Span,
    located,
    parse_bound,
    parse_moment,
    parse_moments,
    resolve,
)

TOPICS = {"orders": {0: Held(10, 20), 1: Held(0, 5)}, "payments": {0: Held(3, 3)}}
ALL = '{"orders": {"0": %s, "1": %s}, "payments": {"0": %s}}'


def read(starting: str = "earliest", ending: str = "latest") -> list[Span]:
    return resolve(parse_bound(STARTING, starting), parse_bound(ENDING, ending), TOPICS)


def test_everything_is_from_the_earliest_to_the_latest() -> None:
    assert read() == [Span("orders", 0, 10, 20), Span("orders", 1, 0, 5)]
    assert read(" Earliest ", "LATEST") == read()


def test_offsets_are_given_by_partition_with_two_special_numbers() -> None:
    spans = read(ALL % (12, -2, 3), ALL % (-1, 4, -1))
    assert spans == [Span("orders", 0, 12, 20), Span("orders", 1, 0, 4)]


def test_a_partition_with_nothing_to_read_is_left_out() -> None:
    assert read(ALL % (20, 5, 3)) == []


def test_partitions_come_in_order() -> None:
    topics = {"t": {10: Held(0, 1), 2: Held(0, 1), 0: Held(0, 1)}}
    spans = resolve(parse_bound(STARTING, "earliest"), parse_bound(ENDING, "latest"), topics)
    assert [span.partition for span in spans] == [0, 2, 10]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("newest", "neither a word nor JSON"),
        ("", "neither a word nor JSON"),
        ("{", "neither a word nor JSON"),
        ("[" * 100_000, "neither a word nor JSON"),
        (" " * 2_000_000, "longer than"),
        ("[1]", "does not map"),
        ("7", "does not map"),
        ('{"orders": 5}', "does not map"),
        ('{"orders": {"x": 5}}', "'x' is not a partition"),
        ('{"orders": {"-1": 5}}', "'-1' is not a partition"),
        ('{"orders": {"99999999999": 5}}', "is not a partition"),
        ('{"orders": {"0": "5"}}', "is not an offset of orders/0"),
        ('{"orders": {"0": true}}', "is not an offset"),
        ('{"orders": {"0": 1.5}}', "is not an offset"),
        ('{"orders": {"0": -3}}', "is not an offset"),
        ('{"orders": {"0": 1e400}}', "is not an offset"),
        ('{"orders": {"0": 9007199254740993}}', "is not an offset"),
        ('{"orders": {"0": -1}}', "would be empty"),
        ("latest", "cannot start at the latest"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_shown_how_to_write(text: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        parse_bound(STARTING, text)
    assert caught.value.message.startswith("startingOffsets: ")
    assert '{"orders": {"0": 23, "1": -2}}' in caught.value.message
    assert caught.value.details["field"] == STARTING
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("text", ["earliest", '{"orders": {"0": -2}}'])
def test_a_read_does_not_end_where_it_begins(text: str) -> None:
    with pytest.raises(ValidationError, match="endingOffsets"):
        parse_bound(ENDING, text)


def test_every_partition_must_be_named_and_no_other() -> None:
    with pytest.raises(ValidationError, match="says nothing of orders/1, payments/0"):
        read('{"orders": {"0": 12}}')
    with pytest.raises(ValidationError, match="names orders/2, refunds/0, which this read does not have"):
        read('{"orders": {"0": 12, "1": 1, "2": 0}, "payments": {"0": 3}, "refunds": {"0": 0}}')


def test_a_long_list_of_partitions_is_shortened() -> None:
    topics: dict[str, Any] = {"t": {number: Held(0, 1) for number in range(12)}}
    with pytest.raises(ValidationError, match="t/4 and 7 more"):
        resolve(parse_bound(STARTING, "{}"), parse_bound(ENDING, "latest"), topics)


@pytest.mark.parametrize("offset", [9, 21])
def test_an_offset_that_the_partition_does_not_hold_is_refused(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"orders/0 at {offset}, which holds offsets from 10 to 20"):
        read(ALL % (offset, -2, -2))


def test_a_read_goes_forward() -> None:
    with pytest.raises(ValidationError, match="startingOffsets of orders/0 is 15 and endingOffsets 12"):
        read(ALL % (15, 0, 3), ALL % (12, 5, 3))


def test_a_read_by_time_goes_from_what_was_first_then() -> None:
    at = {("orders", 0, 1_000): 14, ("orders", 1, 1_000): 2, ("payments", 0, 1_000): 3}
    starting = located(parse_moment("startingTimestamp", "1000"), TOPICS, at)
    assert resolve(starting, parse_bound(ENDING, "latest"), TOPICS) == [
        Span("orders", 0, 14, 20),
        Span("orders", 1, 2, 5),
    ]
    ending = located(parse_moment("endingTimestamp", "1000"), TOPICS, at)
    assert resolve(parse_bound(STARTING, "earliest"), ending, TOPICS) == [
        Span("orders", 0, 10, 14),
        Span("orders", 1, 0, 2),
    ]


def test_each_partition_may_have_its_own_time() -> None:
    bound = parse_moments("startingOffsetsByTimestamp", ALL % (1, 2, 3))
    at = {("orders", 0, 1): 11, ("orders", 1, 2): 4, ("payments", 0, 3): 3}
    assert bound.times("orders") == {1, 2}
    assert located(bound, TOPICS, at).by_partition == {"orders": {0: 11, 1: 4}, "payments": {0: 3}}
    with pytest.raises(ValidationError, match="startingOffsetsByTimestamp: it says nothing of payments/0"):
        located(parse_moments("startingOffsetsByTimestamp", '{"orders": {"0": 1, "1": 2}}'), TOPICS, at)


def test_a_start_after_everything_is_an_error_unless_the_latest_will_do() -> None:
    bound = parse_moment("startingTimestamp", "9")
    with pytest.raises(OffsetOutOfRange, match="nothing was appended to orders/0 at or after 9"):
        located(bound, TOPICS, {})
    assert located(bound, TOPICS, {}, True).by_partition["orders"] == {0: LATEST, 1: LATEST}
    assert located(parse_moment("endingTimestamp", "9"), TOPICS, {}).by_partition["payments"] == {0: LATEST}


def test_a_place_found_by_time_lies_in_what_is_held() -> None:
    at = {("t", 0, 9): 2, ("t", 1, 9): 8}
    assert located(parse_moment("startingTimestamp", "9"), {"t": {0: Held(5, 7), 1: Held(5, 7)}}, at).by_partition == {
        "t": {0: 5, 1: 7}
    }
