"""What is taken from other brokers; above all whose clocks a broker goes by: those of the brokers that it knows, heard
or not, and of no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from lanner.broker.links.admission import Admission
from lanner.broker.links.founding import Founding, founder_of
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.links.inbox import PeerInbox
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.peers import Peers
from lanner.broker.links.proof import SameCluster
from lanner.broker.proposals import Proposals
from lanner.broker.settings import BrokerSettings
from lanner.broker.waiting import Waiting
from lanner.cluster import Registration
from lanner.errors import ConflictError, ConnectionLost, LannerError, ServiceUnavailable
from lanner.net.connector import ClientLink
from lanner.testing.flock import Flock
from lanner.wire.connection import Request
from lanner.wire.messages import Command, Control, PeerHello
from lanner.wire.peers import PeerInfo, PeerInfoReply, Propose, Pulse

FOUNDERS = tuple(Registration(name, f"node-{name}", {}) for name in "abc")
ADDRESS = "127.0.0.1:7400"


class Undialled(Peers):
    async def dial(self, node_id: str, *, bulk: bool) -> ClientLink:
        raise ConnectionLost(f"{node_id} is not there")


class Ears:
    """The inbox of broker a of three, over real parts; nothing is dialled."""

    def __init__(self) -> None:
        self.flock = Flock("abc")
        self.broker = broker = self.flock.brokers["a"]
        self.serving = True
        self.failures: list[Exception] = []
        self.kicks = 0
        settings = BrokerSettings()
        identity = BrokerIdentity(broker.node_id, settings)
        identity.introduce({"native": ("127.0.0.1", 7400)})
        self.membership = ClusterMembership(identity, broker.engine, (), Founding("cluster", FOUNDERS, 1))
        self.peers = Undialled(self.membership, rng=Random(1), snapshot_bytes_per_second=1)
        waiting = Waiting(self.peers.loop.create_future())
        proposals = Proposals("node-a", broker.engine, self, self.peers, waiting, kick=self.kick, follow=self.kick)
        admission = Admission(identity, self.membership, (), broker.engine, self.peers, proposals, waiting, self, self)
        self.inbox = PeerInbox(
            self.membership,
            admission,
            broker.engine,
            broker.steward,
            broker.tries,
            broker.homes,
            broker.coordination,
            self.peers,
            broker.clock,
            proposals,
            self,
            SameCluster(lambda: self.membership.cluster_id),
            kick=self.kick,
            fail=self.failures.append,
        )
        self.peers.on_silent = self.inbox.gone_silent
        for name in "bc":
            broker.clock.forget(f"node-{name}")

    def kick(self) -> None:
        self.kicks += 1

    def leader_of(self, set_id: int) -> str:
        return ""

    def now_ms(self) -> int:
        return 1_000

    def pulse(self, name: str) -> None:
        self.inbox.take(hello(name), asked(Command.PULSE, Pulse(now_ms=1_000)))


def hello(name: str, cluster_id: str = "cluster") -> PeerHello:
    return PeerHello(cluster_id, f"node-{name}", name, "127.0.0.1:1")


def asked(command: Command, control: Control) -> Request:
    return Request(command, 0, control, memoryview(b""))


@pytest.fixture
async def ears() -> AsyncIterator[Ears]:
    made = Ears()
    yield made
    await made.peers.close()


async def test_a_broker_that_is_only_silent_still_tells_the_time(ears: Ears) -> None:
    ears.pulse("b")
    assert ears.broker.clock.known() == 2
    ears.inbox.gone_silent("node-b")
    assert ears.broker.clock.known() == 2


async def test_a_broker_that_was_removed_does_not(ears: Ears) -> None:
    ears.pulse("b")
    ears.pulse("c")
    assert ears.broker.clock.known() == 3
    ears.peers.set_peers(["node-c"])
    assert ears.broker.clock.known() == 2
    ears.pulse("b")
    assert ears.broker.clock.known() == 2, "it has met the broker before, and no longer knows it"


async def test_what_another_cluster_says_is_not_heard(ears: Ears) -> None:
    ears.inbox.take(hello("b", "other"), asked(Command.PULSE, Pulse(now_ms=1_000)))
    assert ears.broker.clock.known() == 1
    with pytest.raises(ConflictError, match="belongs to cluster cluster, not to other"):
        ears.inbox.greet(hello("b", "other"))


async def test_a_broker_is_told_when_it_dialled_itself_or_runs_on_a_copy(ears: Ears) -> None:
    with pytest.raises(ConflictError, match="dialled yourself"):
        ears.inbox.greet(PeerHello("cluster", "node-a", "a", ADDRESS))
    with pytest.raises(ConflictError, match="a copy of its data directory"):
        ears.inbox.greet(PeerHello("cluster", "node-a", "a", "127.0.0.1:1"))


async def test_a_broker_that_connects_is_met(ears: Ears) -> None:
    ears.inbox.greet(hello("b"))
    assert "node-b" in ears.peers
    assert ears.peers.address_of("node-b") == ("127.0.0.1", 1)


async def test_only_brokers_of_this_cluster_may_propose(ears: Ears) -> None:
    request = asked(Command.PROPOSE, Propose())
    with pytest.raises(ServiceUnavailable, match="does not belong to the cluster"):
        await ears.inbox.answer(hello("b", "other"), request)
    with pytest.raises(LannerError, match="too short or too long"):
        await ears.inbox.answer(hello("b"), request)


async def test_a_newcomer_is_told_of_the_cluster_and_not_taken_in_before_this_broker_serves(ears: Ears) -> None:
    asker = founder_of(Registration("d", "node-d", {"native": "127.0.0.1:1"}))
    request = asked(Command.PEER_INFO, PeerInfo(asker))
    reply = await ears.inbox.answer(hello("d", ""), request)
    assert isinstance(reply, PeerInfoReply)
    assert [one.node_id for one in reply.founders] == ["node-a", "node-b", "node-c"]
    ears.serving = False
    with pytest.raises(ServiceUnavailable, match="does not know itself yet"):
        await ears.inbox.answer(hello("d", ""), asked(Command.PEER_INFO, PeerInfo(asker, join=True)))


async def test_what_a_pulse_says_of_members_is_heard(ears: Ears) -> None:
    told: list[tuple[str, object]] = []
    ears.broker.coordination.hear = lambda node_id, members: told.append((node_id, members))  # type: ignore[method-assign]
    ears.pulse("b")
    assert told == [], "of a cluster below the level of members"
    pulse = Pulse(now_ms=1_000, heard=[3, 4], sent_ms=77, echo_ms=5)
    ears.inbox.take(hello("b"), asked(Command.PULSE, pulse))
    assert told == [("node-b", [3, 4])]
    assert ears.broker.homes.sign_for("node-b").echo_ms == 77
