"""Callbacks of the blocking client's members: they run in the thread that asks for messages, not on the loop.

The loop hands a call over and waits for its end; the thread that waits for messages meanwhile takes it. A call that
comes while no thread waits (the one before was interrupted) is taken by the next one that does. A thread that closes
the connection takes the last calls of all its members.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from lanner.client.member_ports import Callback, Callbacks
from lanner.errors import ValidationError
from lanner.model import TopicPartition

Result = TypeVar("Result")


class Starter(Protocol):
    """The thread of a loop."""

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]: ...
    def wait(self, started: concurrent.futures.Future[Result]) -> Result: ...


class _Call(NamedTuple):
    callback: Callback
    places: list[TopicPartition]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]

    def end(self, outcome: object, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(outcome)
        elif not isinstance(error, Exception):
            self.done.cancel()  # an interrupt is for the thread that it came to, and would end the loop's
        elif isinstance(error, StopIteration):  # which no future can hold
            failure = RuntimeError("a callback raised StopIteration")
            failure.__cause__ = error
            self.done.set_exception(failure)
        else:
            self.done.set_exception(error)


class _Desk:
    """Where calls wait for a thread."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()
        self._changed = threading.Condition()

    def add(self, calls: Iterable[_Call]) -> None:
        with self._changed:
            self._calls.extend(calls)
            self._changed.notify_all()

    def clear(self) -> list[_Call]:
        with self._changed:
            calls = list(self._calls)
            self._calls.clear()
            return calls

    def next_until(self, ended: concurrent.futures.Future[Any]) -> _Call | None:
        with self._changed:
            while not ended.done():
                if self._calls:
                    call = self._calls.popleft()
                    if not call.done.done():  # else its caller has given up
                        return call
                else:
                    self._changed.wait()
        return None

    def serve_until(self, ended: concurrent.futures.Future[Any], inside: set[int]) -> None:
        """Run in this thread what comes, until that work has ended; an interrupt here cancels it."""
        ended.add_done_callback(lambda _: self.add(()))
        try:
            while (call := self.next_until(ended)) is not None:
                _run(call, inside)
        except BaseException:
            ended.cancel()
            raise


def _run(call: _Call, inside: set[int]) -> None:
    me = threading.get_ident()
    inside.add(me)
    outcome, failure = None, None
    try:
        outcome = call.callback(call.places)
    except BaseException as error:
        failure = error
        if not isinstance(error, Exception):
            raise
    finally:
        inside.discard(me)
        call.loop.call_soon_threadsafe(call.end, outcome, failure)


class Relays:
    """The callbacks of one connection."""

    def __init__(self, thread: Starter) -> None:
        self._thread = thread
        self._relays: WeakSet[Relay] = WeakSet()  # each lives for as long as its callbacks may be called
        self._inside: set[int] = set()  # threads that are in a callback

    def relay(self, options: Any) -> Relay:
        """Of one consumer or reader. Its callbacks are called through it from now on: the options are changed."""
        relay = Relay(self._thread, options, self._inside)
        self._relays.add(relay)
        return relay

    def check_outside(self) -> None:
        if threading.get_ident() in self._inside:
            raise ValidationError("a callback must not close the connection: return from it first")

    def close(self, work: Coroutine[Any, Any, None]) -> None:
        """Run on the loop what closes the connection, and all callbacks that are still called here."""
        desk = _Desk()

        async def closing() -> None:
            for relay in self._relays:
                relay.move(desk)
            await work

        started = self._thread.start(closing())
        desk.serve_until(started, self._inside)
        self._thread.wait(started)


class Relay:
    """The callbacks of one consumer or reader."""

    def __init__(self, thread: Starter, options: Any, inside: set[int] | None = None) -> None:
        """Have the callbacks among these options called here; the options are changed."""
        self._thread = thread
        self._desk = _Desk()
        self._inside = set() if inside is None else inside  # threads that are in a callback
        self._is_used = False
        for name in Callbacks._fields:
            if callable(options.get(name)):
                options[name] = self._relayed(options[name])
                self._is_used = True

    def _relayed(self, callback: Callback) -> Callback:
        async def called(places: list[TopicPartition]) -> None:
            loop = asyncio.get_running_loop()
            call = _Call(callback, places, loop, loop.create_future())
            self._desk.add([call])
            outcome = await call.done
            if inspect.isawaitable(outcome):
                await outcome

        return called

    def move(self, desk: _Desk) -> None:
        """Have another thread serve everything from now on. Called on the loop, where calls are made."""
        before, self._desk = self._desk, desk
        desk.add(before.clear())

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run this on the loop and wait, and meanwhile the callbacks here."""
        if not self._is_used:
            return self._thread.wait(self._thread.start(work))
        if threading.get_ident() in self._inside:
            work.close()
            raise ValidationError("a callback must not ask for messages, nor close: return from it first")
        started = self._thread.start(work)
        self._desk.serve_until(started, self._inside)
        return self._thread.wait(started)
