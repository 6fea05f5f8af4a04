"""The REST door in front of a service that is not there: it records what it is asked and answers what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lanner.api.rest import build_app
from lanner.broker.desks.calls import (
    BrokerResult,
    ClusterResult,
    DeadLettersResult,
    Delivered,
    FetchResult,
    GroupPartitionResult,
    GroupResult,
    Identity,
    NewMessage,
    OffsetsResult,
    PartitionStateResult,
    ScrubResult,
    SettleItem,
    SettleResult,
    Stored,
    TopicResult,
)
from lanner.broker.desks.checks import check_settle
from lanner.broker.desks.routes import BrokerRoute, PartitionRoute, TopicRoute
from lanner.broker.tries import Figures
from lanner.cluster import PartitionRow, PlanKind, PlanState, Progress, ReplicaRow
from lanner.errors import GroupNotFound, TopicNotFound
from lanner.model import Looked, LookPlace, Message, TopicSettings


@dataclass
class FakeService:
    """As much of the service as the door can tell apart."""

    cluster_id: str = "cluster"
    node_id: str = "node"
    auto_create: bool = True
    ready: bool = True
    missing: str = ""
    disk_slow: str = ""
    others_may_lead: bool = False
    time_ahead_ms: int = 0
    stopped_partitions: dict[str, str] = field(default_factory=dict)
    forwarded: int = 17
    fetched_bytes: dict[str, int] = field(default_factory=lambda: {"leader": 50, "follower": 60})
    disk_figures: dict[str, int] = field(
        default_factory=lambda: {"scrubbed_bytes": 4_096, "scrub_passes": 2, "damaged": 1}
    )
    transaction_figures: Figures = field(
        default_factory=lambda: Figures(3, 20, 4, 1_000, 500, 8, 9, 2, 6, 7, {"deadline": 1}, 2_500, 5, 800, 1_200, 0)
    )
    addresses: dict[str, tuple[str, int]] = field(default_factory=lambda: {"native": ("127.0.0.1", 7400)})
    known: dict[str, int] = field(default_factory=dict)  # topic → partitions
    published: list[NewMessage] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    peeked: list[Message] = field(default_factory=list)
    floors: dict[str, list[int]] = field(default_factory=dict)  # group → the lowest unsettled offset by partition
    settled: list[SettleResult] = field(default_factory=list)
    fetched: FetchResult = field(default_factory=lambda: FetchResult(0, 0, 0, [], 1))
    dead: DeadLettersResult = field(default_factory=lambda: DeadLettersResult([], 0))
    failure: Exception | None = None
    poll_gate: asyncio.Event | None = None

    def _asked(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        if self.failure is not None:
            raise self.failure

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        self._asked("ensure_topic", name)
        self.known.setdefault(name, 3)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        self._asked("publish_messages", topic)
        first = len(self.published)
        self.published.extend(messages)
        return [Stored(0, first + place, 1_000, False) for place in range(len(messages))]

    async def poll_messages(self, identity: Identity, **wanted: Any) -> list[Delivered]:
        self._asked("poll", wanted)
        if self.poll_gate is not None:
            try:
                await self.poll_gate.wait()
            except asyncio.CancelledError:
                self.calls.append(("poll cancelled", None))
                raise
        return self.deliveries

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        self._asked("settle", items)
        return self.settled or [SettleResult(0, item.count) for item in items]

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        for item in items:
            check_settle(item)  # as the service does
        self._asked("release", items)
        return [SettleResult(0, item.count) for item in items]

    async def peek(
        self,
        identity: Identity,
        topic: str,
        partitions: Sequence[int] | None,
        offset: int,
        max_messages: int,
        max_bytes: int,
        after: LookPlace | None,
    ) -> Looked:
        self._asked("peek", (partitions, offset, max_messages))
        return Looked(self.peeked)

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        self.calls.append(("in_reader", None))
        return await asyncio.to_thread(work)

    async def fetch(self, identity: Identity, *arguments: Any, lanes: int = 0) -> FetchResult:
        self._asked("fetch", (*arguments, lanes))
        return self.fetched

    @property
    def anywhere(self) -> FakeService:
        return self

    def broker_routes(self, identity: Identity) -> list[BrokerRoute]:
        return [BrokerRoute("node", "one", "", "127.0.0.1", 7400, "")]

    def topic_route(self, identity: Identity, name: str) -> TopicRoute:
        if name not in self.known:
            raise TopicNotFound(topic=name)
        partitions = [PartitionRoute(number, "node", ["node", "other"]) for number in range(self.known[name])]
        return TopicRoute(name, 1, {}, partitions)

    async def describe_cluster(self, identity: Identity) -> ClusterResult:
        self._asked("describe_cluster", None)
        plan = Progress(3, PlanKind.DRAIN, "node", PlanState.RUNNING, 1, 6, 0, 1, 1, 0, "")
        broker = BrokerResult(
            "one",
            "node",
            "r1",
            "draining",
            {"native": "[::1]:7400"},
            4,
            2,
            1,
            "voter",
            plan,
            alive=True,
            scrub=ScrubResult(True, 1, 20, 3, 400, 0, 900),
        )
        return ClusterResult("cluster", "node", 1, len(self.known), 5, 15, 1, [broker], [plan])

    async def describe_partitions(self, identity: Identity, topic: str | None) -> list[PartitionRow]:
        self._asked("describe_partitions", topic)
        leader = ReplicaRow(1, "node", "one", "voter", True, True, None, "")
        other = ReplicaRow(4, "other", "two", "learner", False, False, 17, "catch_up", "kind 99 is not known")
        return [PartitionRow(9, "orders", 2, "node", 3, (leader, other))]

    async def change_cluster(self, identity: Identity, action: str, **wish: Any) -> Progress | None:
        self._asked(action, wish)
        if action in ("undrain", "transfer"):
            return None
        return Progress(4, PlanKind.MOVE, "", PlanState.RUNNING, 0, 6, 0, 1, 1, 0, "")

    async def topics(self, identity: Identity) -> list[str]:
        self._asked("topics", None)
        return sorted(self.known)

    async def topic(self, identity: Identity, name: str) -> TopicResult:
        self._asked("topic", name)
        if name not in self.known:
            raise TopicNotFound(topic=name)
        partitions = [
            PartitionStateResult(number, "node", 0, 10, 100, 1, 0, {9: 2, 0: 3}) for number in range(self.known[name])
        ]
        return TopicResult(name, 1, TopicSettings().to_dict(), partitions)

    async def create_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any], create_id: str = ""
    ) -> TopicResult:
        self._asked("create_topic", (name, dict(settings)))
        self.known[name] = TopicSettings.from_dict(settings).partitions
        return await self.topic(identity, name)

    async def alter_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        self._asked("alter_topic", (name, dict(settings)))
        return await self.topic(identity, name)

    async def delete_topic(self, identity: Identity, name: str) -> None:
        self._asked("delete_topic", name)
        await self.topic(identity, name)
        del self.known[name]

    async def offsets(
        self, identity: Identity, topic: str, time_ms: int = -1, partitions: Sequence[int] | None = None
    ) -> tuple[int, list[OffsetsResult]]:
        self._asked("offsets", time_ms)
        if topic not in self.known:
            raise TopicNotFound(topic=topic)
        at_time = 5 if time_ms >= 0 else -1
        return 1, [OffsetsResult(number, 0, 10, at_time) for number in range(self.known[topic])]

    async def groups(self, identity: Identity, topic: str) -> list[str]:
        self._asked("groups", topic)
        return list(self.floors)

    async def look_up(self, names: Sequence[str]) -> None:
        pass

    async def group(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> GroupResult:
        self._asked("group", group)
        if group not in self.floors:
            raise GroupNotFound()
        partitions = [
            GroupPartitionResult(number, floor, 4, 2, 1, 1, 1, {9: 1, 4: 1}, 1_000)
            for number, floor in enumerate(self.floors[group])
            if partitions is None or number in partitions
        ]
        return GroupResult(topic, group, "queue", partitions)

    async def drop_group(self, identity: Identity, topic: str, group: str) -> None:
        self._asked("drop_group", group)

    async def seek(self, identity: Identity, topic: str, group: str, **where: Any) -> None:
        self._asked("seek", where)

    async def commit(
        self,
        identity: Identity,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        reader: str = "",
        sequence: int = -1,
    ) -> None:
        self._asked("commit", (dict(offsets), reader, sequence) if reader else dict(offsets))

    async def committed(self, identity: Identity, topic: str, group: str) -> dict[int, int]:
        self._asked("committed", group)
        return {1: 7, 0: 3}

    async def dead_letters(self, identity: Identity, *arguments: Any) -> DeadLettersResult:
        self._asked("dead_letters", arguments)
        return self.dead

    async def redrive(self, identity: Identity, *arguments: Any) -> int:
        self._asked("redrive", arguments)
        return 2

    async def discard(self, identity: Identity, *arguments: Any) -> int:
        self._asked("discard", arguments)
        return 1

    async def raft_status(self, identity: Identity, topic: str, partition: int) -> dict[str, object]:
        self._asked("raft_status", (topic, partition))
        return {"state": "leader", "term": 3, "num_peers": 0, "latest_configuration": [1], "vote": None}

    def asked(self, name: str) -> list[Any]:
        return [what for called, what in self.calls if called == name]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def http(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=build_app(service), raise_app_exceptions=True)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
        yield client
