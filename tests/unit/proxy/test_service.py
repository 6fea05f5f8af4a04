"""What a proxy answers of its own: who it is, whether it is ready, and what it passes on in several pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast, get_type_hints

import pytest

from lanner.calls import ROWS, Answer, Identity, Where
from lanner.errors import (
    BadGateway,
    LannerError,
    NotLeader,
    NotSupported,
    PartitionNotFound,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
    ValidationError,
)
from lanner.proxy.lanes import Lanes
from lanner.proxy.service import ProxyService
from lanner.proxy.topology import Topology
from lanner.proxy.upstream import WAITING_MAX, Upstream
from lanner.wire.administration import CreateTopic, TopicDescription
from lanner.wire.cluster import Scrub
from lanner.wire.members import Heartbeat
from lanner.wire.messages import (
    AnswerT,
    Call,
    Empty,
    Metadata,
    MetadataReply,
    Offsets,
    OffsetsReply,
    PartitionInfo,
    PartitionOffsets,
    Poll,
    TopicInfo,
)
from lanner.wire.staging import Manifest, PartitionOutcome, PartitionOutcomes, Prepare

ME = Identity("me", "test")


class Topic:
    def __init__(self, name: str, partitions: int, incarnation: int = 1) -> None:
        self.name, self.incarnation, self.settings = name, incarnation, None
        self.set_ids = tuple(range(incarnation * 1_000, incarnation * 1_000 + partitions))


class Map:
    """Two brokers lead in turns."""

    node_id, cluster_id = "", "cluster"
    live_sets: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {"orders": Topic("orders", 4)}
        self.renewed: dict[str, Topic] = {}  # what a look finds
        self.learned: list[MetadataReply] = []
        self.leaderless: set[int] = set()

    def knows(self, name: str) -> bool:
        return name in self.topics

    def has_just_seen(self, name: str) -> bool:
        return name in self.topics

    def find_topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise TopicNotFound(topic=name)
        return self.topics[name]

    async def hear_of(self, topics: Iterable[str]) -> None:
        self.topics.update({name: self.renewed[name] for name in topics if name in self.renewed})

    async def catch_up(self) -> None: ...

    def doubt(self, name: str) -> bool:
        return self.topics.pop(name, None) is not None

    def leader_of(self, set_id: int) -> str:
        return "" if set_id % 1_000 in self.leaderless else "ab"[set_id % 2]

    def not_leader(self, topic: Topic, partition: int) -> NotLeader:
        return NotLeader(leader="", address="", partition=partition, refused=True)

    def learn(self, reply: MetadataReply, asked_at: float) -> None:
        self.learned.append(reply)


class Brokers:
    """They answer what the test says."""

    def __init__(self) -> None:
        self.waiting = self.repeated = 0
        self.asked: list[tuple[str, Call[Any]]] = []
        self.answers: dict[type, Any] = {}

    async def ask_any(self, call: Call[Any], bulk: Any = (), timeout_ms: int = 0) -> Answer[Any]:
        return await self.serve_at("any", ME, call, bulk, timeout_ms)

    async def serve_at(
        self, node_id: str, identity: Identity, call: Call[Any], bulk: Any, timeout_ms: int
    ) -> Answer[Any]:
        self.asked.append((node_id, call))
        outcome = self.answers[type(call)](node_id, call)
        if isinstance(outcome, LannerError):
            raise outcome
        return Answer(outcome)


class Proxy:
    def __init__(self) -> None:
        self.map, self.brokers, self.connected = Map(), Brokers(), True
        topology, upstream = cast(Topology, self.map), cast(Upstream, self.brokers)
        self.service = ProxyService(topology, upstream, Lanes(topology), lambda: self.connected)
        self.service.addresses["native"] = ("here", 7500)


@pytest.fixture
async def proxy() -> Proxy:
    found = Proxy()
    found.service.open()
    return found


async def test_it_refuses_calls_until_it_has_reached_a_broker() -> None:
    proxy = Proxy()
    assert not proxy.service.readiness.ready
    with pytest.raises(ServiceUnavailable, match="has not reached a broker yet") as caught:
        await proxy.service.ask(ME, Metadata([]))
    assert caught.value.details["refused"] is True
    proxy.service.open()
    assert proxy.service.readiness == (True, "", "ready")


async def test_it_is_not_ready_without_a_broker_or_while_it_drains(proxy: Proxy) -> None:
    proxy.connected = False
    assert "no broker can be reached" in proxy.service.readiness.refusal
    proxy.connected = True
    proxy.service.drain()
    assert "draining" in proxy.service.readiness.refusal
    with pytest.raises(ServiceUnavailable, match="draining"):
        await proxy.service.ask(ME, Metadata([]))


async def test_metadata_names_the_proxy_and_teaches_the_map(proxy: Proxy) -> None:
    told = MetadataReply("cluster", [], [TopicInfo("orders", 1, [PartitionInfo(0, "a", ["a", "b"])])], 3)
    proxy.brokers.answers[Metadata] = lambda node_id, call: told
    reply = (await proxy.service.ask(ME, Metadata(["orders"]))).control
    assert [(one.node_id, one.host, one.port) for one in reply.brokers] == [(proxy.service.node_id, "here", 7500)]
    assert reply.topics[0].partitions == [PartitionInfo(0, proxy.service.node_id)]
    assert proxy.map.learned == [told]


@pytest.mark.parametrize("door", ["rest", "grpc"])
async def test_doors_whose_callers_do_not_route_are_told_who_leads(proxy: Proxy, door: str) -> None:
    told = MetadataReply("cluster", [], [TopicInfo("orders", 1, [PartitionInfo(0, "a", ["a", "b"])])], 3)
    proxy.brokers.answers[Metadata] = lambda node_id, call: told
    assert (await proxy.service.ask(Identity("me", door), Metadata(["orders"]))).control == told


async def test_every_call_that_clients_bring_to_the_right_broker_themselves_has_a_way_through_a_proxy(
    proxy: Proxy,
) -> None:
    """What is divided over leaders by its row, or served by any broker, needs none; the rest would go astray."""
    astray = [row for row in ROWS.values() if row.where is Where.HERE and row.strict]
    assert astray, "the table has such calls"
    assert [row.command.name for row in astray if row.call not in proxy.service.ways] == []


async def test_a_way_of_the_proxy_takes_and_gives_what_its_row_says(proxy: Proxy) -> None:
    for call, way in proxy.service.ways.items():
        hints = get_type_hints(way)
        if hints["call"] == Call[AnswerT]:  # one for several calls: typed for whatever it is asked
            assert hints["return"] == Answer[AnswerT]
        else:
            assert hints == {"identity": Identity, "call": call, "return": Answer[ROWS[call].answer]}, way


async def test_a_scrub_is_for_a_broker_itself(proxy: Proxy) -> None:
    with pytest.raises(NotSupported, match="this is a proxy"):
        await proxy.service.serve(ME, Scrub(True))


async def test_a_topic_is_made_under_one_id_whoever_is_asked(proxy: Proxy) -> None:
    """A second broker, asked when the first one's answer was lost, would else answer TopicExists."""
    proxy.brokers.answers[CreateTopic] = lambda node_id, call: TopicDescription(call.name, 1, {}, [])
    for create_id in ("", "1f", ""):
        await proxy.service.ask(ME, CreateTopic("orders", {}, create_id))
    first, given, second = [cast(CreateTopic, call).create_id for _, call in proxy.brokers.asked]
    assert given == "1f"
    assert first and second and first != second


