"""The thread of the blocking client's event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from lanner.errors import ServiceUnavailable
from lanner.net.loop import new_event_loop

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread of its own.

    Every call is answered, also one that comes while the thread ends: from `stop` on calls are refused, those before it
    are on the loop by then and are cancelled there.
    """

    def __init__(self, name: str = "lanner") -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()  # a call is either on the loop before the stop begins, or refused
        self._stopping = False
        self._process = os.getpid()
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def is_forked(self) -> bool:
        """This process was forked from the one that has the thread."""
        return os.getpid() != self._process

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it over there and wait. An interrupt here cancels it there."""
        return self.wait(self.start(work))

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        if self.is_forked:
            work.close()
            raise ServiceUnavailable(
                "the connection was opened before this process was forked: open one here, with lanner.sync.connect"
            )
        with self._lock:
            if not self._stopping:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise _closed()

    def wait(self, started: concurrent.futures.Future[Result]) -> Result:
        try:
            return started.result()
        except concurrent.futures.CancelledError as error:
            raise _closed() if self._stopping else error from None
        except BaseException:
            started.cancel()
            raise

    def stop(self) -> None:
        """Cancel what is under way and end the thread. Returns when it has ended, no matter who asked first."""
        if self.is_forked:
            return
        with self._lock:
            first, self._stopping = not self._stopping, True
        if first:
            try:
                asyncio.run_coroutine_threadsafe(self._cancel_rest(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cancel_rest(self) -> None:
        while rest := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _closed() -> ServiceUnavailable:
    return ServiceUnavailable("the connection was closed: open a new one with lanner.sync.connect")
