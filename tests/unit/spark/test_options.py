"""The options: every one is known, and what cannot be meant is refused by name."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.errors import ValidationError
from lanner.spark.offsets import EARLIEST, LATEST
from lanner.spark.options import KNOWN, Chosen, Mode, parse_options

NAMED = {"servers": "localhost:7400", "subscribe": "orders"}


def test_several_topics_are_named_with_commas() -> None:
    assert parse_options(NAMED | {"subscribe": "orders, refunds,orders"}).chosen == Chosen(("orders", "refunds"))


def test_topics_are_chosen_by_pattern_or_by_partition_too() -> None:
    servers = {"servers": "a:1"}
    assert parse_options(servers | {"subscribePattern": "orders-.*"}).chosen == Chosen(pattern="orders-.*")
    chosen = parse_options(servers | {"assign": '{"orders": [2, 0, 2]}'}).chosen
    assert chosen == Chosen(("orders",), partitions={"orders": (0, 2)})


def test_a_batch_begins_at_the_earliest_and_a_stream_at_the_latest() -> None:
    assert parse_options(NAMED, "batch").starting.everywhere == EARLIEST
    assert parse_options(NAMED, "batch").ending.everywhere == LATEST
    assert parse_options(NAMED, "stream").starting.everywhere == LATEST
    assert parse_options(NAMED, "stream").fail_on_data_loss


def test_what_the_numbers_and_words_mean() -> None:
    given = {"maxoffsetspertrigger": "100", "MINOFFSETSPERTRIGGER": "10", "maxTriggerDelay": "2 min"}
    options = parse_options(NAMED | given | {"minPartitions": "4", "failOnDataLoss": "False"}, "stream")
    assert (options.max_offsets, options.min_offsets, options.max_delay_ms) == (100, 10, 120_000)
    assert (options.min_partitions, options.fail_on_data_loss) == (4, False)
    assert parse_options(NAMED, "stream").max_delay_ms == 15 * 60_000
    for text, expected_ms in (("500", 500), ("500ms", 500), ("3s", 3_000), ("2h", 7_200_000), ("1d", 86_400_000)):
        given = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
        assert parse_options(NAMED | given, "stream").max_delay_ms == expected_ms


def test_times_are_bounds_too() -> None:
    options = parse_options(NAMED | {"startingTimestamp": "1700", "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'})
    assert options.starting.times("orders") == {1700}
    assert options.ending.times("orders") == {5}
    late = {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}
    assert not options.latest_when_late
    assert parse_options(NAMED | late).latest_when_late


def test_priorities_are_numbers_names_and_ranges() -> None:
    assert parse_options(NAMED).lanes == 0
    assert parse_options(NAMED | {"priorities": "7-9, low"}).lanes == 0b11_1000_0001
    assert parse_options(NAMED | {"priorities": "high"}).lanes == 1 << 9
    assert parse_options(NAMED | {"priorities": "0-9"}).lanes == 0  # all of them


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priorities": "urgent"}, "priorities: priority 'urgent' is not known"),
        ({"priorities": ""}, "priorities: priority '' is not known"),
        ({"priorities": "9-7"}, "priorities: '9-7' goes backwards"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger: it is '1k'"),
        ({"servers": ""}, r"option servers: it is missing: say \.option\(\"servers\", \"localhost:7400\"\)"),
        ({"subscribe": " "}, "option subscribe: it is missing"),
        ({"subscribe": "orders,,x"}, "topic '' is not valid"),
        ({"subscribe": "a/b"}, "topic 'a/b' is not valid"),
        ({"includeHeaders": "maybe"}, "includeHeaders: it is 'maybe'; give true or false"),
        ({"startingOffset": "earliest"}, "startingoffset: there is no such option, did you mean startingOffsets"),
        ({"maxOffsetPerTriger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"colour": "red"}, "colour: there is no such option. There are servers, subscribe"),
        ({"startingOffsets": "5"}, "startingOffsets: '5' does not map"),
        ({"endingOffsets": "earliest"}, "endingOffsets: a batch read cannot end at the earliest"),
        ({"subscribePattern": "o.*"}, "subscribe: it contradicts subscribePattern"),
        ({"assign": "{}", "subscribePattern": "a"}, "subscribe: it contradicts subscribePattern and assign"),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets: it contradicts startingTimestamp",
        ),
        ({"startingTimestamp": "soon"}, "startingTimestamp: 'soon' is not a moment"),
        ({"startingTimestamp": "-1"}, "startingTimestamp: '-1' is not a moment"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "startingOffsetsByTimestamp: -1 is not a moment"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "Strategy: it means nothing without startingTimestamp or"),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay: it means nothing without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay: it is 'soon'; give a time like"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: it is '0'; give a whole number from 1"),
        ({"minPartitions": "many"}, "minPartitions: it is 'many'"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger: it is 9, more than max"),
        ({"group": "a b"}, "group 'a b' is not valid"),
        ({"deadLettersOf": "w", "group": "g"}, "deadLettersOf: it contradicts group"),
        ({"deadLettersOf": "w", "startingTimestamp": "1"}, "deadLettersOf: it contradicts startingTimestamp"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        parse_options(NAMED | options)


@pytest.mark.parametrize(
    ("mode", "options", "why"),
    [
        ("stream", {"endingOffsets": "latest"}, "endingOffsets: a streaming read has no end"),
        ("stream", {"endingTimestamp": "5"}, "endingTimestamp: a streaming read has no end"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: it is for streaming reads"),
        ("batch", {"group": "g"}, "group: it is for streaming reads"),
        ("batch", {"startingOffsets": "latest"}, "a batch read cannot start at the latest"),
    ],
)
def test_what_one_kind_of_read_cannot_mean_is_refused_there(mode: Mode, options: dict[str, str], why: str) -> None:
    parse_options(NAMED | options)  # the other kind can
    with pytest.raises(ValidationError, match=why):
        parse_options(NAMED | options, mode)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"subscribePattern": "("}, "subscribePattern: '\\(' is not a regular expression"),
        ({"assign": "["}, "assign: '\\[' is not JSON"),
        ({"assign": "{}"}, "assign: '{}' does not map"),
        ({"assign": '{"orders": []}'}, "does not map"),
        ({"assign": '{"orders": [true]}'}, "does not map"),
        ({"assign": '{"orders": [-1]}'}, "does not map"),
        ({"subscribePattern": "a", "deadLettersOf": "w"}, "deadLettersOf: it means nothing without subscribe"),
        ({"assign": '{"a/b": [0]}'}, "topic 'a/b' is not valid"),
    ],
)
def test_a_choice_of_topics_that_cannot_be_meant_is_named(chosen: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        parse_options({"servers": "a:1"} | chosen)


def test_every_option_is_known_once() -> None:
    assert len({name.lower() for name in KNOWN}) == len(KNOWN)
