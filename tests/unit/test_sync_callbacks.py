"""Callbacks of the blocking client: in which thread they run, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lanner.errors import ValidationError
from lanner.model import TopicPartition
from lanner.sync_callbacks import Relay
from lanner.sync_thread import LoopThread

PLACES = [TopicPartition("t", 0)]
Called = Callable[[list[TopicPartition]], Awaitable[None]]


class Told:
    """A relay with one callback, which writes down its threads."""

    def __init__(self) -> None:
        self.thread = LoopThread("test")
        self.threads: list[int] = []
        self.then: Callable[[], Any] = lambda: None
        options: dict[str, Any] = {"on_assigned": self._called, "max_messages": 7}
        self.relay = Relay(self.thread, options)
        self.relayed: Called = options["on_assigned"]
        assert options["max_messages"] == 7

    def _called(self, places: list[TopicPartition]) -> Any:
        assert places == PLACES
        self.threads.append(threading.get_ident())
        return self.then()

    async def work(self) -> str:
        await self.relayed(PLACES)
        return "done"

    async def shielded_work(self) -> str:
        return await asyncio.shield(asyncio.ensure_future(self.work()))  # as members do it

    async def work_without_callback(self) -> str:
        return "done"


@pytest.fixture
def told() -> Any:
    told = Told()
    yield told
    told.thread.stop()


def test_a_callback_runs_in_the_thread_that_waits_and_the_work_goes_on_after_it(told: Told) -> None:
    assert told.relay.call(told.work()) == "done"
    assert told.threads == [threading.get_ident()]


def test_what_a_callback_raises_is_raised_by_the_call(told: Told) -> None:
    def fail() -> None:
        raise RuntimeError("could not flush")

    told.then = fail
    with pytest.raises(RuntimeError, match="could not flush"):
        told.relay.call(told.work())
    told.then = lambda: None
    assert told.relay.call(told.work()) == "done"


def test_a_callback_may_be_a_coroutine_function_and_then_runs_on_the_loop(told: Told) -> None:
    ran: list[int] = []

    async def on_the_loop() -> None:
        ran.append(threading.get_ident())

    told.then = on_the_loop
    assert told.relay.call(told.work()) == "done"
    assert ran and ran[0] != threading.get_ident()


def test_a_callback_that_asks_for_messages_is_told_off_instead_of_waiting_for_ever(told: Told) -> None:
    told.then = lambda: told.relay.call(told.work())
    with pytest.raises(ValidationError, match="return from it first"):
        told.relay.call(told.work())


def test_a_callback_may_use_the_loop_for_other_things(told: Told) -> None:
    async def commit() -> None:
        return None

    told.then = lambda: told.thread.call(commit())
    assert told.relay.call(told.work()) == "done"


def test_a_call_that_was_interrupted_leaves_its_callback_to_the_next(told: Told) -> None:
    begun = threading.Event()

    async def work() -> str:
        begun.set()
        return await told.work()

    started = told.thread.start(work())  # nobody waits for it
    assert begun.wait(10)

    async def until_it_ended() -> None:
        await asyncio.wrap_future(started)

    told.relay.call(until_it_ended())
    assert started.result() == "done" and told.threads == [threading.get_ident()]


def test_without_callbacks_nothing_is_relayed(told: Told) -> None:
    relay = Relay(told.thread, {"assignor": "sticky"})

    async def work() -> int:
        return 7

    assert relay.call(work()) == 7


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_callback_is_its_thread_s_and_the_loop_goes_on(
    told: Told, interrupt: type[BaseException]
) -> None:
    def interrupted() -> None:
        raise interrupt

    told.then = interrupted
    with pytest.raises(interrupt):
        told.relay.call(told.shielded_work())
    told.then = lambda: None
    assert told.thread.start(told.work_without_callback()).result(5) == "done"


def test_a_callback_that_raises_what_a_future_cannot_hold_is_heard_all_the_same(told: Told) -> None:
    told.then = lambda: next(iter(()))
    ended: list[BaseException] = []

    def call() -> None:
        try:
            told.relay.call(told.work())
        except RuntimeError as error:
            ended.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    assert [str(error) for error in ended] == ["a callback raised StopIteration"]


def test_a_call_whose_caller_has_given_up_is_not_made(told: Told) -> None:
    async def give_up() -> None:
        task = asyncio.ensure_future(told.work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    told.thread.call(give_up())
    assert told.relay.call(told.work()) == "done"
    assert len(told.threads) == 1
