"""The shell around the engine: it owns threads, clock and data directory, and carries out what the engine asks for.

One writer thread writes and syncs commits; a saver thread brings the table up to date; reader threads read cold
payloads and make extracts. Everything else happens on the event loop. A failed sync ends the broker: `failed` is set
with the reason and nothing is acknowledged any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from lanner import limits
from lanner.broker.engine import CLUSTER_SET, Engine
from lanner.broker.settings import BrokerSettings
from lanner.errors import DeadlineExceeded, LannerError, StorageFailed, StorageFull
from lanner.ledger import Commit, Files, Ledger, Location, perform, perform_preparation, read_entry
from lanner.storage import DataDirectory, open_directory

log = logging.getLogger("lanner.broker")
Result = TypeVar("Result")

_TICK_SECONDS = 0.05
_TURN_SECONDS = 0.002
_FULL_RETRY_SECONDS = 0.5
_DISK_CHECK_SECONDS = 1.0
_READ_ATTEMPTS = 3


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Node:
    """One broker's engine, running."""

    def __init__(self, settings: BrokerSettings, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.settings = settings
        self.now_ms = now_ms
        self.failed: asyncio.Future[LannerError]
        self.storage_full = False
        self.engine: Engine
        self.directory: DataDirectory
        self._loop: asyncio.AbstractEventLoop
        self._writer = ThreadPoolExecutor(1, "lanner-writer")
        self._saver = ThreadPoolExecutor(1, "lanner-saver")
        self._readers = ThreadPoolExecutor(2, "lanner-reader")
        self._pump_scheduled = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._saving = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Open the data directory, replay the journal, and lead every partition."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        self.directory = await self._loop.run_in_executor(self._saver, open_directory, self.settings.data)
        files, table = self.directory.files, self.directory.table
        self._check_disk()
        ledger = await self._loop.run_in_executor(
            self._saver,
            lambda: Ledger.recover(files, table, random_bytes=os.urandom, segment_bytes=self.settings.segment_bytes),
        )
        if ledger.recovery.torn_bytes_cut:
            log.warning(
                "cut %d bytes that a crash left unfinished at the end of the journal", ledger.recovery.torn_bytes_cut
            )
        self.engine = Engine(
            ledger, files, rng=Random(os.urandom(16)), now_ms=self.now_ms, cache_bytes=self.settings.cache_bytes
        )
        cluster = self.engine.open_set(CLUSTER_SET)
        self.kick()
        await self._until(lambda: cluster.leads)
        self.reconcile()
        await self._until(lambda: self.engine.led)
        self._tasks = [
            self._loop.create_task(self._tick_forever(), name="lanner-tick"),
            self._loop.create_task(self._save_forever(), name="lanner-save"),
            self._loop.create_task(self._rewrite_forever(), name="lanner-rewrite"),
            self._loop.create_task(self._watch_disk_forever(), name="lanner-disk"),
        ]

    def reconcile(self) -> None:
        """Serve exactly the partitions that the cluster's metadata names."""
        self.engine.reconcile()
        self.kick()

    async def stop(self) -> None:
        """Finish what is in flight, save, and let go of the data directory."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._guard(self._finish_saves)
        if not self.failed.done():
            try:
                await self._settle()
                await self._save()
            except LannerError as error:
                self._fail(error)
        for pool in (self._writer, self._saver, self._readers):
            pool.shutdown(wait=True)
        self.directory.close()

    async def _settle(self) -> None:
        """Wait until no commit is in flight and none is wanted."""
        while not self.failed.done():
            self._pump()
            if not self.engine.busy:
                return
            await self._commit_done()

    # ------------------------------------------------------------------ what the service asks of a cluster

    @property
    def node_id(self) -> str:
        return self.directory.node_id

    @property
    def name(self) -> str:
        return self.directory.node_id[:8]

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    def leader_of(self, set_id: int) -> str:
        """The node id of a set's leader; empty while it is not known."""
        replica = self.engine.replicas.get(set_id)
        return self.node_id if replica is not None and replica.leads else ""

    def address_of(self, node_id: str) -> tuple[str, int] | None:
        return None

    async def propose_cluster(self, command: bytes, timeout_ms: int = 10_000) -> Any:
        """Put a change into the cluster's log; its result once it has applied and this broker follows it."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def applied(result: Any) -> None:
            self.reconcile()
            if not future.done():
                future.set_result(result)

        self.engine.propose(CLUSTER_SET, command, applied)
        self.kick()
        result = await future
        if isinstance(result, LannerError):
            raise result
        return result

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> None:
        """Wait for something that the next commits may bring about."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._until(condition)
        except TimeoutError:
            raise DeadlineExceeded() from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.failed.done():
                raise self.failed.result()
            await self._commit_done()

    async def _commit_done(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    def _fail(self, error: LannerError) -> None:
        if not self.failed.done():
            log.critical("the broker stops: %s", error.message)
            self.failed.set_result(error)
        self._wake_idle()

    def _wake_idle(self) -> None:
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ the commit path

    def kick(self) -> None:
        """Something may be waiting: pump the engine at the end of this turn of the loop."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self.failed.done():
            return
        try:
            commit = self.engine.pump()
        except LannerError as error:
            self._fail(error)
            return
        if commit is not None:
            self._writer.submit(self._write, commit)

    def _write(self, commit: Commit) -> None:
        """In the writer thread: make one commit durable."""
        error: BaseException | None = None
        try:
            perform(commit, self.directory.files)
        except BaseException as raised:
            error = raised
        self._loop.call_soon_threadsafe(self._written, commit, error)

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        if error is None:
            try:
                self.engine.committed(commit)
            except LannerError as raised:
                self._fail(raised)
                return
            if self.storage_full:
                self._check_disk()
            self._wake_idle()
            self._pump()
            self._prepare()
        elif isinstance(error, StorageFull):
            # The same record goes to the same position once there is room; nobody has been told anything meanwhile.
            self.storage_full = True
            if self._stopping:
                self._fail(error)
            else:
                self._loop.call_later(_FULL_RETRY_SECONDS, self._writer.submit, self._write, commit)
        else:
            failure = error if isinstance(error, LannerError) else StorageFailed(f"a write failed: {error}")
            self._fail(failure)

    def _prepare(self) -> None:
        """Have the next segment made ahead of time, so that no commit waits for it."""
        preparation = None if self._stopping or self.storage_full else self.engine.ledger.prepare()
        if preparation is None:
            return
        made = self._loop.run_in_executor(self._saver, perform_preparation, preparation, self.directory.files)

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                self.engine.ledger.prepared(preparation)
            elif isinstance(error, StorageFull):
                self.engine.ledger.preparation_failed(preparation)
                self.storage_full = True
            else:
                self._fail(error if isinstance(error, LannerError) else StorageFailed(f"no new segment: {error}"))

        made.add_done_callback(done)

    # ------------------------------------------------------------------ background work

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.engine.tick()
            self.kick()

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.save_interval_ms / 1_000)
            await self._guard(self._save)

    async def _guard(self, work: Callable[[], object]) -> None:
        """Background work that fails for a reason of the environment ends the broker, with that reason."""
        try:
            result = work()
            if asyncio.iscoroutine(result):
                await result
        except StorageFull:
            self.storage_full = True
        except LannerError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StorageFailed(f"the data directory failed: {error}"))

    async def _save(self) -> None:
        """Bring the table up to date. Once begun it goes on to its end, even if whoever waits for it is cancelled."""
        save = self._loop.create_task(self._save_all(), name="lanner-one-save")
        self._saves.add(save)
        save.add_done_callback(self._saves.discard)
        await asyncio.shield(save)

    async def _save_all(self) -> None:
        """As many saves as it takes to keep every turn of the loop short."""
        async with self._saving:
            while await self._save_some():
                pass

    async def _finish_saves(self) -> None:
        """Wait for the saves that were under way when their waiters were cancelled."""
        for save in tuple(self._saves):
            await save

    async def _save_some(self) -> bool:
        """One save; whether some replicas are left for another."""
        engine, files = self.engine, self.directory.files
        turn_ends = time.perf_counter() + _TURN_SECONDS
        job = engine.begin_save()
        if job is None:
            return False
        more = True
        while more and time.perf_counter() < turn_ends:
            more = engine.save_step(job)
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
                await self._loop.run_in_executor(self._saver, self.directory.table.commit, puts)
                return
            except StorageFull:
                self.storage_full = True
                if self._stopping:
                    raise
                await asyncio.sleep(_FULL_RETRY_SECONDS)

    async def _rewrite_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.save_interval_ms / 1_000)
            await self._guard(self._rewrite)

    async def _rewrite(self) -> None:
        """Copy what still lives out of mostly dead files, at a bounded rate, so that the files can go."""
        ledger, files = self.engine.ledger, self.directory.files
        while (file_id := ledger.rewrite_candidate()) is not None and not self.failed.done():
            rewrite = ledger.plan_rewrite(file_id)
            try:
                while not rewrite.done:
                    started = time.perf_counter()
                    read = await self._loop.run_in_executor(self._readers, rewrite.read, files)
                    rewrite.choose(ledger)
                    written = await self._loop.run_in_executor(
                        self._readers, rewrite.write, files, self.engine.transform
                    )
                    pause = (read + written) / self.settings.rewrite_bytes_per_second - (time.perf_counter() - started)
                    if pause > 0:
                        await asyncio.sleep(pause)
            except StorageFull:
                ledger.rewritten(rewrite)  # given up: what was copied counts, and another may begin when there is room
                raise
            ledger.rewritten(rewrite)
            await self._save()

    async def _watch_disk_forever(self) -> None:
        while True:
            await asyncio.sleep(_DISK_CHECK_SECONDS)
            self._check_disk()

    def _check_disk(self) -> None:
        free, total = self.directory.files.free_bytes()
        full = free < self.settings.reserve_bytes(total)
        if full != self.storage_full:
            log.warning(
                "disk: %d MiB free, publishing is %s", free // limits.MIB, "refused" if full else "possible again"
            )
        self.storage_full = full

    # ------------------------------------------------------------------ reading

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run something that may block on the disk, or on much computing, in a reader thread."""
        return await self._loop.run_in_executor(self._readers, work)

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The payloads of (set, index) pairs, from memory or the journal; None for one that retention has taken."""
        engine, files = self.engine, self.directory.files
        found: list[bytes | None] = [engine.payload_from_memory(set_id, index) for set_id, index in wanted]
        for _ in range(_READ_ATTEMPTS):
            cold = [(place, location) for place in _missing(found) if (location := self._locate(wanted[place]))]
            if not cold:
                break
            payloads = await self._loop.run_in_executor(self._readers, _read_all, files, [place for _, place in cold])
            for (place, _), payload in zip(cold, payloads, strict=True):
                found[place] = payload
        return found

    def _locate(self, wanted: tuple[int, int]) -> Location | None:
        try:
            return self.engine.ledger.locate(*wanted)
        except KeyError:
            return None


def _missing(found: Sequence[bytes | None]) -> list[int]:
    return [place for place, payload in enumerate(found) if payload is None]


def _read_all(files: Files, locations: Sequence[Location]) -> list[bytes | None]:
    return [_read_or_none(files, location) for location in locations]


def _read_or_none(files: Files, location: Location) -> bytes | None:
    """One payload, or None when a rewrite moved it and dropped its file since the look-up: look it up again."""
    try:
        return read_entry(files, location)
    except FileNotFoundError:
        return None


__all__ = ["Node", "wall_clock_ms"]
