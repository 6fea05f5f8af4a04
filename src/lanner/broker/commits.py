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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lanner.broker.saving import FULL_RETRY_SECONDS
from lanner.errors import LannerError, StorageFailed, StorageFull
from lanner.ledger import Commit, perform, perform_preparation

if TYPE_CHECKING:
    from lanner.broker.links.dispatch import Dispatch
    from lanner.broker.node import Node

_WORTH_A_WRITE_SECONDS: Final = 0.0003
_SOON_SECONDS: Final = 0.005  # a sync that may still end so soon is waited for


class Commits:
    """One broker's commits, one at a time."""

    def __init__(self, node: Node) -> None:
        self.dispatch: Dispatch | None = None  # from when there is somebody to send to
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.writer = ThreadPoolExecutor(1, "lanner-writer")
        self._scheduled = False
        self._pump_seconds = 0.0  # the latest
        self._began_seconds = 0.0  # the write that is under way, if one is
        self._talk: asyncio.TimerHandle | None = None  # when it has lasted long enough

    def kick(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def settled(self) -> bool:
        """Whether no commit is in flight and none is wanted, once everything that waits was looked at."""
        self._pump()
        return not self._node.engine.busy

    def _pump(self) -> None:
        self._scheduled = False
        node = self._node
        if node.failed.done():
            return
        try:
            if self._ends_soon():
                node.changed()
                return
            started = time.perf_counter()
            commit = node.engine.pump()
            self._pump_seconds = time.perf_counter() - started
            if self.dispatch is not None:
                self.dispatch.send()
            if commit is not None:
                self._began_seconds = self._loop.time()
                self._submit(commit)
            node.changed()
        except Exception as problem:
            node.fail_on(problem)

    def _ends_soon(self) -> bool:
        """Whether a write is under way that is worth waiting for. If it lasts, what came meanwhile leaves beside it."""
        if not self._node.engine.busy:
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
        self._node.pace.begin()
        self.writer.submit(self._write, commit)

    def _write(self, commit: Commit) -> None:
        """In the writer thread: make one commit durable."""
        error: BaseException | None = None
        try:
            perform(commit, self._node.directory.files)
        except BaseException as raised:
            error = raised
        self._loop.call_soon_threadsafe(self._written, commit, error)

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        node = self._node
        node.pace.end()
        if error is None:
            try:
                node.engine.committed(commit)
                if self.dispatch is not None and self._pump_seconds > _WORTH_A_WRITE_SECONDS:
                    self.dispatch.send()  # what others wait for does not wait for the next pump, if that takes long
            except Exception as problem:
                node.fail_on(problem)
                return
            if node.saving.room.wrote("commit"):
                node.saving.check_disk()
            self._pump()
            self._prepare()
        elif isinstance(error, StorageFull):
            node.saving.room.ran_out("commit")
            if node.saving.stopping:
                node.fail(error)
            else:
                self._loop.call_later(FULL_RETRY_SECONDS, self._submit, commit)
        else:
            failure = error if isinstance(error, LannerError) else StorageFailed(f"a write failed: {error}")
            node.fail(failure)

    def _prepare(self) -> None:
        """Have the next segment made ahead of time, so that no commit waits for it."""
        node = self._node
        preparation = None if node.saving.stopping or node.storage_full else node.engine.ledger.prepare()
        if preparation is None:
            return
        made = asyncio.ensure_future(node.in_saver(lambda: perform_preparation(preparation, node.directory.files)))

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                node.engine.ledger.prepared(preparation)
            elif isinstance(error, StorageFull):
                node.engine.ledger.preparation_failed(preparation)
                node.saving.room.gave_up()
            else:
                node.fail(error if isinstance(error, LannerError) else StorageFailed(f"no new segment: {error}"))

        made.add_done_callback(done)


async def threads_ended(*pools: ThreadPoolExecutor) -> None:
    """Wait until these have done what they were given; they take nothing more. It may be cancelled."""
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
