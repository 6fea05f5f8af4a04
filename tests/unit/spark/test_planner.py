"""What the planner of a streaming query answers, with a log that needs no broker."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.errors import (
    GroupNotFound,
    LannerError,
    OffsetOutOfRange,
    PartitionNotFound,
    ServiceUnavailable,
    TopicNotFound,
)
from lanner.spark import planner
from lanner.spark.offsets import Held, Span
from lanner.spark.options import parse_options
from lanner.spark.planner import StreamPlanner


class MemoryLog:
    """Topics as one says they are, and what was asked."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Held]] = {"orders": {0: Held(2, 10, 7), 1: Held(0, 4, 7)}}
        self.groups: dict[tuple[str, str], dict[int, int]] = {}
        self.failure: LannerError | None = None
        self.waits = 0
        self.on_wait: Any = lambda: None
        self.looks = 0

    def names(self, pattern: str) -> list[str]:
        return sorted(name for name in self.topics if name.startswith(pattern.rstrip(".*")))

    def held(self, names: list[str], *, missing_ok: bool = False) -> dict[str, dict[int, Held]]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        if not missing_ok and (unknown := [name for name in names if name not in self.topics]):
            raise TopicNotFound(unknown[0])
        return {name: dict(self.topics[name]) for name in names if name in self.topics}

    def moments(self, *_: object) -> dict[Any, int]:
        return {}

    def reach(self, spans: list[tuple[Span, int]], lanes: int) -> list[Span]:
        return [span._replace(end_offset=min(span.end_offset, span.start_offset + size // 10)) for span, size in spans]

    def news(self, ends: list[tuple[str, int, int]], wait_ms: int, lanes: int) -> None:
        self.waits += 1
        self.on_wait()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return self.groups.get((group, topic), {})

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self.groups.setdefault((group, topic), {}).update(offsets)

    def start_commit(self, group: str, topic: str, offsets: dict[int, int]) -> Future[None]:
        done: Future[None] = Future()
        if self.failure is None:
            self.commit(group, topic, offsets)
            done.set_result(None)
        else:
            done.set_exception(self.failure)
        return done

    def close(self) -> None:
        pass


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    monkeypatch.setattr(planner, "_PAUSE_MS", 0)
    return MemoryLog()


def planned(log: MemoryLog, clock: Any = None, **options: str) -> StreamPlanner:
    given = {"servers": "localhost:7400", "subscribe": "orders"} | options
    if "subscribePattern" in options or "assign" in options:
        del given["subscribe"]
    return StreamPlanner(parse_options(given, "stream"), log, clock or (lambda: 0.0))  # type: ignore[arg-type]


def offsets(written: dict[str, Any], topic: str = "orders") -> dict[str, int]:
    found: dict[str, int] = written["topics"][topic]["offsets"]
    return found


def after(plan: StreamPlanner, start: dict[str, Any], **limits: Any) -> dict[str, Any]:
    all_of_it = limits.pop("all_of_it", False)
    return plan.next_end(start, limits.get("rows_max"), limits.get("bytes_max"), all_of_it=all_of_it)


def test_a_query_begins_at_the_latest_or_as_it_is_told(log: MemoryLog) -> None:
    assert offsets(planned(log).begin()) == {"0": 10, "1": 4}
    assert offsets(planned(log, startingOffsets="earliest").begin()) == {"0": 2, "1": 0}
    assert offsets(planned(log, startingOffsets='{"orders": {"0": 5, "1": -1}}').begin()) == {"0": 5, "1": 4}


def test_an_unknown_topic_or_partition_ends_the_query_before_it_begins(log: MemoryLog) -> None:
    with pytest.raises(TopicNotFound):
        planned(log, subscribe="refunds").begin()
    with pytest.raises(PartitionNotFound, match="orders has no partition 5"):
        planned(log, assign='{"orders": [0, 5]}').begin()
    assert offsets(planned(log, assign='{"orders": [1]}').begin()) == {"1": 4}


def test_a_group_pins_where_the_latest_was(log: MemoryLog) -> None:
    assert offsets(planned(log, group="g").begin()) == {"0": 10, "1": 4}
    log.topics["orders"][0] = Held(2, 99, 7)
    assert offsets(planned(log, group="g").begin()) == {"0": 10, "1": 4}
    assert offsets(planned(log, group="g", startingOffsets="earliest").begin()) == {"0": 2, "1": 0}
    assert log.groups["g", "orders"] == {0: 2, 1: 0}


def test_everything_new_is_taken_and_nothing_new_is_the_same_offset(log: MemoryLog) -> None:
    plan = planned(log, startingOffsets="earliest")
    start = plan.begin()
    end = after(plan, start)
    assert offsets(end) == {"0": 10, "1": 4}
    assert log.waits == 0
    assert after(plan, end) is end
    assert log.waits == 1


def test_it_waits_for_news_and_takes_what_came(log: MemoryLog) -> None:
    plan = planned(log)
    start = plan.begin()
    log.on_wait = lambda: log.topics["orders"].update({0: Held(2, 11, 7)})
    assert offsets(after(plan, start)) == {"0": 11, "1": 4}


def test_it_does_not_wait_while_another_source_is_at_work(log: MemoryLog) -> None:
    plan = planned(log)
    start = plan.begin()
    plan.note_others()
    assert after(plan, start) is start
    assert log.waits == 0
    assert after(plan, start) is start
    assert log.waits == 1


def test_limits_are_kept_and_can_be_waived(log: MemoryLog) -> None:
    plan = planned(log, startingOffsets="earliest")
    start = plan.begin()
    assert offsets(after(plan, start, rows_max=6)) == {"0": 6, "1": 2}
    assert offsets(after(plan, start, bytes_max=60)) == {"0": 6, "1": 2}
    assert offsets(after(plan, start, rows_max=3, bytes_max=10_000)) == {"0": 4, "1": 1}
    assert offsets(after(plan, start)) == {"0": 10, "1": 4}


def test_too_little_waits_until_it_has_waited_long_enough(log: MemoryLog) -> None:
    now = [0.0]
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "13", "maxTriggerDelay": "10s"}
    plan = planned(log, lambda: now[0], **options)
    start = plan.begin()
    assert after(plan, start) is start
    assert offsets(after(plan, start, all_of_it=True)) == {"0": 10, "1": 4}
    now[0] = 10.0
    assert offsets(after(plan, start)) == {"0": 10, "1": 4}


def test_available_now_is_what_was_there(log: MemoryLog) -> None:
    plan = planned(log, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    start = plan.begin()
    plan.prepare_available_now()
    log.topics["orders"][0] = Held(2, 50, 7)
    end = after(plan, start, rows_max=100)
    assert offsets(end) == {"0": 10, "1": 4}
    assert after(plan, end) is end
    assert log.waits == 0


def test_a_broker_that_is_away_is_nothing_new_and_no_end(log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(log)
    start = plan.begin()
    log.failure = ServiceUnavailable("away")
    with caplog.at_level(logging.WARNING, "lanner.spark"):
        assert after(plan, start) is start
    assert "nothing new can be learnt at present: away" in caplog.text
    log.failure = LannerError("broken")
    with pytest.raises(LannerError, match="broken"):
        after(plan, start)


def test_a_loss_is_an_error_or_is_told_once(log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    start = planned(log, startingOffsets="earliest").begin()
    log.topics["orders"] = {0: Held(5, 10, 7), 1: Held(0, 4, 7)}
    with pytest.raises(OffsetOutOfRange, match=r"orders/0: retention took offsets 2 to 4.*failOnDataLoss"):
        after(planned(log), start)
    plan = planned(log, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "lanner.spark"):
        assert offsets(after(plan, start)) == {"0": 10, "1": 4}
        after(plan, start)
    assert caplog.text.count("retention took") == 1


@pytest.mark.parametrize(
    "options", [{"subscribe": "refunds"}, {"subscribePattern": "ref.*"}, {"assign": '{"refunds": [0]}'}]
)
def test_a_topic_that_the_options_no_longer_name_is_not_said_to_be_deleted(
    log: MemoryLog, options: dict[str, str]
) -> None:
    """As where a query is given the checkpoint of another one."""
    start = planned(log).begin()
    log.topics["refunds"] = {0: Held(0, 3, 9)}
    with pytest.raises(OffsetOutOfRange, match=r"orders: the options do not name it any more.*failOnDataLoss"):
        after(planned(log, **options), start)
    del log.topics["orders"]
    with pytest.raises(OffsetOutOfRange, match="orders: the topic was deleted"):
        after(planned(log), start)


def test_what_is_gone_takes_nothing_of_a_limit(log: MemoryLog) -> None:
    start = planned(log, startingOffsets="earliest").begin()
    log.topics["orders"] = {0: Held(100, 110, 7), 1: Held(0, 0, 7)}
    plan = planned(log, failOnDataLoss="false")
    assert offsets(after(plan, start, rows_max=4)) == {"0": 104, "1": 0}


def test_topics_that_appear_under_a_pattern_enter(log: MemoryLog) -> None:
    now = [0.0]
    plan = planned(log, lambda: now[0], subscribePattern="or.*")
    start = plan.begin()
    log.topics |= {"orders-eu": {0: Held(0, 3, 8)}, "refunds": {0: Held(0, 3, 9)}}
    now[0] = 2.0
    entered = after(plan, start)
    assert offsets(entered, "orders-eu") == {"0": 0}
    assert offsets(after(plan, entered), "orders-eu") == {"0": 3}
    assert set(entered["topics"]) == {"orders", "orders-eu"}


def test_a_group_is_told_what_is_finished_and_never_goes_back(log: MemoryLog) -> None:
    plan = planned(log, group="g", startingOffsets="earliest")
    start = plan.begin()
    end = after(plan, start)
    assert log.groups["g", "orders"] == {0: 2, 1: 0}
    after(plan, end)
    assert log.groups["g", "orders"] == {0: 10, 1: 4}
    plan.publish(planner.from_json(start))
    assert log.groups["g", "orders"] == {0: 10, 1: 4}


def test_a_group_that_is_gone_is_an_error_and_another_one_takes_over(log: MemoryLog) -> None:
    kept = planned(log, group="g").begin()
    assert after(planned(log, group="g"), kept) is kept
    log.groups.clear()
    with pytest.raises(GroupNotFound, match="group 'g' is gone"):
        after(planned(log, group="g"), kept)
    assert after(planned(log, group="other"), kept)["group"] == "other"
    assert log.groups["other", "orders"] == {0: 10, 1: 4}


def test_the_latest_is_told_with_the_group(log: MemoryLog) -> None:
    plan = planned(log, group="g")
    assert plan.latest() is None
    after(plan, plan.begin())
    assert plan.latest() == {
        "version": 1,
        "topics": {"orders": {"incarnation": 7, "offsets": {"0": 10, "1": 4}}},
        "group": "g",
    }
