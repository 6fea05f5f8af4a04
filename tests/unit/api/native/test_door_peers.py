"""The native door for other brokers: frames that nobody answers, questions, and who may send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lanner.api.native import NativeDoor
from lanner.broker.links.inbox import PeerInbox
from lanner.broker.service import Service
from lanner.calls import Answer, Bulk, Identity
from lanner.errors import (
    ConflictError,
    NotLeader,
    Overloaded,
    ProtocolError,
    RequestTimeout,
    ServerError,
    ServiceUnavailable,
)
from lanner.net.clients import Clients
from lanner.net.connector import ClientLink, open_connection
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from lanner.wire.connection import Request
from lanner.wire.messages import Call, Command, Control, Empty, Offsets, OffsetsReply, PeerHello, Publish
from lanner.wire.peers import Founder, PeerInfo, Propose, Proposed, Pulse, RaftFrame, SnapshotFrame

PEER = PeerHello("cluster", "other", "b", "h:1")


class FakeInbox:
    """What the door needs of an inbox; remembers what it took."""

    open_to_clients = True
    believes = True
    refusal: Exception | None = None
    problem: Exception | None = None
    reply: Control = Proposed(7)

    def __init__(self) -> None:
        self.taken: list[tuple[PeerHello, Command, bytes]] = []

    def is_peer(self, hello: PeerHello) -> bool:
        return self.believes

    def greet(self, peer: PeerHello) -> None:
        if self.refusal is not None:
            raise self.refusal

    def take(self, peer: PeerHello, request: Request) -> None:
        if self.problem is not None:
            raise self.problem
        self.taken.append((peer, request.command, bytes(request.bulk)))

    async def answer(self, peer: PeerHello, request: Request) -> Control:
        if self.problem is not None:
            raise self.problem
        return self.reply


class Silent:
    """A service whose publishes are never decided."""

    cluster_id, node_id = "cluster", "node"

    def publish(self, *_given: Any, **_named: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def __init__(self) -> None:
        self.served: list[tuple[Identity, Call[Any]]] = []

    async def serve(self, identity: Identity, call: Call[Any], bulk: Bulk = ()) -> Answer[Any]:
        self.served.append((identity, call))
        return Answer(OffsetsReply([]))


@asynccontextmanager
async def opened(
    inbox: FakeInbox | None, *, service: Silent | None = None, **bounds: Any
) -> AsyncIterator[tuple[str, int]]:
    door = NativeDoor(cast(Service, service or Silent()), inbox=cast(PeerInbox, inbox), **bounds)
    address = await door.start("127.0.0.1", 0)
    try:
        yield address
    finally:
        await door.stop()


async def heard(inbox: FakeInbox, count: int) -> None:
    async with asyncio.timeout(5):
        while len(inbox.taken) < count:
            await asyncio.sleep(0.005)


def tell_all(link: ClientLink) -> None:
    link.tell(Command.RAFT, RaftFrame([(1, 2)]), [b"ab"])
    link.tell(Command.PULSE, Pulse(1))
    link.tell(Command.SNAPSHOT, SnapshotFrame(), [b"piece"])


async def test_frames_of_another_broker_are_taken_in_order_and_not_answered() -> None:
    inbox = FakeInbox()
    async with opened(inbox) as address:
        link = await open_connection(*address, peer=PEER)
        tell_all(link)
        await heard(inbox, 3)
        assert inbox.taken == [
            (PEER, Command.RAFT, b"ab"),
            (PEER, Command.PULSE, b""),
            (PEER, Command.SNAPSHOT, b"piece"),
        ]
        assert (await link.request(Command.PING, Empty())).control == Empty()
        await link.close()


async def test_other_brokers_are_not_entered_among_the_clients_and_clients_are() -> None:
    clients = Clients()
    async with opened(FakeInbox(), clients=clients) as address:
        peer = await open_connection(*address, peer=PEER)
        client = await open_connection(*address, client="worker")
        (one,) = clients.after(0)
        assert one.door == "native" and one.name == "worker" and one.address.startswith("127.0.0.1:")
        client.hang_up()
        async with asyncio.timeout(5):
            while len(clients):
                await asyncio.sleep(0.005)
        await peer.close()


async def test_frames_of_other_brokers_are_counted_apart_from_those_of_strangers() -> None:
    strangers = Unfinished(bytes_max=1_000)
    beginning = b"\x10\x00\x10\x00\x00" + bytes(8) + bytes(4_000)
    async with opened(FakeInbox(), unfinished=strangers) as address:
        other = await open_connection(*address, peer=PEER)
        stranger = await open_connection(*address)
        for link in (other, stranger):
            assert link._transport is not None
            link._transport.write(beginning)
        await asyncio.wait_for(stranger.closed, 5)
        with pytest.raises(RequestTimeout, match="were the slowest"):
            stranger.request(Command.PING, Empty())
        assert other.is_open


async def test_they_pass_requests_that_wait() -> None:
    inbox = FakeInbox()
    async with opened(inbox, inflight_max=1) as address:
        link = await open_connection(*address, peer=PEER)
        for _ in range(2):
            link.request(Command.PUBLISH, Publish("t", 0), [b"x"]).add_done_callback(lambda done: done.exception())
        tell_all(link)
        await heard(inbox, 3)


async def test_a_broker_that_says_something_impossible_is_hung_up_on_with_the_reason() -> None:
    inbox = FakeInbox()
    inbox.problem = ProtocolError("that is no message")
    async with opened(inbox) as address:
        link = await open_connection(*address, peer=PEER)
        tell_all(link)
        await asyncio.wait_for(asyncio.shield(link.closed), 5)
        with pytest.raises(ProtocolError, match="that is no message"):
            tell_all(link)


async def test_a_fault_of_ours_ends_the_connection_and_tells_nothing_private() -> None:
    inbox = FakeInbox()
    inbox.problem = RuntimeError("secret")
    async with opened(inbox) as address:
        link = await open_connection(*address, peer=PEER)
        tell_all(link)
        await asyncio.wait_for(asyncio.shield(link.closed), 5)
        with pytest.raises(ServerError) as caught:
            tell_all(link)
        assert "secret" not in caught.value.message


async def test_questions_of_another_broker_are_answered() -> None:
    inbox = FakeInbox()
    async with opened(inbox) as address:
        link = await open_connection(*address, peer=PEER)
        assert (await link.request(Command.PROPOSE, Propose(), [b"c"])).control == Proposed(7)
        inbox.problem = NotLeader("ask the other")
        with pytest.raises(NotLeader, match="ask the other"):
            await link.request(Command.PROPOSE, Propose(), [b"c"])
        await link.close()


@pytest.mark.parametrize("inbox", [FakeInbox(), None], ids=["one of several", "alone"])
async def test_clients_may_not_speak_as_brokers(inbox: FakeInbox | None) -> None:
    async with opened(inbox) as address:
        link = await open_connection(*address)
        with pytest.raises(ProtocolError, match="PEER_INFO is for brokers"):
            await link.request(Command.PEER_INFO, PeerInfo(Founder("a", "b", {})))
        assert (await link.request(Command.PING, Empty())).control == Empty()
        link.tell(Command.PULSE, Pulse(1))
        await asyncio.wait_for(asyncio.shield(link.closed), 5)
        assert inbox is None or inbox.taken == []


async def test_a_broker_of_another_cluster_is_refused_at_once() -> None:
    inbox = FakeInbox()
    inbox.refusal = ConflictError("another cluster")
    async with opened(inbox) as address:
        with pytest.raises(ConflictError, match="another cluster"):
            await open_connection(*address, peer=PEER)


async def test_clients_cannot_keep_other_brokers_out_by_taking_all_connections() -> None:
    async with opened(FakeInbox(), seats=Seats(1, 1_000)) as address:
        client = await open_connection(*address)
        with pytest.raises(Overloaded):
            await open_connection(*address)
        peer = await open_connection(*address, peer=PEER)
        assert (await peer.request(Command.PING, Empty())).control == Empty()
        await client.close()
        await peer.close()


async def test_what_came_behind_something_impossible_is_not_looked_at() -> None:
    class Once(FakeInbox):
        tries = 0

        def take(self, peer: PeerHello, request: Request) -> None:
            self.tries += 1
            raise ProtocolError("that is no message")

    inbox = Once()
    async with opened(inbox) as address:
        link = await open_connection(*address, peer=PEER)
        tell_all(link)
        await asyncio.wait_for(asyncio.shield(link.closed), 5)
        assert inbox.tries == 1


async def test_clients_are_told_to_come_back_while_there_is_no_cluster_and_brokers_are_not() -> None:
    inbox = FakeInbox()
    inbox.open_to_clients = False
    async with opened(inbox) as address:
        with pytest.raises(ServiceUnavailable, match="does not belong to its cluster yet"):
            await open_connection(*address)
        link = await open_connection(*address, peer=PEER)
        await link.close()


# ------------------------------------------------------------------ calls that are passed on


async def test_a_call_that_another_broker_passes_on_is_served_under_the_name_of_who_made_it() -> None:
    service = Silent()
    async with opened(FakeInbox(), service=service) as address:
        link = await open_connection(*address, peer=PEER)
        await link.request(Command.OFFSETS, Offsets("t"), caller="alice")
        await link.request(Command.OFFSETS, Offsets("t"))
        assert [identity for identity, _ in service.served] == [
            Identity("alice", "peer"),
            Identity("anonymous", "native"),
        ]
        await link.close()


@pytest.mark.parametrize("believes", [True, False], ids=["a client", "a broker that cannot prove it"])
async def test_the_envelope_of_a_stranger_is_refused(believes: bool) -> None:
    service, inbox = Silent(), FakeInbox()
    inbox.believes = believes
    async with opened(inbox, service=service) as address:
        link = await open_connection(*address, peer=None if believes else PEER)
        for command, call in ((Command.OFFSETS, Offsets("t")), (Command.PUBLISH, Publish("t", 0))):
            with pytest.raises(ProtocolError, match="FORWARD is for brokers"):
                await link.request(command, call, caller="alice")
        assert service.served == []
        await link.close()
