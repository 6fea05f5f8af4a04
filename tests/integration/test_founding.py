"""How brokers come to be one cluster: founding, restarts, wiped disks, newcomers, and everybody who does not belong."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lanner.broker.settings import BrokerSettings
from lanner.cluster import BrokerState, encode_create_topic, encode_drain_broker, encode_remove_broker
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    ConnectionLost,
    DataDirectoryRefused,
    LannerError,
    ProtocolError,
    ServiceUnavailable,
)
from lanner.model import TopicSettings
from lanner.net.connector import open_connection
from lanner.server import Server
from lanner.testing.process import HOST, free_port
from lanner.wire.messages import Command, Metadata, PeerHello
from lanner.wire.peers import Founder, PeerInfo, PeerInfoReply, RaftFrame

SECONDS = 20.0


def free_address() -> str:
    return f"{HOST}:{free_port()}"


@dataclass
class Flock:
    """Brokers in this process, each with its own folder and address."""

    path: Path
    addresses: list[str] = field(default_factory=lambda: [free_address() for _ in range(5)])
    servers: dict[int, Server] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[str, ...]:
        return tuple(self.addresses[:3])

    def settings(self, number: int, **changes: Any) -> BrokerSettings:
        given: dict[str, Any] = {
            "data": str(self.path / str(number)),
            "http": "",
            "native": self.addresses[number],
            "name": f"broker{number}",
            "disk_reserve_bytes": 0,
            "drain_ms": 500,
            "hand_over_ms": 1_000,
        }
        return BrokerSettings(**{**given, **changes})

    async def start(self, *numbers: int, **changes: Any) -> None:
        """Start these and wait until all are ready; without changes they are given the seeds."""
        changes = changes or {"seeds": self.seeds}
        for number in numbers:
            self.servers[number] = Server(self.settings(number, **changes))
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(self.servers[number].start() for number in numbers))

    async def stop(self, *numbers: int) -> None:
        for number in numbers or tuple(self.servers):
            await self.servers.pop(number).stop()

    def wipe(self, number: int) -> None:
        shutil.rmtree(self.path / str(number))

    async def make_topic(self, number: int, name: str = "orders") -> None:
        settings = TopicSettings(partitions=3, replication=3)
        await self.servers[number].node.proposals.propose(encode_create_topic(name, settings, 1))

    async def until_all(self, seconds: float = SECONDS) -> None:
        """Everybody has applied the same metadata and is ready."""
        nodes = [server.node for server in self.servers.values()]
        async with asyncio.timeout(seconds):
            while (
                not all(node.readiness.complete for node in nodes)
                or len({node.engine.metadata_index for node in nodes}) > 1
            ):
                await asyncio.sleep(0.02)

    def cluster_ids(self) -> set[str]:
        return {server.node.membership.cluster_id for server in self.servers.values()}


@pytest.fixture
async def flock(tmp_path: Path) -> AsyncIterator[Flock]:
    flock = Flock(tmp_path)
    yield flock
    await flock.stop()


def peer_hello(flock: Flock, **changes: str) -> PeerHello:
    given = {"cluster_id": next(iter(flock.cluster_ids())), "node_id": "stranger", "name": "s", "address": "h:1"}
    return PeerHello(**{**given, **changes})


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# ---------------------------------------------------------------------- founding


async def test_three_brokers_found_one_cluster_and_replicate(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    assert len(flock.cluster_ids()) == 1 and "" not in flock.cluster_ids()
    await flock.make_topic(1)
    await flock.until_all()
    for server in flock.servers.values():
        cluster = server.node.engine.cluster
        assert {broker.name for broker in cluster.brokers.values()} == {"broker0", "broker1", "broker2"}
        assert all(broker.state is BrokerState.ACTIVE for broker in cluster.brokers.values())
        assert len(server.node.engine.replicas) == 4
    leaders = {server.node.leaders.leader_of(1) for server in flock.servers.values()}
    assert len(leaders) == 1 and "" not in leaders


async def test_nobody_votes_before_every_seed_was_heard(flock: Flock) -> None:
    two = [Server(flock.settings(number, seeds=flock.seeds)) for number in (0, 1)]
    starting = [asyncio.ensure_future(server.start()) for server in two]
    await asyncio.sleep(1)
    assert not any(task.done() for task in starting)
    assert [server.node.membership.founding for server in two] == [None, None]
    with pytest.raises(ServiceUnavailable, match="does not belong to its cluster yet"):
        await open_connection(*split(flock.addresses[0]))
    flock.servers |= dict(enumerate(two))
    await flock.start(2)
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*starting)
    assert len(flock.cluster_ids()) == 1


async def test_all_brokers_restart_from_what_is_on_their_disks(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.make_topic(0)
    await flock.until_all()
    before = flock.cluster_ids()
    await flock.stop()
    await flock.start(0, 1, 2, seeds=())  # seeds are not looked at again
    assert flock.cluster_ids() == before
    assert all("orders" in server.node.engine.cluster.topics for server in flock.servers.values())


async def test_a_broker_alone_founds_a_cluster_of_one_and_keeps_its_id(flock: Flock) -> None:
    await flock.start(0, seeds=())
    (cluster_id,) = flock.cluster_ids()
    await flock.stop()
    await flock.start(0, seeds=())
    assert flock.cluster_ids() == {cluster_id}
    assert flock.servers[0].node.engine.cluster.cluster_id == cluster_id


async def test_data_without_a_record_goes_on_as_a_cluster_of_one_if_it_was_one(flock: Flock) -> None:
    await flock.start(0, seeds=())
    (cluster_id,) = flock.cluster_ids()
    await flock.servers[0].node.proposals.propose(encode_create_topic("orders", TopicSettings(partitions=1), 1))
    await flock.stop()
    (flock.path / "0" / "founding.json").unlink()
    await flock.start(0)  # the seeds are not asked: there is data
    assert flock.cluster_ids() == {cluster_id}
    assert "orders" in flock.servers[0].node.engine.cluster.topics


async def test_data_of_one_of_several_without_a_record_is_refused(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.stop(2)
    (flock.path / "2" / "founding.json").unlink()
    with pytest.raises(DataDirectoryRefused, match="one broker of several"):
        await flock.start(2)
    del flock.servers[2]


async def test_a_broker_that_stopped_before_it_was_recorded_anywhere_starts_over(flock: Flock) -> None:
    lonely = Server(flock.settings(0, seeds=flock.seeds))
    starting = asyncio.ensure_future(lonely.start())
    await asyncio.sleep(0.3)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await flock.start(0, 1, 2)
    assert len(flock.cluster_ids()) == 1


# ---------------------------------------------------------------------- wiped disks and newcomers


async def test_a_wiped_disk_under_a_known_name_joins_as_a_learner_and_never_votes_under_its_old_id(
    flock: Flock,
) -> None:
    await flock.start(0, 1, 2)
    await flock.make_topic(0)
    await flock.until_all()
    old_node_id = flock.servers[2].node.node_id
    await flock.stop(2)
    flock.wipe(2)
    await asyncio.sleep(1.2)  # until the others no longer hear the old one
    await flock.start(2)
    fresh = flock.servers[2].node
    assert fresh.node_id != old_node_id
    assert fresh.membership.founding is not None and fresh.membership.founding.joined
    assert fresh.membership.founding.replica_id > 3, "an id that has voted is never given again"
    assert fresh.engine.replicas[0].node.node_id == fresh.membership.founding.replica_id
    brokers = flock.servers[0].node.engine.cluster.brokers
    assert brokers[old_node_id].successor == fresh.node_id
    await flock.until_all()
    assert "orders" in fresh.engine.cluster.topics


async def test_the_first_seed_with_a_wiped_disk_founds_nothing_new(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    before = flock.cluster_ids()
    await flock.stop(0)
    flock.wipe(0)
    await asyncio.sleep(1.2)
    await flock.start(0)
    assert flock.cluster_ids() == before
    founding = flock.servers[0].node.membership.founding
    assert founding is not None and founding.joined


async def until_unheard(flock: Flock, node_id: str) -> None:
    async with asyncio.timeout(SECONDS):
        for server in flock.servers.values():
            while server.node.peers.is_alive(node_id):
                await asyncio.sleep(0.02)


async def test_three_disks_that_are_replaced_one_after_the_other_all_rejoin(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.make_topic(0)
    await flock.until_all()
    before = flock.cluster_ids()
    for number in (*range(3), *range(3)):
        gone = flock.servers[number].node.node_id
        await flock.stop(number)
        flock.wipe(number)
        await until_unheard(flock, gone)
        await flock.start(number)  # ready again: the next one may go
    await flock.until_all()
    assert flock.cluster_ids() == before
    voters = flock.servers[0].node.engine.cluster.sets[0].voters
    assert {one.node_id for one in voters} == {server.node.node_id for server in flock.servers.values()}
    for server in flock.servers.values():
        assert len(server.node.engine.replicas) == 4, "the metadata and three partitions"


async def test_a_fourth_broker_joins_a_running_cluster_and_restarts_without_being_told_where(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.start(3, join=flock.addresses[1])
    assert len(flock.cluster_ids()) == 1
    await flock.until_all()
    assert len(flock.servers[0].node.engine.cluster.brokers) == 4
    await flock.stop(3)
    await flock.start(3, seeds=())
    await flock.make_topic(3)
    await flock.until_all()
    assert "orders" in flock.servers[0].node.engine.cluster.topics


async def test_a_newcomer_finds_its_way_past_addresses_where_nobody_is(
    flock: Flock, caplog: pytest.LogCaptureFixture
) -> None:
    await flock.start(0, 1, 2)
    nobody = free_address()
    newcomer = Server(flock.settings(3, join=f"{nobody},{flock.addresses[4]}"))
    starting = asyncio.ensure_future(newcomer.start())
    async with asyncio.timeout(SECONDS):
        while f"not in the cluster yet; asking again: {nobody}: could not connect" not in caplog.text:
            await asyncio.sleep(0.05)
        await flock.start(4, join=f"{nobody},{flock.addresses[1]}")
        await starting
    flock.servers[3] = newcomer
    await flock.until_all()


async def test_a_newcomer_that_crashed_before_it_got_the_metadata_needs_no_founder_later(flock: Flock) -> None:
    """All that it has then is its record, and the founders are gone."""
    await flock.start(0, 1, 2)
    await flock.start(3, join=flock.addresses[0])
    node = flock.servers[3].node
    assert node.membership.founding is not None
    assert {one.name for one in node.membership.founding.brokers} == {"broker0", "broker1", "broker2"}
    assert {one.node_id for one in node.membership.founding.told} == set(node.peers.known)


async def test_brokers_join_one_that_stood_alone(flock: Flock) -> None:
    await flock.start(0, seeds=())
    await flock.start(1, join=flock.addresses[0])
    await flock.start(2, join=flock.addresses[0])
    await flock.until_all()
    assert len(flock.cluster_ids()) == 1
    await flock.stop()
    await flock.start(0, 1, 2, seeds=())
    assert len(flock.servers[0].node.engine.cluster.brokers) == 3


async def test_a_name_that_a_living_broker_has_is_not_given_twice(
    flock: Flock, caplog: pytest.LogCaptureFixture
) -> None:
    await flock.start(0, 1, 2)
    await flock.until_all()
    await asyncio.sleep(0.5)
    second = Server(flock.settings(3, join=flock.addresses[0], name="broker1"))
    starting = asyncio.ensure_future(second.start())
    await asyncio.sleep(1)
    assert not starting.done()
    assert "the name 'broker1' belongs to broker" in caplog.text
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert not any(broker.lost for broker in flock.servers[0].node.engine.cluster.brokers.values())


async def test_a_broker_that_moved_tells_the_others_where_it_is_now(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.stop(2)
    flock.addresses[2] = flock.addresses[4]
    await flock.start(2, seeds=())
    moved = flock.servers[2].node
    async with asyncio.timeout(SECONDS):
        while flock.servers[0].node.engine.cluster.brokers[moved.node_id].addresses["native"] != flock.addresses[2]:
            await asyncio.sleep(0.02)
    assert flock.servers[0].node.peers.address_of(moved.node_id) == split(flock.addresses[2])


async def test_brokers_that_all_moved_find_each_other_by_the_seeds_they_are_given_now(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.make_topic(0)
    before = flock.cluster_ids()
    await flock.stop(0, 1, 2)
    flock.addresses = [free_address() for _ in range(5)]
    await flock.start(0, 1, 2)
    await flock.until_all()
    assert flock.cluster_ids() == before
    assert "orders" in flock.servers[2].node.engine.cluster.topics


async def test_a_broker_cannot_be_renamed(flock: Flock) -> None:
    await flock.start(0, seeds=())
    await flock.stop()
    with pytest.raises(LannerError, match="belongs to broker 'broker0', which cannot be renamed to 'other'"):
        await flock.start(0, seeds=(), name="other")
    await flock.start(0, seeds=())  # in this process, which let go of the directory


async def test_a_directory_whose_record_is_damaged_is_let_go_of(flock: Flock) -> None:
    await flock.start(0, seeds=())
    await flock.stop()
    record = flock.path / "0" / "founding.json"
    sound = record.read_bytes()
    record.write_bytes(b"{")
    with pytest.raises(DataDirectoryRefused, match="founding"):
        await flock.start(0, seeds=())
    record.write_bytes(sound)
    await flock.start(0, seeds=())


# ---------------------------------------------------------------------- those who do not belong


async def test_a_broker_of_another_cluster_is_refused(flock: Flock) -> None:
    await flock.start(0, seeds=())
    with pytest.raises(ConflictError, match="belongs to cluster"):
        await open_connection(*split(flock.addresses[0]), peer=peer_hello(flock, cluster_id="another"))


async def test_a_copy_of_a_data_directory_is_refused(flock: Flock) -> None:
    await flock.start(0, seeds=())
    own = flock.servers[0].node.node_id
    with pytest.raises(ConflictError, match="copy of its data directory"):
        await open_connection(*split(flock.addresses[0]), peer=peer_hello(flock, node_id=own))


async def test_another_broker_at_a_known_address_gets_nothing(flock: Flock, caplog: pytest.LogCaptureFixture) -> None:
    await flock.start(0, 1, 2)
    expected = flock.servers[2].node.node_id
    await flock.stop(2)
    await flock.start(3, join=flock.addresses[0], native=flock.addresses[2])
    async with asyncio.timeout(SECONDS):
        while f"where node {expected} is expected" not in caplog.text:
            await asyncio.sleep(0.05)
    with pytest.raises(ConflictError, match="another broker listens there"):
        await flock.servers[0].node.peers.dial(expected, bulk=False)
    assert "copy of this data directory" not in caplog.text
    async with asyncio.timeout(SECONDS):
        while flock.servers[0].node.peers.is_alive(expected):
            await asyncio.sleep(0.05)


async def test_a_broker_of_another_cluster_at_a_known_address_gets_nothing(
    flock: Flock, caplog: pytest.LogCaptureFixture
) -> None:
    await flock.start(0, 1, 2)
    expected = flock.servers[2].node.node_id
    await flock.stop(2)
    await flock.start(3, seeds=(), native=flock.addresses[2])
    with pytest.raises(ConflictError, match="belongs to cluster"):
        await flock.servers[0].node.peers.dial(expected, bulk=False)
    assert not flock.servers[0].node.peers.is_alive(flock.servers[3].node.node_id)
    async with asyncio.timeout(SECONDS):
        while "tried to connect; this one belongs to cluster" not in caplog.text:
            await asyncio.sleep(0.05)


async def remove_the_fourth(flock: Flock) -> str:
    """Its node id; back when all the others know that it is gone."""
    removed = next(one for one in flock.servers[0].node.engine.cluster.brokers.values() if one.name == "broker3")
    first = flock.servers[0].node
    await first.proposals.propose(encode_drain_broker(removed.node_id, 1))  # it votes over the metadata
    await first.waiting.until(lambda: first.engine.cluster.is_drained(removed.node_id), 20_000)
    await first.proposals.propose(encode_remove_broker(removed.node_id, 1))
    async with asyncio.timeout(SECONDS):
        for number in range(3):
            cluster = flock.servers[number].node.engine.cluster
            while cluster.brokers[removed.node_id].state is not BrokerState.REMOVED:
                await asyncio.sleep(0.05)
    return removed.node_id


async def test_a_removed_broker_is_told_so_when_it_comes_back(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.start(3, join=flock.addresses[0])
    await flock.until_all()
    await flock.stop(3)
    removed = await remove_the_fourth(flock)
    with pytest.raises(BrokerRemoved, match="was removed from the cluster"):
        await open_connection(*split(flock.addresses[0]), peer=peer_hello(flock, node_id=removed))
    back = Server(flock.settings(3))
    async with asyncio.timeout(SECONDS):
        with pytest.raises(BrokerRemoved, match="start a broker with an empty data directory"):
            await back.start()


async def test_a_broker_that_is_removed_while_it_runs_ends_and_answers_nothing_more(flock: Flock) -> None:
    await flock.start(0, 1, 2)
    await flock.start(3, join=flock.addresses[0])
    await flock.until_all()
    await remove_the_fourth(flock)
    async with asyncio.timeout(SECONDS):
        assert isinstance(await flock.servers[3].failed(), BrokerRemoved)
    link = await open_connection(*split(flock.addresses[3]))
    with pytest.raises(ServiceUnavailable, match=r"broker3.*was removed"):
        await link.request(Command.METADATA, Metadata([]))
    assert not any(flock.servers[number].node.failed.done() for number in range(3))


async def test_commands_between_brokers_are_not_for_clients(flock: Flock) -> None:
    await flock.start(0, seeds=())
    link = await open_connection(*split(flock.addresses[0]))
    asker = Founder("a", "b", {})
    with pytest.raises(ProtocolError, match="PEER_INFO is for brokers"):
        await link.request(Command.PEER_INFO, PeerInfo(asker))
    link.tell(Command.RAFT, RaftFrame([]))
    await asyncio.wait_for(link.closed, SECONDS)
    with pytest.raises(ProtocolError, match="RAFT is for brokers"):
        link.tell(Command.RAFT, RaftFrame([]))


@pytest.mark.parametrize(
    ("frame", "bulk"),
    [
        (RaftFrame([(0, 5)]), b"12345"),
        (RaftFrame([(0, 500)]), b"12345"),
        (RaftFrame([(0, 3)]), b"12345"),
        (RaftFrame([(7, 80)] * 3), b"\xff" * 240),
    ],
    ids=["short", "cut", "long", "noise"],
)
async def test_garbage_from_a_peer_ends_its_connection_and_nothing_else(
    flock: Flock, frame: RaftFrame, bulk: bytes
) -> None:
    await flock.start(0, seeds=())
    link = await open_connection(*split(flock.addresses[0]), peer=peer_hello(flock))
    link.tell(Command.RAFT, frame, [bulk])
    await asyncio.wait_for(link.closed, SECONDS)
    assert flock.servers[0].node.readiness.complete
    with pytest.raises((ProtocolError, ConnectionLost)):
        link.tell(Command.RAFT, frame, [bulk])


async def test_anybody_may_ask_who_a_broker_is(flock: Flock) -> None:
    await flock.start(0, seeds=())
    link = await open_connection(*split(flock.addresses[0]), peer=peer_hello(flock, cluster_id=""))
    reply = (await link.request(Command.PEER_INFO, PeerInfo(Founder("a", "b", {})))).control
    node = flock.servers[0].node
    assert isinstance(reply, PeerInfoReply)
    assert (reply.cluster_id, reply.broker.node_id, reply.broker.name) == (
        node.membership.cluster_id,
        node.node_id,
        "broker0",
    )
    assert [founder.node_id for founder in reply.founders] == [node.node_id]
    await link.close()
