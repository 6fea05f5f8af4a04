"""`grpc.health.v1.Health`: the standard answer to whether this broker is ready, as a whole and for each service."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from grpc_health.v1 import health_pb2

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.methods import Caller, Method, sending, stops, unary
from lanner.errors import NotFoundError

SERVICE: Final = "grpc.health.v1.Health"
_LOOK_SECONDS: Final = 1.0


class Health:
    """Whether the broker is ready."""

    def __init__(self, backing: Backing, services: Collection[str]) -> None:
        self._backing = backing
        self._known = {"", *services}
        self.stopping = asyncio.Event()

    def methods(self) -> Mapping[str, Method]:
        return {
            "Check": unary(health_pb2.HealthCheckRequest, self.check),
            "Watch": sending(health_pb2.HealthCheckRequest, self.watch),
        }

    async def check(self, asked: health_pb2.HealthCheckRequest, caller: Caller) -> health_pb2.HealthCheckResponse:
        if asked.service not in self._known:
            raise NotFoundError(f"there is no service {asked.service[:80]!r} here")
        return self._state()

    async def watch(self, asked: health_pb2.HealthCheckRequest, caller: Caller) -> None:
        """The state now, and again whenever it has changed, until the broker stops."""
        said = None
        if asked.service not in self._known:
            said = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            await caller.send(said)
        while not self.stopping.is_set():
            state = self._state()
            if asked.service in self._known and state != said:
                said = state
                await caller.send(state)
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self.stopping.wait()
            except TimeoutError:
                continue
        raise stops()

    def _state(self) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        serving = self._backing.ready and not self.stopping.is_set()
        return kinds(status=kinds.SERVING if serving else kinds.NOT_SERVING)
