"""What a checkpoint holds, and what a query that goes on from it finds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.errors import NotSupported, ValidationError
from lanner.spark.offsets import Held, Span
from lanner.spark.progress import (
    Progress,
    TopicProgress,
    beginning,
    from_json,
    group_of,
    reachable,
    spans_between,
    to_json,
    with_ends,
)

START: Progress = {"orders": TopicProgress(7, {0: 5, 10: 3, 2: 0})}


def test_it_is_kept_in_a_fixed_order_and_found_again() -> None:
    written = json.dumps(to_json(START, "dashboard"))
    assert written == (
        '{"version": 1, "topics": {"orders": {"incarnation": 7, "offsets": {"0": 5, "2": 0, "10": 3}}}, '
        '"group": "dashboard"}'
    )
    assert from_json(json.loads(written)) == START
    assert group_of(json.loads(written)) == "dashboard"


def test_a_field_that_a_later_release_added_is_no_trouble() -> None:
    assert from_json(to_json(START) | {"later": [1]}) == START


@pytest.mark.parametrize("given", [None, [], {}, {"version": 1}, {"version": 1, "topics": {"a": {"offsets": {}}}}])
def test_what_is_not_ours_is_refused(given: object) -> None:
    with pytest.raises(ValidationError, match="not those of format lanner"):
        from_json(given)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(NotSupported, match="written by a later release"):
        from_json(to_json(START) | {"version": 2})


def test_dead_letters_are_another_stream() -> None:
    with pytest.raises(ValidationError, match="different streams"):
        from_json(to_json(START), "workers")
    assert from_json(to_json(START, dead_letters_of="workers"), "workers") == START


def test_a_query_begins_where_it_is_told() -> None:
    topics = {"orders": {0: Held(2, 9, 7), 1: Held(0, 4, 7)}}
    begun = beginning(topics, {("orders", 0): 2, ("orders", 1): 4})
    assert begun == {"orders": TopicProgress(7, {0: 2, 1: 4})}


def test_a_new_partition_enters_at_its_first_offset_and_is_read_from_the_next_batch_on() -> None:
    start = {"orders": TopicProgress(7, {0: 5})}
    topics = {"orders": {0: Held(0, 9, 7), 1: Held(3, 8, 7)}, "refunds": {0: Held(0, 2, 8)}}
    end, losses = reachable(start, topics)
    assert not losses
    assert end == {"orders": TopicProgress(7, {0: 9, 1: 3}), "refunds": TopicProgress(8, {0: 0})}
    assert spans_between(start, end) == [Span("orders", 0, 5, 9, 7)]
    after, _ = reachable(end, topics)
    assert spans_between(end, after) == [Span("orders", 1, 3, 8, 7), Span("refunds", 0, 0, 2, 8)]


def test_a_topic_created_again_is_a_loss_and_begins_anew() -> None:
    start = {"orders": TopicProgress(7, {0: 5})}
    end, losses = reachable(start, {"orders": {0: Held(0, 9, 8)}})
    assert "orders: it was deleted and created again" in str(losses[0])
    assert end == {"orders": TopicProgress(8, {0: 0})}
    assert spans_between(start, end) == []


def test_a_topic_that_is_gone_is_a_loss() -> None:
    end, losses = reachable({"orders": TopicProgress(7, {0: 5})}, {})
    assert end == {}
    assert "orders: the topic was deleted" in str(losses[0])


def test_what_retention_took_and_what_went_back_are_losses() -> None:
    start = {"orders": TopicProgress(7, {0: 5, 1: 50})}
    end, losses = reachable(start, {"orders": {0: Held(8, 20, 7), 1: Held(0, 10, 7)}})
    assert [str(loss) for loss in losses] == [
        "orders/0: retention took offsets 5 to 7 before the query had read them",
        "orders/1: the query is at offset 50, and the partition ends at 10",
    ]
    spans = spans_between(start, end)
    assert spans == [Span("orders", 0, 5, 20, 7)]
    assert with_ends(start, end, spans) == end  # where the offsets went back, so does the query


def test_a_batch_that_takes_less_ends_earlier_and_lets_new_partitions_enter() -> None:
    start = {"orders": TopicProgress(7, {0: 5, 1: 1})}
    end, _ = reachable(start, {"orders": {0: Held(0, 20, 7), 1: Held(0, 9, 7), 2: Held(4, 6, 7)}})
    shorter = with_ends(start, end, [Span("orders", 0, 5, 8, 7)])
    assert shorter == {"orders": TopicProgress(7, {0: 8, 1: 1, 2: 4})}


def test_dead_letters_of_a_group_made_again_begin_anew() -> None:
    start = {"orders": TopicProgress(7, {0: 5, 1: 4}, {0: 31})}
    topics = {"orders": {0: Held(0, 9, 7, 44), 1: Held(2, 6, 7, 45)}}
    end, losses = reachable(start, topics, holes_are_losses=False)
    assert [str(loss) for loss in losses] == [
        "orders/0: the group was dropped and made again; its deaths count anew"
    ]  # on partition 1 it is new
    assert end == {"orders": TopicProgress(7, {0: 0, 1: 6}, {0: 44, 1: 45})}
    assert spans_between(start, end) == [Span("orders", 1, 4, 6, 7, 45)]
    assert with_ends(start, end, spans_between(start, end)) == end
    assert from_json(to_json(end, dead_letters_of="w"), "w") == end


def test_letters_that_were_discarded_are_no_loss() -> None:
    start = {"orders": TopicProgress(7, {0: 2}, {0: 31})}
    assert reachable(start, {"orders": {0: Held(6, 9, 7, 31)}}, holes_are_losses=False)[1] == []
