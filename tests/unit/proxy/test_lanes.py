"""Batches on their way through a proxy: in order, again when a leader did not take them, and never doubted wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from lanner.client.session import Callback, Session
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    MalformedBatch,
    NotLeader,
    Overloaded,
    ProducerUnknown,
    SequenceGap,
    TopicNotFound,
)
from lanner.proxy import lanes as lanes_module
from lanner.proxy.lanes import Lanes
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Control, Publish, Published
from lanner.wire.staging import Stage, Staged


class Broker:
    """A connection that keeps what it is sent until the test answers."""

    def __init__(self) -> None:
        self.is_up, self.is_failing = True, False
        self.sent: list[bytes] = []
        self.commands: list[Command] = []
        self.owed: list[Callback] = []

    def call(
        self, command: Command, control: Control, bulk: Iterable[bytes], callback: Callback, timeout_ms: float
    ) -> None:
        (data,) = bulk
        self.sent.append(data)
        self.commands.append(command)
        self.owed.append(callback)

    def answer(self, *outcomes: LannerError | Control) -> None:
        """To the oldest that are unanswered."""
        for outcome in outcomes:
            callback = self.owed.pop(0)
            callback(
                outcome if isinstance(outcome, LannerError) else Reply(Command.PUBLISH, 1, outcome, memoryview(b""))
            )

    async def wait_until_tried(self, deadline: float) -> None:
        self.is_failing = True


class Map:
    """A map with one leader of everything."""

    def __init__(self, *brokers: Broker) -> None:
        self.leader: Broker | None = brokers[0] if brokers else None
        self.known = {"orders"}
        self.doubted: list[str] = []
        self.hint: Broker | None = None

    def knows(self, name: str) -> bool:
        return name in self.known

    async def hear_of(self, topics: Iterable[str]) -> None:
        self.known.update(name for name in topics if name != "missing")

    def find_topic(self, name: str) -> object:
        if name not in self.known:
            raise TopicNotFound(topic=name)
        return name

    def leads(self, topic: str, partition: int) -> Session | None:
        return cast(Session, self.leader) if self.leader else None

    def failed(self, topic: str, partition: int, asked: Session | None, error: LannerError) -> bool:
        if self.hint is None:
            return False
        self.leader, self.hint = self.hint, None
        return True

    def doubt(self, name: str) -> object:
        self.doubted.append(name)
        return True


def stored(offset: int) -> Published:
    return Published(offset, 1, 1)


def send(lanes: Lanes, *values: bytes, topic: str = "orders") -> list[asyncio.Future[Any]]:
    return [lanes.publish(Publish(topic, 0), value) for value in values]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


REFUSED = NotLeader("elsewhere", refused=True, leader="b", address="b:1")
LOST = ConnectionLost("gone")


async def test_batches_leave_at_once_and_in_order_without_waiting_for_each_other() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    futures = send(lanes, b"1", b"2", b"3")
    assert broker.sent == [b"1", b"2", b"3"]
    assert lanes.held_bytes == 3
    broker.answer(stored(7), stored(8), stored(9))
    assert [future.result()[0] for future in futures] == [7, 8, 9]
    await asyncio.sleep(0)
    assert lanes.held_bytes == 0
    assert not lanes._lanes, "an idle partition leaves nothing behind"


async def test_after_a_lost_connection_everything_goes_again_in_its_order_before_what_is_newer() -> None:
    old, new = Broker(), Broker()
    places = Map(old)
    lanes = Lanes(places)
    futures = send(lanes, b"1", b"2", b"3")
    places.leader = new
    old.answer(LOST)
    futures += send(lanes, b"4")
    assert (old.sent, new.sent) == ([b"1", b"2", b"3"], []), "nothing is sent while outcomes are unknown"
    old.answer(LOST, LOST)
    await until(lambda: len(new.sent) == 4)
    assert new.sent == [b"1", b"2", b"3", b"4"]
    new.answer(*map(stored, range(4)))
    assert [future.result()[0] for future in futures] == [0, 1, 2, 3]
    assert lanes.repeated == 3


async def test_what_came_behind_one_that_was_not_taken_waits_for_it_although_it_was_refused_for_a_gap() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    futures = send(lanes, b"1", b"2")
    broker.answer(REFUSED, SequenceGap())
    await until(lambda: len(broker.sent) == 4)
    assert broker.sent == [b"1", b"2", b"1", b"2"]
    broker.answer(stored(0), stored(1))
    assert [future.result()[0] for future in futures] == [0, 1]


async def test_one_that_was_answered_is_never_sent_again() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    futures = send(lanes, b"1", b"2", b"3")
    broker.answer(stored(0), LOST, stored(2))
    await until(lambda: len(broker.sent) == 4)
    assert broker.sent[3] == b"2"
    broker.answer(stored(1))
    assert [future.result()[0] for future in futures] == [0, 1, 2]


async def test_a_gap_that_the_producer_made_itself_is_its_error() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    (future,) = send(lanes, b"1")
    broker.answer(SequenceGap("a gap"))
    with pytest.raises(SequenceGap):
        await future


@pytest.mark.parametrize("error", [MalformedBatch("no"), ProducerUnknown("who"), Overloaded("later", retry_after_ms=5)])
async def test_what_a_leader_says_of_the_batch_is_told_as_it_is(error: LannerError) -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    (future,) = send(lanes, b"1")
    broker.answer(error)
    with pytest.raises(type(error)) as caught:
        await future
    assert (caught.value.message, caught.value.details) == (error.message, error.details)
    assert len(broker.sent) == 1


async def test_a_hint_is_followed_without_a_pause_and_not_shown_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_PAUSE_S", 3_600.0)
    first, second = Broker(), Broker()
    places = Map(first)
    places.hint = second
    lanes = Lanes(places)
    (future,) = send(lanes, b"1")
    first.answer(REFUSED)
    await until(lambda: bool(second.sent))
    second.answer(stored(4))
    assert (await future)[0] == 4


async def test_the_last_error_says_refused_only_if_every_attempt_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes_module, "DEADLINE_MS", 300)
    for first, surely in ((REFUSED, True), (LOST, False)):
        broker = Broker()
        lanes = Lanes(Map(broker))
        (future,) = send(lanes, b"1")
        broker.answer(first)
        while not future.done():
            if broker.owed:
                broker.answer(REFUSED)
            await asyncio.sleep(0.001)
        error = future.exception()
        assert isinstance(error, NotLeader)
        assert error.details.get("refused", False) is surely
        assert (error.details["leader"], error.details["address"]) == ("", "")


async def test_a_full_leader_says_nothing_of_an_attempt_that_was_lost_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first leader may have stored it: told Overloaded, its producer would use the sequence for something else."""
    monkeypatch.setattr(lanes_module, "DEADLINE_MS", 300)
    broker = Broker()
    lanes = Lanes(Map(broker))
    (future,) = send(lanes, b"1")
    broker.answer(LOST)
    while not future.done():
        if broker.owed:
            broker.answer(Overloaded())
        await asyncio.sleep(0.001)
    assert isinstance(future.exception(), DeadlineExceeded)


