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
from lanner.spark.offsets import Held, Span
from lanner.wire.messages import Command, Fetch, Fetched, FetchedBatch, Offsets, OffsetsReply, PartitionOffsets

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

    async def request(self, command: Command, control: Any, kind: type[Any]) -> tuple[Any, memoryview]:
        assert self.is_open
        if isinstance(control, Offsets):
            assert (command, kind) == (Command.OFFSETS, OffsetsReply)
            return OffsetsReply([PartitionOffsets(0, 0, 50), PartitionOffsets(1, 7, 7)], 99), memoryview(b"")
        assert (command, kind) == (Command.FETCH, Fetched)
        self.asked.append(control)
        chosen = [base for base in DATA if base + 10 > control.offset and base < self.end_offset][:2]
        told = [FetchedBatch(base, 10, 1_000 + base, len(DATA[base])) for base in chosen]
        following = chosen[-1] + 10 if chosen else control.offset
        bulk = b"".join(DATA[base] for base in chosen)
        return Fetched(0, self.end_offset, following, told), memoryview(bulk)


class FakeLeaders:
    """Whoever leads: there is one broker."""

    def __init__(self, brokers: FakeSession, routing: Any) -> None:
        self._brokers = brokers

    async def request(self, topic: str, partition: int, *asked: Any) -> tuple[Any, memoryview]:
        return await self._brokers.request(*asked)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSession]]:
    monkeypatch.setattr(log, "Brokers", FakeSession)
    monkeypatch.setattr(log, "Leaders", FakeLeaders)
    monkeypatch.setattr(FakeSession, "made", [])
    yield FakeSession.made
    assert not any(session.is_open for session in FakeSession.made)


def test_what_a_topic_holds_comes_with_its_incarnation(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        assert opened.held("orders") == {0: Held(0, 50, 99), 1: Held(7, 7, 99)}
    assert len(sessions) == 1


def test_a_span_is_walked_over_holes_and_no_further_than_needed(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        found = list(opened.batches(Span("orders", 0, 5, 35, 99)))
    assert [(one.base_offset, one.append_ms) for one in found] == [(0, 1_000), (10, 1_010), (30, 1_030)]
    assert [bytes(one.data) for one in found] == [DATA[0], DATA[10], DATA[30]]
    assert [(ask.offset, ask.incarnation) for ask in sessions[0].asked] == [(5, 99), (20, 99)]


def test_a_span_that_ends_with_a_page_asks_for_no_other(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        assert [one.base_offset for one in opened.batches(Span("orders", 0, 0, 20))] == [0, 10]
    assert len(sessions[0].asked) == 1


def test_the_next_page_is_asked_for_while_this_one_is_worked_on(sessions: list[FakeSession]) -> None:
    with log.TopicLog("localhost") as opened:
        walk = opened.batches(Span("orders", 0, 0, 50))
        next(walk)
        assert opened.held("orders")  # answered after what was asked before it
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
        list(opened.batches(Span("orders", 0, 0, 50)))


def test_a_log_that_is_given_up_is_closed(sessions: list[FakeSession]) -> None:
    with pytest.raises(ZeroDivisionError), log.TopicLog("localhost") as opened:
        assert next(opened.batches(Span("orders", 0, 0, 50))).base_offset == 0
        raise ZeroDivisionError
    assert len(sessions) == 1


def test_a_broker_that_does_not_answer_is_reported(
    sessions: list[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSession, "broken", True)
    with pytest.raises(ServiceUnavailable), log.TopicLog("localhost"):
        pass
    assert len(sessions) == 1
