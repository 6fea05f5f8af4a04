"""The loop in a thread of its own: whatever is asked of it is answered, also while it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lanner.errors import LannerError, ServiceUnavailable
from lanner.sync_thread import LoopThread


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def answer() -> int:
    return 7


def asked(thread: LoopThread) -> BaseException | concurrent.futures.Future[None]:
    try:
        return thread.start(forever())
    except LannerError as error:
        return error


def test_a_call_between_the_last_cancel_and_the_end_is_answered_too() -> None:
    thread = LoopThread()
    late: list[BaseException | concurrent.futures.Future[None]] = []
    cancel_rest: Callable[[], object] = thread._cancel_rest

    async def cancel_and_be_asked_once_more() -> None:
        await cancel_rest()  # type: ignore[misc]
        await asyncio.to_thread(lambda: late.append(asked(thread)))

    thread._cancel_rest = cancel_and_be_asked_once_more  # type: ignore[method-assign]
    thread.stop()
    (outcome,) = late
    if not isinstance(outcome, BaseException):
        outcome = outcome.exception(timeout=5)  # stranded when that takes longer
    assert isinstance(outcome, ServiceUnavailable)


def test_calls_of_other_threads_end_with_an_error_that_says_why() -> None:
    thread = LoopThread()
    begun = threading.Barrier(3)

    async def begin() -> None:
        await asyncio.to_thread(begun.wait)
        await forever()

    with ThreadPoolExecutor(2) as others:
        calls = [others.submit(thread.call, begin()) for _ in range(2)]
        begun.wait(5)
        thread.stop()
        for call in calls:
            with pytest.raises(ServiceUnavailable, match="was closed"):
                call.result(timeout=5)


def test_many_threads_that_call_while_it_is_closed_all_get_an_answer() -> None:
    for _ in range(20):
        thread = LoopThread()
        ready = threading.Barrier(5)

        def call_until_closed(thread: LoopThread = thread, ready: threading.Barrier = ready) -> str:
            ready.wait(5)
            try:
                while thread.call(answer()) == 7:
                    pass
            except ServiceUnavailable as error:
                return error.message
            return "another answer"

        with ThreadPoolExecutor(4) as others:
            calls = [others.submit(call_until_closed) for _ in range(4)]
            ready.wait(5)
            thread.stop()
            assert all("was closed" in call.result(timeout=5) for call in calls)


def test_two_that_stop_it_at_once_both_return_when_it_has_ended() -> None:
    thread = LoopThread()
    with ThreadPoolExecutor(2) as others:
        for stopping in [others.submit(thread.stop) for _ in range(2)]:
            stopping.result(timeout=5)
    thread.stop()
    with pytest.raises(ServiceUnavailable):
        thread.call(answer())


def test_an_interrupted_caller_cancels_its_call_only() -> None:
    thread = LoopThread()
    started = thread.start(forever())
    started.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        thread.wait(started)
    assert thread.call(answer()) == 7
    thread.stop()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_is_told_that_the_connection_is_not_its_own() -> None:
    thread = LoopThread()
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # ends it should it wait for a thread that is not there
        told = 1
        try:
            thread.stop()  # leaves the parent's alone
            thread.call(answer())
        except ServiceUnavailable as error:
            told = 0 if "forked" in error.message else 2
        finally:
            os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.call(answer()) == 7
    thread.stop()
