"""A cluster for tests of the command line: real sockets and real frames, and a script instead of brokers.

It answers what an operator asks. A plan makes one step each time it is looked at, so that watching it takes no luck.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from lanner.errors import ConflictError, GroupNotFound, LannerError, NotFoundError, NotSupported
from lanner.net.listener import Listener, ServerLink
from lanner.wire.administration import (
    DescribeGroup,
    DescribeTopic,
    GroupDescription,
    GroupPartition,
    HoldState,
    PartitionState,
    Seek,
    TopicDescription,
)
from lanner.wire.cluster import (
    BrokerState,
    ChangeCluster,
    ClusterChanged,
    ClusterDescription,
    DescribePartitions,
    PartitionReplicas,
    PartitionsDescription,
    PlanProgress,
    RaftStatus,
    RaftStatusReply,
    ReplicaState,
    Scrub,
    ScrubProgress,
)
from lanner.wire.connection import Request
from lanner.wire.members import (
    AlterGroup,
    ClientList,
    ClientState,
    EvictMember,
    GroupAltered,
    GroupMembers,
    ListClients,
    ListMembers,
)
from lanner.wire.messages import (
    BrokerInfo,
    Command,
    Control,
    Empty,
    Hello,
    HelloReply,
    Metadata,
    MetadataReply,
    PartitionInfo,
    TopicInfo,
)

STEPS = 3


def broker_state(number: int, **changes: Any) -> BrokerState:
    addresses = {"native": f"127.0.0.1:74{number}0", "http": f"127.0.0.1:74{number}1"}
    state = BrokerState(
        f"node-{number}", f"{number:032x}", "", "active", addresses, 3, 1, 1, "voter", alive=True, drain=None
    )
    return msgspec.structs.replace(state, **changes)


def plan_progress(plan_id: int, kind: str, **changes: Any) -> PlanProgress:
    plan = PlanProgress(plan_id, kind, "", "running", 0, STEPS, 0, 1, 1, 0, "")
    return msgspec.structs.replace(plan, **changes)


def members_page(group: GroupMembers, asked: ListMembers) -> GroupMembers:
    rest = [one for one in group.members if one.number > asked.after]
    page = rest[: asked.limit]
    return msgspec.structs.replace(group, members=page, next=page[-1].number if len(rest) > len(page) else 0)


def clients_page(clients: list[ClientState], asked: ListClients, missing: list[str]) -> ClientList:
    rest = [one for one in clients if (one.node_id, one.number) > (asked.after or ("", 0))]
    page = rest[: asked.limit]
    last = (page[-1].node_id, page[-1].number) if len(rest) > len(page) else None
    return ClientList(page, last, missing)


class FakeCluster:
    """Three brokers behind one address, with the topic orders of one partition that node-1 leads."""

    def __init__(self) -> None:
        self.brokers = {f"node-{number}": broker_state(number) for number in (1, 2, 3)}
        self.plans: dict[int, PlanProgress] = {}
        self.changes: list[ChangeCluster] = []
        self.leader = "node-1"
        self.replicas_missing = 0
        self.time_ahead_ms = 0
        self.level = 1
        self.behind: list[str] = []
        self.plan_ends = "done"
        self.transfers = True
        self.lags: dict[str, int] = {}
        self.scrubs: list[bool] = []  # whether each call was to start one
        self.scrubbed = ScrubProgress(False, 0, 0, 0, 0, 0)
        self.scrub_damaged = 0
        self.scrub_restarts = False
        self.steps: dict[str, str] = {}
        self.stopped: dict[str, str] = {}
        self.groups: dict[str, GroupMembers] = {}
        self.altered: list[AlterGroup] = []
        self.evicted: list[EvictMember] = []
        self.clients: list[ClientState] = []
        self.asked_clients: list[ListClients] = []
        self.missing: list[str] = []
        self.seeks: list[Seek] = []
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._listener = Listener(lambda link: _Session(self, link))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        host, port = self._run(self._listener.start("127.0.0.1", 0))
        self.address = f"{host}:{port}"

    def stop(self) -> None:
        self._run(self._listener.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # ------------------------------------------------------------------ answers

    def answer(self, request: Request) -> Control:
        match request.control:
            case Metadata():
                return self._metadata()
            case DescribeTopic(name="orders"):
                return TopicDescription(
                    "orders",
                    1,
                    {"partitions": 1},
                    [
                        PartitionState(
                            0, self.node_id(self.leader), 0, 5, 100, 1, 0, {4: 5}, [HoldState("archive", 2, 3, 60)]
                        )
                    ],
                )
            case ListMembers(group=group):
                if group not in self.groups:
                    raise GroupNotFound(f"group {group!r} has never had members")
                return members_page(self.groups[group], request.control)
            case AlterGroup(group=group):
                if group not in self.groups:
                    raise GroupNotFound(f"group {group!r} has never had members")
                self.altered.append(request.control)
                return GroupAltered(7, 42)
            case EvictMember():
                self.evicted.append(request.control)
                return Empty()
            case ListClients():
                self.asked_clients.append(request.control)
                return clients_page(self.clients, request.control, self.missing)
            case Seek():
                self.seeks.append(request.control)
                return Empty()
            case DescribeGroup(group=group):
                return GroupDescription("orders", group, "queue", [GroupPartition(0, 5, 0, 0, 0, 0, 0)])
            case ChangeCluster():
                return ClusterChanged(self._change(request.control))
            case DescribePartitions():
                return PartitionsDescription([self._partition()])
            case Scrub():
                return self._scrub(request.control.start)
            case RaftStatus():
                return RaftStatusReply(
                    {
                        "state": "leader",
                        "term": 4,
                        "broker": request.control.node_id,
                        "members": {"voters": [1, 2], "learners": []},
                        "progress": {2: {"state": "probe", "match": 7}},
                    }
                )
        if request.command is Command.DESCRIBE_CLUSTER:
            return self._describe()
        if request.command is Command.PING:
            return Empty()
        raise NotSupported("not in this script")

    def node_id(self, name: str) -> str:
        return self.brokers[name].node_id if name else ""

    def _metadata(self) -> MetadataReply:
        partition = PartitionInfo(0, self.node_id(self.leader), [broker.node_id for broker in self.brokers.values()])
        brokers = [BrokerInfo(one.node_id, "127.0.0.1", 1, one.name) for one in self.brokers.values()]
        return MetadataReply("c" * 32, brokers, [TopicInfo("orders", 1, [partition])])

    def _scrub(self, start: bool) -> ScrubProgress:
        """It is under way when it is looked at first, and has ended then."""
        self.scrubs.append(start)
        seen = self.scrubbed
        if start and not seen.running:
            seen = self.scrubbed = ScrubProgress(True, seen.passes, 0, 0, 0, 0, 40 << 20)
        elif self.scrub_restarts:
            seen = self.scrubbed = ScrubProgress(False, 0, 0, 0, 0, 0)
        elif seen.running:
            ended = ScrubProgress(False, seen.passes + 1, 1_204, 391, 38 << 20, self.scrub_damaged, 40 << 20)
            seen, self.scrubbed = msgspec.structs.replace(seen, read_bytes=19 << 20), ended
        return seen

    def _partition(self) -> PartitionReplicas:
        replicas = [
            ReplicaState(
                number,
                broker.node_id,
                name,
                "voter",
                name == self.leader,
                number == 1,
                self.lags.get(name),
                self.steps.get(name, ""),
                self.stopped.get(name, ""),
            )
            for number, (name, broker) in enumerate(self.brokers.items(), start=1)
        ]
        return PartitionReplicas(1, "orders", 0, self.node_id(self.leader), 3, replicas)

    def _describe(self) -> ClusterDescription:
        leader = self.node_id("node-2") if "node-2" in self.brokers else ""
        found = ClusterDescription(
            "c" * 32,
            leader,
            self.level,
            1,
            1,
            3,
            self.replicas_missing,
            list(self.brokers.values()),
            list(self.plans.values()),
            self.time_ahead_ms,
            1 if self.behind else 2,
            self.behind,
        )
        for plan in list(self.plans.values()):
            self._advance(plan)
        return found

    def _advance(self, plan: PlanProgress) -> None:
        if plan.state != "running":
            return
        done = plan.steps_done + 1
        plan = msgspec.structs.replace(plan, steps_done=done)
        if done == STEPS:
            moved = {"moves_done": 1} if self.plan_ends == "done" else {"moves_failed": 1, "reason": "no room"}
            plan = msgspec.structs.replace(plan, state=self.plan_ends, moves_running=0, **moved)
            name = next((name for name, broker in self.brokers.items() if broker.node_id == plan.node_id), "")
            if plan.kind == "drain" and self.plan_ends == "done":
                self.brokers[name] = msgspec.structs.replace(self.brokers[name], replicas=0, metadata="learner")
            if plan.kind == "remove":
                del self.brokers[name]
        self.plans[plan.plan_id] = plan

    def _change(self, wanted: ChangeCluster) -> PlanProgress | None:
        self.changes.append(wanted)
        known = {name for broker in self.brokers.values() for name in (broker.name, broker.node_id)}
        for name in (wanted.broker, wanted.target):
            if name and name not in known:
                raise NotFoundError(f"there is no broker {name!r}")
        broker = next((one for one in self.brokers.values() if wanted.broker in (one.name, one.node_id)), None)
        match wanted.action:
            case "undrain":
                return None
            case "upgrade":
                if self.behind:
                    raise ConflictError(f"feature level 2 is not supported by {self.behind[0]}")
                self.level = 2
                return None
            case "transfer":
                self.leader = wanted.target if self.transfers else self.leader
                return None
            case "cancel":
                return msgspec.structs.replace(self.plans[wanted.plan_id], state="cancelled")
            case "remove" if broker is not None and broker.replicas:
                raise ConflictError(f"broker {broker.name!r} holds {broker.replicas} replicas: drain it first")
        plan = plan_progress(len(self.plans) + 1, wanted.action, node_id="" if broker is None else broker.node_id)
        self.plans[plan.plan_id] = plan
        return plan


class _Session:
    def __init__(self, cluster: FakeCluster, link: ServerLink) -> None:
        self._cluster = cluster
        self._link = link

    def greet(self, hello: Hello) -> HelloReply:
        return HelloReply(1, "c" * 32, f"{1:032x}", "scripted", 16 << 20, 1_024)

    def handle(self, request: Request) -> None:
        try:
            self._link.reply(request, self._cluster.answer(request))
        except LannerError as error:
            self._link.fail(request, error)

    def handed_over(self) -> None:
        """Nothing to count here."""

    def lost(self) -> None:
        """Nothing to give back here."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr("lanner.cli.watching.POLL_SECONDS", 0.01)
    fake = FakeCluster()
    fake.start()
    monkeypatch.setenv("LANNER_SERVERS", fake.address)
    yield fake
    fake.stop()
