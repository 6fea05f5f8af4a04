"""A whole broker in one object: the node, its service and the doors in front of it. `lanner up` runs one."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lanner.api.doors import Doors
from lanner.broker.node import Node
from lanner.broker.service import Service
from lanner.broker.settings import BrokerSettings
from lanner.errors import DeadlineExceeded, LannerError, StorageDamaged, StorageFailed
from lanner.net.seats import raise_open_files

Address = tuple[str, int]
_log: Final = logging.getLogger("lanner.server")
_PATIENCE_MS = 2_000  # so long may a lone broker take to begin before it opens REST to say what it waits for
_SWITCH_SECONDS = 0.0005  # a busy loop must not keep the writer thread waiting for longer


class Server:
    """One broker, from opening its data directory to closing it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.node = Node(settings)
        self.service: Service
        self._opened = False
        self._doors: Doors | None = None
        self._stopped = False

    @property
    def native_address(self) -> Address | None:
        return self._address("native")

    @property
    def http_address(self) -> Address | None:
        return self._address("http")

    @property
    def grpc_address(self) -> Address | None:
        return self._address("grpc")

    def _address(self, door: str) -> Address | None:
        """Where a door listens; None: it is shut."""
        return None if self._doors is None else self._doors.addresses.get(door)

    async def start(self) -> None:
        """Recover, open the doors, find the place in the cluster, and wait until everything here is led."""
        try:
            await self.open()
            await self.node.until_ready()
            self.node.keep_registered()
        except BaseException as error:
            await self.stop()
            if isinstance(error, StorageDamaged):
                raise error.at(self.settings.data) from error
            raise

    async def open(self) -> None:
        """Everything but the waiting for others: until it is ready, callers are told to come back.

        Other brokers come through the native door. So it opens before the place in the cluster is found, unless there
        are none: then nobody is let in before everything is there.
        """
        sys.setswitchinterval(_SWITCH_SECONDS)
        node = self.node
        await node.open()
        self._opened = True
        self.service = Service(node.parts())
        self._doors = doors = Doors(self.service, self.settings, self.service.addresses, self.service.clients)
        native = await doors.bind_native(node.inbox)
        joined = node.joining.needs_nobody
        if joined:
            await node.join(self.service.addresses)
            if node.alone:
                with suppress(DeadlineExceeded):
                    await node.waiting.until(lambda: node.readiness.complete, _PATIENCE_MS)
                if not node.readiness.complete:  # something is missing: /readyz says what
                    await doors.open_rest()
                await node.until_ready()
        if self.native_address is not None:
            await native.accept()
        await doors.open_rest()
        await doors.open_grpc()
        if joined:
            node.identity.introduce(self.service.addresses)
        else:
            await node.join(self.service.addresses)

    async def stop(self) -> None:
        """Hand over, refuse new work, answer what is in flight, save, close. A second call does nothing."""
        if self._stopped or not self._opened:
            return
        self._stopped = True
        await self.node.hand_over(self.settings.hand_over_ms)
        self.service.drain()
        if self._doors is not None:
            await self._doors.stop(self.settings.drain_ms)
        await self.node.stop()

    async def failed(self) -> LannerError:
        """Waits until the environment fails the broker (a write that could not be made durable); the reason."""
        reason = await asyncio.shield(self.node.failed)
        return reason.at(self.settings.data) if isinstance(reason, StorageDamaged) else reason


async def serve(settings: BrokerSettings, started: Callable[[Server], None]) -> LannerError | None:
    """Run a broker until SIGTERM or SIGINT, or until it fails; the failure, if that is what ended it."""
    raise_open_files()
    server = Server(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = loop.create_task(stop.wait())
    starting = loop.create_task(server.start())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait for others for a long time
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return server.node.hung
    starting.result()
    # What was recovered lives as long as the broker: ten thousand partitions are a million objects, and to look through
    # them for garbage held up the loop for a second, again and again.
    gc.freeze()
    started(server)
    failure = loop.create_task(server.failed())
    done, pending = await asyncio.wait({failure, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await server.stop()
    return server.node.hung or (failure.result() if failure in done else None)


def leave(failure: LannerError | None) -> None:
    """Call this last, once everything is said: a thread that waits for a disk which hangs keeps Python from ending."""
    if isinstance(failure, StorageFailed) and failure.details.get("hung"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
