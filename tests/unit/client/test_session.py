"""The session: deadlines, reconnecting, and what callers are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner.client.brokers import Brokers
from lanner.client.session import Session, parse_addresses
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    Overloaded,
    ServiceUnavailable,
    TopicExists,
    ValidationError,
)
from lanner.wire.administration import CreateTopic, DeleteTopic
from lanner.wire.messages import Command, Empty


def sole(brokers: Brokers) -> Session:
    session = brokers.any_up() or brokers.to("")
    assert session is not None
    return session


def test_addresses_may_be_several_and_leave_out_the_port() -> None:
    assert parse_addresses("localhost:7400, [::1]:7401,other,[::1]") == [
        ("localhost", 7400),
        ("::1", 7401),
        ("other", 7400),
        ("::1", 7400),
    ]


@pytest.mark.parametrize("text", ["", ":7400", "host:", "host:x", "host:0", "host:70000", "a,,b"])
def test_a_bad_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="localhost:7400"):
        parse_addresses(text)


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="timeout_ms"):
        Brokers("localhost", timeout_ms=0)


async def test_the_second_address_serves_when_the_first_does_not(broker: Any) -> None:
    brokers = Brokers(f"127.0.0.1:1,{broker.address}")
    await brokers.open()
    assert brokers.is_up
    await brokers.close()


async def test_nobody_there_is_told_with_what_to_do() -> None:
    with pytest.raises(ServiceUnavailable, match="lanner up"):
        await Brokers("127.0.0.1:1").open()


async def test_a_lost_connection_is_reopened_and_the_request_asked_again(broker: Any) -> None:
    brokers = Brokers(broker.address)
    await brokers.open()
    answers = iter([broker.HANG_UP, Overloaded("busy", retry_after_ms=1), Empty()])
    broker.answers[Command.PING] = lambda control, request: next(answers)
    await brokers.request(Empty())
    assert sole(brokers).reconnects == 1
    assert len(broker.of(Command.PING)) == 3
    await brokers.close()


async def test_what_must_not_be_repeated_is_not_unless_it_surely_had_no_effect(broker: Any) -> None:
    brokers = Brokers(broker.address)
    await brokers.open()
    answers = iter([Overloaded(), broker.HANG_UP])
    broker.answers[Command.DELETE_TOPIC] = lambda control, request: next(answers)
    with pytest.raises(ConnectionLost):
        await brokers.request(DeleteTopic("t"))
    assert len(broker.of(Command.DELETE_TOPIC)) == 2
    broker.answers[Command.CREATE_TOPIC] = lambda control, request: TopicExists()
    with pytest.raises(TopicExists):
        await brokers.request(CreateTopic("t"))
    await brokers.close()


async def test_silence_ends_at_the_deadline(broker: Any) -> None:
    brokers = Brokers(broker.address, timeout_ms=100)
    await brokers.open()
    broker.answers[Command.PING] = lambda control, request: None
    with pytest.raises(DeadlineExceeded, match="may still take effect"):
        await brokers.request(Empty())
    assert brokers.is_up
    await brokers.close()


async def test_a_retry_is_not_begun_that_cannot_end_in_time(broker: Any) -> None:
    brokers = Brokers(broker.address, timeout_ms=300)
    await brokers.open()
    broker.answers[Command.PING] = lambda control, request: Overloaded("busy", retry_after_ms=60_000)
    with pytest.raises(Overloaded):
        await brokers.request(Empty())
    await brokers.close()


async def test_a_call_without_a_connection_says_that_nothing_was_sent(broker: Any) -> None:
    brokers = Brokers(broker.address, timeout_ms=200)
    await brokers.open()
    await broker.stop()
    await broker.until(lambda: not brokers.is_up)
    outcomes: list[Any] = []
    sole(brokers).call(Command.PING, Empty(), (), outcomes.append)
    assert isinstance(outcomes[0], ConnectionLost)
    assert outcomes[0].details["sent"] is False
    assert sole(brokers).room == 0
    with pytest.raises(LannerError, match="no connection to"):
        await brokers.request(Empty())
    await brokers.close()


async def test_reconnecting_goes_on_until_the_broker_is_back(broker: Any) -> None:
    brokers = Brokers(broker.address, timeout_ms=5_000)
    await brokers.open()
    noticed: list[bool] = []
    brokers.on_up.append(lambda one: noticed.append(one.is_up))
    await broker.stop()
    await broker.until(lambda: not brokers.is_up)
    asking = asyncio.ensure_future(brokers.request(Empty()))
    await asyncio.sleep(0.15)
    await broker.restart()
    await asking
    assert noticed == [True]
    await brokers.close()


async def test_closing_fails_what_is_in_flight_and_what_comes_later(broker: Any) -> None:
    brokers = Brokers(broker.address)
    await brokers.open()
    broker.answers[Command.PING] = lambda control, request: None
    asking = asyncio.ensure_future(brokers.request(Empty()))
    await broker.until(lambda: len(broker.of(Command.PING)) == 1)
    await brokers.close()
    with pytest.raises(LannerError):
        await asking
    with pytest.raises(ServiceUnavailable, match="closed on this side"):
        await brokers.request(Empty())


async def test_requests_in_flight_stay_within_what_the_broker_allows(broker: Any) -> None:
    broker.inflight_max = 3
    broker.answers[Command.PING] = lambda control, request: None
    brokers = Brokers(broker.address)
    await brokers.open()
    assert sole(brokers).room == 3
    sole(brokers).call(Command.PING, Empty(), (), lambda outcome: None)
    assert sole(brokers).room == 2
    await brokers.close()