async def test_a_poll_is_looked_at_before_anybody_is_asked(proxy: Proxy) -> None:
    with pytest.raises(ValidationError, match="wait_ms"):
        await proxy.service.ask(ME, Poll("g", "orders", "m", 0, wait_ms=10**9))
    assert not proxy.brokers.asked


@pytest.mark.parametrize("error", [PartitionNotFound(), StaleIncarnation()])
async def test_what_an_old_map_made_wrong_is_asked_once_more_with_a_new_one(proxy: Proxy, error: LannerError) -> None:
    proxy.map.renewed["orders"] = Topic("orders", 6, 2)
    refusals = [error]

    def offsets(node_id: str, call: Offsets) -> Any:
        if refusals:
            return refusals.pop()
        assert call.partitions is not None
        return OffsetsReply([PartitionOffsets(one, 0, 0) for one in call.partitions])

    proxy.brokers.answers[Offsets] = offsets
    found = (await proxy.service.ask(ME, Offsets("orders"))).control
    assert [one.partition for one in found.partitions] == list(range(6))


async def test_a_hint_of_a_broker_never_reaches_a_client(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.forwarding.asking.DEADLINE_MS", 1)
    monkeypatch.setattr("lanner.forwarding.asking.Tries.__init__.__defaults__", (1,))
    proxy.brokers.answers[Offsets] = lambda node_id, call: NotLeader(leader="b", address="b:1", refused=True)
    with pytest.raises(NotLeader) as caught:
        await proxy.service.ask(ME, Offsets("orders", partitions=[0]))
    assert (caught.value.details["leader"], caught.value.details["address"]) == ("", "")


async def test_too_many_calls_that_wait_are_answered_without_waiting(proxy: Proxy) -> None:
    proxy.brokers.answers[Heartbeat] = lambda node_id, call: Empty()
    beat = Heartbeat("g", "m" * 16, 1, 1, wait_ms=5_000)
    await proxy.service.ask(ME, beat)
    proxy.brokers.waiting = WAITING_MAX
    await proxy.service.ask(ME, beat)
    assert [cast(Heartbeat, call).wait_ms for _, call in proxy.brokers.asked] == [5_000, 0]


async def test_partitions_of_a_commit_are_prepared_where_they_are_led_and_answered_in_their_order(proxy: Proxy) -> None:
    proxy.map.leaderless = {3}

    def prepare(node_id: str, call: Prepare) -> Any:
        if node_id == "b":
            return BadGateway("silent")
        return PartitionOutcomes([PartitionOutcome(one.topic, one.partition) for one in call.manifests])

    proxy.brokers.answers[Prepare] = prepare
    manifests = [Manifest("orders", one, 0, []) for one in (3, 0, 1, 2)] + [Manifest("missing", 0, 0, [])]
    found = (await proxy.service.serve(ME, Prepare(9, manifests))).control.items
    assert [(one.topic, one.partition, one.code) for one in found] == [
        ("orders", 3, NotLeader.code),
        ("orders", 0, 0),
        ("orders", 1, BadGateway.code),
        ("orders", 2, 0),
        ("missing", 0, TopicNotFound.code),
    ]
    asked = {node_id: [one.partition for one in cast(Prepare, call).manifests] for node_id, call in proxy.brokers.asked}
    assert asked == {"a": [0, 2], "b": [1]}


async def test_metrics_are_lines_of_the_text_exposition(proxy: Proxy) -> None:
    lines = proxy.service.metrics()
    assert "lanner_proxy_held_bytes 0" in lines
    assert len(lines) == 18
