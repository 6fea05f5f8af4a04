"""How a task walks along a partition, with a session that answers from memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner import batch
from lanner.errors import OffsetOutOfRange, ServiceUnavailable
from lanner.spark import log
from lanner.spark.log import Missing
from lanner.spark.offsets import Held, Span
from lanner.wire.messages import Fetch, Fetched, FetchedBatch, Offsets, OffsetsReply, PartitionOffsets

DATA = {base: batch.encode([b"%d" % (base + place) for place in range(10)]) for base in (0, 10, 30, 40)}


class FakeSession:
    """A partition with batches at 0, 10, 30 and 40; retention took 20 to 29. It hands out two batches at a time."""

    made: ClassVar[list[FakeSession]] = []
    end_offset = 50
    broken = False

    def __init__(self, servers: str, **_: Any) -> None:
        self.is_open = False
        self.on_lost: list[Any] = []
        self.asked: list[Fetch] = []
        FakeSession.made.append(self)

    async def open(self) -> None:
        if self.broken:
            raise ServiceUnavailable()
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def request(self, control: Any, **_: Any) -> tuple[Any, memoryview]:
        assert self.is_open
        if isinstance(control, Offsets):
            return OffsetsReply([PartitionOffsets(0, 0, 50), PartitionOffsets(1, 7, 7)], 99), memoryview(b"")
        assert isinstance(control, Fetch)
        self.asked.append(control)
        chosen = [base for base in DATA if base + 10 > control.offset and base < self.end_offset][:2]
        told = [FetchedBatch(base, 10, 1_000 + base, len(DATA[base])) for base in chosen]
        following = chosen[-1] + 10 if chosen else control.offset
        bulk = b"".join(DATA[base] for base in chosen)
        return Fetched(0, self.end_offset, following, told), memoryview(bulk)


class FakeFetches:
    """The leader is the only broker there is."""

    def __init__(self, brokers: FakeSession, routing: Any) -> None:
        self._brokers = brokers

    async def fetch(self, asked: Fetch) -> tuple[Any, memoryview]:
        return await self._brokers.request(asked)


def ignore(_: Missing) -> None:
    pass


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSession]]:
    monkeypatch.setattr(log, "Brokers", FakeSession)
    monkeypatch.setattr(log, "Fetches", FakeFetches)
    monkeypatch.setattr(FakeSession, "made", [])
    yield FakeSession.made
    assert not any(session.is_open for session in FakeSession.made)


def test_what_a_topic_holds_comes_with_its_incarnation(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        assert opened.held(["orders"])["orders"] == {0: Held(0, 50, 99), 1: Held(7, 7, 99)}
    assert len(sessions) == 1


def test_a_span_is_walked_over_holes_and_no_further_than_needed(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        noted: list[Missing] = []
        found = list(opened.batches(Span("orders", 0, 5, 35, 99), noted.append))
    assert [(one.base_offset, one.append_ms) for one in found] == [(0, 1_000), (10, 1_010), (30, 1_030)]
    assert [bytes(one.data) for one in found] == [DATA[0], DATA[10], DATA[30]]
    assert [(ask.offset, ask.incarnation) for ask in sessions[0].asked] == [(5, 99), (20, 99)]
    assert [hole[1:] for hole in noted] == [(20, 30, "retention", False)]


def test_a_span_that_ends_with_a_page_asks_for_no_other(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        assert [one.base_offset for one in opened.batches(Span("orders", 0, 0, 20), ignore)] == [0, 10]
    assert len(sessions[0].asked) == 1


def test_lanes_and_followers_are_asked_for(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        list(opened.batches(Span("orders", 0, 0, 20), ignore, 5, True))
        list(opened.batches(Span("orders", 0, 0, 20), ignore))
    assert [(ask.lanes, ask.follower) for ask in sessions[0].asked] == [(5, True), (0, False)]


def test_the_next_page_is_asked_for_while_this_one_is_worked_on(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        walk = opened.batches(Span("orders", 0, 0, 50), ignore)
        next(walk)
        assert opened.held(["orders"])  # answered after what was asked before it
        assert [ask.offset for ask in sessions[0].asked] == [0, 20]
        assert [one.base_offset for one in walk] == [10, 30, 40]


def test_a_log_that_has_become_shorter_is_an_error_and_not_an_endless_loop(
    sessions: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "end_offset", 20)
    with (
        log.TopicLog("localhost") as opened,
        pytest.raises(OffsetOutOfRange, match="ends at 20; it held offsets up to 50"),
    ):
        list(opened.batches(Span("orders", 0, 0, 50), ignore))


def test_a_log_that_is_given_up_is_closed(sessions: list[FakeSession]) -> None:
    with pytest.raises(ZeroDivisionError), log.TopicLog("localhost") as opened:
        assert next(opened.batches(Span("orders", 0, 0, 50), ignore)).base_offset == 0
        raise ZeroDivisionError
    assert len(sessions) == 1


def test_a_broker_that_does_not_answer_is_reported(
    sessions: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "broken", True)
    with pytest.raises(ServiceUnavailable), log.TopicLog("localhost"):
        pass
    assert len(sessions) == 1


def told(fetched: Fetched, position: int, end_offset: int) -> list[tuple[Any, ...]]:
    return [tuple(hole[1:]) for hole in log._holes(Span("orders", 0, position, end_offset), position, fetched)]


def test_gaps_between_batches_are_holes_when_every_priority_is_read() -> None:
    batches = [FetchedBatch(10, 5, 0, 1), FetchedBatch(20, 5, 0, 1)]
    fetched = Fetched(8, 40, 30, batches, damaged=[(26, 28)])
    assert told(fetched, 5, 100) == [
        (5, 10, "retention", False),
        (15, 20, "retention", False),
        (25, 26, "retention", False),
        (28, 30, "retention", False),
        (26, 28, "damaged", False),
    ]
    assert told(fetched, 12, 18) == [(15, 18, "retention", False)]
    assert told(Fetched(10, 40, 15, batches[:1]), 5, 100) == [(5, 10, "retention", True)]  # the log has passed it


def test_of_some_priorities_only_what_the_broker_names_is_a_hole() -> None:
    batches = [FetchedBatch(10, 5, 0, 1), FetchedBatch(20, 5, 0, 1)]
    assert told(Fetched(0, 40, 30, batches, lanes=4), 5, 100) == []
    assert told(Fetched(0, 40, 30, batches, lanes=4, holes=[(2, 9)]), 5, 100) == [(5, 9, "retention", False)]
