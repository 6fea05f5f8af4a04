"""Brokers for tests: real sockets and real frames, and a script instead of a log.

`answer` gets each request and says what happens: a control part (or control and bulk) to reply, an error to report,
`None` (or `SILENCE`) to stay silent, `HANG_UP` to close the connection.

A scripted cluster is several of them over one shared state, as if replication were perfect and took no time: what one
broker has taken, all have. Who leads what is for the test to say.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import pytest

from lanner.batch import decode, encode
from lanner.errors import LannerError, NotLeader
from lanner.net.listener import Listener, ServerLink
from lanner.partition.producers import Producers, SentBatch
from lanner.wire.connection import Request
from lanner.wire.messages import (
    BestPriority,
    BestPriorityFound,
    BrokerInfo,
    Command,
    Commit,
    Control,
    Empty,
    Fetch,
    Hello,
    HelloReply,
    LeasedRange,
    Metadata,
    MetadataReply,
    Offsets,
    OffsetsReply,
    PartitionInfo,
    PartitionOffsets,
    Poll,
    Polled,
    PolledBatch,
    ProducerOpened,
    Publish,
    Published,
    Release,
    Settle,
    Settled,
    SettledItem,
    SettleItem,
    SettleKind,
    TopicInfo,
)

HANG_UP = object()
SILENCE = object()
Answer = Control | tuple[Control, list[bytes]] | LannerError | object | None


class ScriptedBroker:
    """Answers METADATA, OPEN_PRODUCER, PUBLISH, SETTLE and PING sensibly; tests replace what they are about."""

    HANG_UP = HANG_UP

    def __init__(self, node_id: str = "n1", cluster: ScriptedCluster | None = None) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.requests: list[Request] = []
        self.partitions = 1
        self.published = 0
        self.producers = 0
        self.answers: dict[Command, Callable[[Any, Request], Answer]] = {}
        self.inflight_max = 1_024
        self.silent = False
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
        if self.cluster is not None:
            answer = self.cluster.answer(self, request)
            if answer is not None:
                return answer
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
        return HelloReply(1, "c", self._broker.node_id, "scripted", 16 << 20, self._broker.inflight_max)

    def handle(self, request: Request) -> None:
        broker, link = self._broker, self._link
        broker.requests.append(request)
        if broker.silent:
            return
        scripted = broker.answers.get(request.command)
        answer = broker.default(request) if scripted is None else scripted(request.control, request)
        if answer is HANG_UP:
            link.abort(LannerError("hung up"))
        elif answer is SILENCE and broker.cluster is not None:
            broker.cluster.watching.append((link, request))
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
        cluster = self._broker.cluster
        settles = request.control.settles
        items = [SettledItem(0, item.count) for item in settles]
        if cluster is not None:
            items = cluster.settle(self._broker, settles)
        self._link.reply_settles(request, Settled(items))

    def handed_over(self) -> None:
        """Nothing to count here."""

    def lost(self) -> None:
        """Nothing to give back here."""


class Leased(NamedTuple):
    partition: int
    offset: int
    priority: int
    value: bytes


class ScriptedCluster:
    """Three brokers with one topic of as many partitions as `leaders` names."""

    def __init__(self, *leaders: str) -> None:
        self.brokers = {node_id: ScriptedBroker(node_id, self) for node_id in ("n1", "n2", "n3")}
        self.leaders = list(leaders)
        self.incarnation = 1
        self.hints = True
        self.logs: dict[int, list[bytes]] = defaultdict(list)
        self.producers: dict[int, Producers] = defaultdict(Producers)
        self.ready: dict[int, list[Leased]] = defaultdict(list)
        self.polls: dict[tuple[int, str, int], list[Leased]] = {}  # by partition, member and sequence
        self.acked: list[tuple[int, int]] = []
        self.watching: list[tuple[ServerLink, Request]] = []  # BEST_PRIORITY calls that wait for something

    async def start(self) -> None:
        for broker in self.brokers.values():
            await broker.start()

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def of(self, command: Command) -> dict[str, list[Any]]:
        """The control parts of all requests of one kind, by broker."""
        return {node_id: broker.of(command) for node_id, broker in self.brokers.items()}

    def metadata(self) -> MetadataReply:
        infos = []
        for broker in self.brokers.values():
            host, _, port = broker.address.rpartition(":")
            infos.append(BrokerInfo(broker.node_id, host, int(port)))
        partitions = [PartitionInfo(number, leader, list(self.brokers)) for number, leader in enumerate(self.leaders)]
        return MetadataReply("c", infos, [TopicInfo("t", self.incarnation, partitions)])

    def add(self, partition: int, priority: int, *values: bytes) -> None:
        """Messages for consumers."""
        for value in values:
            self.ready[partition].append(Leased(partition, len(self.ready[partition]), priority, value))
        for link, request in [one for one in self.watching if partition in one[1].control.partitions]:
            self.watching.remove((link, request))
            link.reply(request, BestPriorityFound(priority, len(values)))

    def not_led(self, broker: ScriptedBroker, partitions: Iterable[int]) -> LannerError | None:
        for partition in partitions:
            leader = self.leaders[partition]
            if leader != broker.node_id:
                address = self.brokers[leader].address if leader in self.brokers else ""
                hint = {"leader": leader, "address": address} if self.hints else {}
                return NotLeader(topic="t", partition=partition, **hint)
        return None

    def answer(self, broker: ScriptedBroker, request: Request) -> Answer:
        match request.control:
            case Metadata():
                return self.metadata()
            case Publish(partition=partition):
                return self.not_led(broker, [partition]) or self.append(partition, request.bulk)
            case BestPriority(partitions=partitions, wait_ms=wait_ms):
                best = self.best(partitions or [])
                return self.not_led(broker, partitions or []) or (
                    SILENCE if best < 0 and wait_ms else BestPriorityFound(best, self.count(partitions or [], best))
                )
            case Poll(partitions=partitions):
                return self.not_led(broker, partitions or []) or self.lease(request.control)
            case Settle(items=items) | Release(items=items):
                return Settled(self.settle(broker, items))
            case Commit(offsets=offsets) if refusal := self.not_led(broker, offsets):
                return refusal
            case Fetch(partition=partition) if refusal := self.not_led(broker, [partition]):
                return refusal
        return None

    def append(self, partition: int, data: bytes | memoryview) -> Answer:
        found = decode(data)
        header = found.header
        log, producers = self.logs[partition], self.producers[partition]
        identity = (header.producer_id, header.producer_epoch, header.priority)
        try:
            sent = producers.find_duplicate(*identity, header.sequence, 0)
        except LannerError as error:
            return error
        if sent is not None:
            return Published(sent.base_offset, 1, found.count, True)
        producers.note(*identity, SentBatch(header.sequence, len(log), found.count, 1), 1)
        log += found.values()
        return Published(len(log) - found.count, 1, found.count)

    def best(self, partitions: Iterable[int]) -> int:
        return max((one.priority for partition in partitions for one in self.ready[partition]), default=-1)

    def count(self, partitions: Iterable[int], priority: int) -> int:
        return sum(one.priority == priority for partition in partitions for one in self.ready[partition])

    def lease(self, poll: Poll) -> tuple[Polled, list[bytes]]:
        """The most urgent of the partitions asked for; what this very poll got before comes again."""
        partitions = poll.partitions or []
        chosen = [
            one for partition in partitions for one in self.polls.get((partition, poll.member, poll.sequence), [])
        ]
        if not chosen:
            found = [one for partition in partitions for one in self.ready[partition]]
            found = [one for one in found if one.priority >= poll.min_priority]
            chosen = sorted(found, key=lambda one: -one.priority)[: poll.max_messages]
            for one in chosen:
                self.ready[one.partition].remove(one)
                self.polls.setdefault((one.partition, poll.member, poll.sequence), []).append(one)
        batches, data = [], []
        for one in chosen:
            encoded = encode([one.value], priority=one.priority)
            ranges = [LeasedRange(one.offset, 1, 1)]
            batches.append(PolledBatch(one.partition, 7, one.offset, 1, 9_999, one.priority, len(encoded), ranges))
            data.append(encoded)
        return Polled(batches, False, self.best(partitions)), data

    def settle(self, broker: ScriptedBroker, items: Iterable[SettleItem]) -> list[SettledItem]:
        results = []
        for item in items:
            if self.leaders[item.partition] != broker.node_id:
                results.append(SettledItem(NotLeader.code, 0))
                continue
            results.append(SettledItem(0, item.count))
            if item.kind == SettleKind.ACK:
                self.acked += [(item.partition, item.first_offset + place) for place in range(item.count)]
        return results


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    cluster = ScriptedCluster("n1", "n2", "n3")
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.start()
    yield broker
    await broker.stop()
