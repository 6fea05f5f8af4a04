"""The standard health service: what is serving, what is not known, and what a watch hears."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from lanner.api.grpc import health
from lanner.errors import NotFoundError, ServiceUnavailable
from tests.unit.api.grpc.scripted import ScriptedCaller

SERVING, NOT_SERVING, UNKNOWN = (
    HealthCheckResponse.SERVING,
    HealthCheckResponse.NOT_SERVING,
    HealthCheckResponse.SERVICE_UNKNOWN,
)


class Behind:
    """A broker that counts how often it is looked at."""

    def __init__(self) -> None:
        self.is_ready = True
        self.looks = 0

    @property
    def ready(self) -> bool:
        self.looks += 1
        return self.is_ready

    async def looked_at(self, times: int) -> None:
        wanted = self.looks + times
        async with asyncio.timeout(10):
            while self.looks < wanted:
                await asyncio.sleep(0.001)


class Watcher(ScriptedCaller):
    """Takes states, and says when it has so many."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()

    async def send(self, response: Any) -> None:
        await super().send(response)
        self.news.set()

    async def next(self) -> int:
        async with asyncio.timeout(10):
            await self.news.wait()
        self.news.clear()
        status: int = self.sent[-1].status
        return status


def opened() -> tuple[Any, health.Health]:
    backing: Any = Behind()
    return backing, health.Health(backing, ["lanner.v1.Queue"])


async def test_a_service_is_as_ready_as_its_broker_and_none_while_it_stops() -> None:
    backing, service = opened()
    caller: Any = ScriptedCaller()
    for name in ("", "lanner.v1.Queue"):
        assert (await service.check(HealthCheckRequest(service=name), caller)).status == SERVING
    backing.is_ready = False
    assert (await service.check(HealthCheckRequest(), caller)).status == NOT_SERVING
    backing.is_ready = True
    service.stopping.set()
    assert (await service.check(HealthCheckRequest(), caller)).status == NOT_SERVING
    with pytest.raises(NotFoundError, match="there is no service 'nope'"):
        await service.check(HealthCheckRequest(service="nope"), caller)


async def test_a_watch_hears_changes_only_and_ends_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_LOOK_SECONDS", 0.001)
    backing, service = opened()
    watcher: Any = Watcher()
    watching = asyncio.ensure_future(service.watch(HealthCheckRequest(), watcher))
    assert await watcher.next() == SERVING
    await backing.looked_at(3)
    assert len(watcher.sent) == 1, "nothing has changed"
    backing.is_ready = False
    assert await watcher.next() == NOT_SERVING
    backing.is_ready = True
    assert await watcher.next() == SERVING
    service.stopping.set()
    with pytest.raises(ServiceUnavailable):
        await watching
    assert [one.status for one in watcher.sent] == [SERVING, NOT_SERVING, SERVING]


async def test_a_watch_of_an_unknown_service_hears_that_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_LOOK_SECONDS", 0.001)
    backing, service = opened()
    watcher: Any = Watcher()
    watching = asyncio.ensure_future(service.watch(HealthCheckRequest(service="nope"), watcher))
    assert await watcher.next() == UNKNOWN
    await backing.looked_at(3)
    service.stopping.set()
    with pytest.raises(ServiceUnavailable):
        await watching
    assert len(watcher.sent) == 1