async def test_a_lost_answer_is_the_brokers_not_the_clients_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "DEADLINE_MS", 50)
    broker = Broker()
    lanes = Lanes(Map(broker))
    (future,) = send(lanes, b"1")
    while not future.done():
        if broker.owed:
            broker.answer(LOST)
        await asyncio.sleep(0.001)
    assert isinstance(future.exception(), BadGateway)


async def test_a_topic_that_is_not_known_is_looked_up_once_for_all_that_wait() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    futures = send(lanes, b"1", b"2", topic="new")
    assert not broker.sent
    await until(lambda: len(broker.sent) == 2)
    broker.answer(stored(0), stored(1))
    assert [future.result()[0] for future in futures] == [0, 1]
    (missing,) = send(lanes, b"3", topic="missing")
    with pytest.raises(TopicNotFound):
        await missing


async def test_while_nobody_leads_a_batch_waits_for_a_leader() -> None:
    places = Map()
    lanes = Lanes(places)
    (future,) = send(lanes, b"1")
    await asyncio.sleep(0.01)
    broker = places.leader = Broker()
    await until(lambda: bool(broker.sent))
    broker.answer(stored(0))
    assert (await future)[0] == 0


async def test_batches_in_hand_have_one_budget_and_one_alone_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "HELD_BYTES_MAX", 10)
    broker = Broker()
    lanes = Lanes(Map(broker))
    (large,) = send(lanes, bytes(20))
    with pytest.raises(Overloaded):
        send(lanes, b"1")
    broker.answer(stored(0))
    await large
    await asyncio.sleep(0)
    send(lanes, b"1")
    assert len(broker.sent) == 2


async def test_stages_go_the_same_way() -> None:
    broker = Broker()
    lanes = Lanes(Map(broker))
    future = lanes.stage(Stage("orders", 0, 0, "t", "o", 0, 0, bytes(16), 0), b"staged")
    assert broker.commands == [Command.STAGE]
    broker.answer(Staged(5, True))
    assert await future == (5, 0, True)


async def test_a_topic_that_is_not_what_the_map_says_is_doubted() -> None:
    broker = Broker()
    places = Map(broker)
    lanes = Lanes(places)
    (future,) = send(lanes, b"1")
    broker.answer(TopicNotFound(topic="orders"))
    with pytest.raises(TopicNotFound):
        await future
    assert places.doubted == ["orders"]
