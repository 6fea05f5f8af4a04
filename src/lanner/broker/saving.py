"""Background work on the disk: the table catches up with the journal, dead bytes go, and room is watched.

None of it is waited for by a caller. What fails for a reason of the environment ends the broker, with that reason;
a full disk does not: the work is tried again, and only publishing is refused meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.keeping import transform
from lanner.broker.room import Room
from lanner.broker.settings import BrokerSettings
from lanner.errors import LannerError, StorageFailed, StorageFull
from lanner.storage import DataDirectory

log = logging.getLogger("lanner.broker")

FULL_RETRY_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 0.002
_DISK_CHECK_SECONDS: Final = 1.0


class Saving:
    """Saves, rewrites and the watch over the disk's free space, for one engine."""

    def __init__(
        self,
        engine: Engine,
        directory: DataDirectory,
        settings: BrokerSettings,
        *,
        saver: Executor,
        readers: Executor,
        fail: Callable[[LannerError], None],
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._settings = settings
        self._saver = saver
        self._readers = readers
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()
        self._save_now = asyncio.Event()
        self.room = Room(settings.segment_size(directory.files.free_bytes()[1]))
        self.stopping = False
        self.failed = False

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._save_forever(), self._rewrite_forever(), self._watch_disk_forever()]

    def save_soon(self) -> None:
        """Save soon: something waits for it, such as a snapshot whose rows must be in the table before it counts."""
        self._save_now.set()

    async def guard(self, work: Callable[[], object]) -> None:
        """Background work that fails for a reason of the environment ends the broker, with that reason."""
        try:
            result = work()
            if asyncio.iscoroutine(result):
                await result
        except StorageFull:
            self.room.gave_up()
        except LannerError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StorageFailed(f"the data directory failed: {error}"))

    # ------------------------------------------------------------------ saves

    async def _save_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.save_interval_ms / 1_000):
                    await self._save_now.wait()
            except TimeoutError:
                pass
            self._save_now.clear()
            await self.guard(self.save)

    async def save(self) -> None:
        """Bring the table up to date. Once begun it goes on to its end, even if its caller is cancelled."""
        save = self._loop.create_task(self._save_all(), name="lanner-one-save")
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)
        await asyncio.shield(save)

    async def finish(self) -> None:
        """Wait for the saves that were under way when their waiters were cancelled."""
        for save in tuple(self._saves):
            await save

    async def _save_all(self) -> None:
        """As many saves as it takes to keep every turn of the loop short."""
        async with self._one_at_a_time:
            while await self._save_some():
                pass

    async def _save_some(self) -> bool:
        """One save; whether some replicas are left for another."""
        engine, files = self._engine, self._directory.files
        turn_ends = time.perf_counter() + _TURN_SECONDS
        job = engine.begin_save()
        if job is None:
            return False
        more = True
        while more and time.perf_counter() < turn_ends:
            more = engine.save_step(job)
        while engine.encode_step(job):
            await asyncio.sleep(0)  # what it shows was taken in the turn above
        await self._commit_rows(job.puts)
        engine.saved(job)
        for file_id in engine.ledger.droppable():
            await self._loop.run_in_executor(self._saver, files.remove, file_id)
            engine.ledger.dropped(file_id)
        return more

    async def _commit_rows(self, puts: Mapping[bytes, bytes | None]) -> None:
        """One commit of the table, repeated until the disk has room for it: what it holds is not collected twice."""
        while True:
            try:
                await self._loop.run_in_executor(self._saver, self._directory.table.commit, puts)
                self.room.wrote("save")
                return
            except StorageFull:
                self.room.ran_out("save")
                if self.stopping:
                    raise
                await asyncio.sleep(FULL_RETRY_SECONDS)

    # ------------------------------------------------------------------ rewrites

    async def _rewrite_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.save_interval_ms / 1_000)
            await self.guard(self._rewrite)

    async def _rewrite(self) -> None:
        """Copy what still lives out of mostly dead files, at a bounded rate, so that the files can go."""
        ledger, files = self._engine.ledger, self._directory.files
        while (file_id := ledger.rewrite_candidate()) is not None and not self.failed:
            rewrite = ledger.plan_rewrite(file_id)
            try:
                while not rewrite.done:
                    started = time.perf_counter()
                    read = await self._loop.run_in_executor(self._readers, rewrite.read, files)
                    rewrite.choose(ledger)
                    written = await self._loop.run_in_executor(self._readers, rewrite.write, files, transform)
                    allowed = (read + written) / self._settings.rewrite_bytes_per_second
                    pause = allowed - (time.perf_counter() - started)
                    if pause > 0:
                        await asyncio.sleep(pause)
            except StorageFull:
                ledger.rewritten(rewrite)  # given up: what was copied counts, and another may begin when there is room
                raise
            ledger.rewritten(rewrite)
            for set_id, index, error in rewrite.damaged:
                if set_id in self._engine.replicas:
                    self._engine.damages.note(set_id, index, error)
            await self.save()

    # ------------------------------------------------------------------ room

    async def _watch_disk_forever(self) -> None:
        while True:
            await asyncio.sleep(_DISK_CHECK_SECONDS)
            self.check_disk()

    def check_disk(self) -> None:
        free, total = self._directory.files.free_bytes()
        self.room.look(free, total, self._settings.reserve_bytes(total))
        self._engine.timers.note_disk(self.room.is_full, self._engine.replicas.values())
