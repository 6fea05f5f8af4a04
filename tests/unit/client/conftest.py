"""A broker for tests: real sockets and real frames, and a script instead of a log.

`answer` gets each request and says what happens: a control part (or control and bulk) to reply, an error to report,
`None` to stay silent, `HANG_UP` to close the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lanner.errors import LannerError
from lanner.net.listener import Listener, ServerLink
from lanner.wire.connection import Request
from lanner.wire.messages import (
    Command,
    Control,
    Empty,
    Hello,
    HelloReply,
    Metadata,
    MetadataReply,
    Offsets,
    OffsetsReply,
    PartitionInfo,
    PartitionOffsets,
    ProducerOpened,
    Published,
    Settle,
    Settled,
    SettledItem,
    TopicInfo,
)

HANG_UP = object()
Answer = Control | tuple[Control, list[bytes]] | LannerError | object | None


class ScriptedBroker:
    """Answers METADATA, OPEN_PRODUCER, PUBLISH, SETTLE and PING sensibly; tests replace what they are about."""

    HANG_UP = HANG_UP

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.partitions = 1
        self.published = 0
        self.producers = 0
        self.answers: dict[Command, Callable[[Any, Request], Answer]] = {}
        self.inflight_max = 1_024
        self.links: list[ServerLink] = []
        self._listener = Listener(lambda link: _ScriptedSession(self, link))
        self._port = 0

    async def start(self) -> None:
        _, self._port = await self._listener.start("127.0.0.1", self._port)

    async def stop(self) -> None:
        await self._listener.close()

    async def restart(self) -> None:
        self._listener = Listener(lambda link: _ScriptedSession(self, link))
        await self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def of(self, command: Command) -> list[Any]:
        """The control parts of all requests of one kind."""
        return [request.control for request in self.requests if request.command is command]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    def default(self, request: Request) -> Answer:
        match request.control:
            case Metadata(topics=names):
                partitions = [PartitionInfo(number, "n1") for number in range(self.partitions)]
                return MetadataReply("c", [], [TopicInfo(name, 1, partitions) for name in names or []])
            case Settle(items=items):
                return Settled([SettledItem(0, item.count) for item in items])
            case Offsets():
                return OffsetsReply([PartitionOffsets(number, 0, 1_000) for number in range(self.partitions)], 1)
        match request.command:
            case Command.OPEN_PRODUCER:
                self.producers += 1
                return ProducerOpened(self.producers)
            case Command.PUBLISH:
                self.published += 1
                return Published(self.published - 1, 1, 1)
        return Empty()


class _ScriptedSession:
    def __init__(self, broker: ScriptedBroker, link: ServerLink) -> None:
        self._broker = broker
        self._link = link
        broker.links.append(link)

    def greet(self, hello: Hello) -> HelloReply:
        return HelloReply(1, "c", "n1", "scripted", 16 << 20, self._broker.inflight_max)

    def handle(self, request: Request) -> None:
        broker, link = self._broker, self._link
        broker.requests.append(request)
        scripted = broker.answers.get(request.command)
        answer = broker.default(request) if scripted is None else scripted(request.control, request)
        if answer is HANG_UP:
            link.abort(LannerError("hung up"))
        elif isinstance(answer, LannerError):
            link.fail(request, answer)
        elif isinstance(answer, tuple):
            if request.command is Command.POLL and request.control.settles:
                self.answer_settles(request)
            link.reply(request, answer[0], answer[1])
        elif isinstance(answer, Control):
            if request.command is Command.POLL and request.control.settles:
                self.answer_settles(request)
            link.reply(request, answer)
        elif request.command is Command.POLL and request.control.settles:
            self.answer_settles(request)

    def answer_settles(self, request: Request) -> None:
        items = [SettledItem(0, item.count) for item in request.control.settles]
        self._link.reply_settles(request, Settled(items))

    def handed_over(self) -> None:
        """Nothing to count here."""

    def lost(self) -> None:
        """Nothing to give back here."""


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.stop()
