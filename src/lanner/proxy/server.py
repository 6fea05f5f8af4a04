"""A whole proxy in one object: its connections to brokers, its service and the doors in front of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lanner.api.doors import Doors
from lanner.errors import LannerError
from lanner.net.addresses import parse_address
from lanner.net.backoff import Backoff
from lanner.net.seats import raise_open_files
from lanner.proxy.lanes import Lanes
from lanner.proxy.service import ProxyService
from lanner.proxy.settings import ProxySettings
from lanner.proxy.topology import Topology
from lanner.proxy.upstream import ManyBrokers, Upstream

log: Final = logging.getLogger("lanner.proxy")

LOOK_S: Final = 5.0  # so often it is asked who is there
_TIMEOUT_MS: Final = 10_000
_AGAIN_S: Final = 1.0
_SAID_S: Final = 30.0  # so often it is said that no broker answers


class ProxyServer:
    """One proxy, from opening its doors to closing them. The doors open at once: who waits for it can ask why."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self._brokers = ManyBrokers(settings.servers, client_name=settings.name, timeout_ms=_TIMEOUT_MS)
        self.service: ProxyService
        self._doors: Doors
        self._topology: Topology
        self._upstream: Upstream
        self._watching: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._said_at = -_SAID_S  # that no broker answers

    def address(self, door: str) -> tuple[str, int] | None:
        """Where a door listens; None: it is shut."""
        return self._doors.addresses.get(door)

    async def start(self) -> None:
        """Open the doors, and look for brokers until the proxy is stopped."""
        self._topology = Topology(self._brokers)
        self._upstream = Upstream(self._brokers, self._topology)
        self.service = ProxyService(self._topology, self._upstream, Lanes(self._topology), lambda: self._brokers.is_up)
        self._upstream.own = self.service.node_id
        self.service.advertised = parse_address(self.settings.advertise, "advertise")
        self._doors = Doors(self.service, self.settings, self.service.addresses)
        try:
            native = await self._doors.bind_native()
            if self.address("native") is not None:
                await native.accept()
            await self._doors.open_rest()
            await self._doors.open_grpc()
        except BaseException:
            await self.stop()
            raise
        self._watching = asyncio.create_task(self._watch())

    async def until_ready(self) -> None:
        """Return once some broker has told who there is."""
        await self._ready.wait()

    async def _watch(self) -> None:
        """Reach some broker, however long that takes; then hear again and again who is there."""
        await self._reach()
        while True:
            problem = await self._upstream.look_around()
            if problem is None:
                await self._answered()
                await asyncio.sleep(LOOK_S)
                continue
            self._say("no broker at %s tells who there is, asking again until one does: %s", problem)
            if not self._ready.is_set():
                with suppress(LannerError):
                    await self._brokers.begin_elsewhere()
            await asyncio.sleep(_AGAIN_S)

    async def _answered(self) -> None:
        if self._ready.is_set():
            return
        with suppress(LannerError):  # they reach it later, by themselves
            await self._brokers.gather_here()
        self.service.open()
        self._ready.set()

    async def _reach(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._brokers.open()
                return
            except LannerError as error:
                self._say("no broker at %s answers, trying again until one does: %s", error)
            await asyncio.sleep(backoff.pause_s())

    def _say(self, what: str, error: LannerError) -> None:
        """Tell the log what is wrong, once in a while."""
        now = asyncio.get_running_loop().time()
        if now - self._said_at >= _SAID_S:
            self._said_at = now
            log.warning(what, self.settings.servers, error.message)

    async def stop(self) -> None:
        """Refuse new work, answer what is in hand, hang up on the brokers."""
        self.service.drain()
        await self._doors.stop(self.settings.drain_ms)
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._topology.close()
        await self._brokers.close()
        self.service.close()


async def serve(settings: ProxySettings, started: Callable[[ProxyServer], None]) -> None:
    """Run a proxy until SIGTERM or SIGINT; `started` is called once it is ready."""
    raise_open_files()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = ProxyServer(settings)
    await server.start()
    ready, stopped = loop.create_task(server.until_ready()), loop.create_task(stop.wait())
    await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        started(server)
    await stopped
    ready.cancel()
    await server.stop()


__all__ = ["ProxyServer", "serve"]
