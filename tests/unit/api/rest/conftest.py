"""The REST door in front of a service that is not there: it records what it is asked and answers what it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lanner.api.rest import build_app
from lanner.broker.coordination.figures import Figures as GroupsTold
from lanner.broker.coordination.figures import GroupFigures
from lanner.broker.metrics import metric_lines
from lanner.broker.readiness import Facts, Verdict, judge
from lanner.broker.tries import Figures
from lanner.calls import Answer, Bulk, Identity, row_of
from lanner.errors import GroupNotFound, TopicNotFound
from lanner.forwarding.checks import check_settle
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import Delivered, NewMessage, Placed, Run
from lanner.model import Message, TopicSettings
from lanner.wire import administration, cluster, members
from lanner.wire.messages import (
    AnswerT,
    BrokerInfo,
    Call,
    Commit,
    Committed,
    CommittedReply,
    Empty,
    Fetch,
    Fetched,
    FetchedBatch,
    Metadata,
    MetadataReply,
    Offsets,
    OffsetsReply,
    PartitionInfo,
    PartitionOffsets,
    Peek,
    Peeked,
    PeekedMessage,
    Poll,
    Settle,
    Settled,
    SettledItem,
    TopicInfo,
)


def fetched_page(
    first_offset: int,
    end_offset: int,
    next_offset: int,
    batches: Sequence[tuple[int, int, int, bytes]],
    damaged: Sequence[tuple[int, int]] = (),
    holes: Sequence[tuple[int, int]] = (),
    time_ms: int = 0,
) -> Answer[Fetched]:
    """Batches as (base offset, count, append time, bytes)."""
    shown = [FetchedBatch(base, count, append_ms, len(data)) for base, count, append_ms, data in batches]
    control = Fetched(
        first_offset, end_offset, next_offset, shown, 1, list(damaged), holes=list(holes), time_ms=time_ms
    )
    return Answer(control, [data for *_, data in batches])


def dead_page(
    letters: Sequence[tuple[int, int, int, int, str, bytes]], total: int, following: tuple[int, int] | None = None
) -> Answer[administration.DeadLetters]:
    """Letters as (partition, offset, priority, attempts, reason, bytes)."""
    shown = [administration.DeadLetter(*told, 1_000, 900, len(data)) for *told, data in letters]
    return Answer(administration.DeadLetters(shown, total, following), [data for *_, data in letters])


READY = Facts(member=True, registered=True, current=True, opened=True, restored=True, metadata_led=True)


@dataclass
class FakeService:
    """As much of the service as the door can tell apart."""

    cluster_id: str = "cluster"
    node_id: str = "node"
    auto_create: bool = True
    facts: Facts = READY
    time_ahead_ms: int = 0
    stopped_partitions: dict[str, str] = field(default_factory=dict)
    forwarded: int = 17
    fetched_bytes: dict[str, int] = field(default_factory=lambda: {"leader": 50, "follower": 60})
    fenced: dict[str, int] = field(default_factory=lambda: {"commit": 3})
    disk_figures: dict[str, int] = field(
        default_factory=lambda: {"scrubbed_bytes": 4_096, "scrub_passes": 2, "damaged": 1}
    )
    transaction_figures: Figures = field(
        default_factory=lambda: Figures(3, 20, 4, 1_000, 500, 8, 9, 2, 6, 7, {"deadline": 1}, 2_500, 5, 800, 1_200, 0)
    )
    group_figures: GroupsTold = field(
        default_factory=lambda: GroupsTold(
            [GroupFigures("billing", 3, 41, 2, 1, 1_200)],
            Counter(
                moved=9, forced=1, evicted_silent=4, rebalances_joined=5, handovers=2, handover_ms=500, assign_us=70
            ),
        )
    )
    addresses: dict[str, tuple[str, int]] = field(default_factory=lambda: {"native": ("127.0.0.1", 7400)})
    known: dict[str, int] = field(default_factory=dict)  # topic → partitions
    published: list[NewMessage] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    peeked: list[Message] = field(default_factory=list)
    floors: dict[str, list[int]] = field(default_factory=dict)  # group → the lowest unsettled offset by partition
    settled: list[SettledItem] = field(default_factory=list)
    fetched: Answer[Fetched] = field(default_factory=lambda: fetched_page(0, 0, 0, []))
    dead: Answer[administration.DeadLetters] = field(default_factory=lambda: dead_page([], 0))
    failure: Exception | None = None
    views: list[members.MemberView | Exception] = field(
        default_factory=list
    )  # what heartbeats are told; the last stays
    claimed: list[members.ClaimedPartition] = field(default_factory=list)
    beat_gate: asyncio.Event | None = None  # what heartbeats that wait, wait for
    poll_gate: asyncio.Event | None = None
    unheard: int = 0  # polls whose leases the door gave back

    @property
    def readiness(self) -> Verdict:
        return judge(self.facts)

    def metrics(self) -> list[str]:
        return metric_lines(self)

    def _asked(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        if self.failure is not None:
            raise self.failure

    def asked(self, name: str) -> list[Any]:
        """The calls of that command; of what is no call of the table, what was given."""
        return [what for called, what in self.calls if called == name]

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        self._asked(row_of(call).command.name.lower(), call)
        if isinstance(call, members.Heartbeat) and call.wait_ms and self.beat_gate is not None:
            await self.beat_gate.wait()
        answer = getattr(self, "_" + row_of(call).command.name.lower())(call)
        return answer if isinstance(answer, Answer) else Answer(answer)

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        self._asked("ensure_topic", name)
        self.known.setdefault(name, 3)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> Placed:
        self._asked("publish_messages", topic)
        first = len(self.published)
        self.published.extend(messages)
        self.published_as = type(messages)
        return Placed([Run(0, range(first, first + len(messages)), 1_000, False)])

    async def poll_messages(self, identity: Identity, call: Poll) -> Handed:
        self._asked("poll", call)
        if self.poll_gate is not None:
            try:
                await self.poll_gate.wait()
            except asyncio.CancelledError:
                self.calls.append(("poll cancelled", None))
                raise
        return Handed(self.deliveries, None if call.auto_ack else self._give_back)

    def _give_back(self) -> None:
        self.unheard += 1

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        self.calls.append(("in_reader", None))
        return await asyncio.to_thread(work)

    # ------------------------------------------------------------------ answers, by command

    def _settle(self, call: Settle) -> Settled:
        for item in call.items:
            check_settle(item)  # as the service does
        return Settled(self.settled or [SettledItem(0, item.count) for item in call.items])

    def _peek(self, call: Peek) -> Peeked:
        return Peeked([PeekedMessage(one.partition, one.offset, 0, one.priority, one.value) for one in self.peeked])

    def _fetch(self, call: Fetch) -> Answer[Fetched]:
        return self.fetched

    def _metadata(self, call: Metadata) -> MetadataReply:
        topics = []
        for name in call.topics or ():
            partitions = [PartitionInfo(number, "node", ["node", "other"]) for number in range(self.known.get(name, 0))]
            topics.append(TopicInfo(name, 1, partitions, error=0 if name in self.known else TopicNotFound.code))
        return MetadataReply("cluster", [BrokerInfo("node", "127.0.0.1", 7400, "one")], topics)

    def _describe_cluster(self, call: cluster.DescribeCluster) -> cluster.ClusterDescription:
        plan = cluster.PlanProgress(3, "drain", "node", "running", 1, 6, 0, 1, 1, 0, "")
        scrub = cluster.ScrubProgress(True, 1, 20, 3, 400, 0, 900)
        addresses = {"native": "[::1]:7400"}
        broker = cluster.BrokerState("one", "node", "r1", "draining", addresses, 4, 2, 1, "voter", True, plan, scrub)
        return cluster.ClusterDescription("cluster", "node", 1, len(self.known), 5, 15, 1, [broker], [plan])

    def _describe_partitions(self, call: cluster.DescribePartitions) -> cluster.PartitionsDescription:
        leader = cluster.ReplicaState(1, "node", "one", "voter", True, True, None, "")
        other = cluster.ReplicaState(4, "other", "two", "learner", False, False, 17, "catch_up", "kind 99 is not known")
        return cluster.PartitionsDescription([cluster.PartitionReplicas(9, "orders", 2, "node", 3, [leader, other])])

    def _change_cluster(self, call: cluster.ChangeCluster) -> cluster.ClusterChanged:
        if call.action in ("undrain", "transfer"):
            return cluster.ClusterChanged()
        return cluster.ClusterChanged(cluster.PlanProgress(4, "move", "", "running", 0, 6, 0, 1, 1, 0, ""))

    def _list_topics(self, call: administration.ListTopics) -> administration.TopicNames:
        return administration.TopicNames(sorted(self.known))

    def _described(self, name: str) -> administration.TopicDescription:
        if name not in self.known:
            raise TopicNotFound(topic=name)
        partitions = [
            administration.PartitionState(number, "node", 0, 10, 100, 1, 0, {9: 2, 0: 3})
            for number in range(self.known[name])
        ]
        return administration.TopicDescription(name, 1, TopicSettings().to_dict(), partitions)

    def _describe_topic(self, call: administration.DescribeTopic) -> administration.TopicDescription:
        return self._described(call.name)

    def _create_topic(self, call: administration.CreateTopic) -> administration.TopicDescription:
        self.known[call.name] = TopicSettings.from_dict(call.settings).partitions
        return self._described(call.name)

    def _alter_topic(self, call: administration.AlterTopic) -> administration.TopicDescription:
        return self._described(call.name)

    def _delete_topic(self, call: administration.DeleteTopic) -> Empty:
        self._described(call.name)
        del self.known[call.name]
        return Empty()

    def _offsets(self, call: Offsets) -> OffsetsReply:
        if call.topic not in self.known:
            raise TopicNotFound(topic=call.topic)
        at_time = 5 if call.time_ms >= 0 else -1
        return OffsetsReply([PartitionOffsets(number, 0, 10, at_time) for number in range(self.known[call.topic])], 1)

    def _list_groups(self, call: administration.ListGroups) -> administration.GroupsReply:
        return administration.GroupsReply(list(self.floors))

    def _describe_group(self, call: administration.DescribeGroup) -> administration.GroupDescription:
        if call.group not in self.floors:
            raise GroupNotFound()
        states = [
            administration.GroupPartition(number, floor, 4, 2, 1, 1, 1, {9: 1, 4: 1}, 1_000)
            for number, floor in enumerate(self.floors[call.group])
            if call.partitions is None or number in call.partitions
        ]
        return administration.GroupDescription(call.topic, call.group, "queue", states)

    def _drop_group(self, call: administration.DropGroup) -> Empty:
        return Empty()

    def _seek(self, call: administration.Seek) -> Empty:
        return Empty()

    def _commit(self, call: Commit) -> Empty:
        return Empty()

    def _committed(self, call: Committed) -> CommittedReply:
        return CommittedReply({1: 7, 0: 3})

    def _list_dead(self, call: administration.ListDead) -> Answer[administration.DeadLetters]:
        return self.dead

    def _redrive(self, call: administration.RedriveDead) -> administration.CountReply:
        return administration.CountReply(2)

    def _discard(self, call: administration.DiscardDead) -> administration.CountReply:
        return administration.CountReply(1)

    def _join_group(self, call: members.JoinGroup) -> members.MemberView:
        return members.MemberView(7, 3, 41, call.session_ms, [], [], assignor=call.assignor or "shared")

    def _heartbeat(self, call: members.Heartbeat) -> members.MemberView:
        found = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(found, Exception):
            raise found
        return found

    def _leave_group(self, call: members.LeaveGroup) -> Empty:
        return Empty()

    def _evict_member(self, call: members.EvictMember) -> Empty:
        return Empty()

    def _alter_group(self, call: members.AlterGroup) -> members.GroupAltered:
        return members.GroupAltered(7, 9)

    def _claim_partitions(self, call: members.ClaimPartitions) -> members.ClaimedPartitions:
        return members.ClaimedPartitions(self.claimed)

    def _list_members(self, call: members.ListMembers) -> members.GroupMembers:
        one = members.MemberState(
            "a1",
            41,
            "web-1",
            "host-a",
            "",
            "",
            10_000,
            1_000,
            500,
            [members.PartitionRange("orders", 0, 3)],
            [members.HandOver("orders", 4, "b2", 1_200)],
            "n2",
            400,
            ["orders"],
        )
        other = members.MemberState("b2", 42, "", "", "rest", "", 30_000, 1_000, 500, [], [])
        rebalances = [members.RebalanceState(900, "b2 joined", 2, 8)]
        return members.GroupMembers(
            call.group, 7, "queue", "sticky", 41, 10_000, 60_000, "settled", 2, 0, [one, other], rebalances, 42, 8
        )

    def _raft_status(self, call: cluster.RaftStatus) -> cluster.RaftStatusReply:
        return cluster.RaftStatusReply(
            {"state": "leader", "term": 3, "num_peers": 0, "latest_configuration": [1], "vote": None}
        )


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def http(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=build_app(service), raise_app_exceptions=True)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
        yield client
