"""The commit path: everything that waits becomes one commit, which a thread of its own writes and syncs.

A turn: what callers and peers brought is pumped into one commit; the messages that this makes leave at once, beside the
write and not behind it; when the commit is durable, what depends on it is applied, answered and sent.

A sync takes less than a millisecond on most disks, and what comes meanwhile goes with the next turn: one message for
many entries. A disk that takes longer is not waited for: from then on everything that needs no disk leaves in the turn
in which it came, so that a slow disk delays what is stored on it, and never a heartbeat.

A full disk is waited for: the same record goes to the same position once there is room, and nobody has been told
anything meanwhile. Anything else that goes wrong here ends the broker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Protocol

from lanner.broker.pace import Pace
from lanner.broker.ports import Fail, RunInThread
from lanner.broker.replicas.engine import Engine
from lanner.broker.saving import FULL_RETRY_SECONDS, Saving
from lanner.errors import LannerError, StorageFailed, StorageFull
from lanner.ledger import Commit, Files, perform, perform_preparation

_WORTH_A_WRITE_SECONDS: Final = 0.0003
_SOON_SECONDS: Final = 0.005  # a sync that may still end so soon is waited for


class Outbox(Protocol):
    """What the engine has for other brokers."""

    def send(self) -> None:
        """Send it."""


class Commits:
    """One broker's commits, one at a time."""

    def __init__(
        self,
        engine: Engine,
        files: Files,
        saving: Saving,
        pace: Pace,
        *,
        failed: asyncio.Future[LannerError],
        fail: Fail,
        changed: Callable[[], None],
        in_saver: RunInThread,
    ) -> None:
        self.outbox: Outbox | None = None  # from when this broker belongs to a cluster
        self._engine = engine
        self._files = files
        self._saving = saving
        self._pace = pace
        self._failed = failed
        self._fail = fail
        self._changed = changed  # told when something that callers wait for may have come about
        self._in_saver = in_saver
        self._loop = asyncio.get_running_loop()
        self.writer = ThreadPoolExecutor(1, "lanner-writer")
        self._scheduled = False
        self._pump_seconds = 0.0  # the latest
        self._began_seconds = 0.0  # the write that is under way, if one is
        self._talk: asyncio.TimerHandle | None = None  # when it has lasted long enough

    def kick(self) -> None:
        """Pump the engine at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def settled(self) -> bool:
        """Whether no commit is in flight and none is wanted, once everything that waits was looked at."""
        self._pump()
        return not self._engine.busy

    def _pump(self) -> None:
        self._scheduled = False
        if self._failed.done():
            return
        try:
            if self._ends_soon():
                self._changed()
                return
            started = time.perf_counter()
            commit = self._engine.pump()
            self._pump_seconds = time.perf_counter() - started
            if self.outbox is not None:
                self.outbox.send()
            if commit is not None:
                self._began_seconds = self._loop.time()
                self._submit(commit)
            self._changed()
        except Exception as problem:
            self._fail(problem)

    def _ends_soon(self) -> bool:
        """Whether a write is under way that is worth waiting for. If it lasts, what came meanwhile leaves beside it."""
        if not self._engine.busy:
            return False
        ends = self._began_seconds + _SOON_SECONDS
        if self._loop.time() >= ends:
            return False
        if self._talk is None:
            self._talk = self._loop.call_at(ends, self._talk_now)
        return True

    def _talk_now(self) -> None:
        self._talk = None
        self._pump()

    def _submit(self, commit: Commit) -> None:
        self._pace.begin()
        self.writer.submit(self._write, commit)

    def _write(self, commit: Commit) -> None:
        """In the writer thread: make one commit durable."""
        error: BaseException | None = None
        try:
            perform(commit, self._files)
        except BaseException as raised:
            error = raised
        self._loop.call_soon_threadsafe(self._written, commit, error)

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        saving = self._saving
        self._pace.end()
        if error is None:
            try:
                self._engine.committed(commit)
                if self.outbox is not None and self._pump_seconds > _WORTH_A_WRITE_SECONDS:
                    self.outbox.send()  # what others wait for does not wait for the next pump, if that takes long
            except Exception as problem:
                self._fail(problem)
                return
            if saving.room.wrote("commit"):
                saving.check_disk()
            self._pump()
            self._prepare()
        elif isinstance(error, StorageFull):
            saving.room.ran_out("commit")
            if saving.stopping:
                self._fail(error)
            else:
                self._loop.call_later(FULL_RETRY_SECONDS, self._submit, commit)
        else:
            failure = error if isinstance(error, LannerError) else StorageFailed(f"a write failed: {error}")
            self._fail(failure)

    def _prepare(self) -> None:
        """Have the next segment made ahead of time, so that no commit waits for it."""
        saving, ledger = self._saving, self._engine.ledger
        preparation = None if saving.stopping or saving.room.is_full else ledger.prepare()
        if preparation is None:
            return
        made = asyncio.ensure_future(self._in_saver(lambda: perform_preparation(preparation, self._files)))

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                ledger.prepared(preparation)
            elif isinstance(error, StorageFull):
                ledger.preparation_failed(preparation)
                saving.room.gave_up()
            else:
                self._fail(error if isinstance(error, LannerError) else StorageFailed(f"no new segment: {error}"))

        made.add_done_callback(done)


async def threads_ended(*pools: ThreadPoolExecutor) -> None:
    """Shut these pools down, and wait until they have done what they were given. The wait may be cancelled."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def wait() -> None:
        for pool in pools:
            pool.shutdown(wait=True)
        with suppress(RuntimeError):  # nobody waited that long
            loop.call_soon_threadsafe(tell)

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    threading.Thread(target=wait, name="lanner-ending", daemon=True).start()
    await ended


__all__ = ["Commits", "threads_ended"]
