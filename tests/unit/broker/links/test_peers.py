"""The lines between brokers, over loopback: what goes where, what is bounded, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
from msgspec.structs import replace

from lanner import limits
from lanner.broker.coordination.homes import Sign
from lanner.broker.links import peers as module
from lanner.broker.links.peers import Address, Peers
from lanner.broker.replicas import snapshots
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    ConnectionLost,
    DeadlineExceeded,
    NotLeader,
    RequestTimeout,
    ServiceUnavailable,
)
from lanner.net.link import Pause
from lanner.net.listener import Listener, ServerLink
from lanner.raft import Entry, EntryKind, Message, MessageKind, decode_message
from lanner.wire.connection import Request
from lanner.wire.messages import Command, Empty, Hello, HelloReply, PeerHello
from lanner.wire.peers import Pulse
from lanner.wire.staging import ReportItem, ReportKind

SECONDS = 10.0
APPEND = Message(
    kind=MessageKind.APPEND,
    sender=1,
    receiver=2,
    term=3,
    log_index=4,
    log_term=3,
    commit_index=4,
    entries=[Entry(5, 3, EntryKind.NORMAL, b"payload")],
)
VOTE = Message(kind=MessageKind.VOTE, sender=1, receiver=2, term=3)


class Home:
    """The broker that the lines belong to."""

    node_id = "own"

    def __init__(self) -> None:
        self.hello = PeerHello("cluster", "own", "a", "h:1")
        self.where: dict[str, list[Address]] = {}
        self.lost: list[tuple[int, int]] = []
        self.removals: list[BrokerRemoved] = []

    @property
    def seeds(self) -> Sequence[Address]:
        return ()

    def addresses_of(self, node_id: str) -> Sequence[Address]:
        return self.where.get(node_id, [])


class Other:
    """A broker at the other end: it keeps what it hears, by the kind of connection."""

    def __init__(self, node_id: str = "other", cluster_id: str = "cluster") -> None:
        self.node_id, self.cluster_id = node_id, cluster_id
        self.refusal: BrokerRemoved | None = None
        self.links: list[tuple[PeerHello, ServerLink]] = []
        self.heard: dict[bool, list[Request]] = {True: [], False: []}
        self.answer: Callable[[ServerLink, Request], object] = lambda link, request: link.reply(request, Empty())
        self.listener = Listener(lambda link: Session(self, link))

    def messages(self, *, bulk: bool) -> list[tuple[int, Message]]:
        found = []
        for request in self.heard[bulk]:
            if request.command is Command.RAFT:
                start = 0
                for set_id, size in request.control.items:
                    found.append((set_id, decode_message(request.bulk[start : start + size])))
                    start += size
        return found


class Session:
    def __init__(self, other: Other, link: ServerLink) -> None:
        self._other, self._link = other, link
        self._bulk = False

    def greet(self, hello: Hello) -> HelloReply:
        assert hello.peer is not None
        self._bulk = hello.peer.bulk
        self._other.links.append((hello.peer, self._link))
        if self._other.refusal is not None:
            raise self._other.refusal
        return HelloReply(1, self._other.cluster_id, self._other.node_id, "test", limits.FRAME_BYTES_MAX, 100)

    def handle(self, request: Request) -> None:
        if request.command in (Command.RAFT, Command.PULSE, Command.SNAPSHOT, Command.REPORT):
            self._other.heard[self._bulk].append(request)
        else:
            self._other.answer(self._link, request)

    def handed_over(self) -> None: ...
    def lost(self) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def pair(other: Other, *, rate: int = 1 << 30) -> AsyncIterator[tuple[Home, Peers]]:
    home = Home()
    home.where["other"] = [await other.listener.start("127.0.0.1", 0)]
    peers = Peers(home, rng=Random(1), snapshot_bytes_per_second=rate)
    peers.on_unreachable = lambda set_id, replica_id: home.lost.append((set_id, replica_id))
    peers.on_removed = home.removals.append
    peers.set_peers(["other", "own"])
    try:
        await until(lambda: len(other.links) >= 2 or other.node_id != "other" or other.cluster_id != "cluster")
        await asyncio.sleep(0.02)
        yield home, peers
    finally:
        await peers.close()
        await other.listener.close()


# ---------------------------------------------------------------------- saying


async def test_entries_go_over_the_bulk_line_and_votes_over_the_other() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        assert sorted(hello.bulk for hello, _ in other.links) == [False, True]
        peers.send("other", 7, APPEND)
        await until(lambda: other.messages(bulk=True))
        peers.send("other", 8, VOTE)
        await until(lambda: other.messages(bulk=False))
        assert other.messages(bulk=True) == [(7, APPEND)]
        assert other.messages(bulk=False) == [(8, VOTE)]


async def test_votes_travel_in_front_of_entries_that_leave_anyway_if_nothing_is_before_them() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        peers.put("other", 7, APPEND)
        peers.put("other", 8, VOTE)
        peers.flush()
        await until(lambda: len(other.messages(bulk=True)) == 2)
        assert other.messages(bulk=True) == [(8, VOTE), (7, APPEND)]
        assert len(other.heard[True]) == 1

        for _, link in other.links:
            link.pause_reading(Pause.WORK_IN_HAND)
        large = replace(APPEND, entries=[Entry(5, 3, EntryKind.NORMAL, b"x" * limits.MIB)])
        for _ in range(12):
            peers.put("other", 9, large)
        peers.flush()
        peers.put("other", 7, APPEND)
        peers.put("other", 8, VOTE)
        peers.flush()
        for _, link in other.links:
            link.resume_reading(Pause.WORK_IN_HAND)
        await until(lambda: other.messages(bulk=False))
        assert other.messages(bulk=False) == [(8, VOTE)], "bulk that waits must not delay it"


async def test_messages_of_one_turn_leave_together_in_frames_of_bounded_size() -> None:
    other = Other()
    entry = Entry(5, 3, EntryKind.NORMAL, b"x" * 100_000)
    large = replace(APPEND, entries=(entry,))
    async with pair(other) as (_, peers):
        for set_id in range(1, 8):
            peers.put("other", set_id, large)
        peers.flush()
        await until(lambda: len(other.messages(bulk=True)) == 7)
        frames = [request for request in other.heard[True] if request.command is Command.RAFT]
        assert [len(frame.control.items) for frame in frames] == [3, 3, 1]
        assert [set_id for set_id, _ in other.messages(bulk=True)] == list(range(1, 8))


async def test_what_cannot_be_sent_is_reported_and_forgotten() -> None:
    other = Other()
    async with pair(other) as (home, peers):
        peers.send("unknown", 3, APPEND)
        assert home.lost == [(3, 2)]
        for _, link in other.links:
            link.abort(ConnectionLost("cut"))
        other.listener.stop_accepting()
        await until(lambda: all(line.link is None for line in _lines(peers)))
        peers.send("other", 4, APPEND)
        await until(lambda: (4, 2) in home.lost)
        assert other.messages(bulk=True) == []


async def test_what_waits_for_a_slow_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_BYTES_MAX", 2 * limits.MIB)
    other = Other()
    async with pair(other) as (home, peers):
        for _, link in other.links:
            link.pause_reading(Pause.WORK_IN_HAND)
        large = replace(APPEND, entries=(Entry(5, 3, EntryKind.NORMAL, b"x" * limits.MIB),))
        for _ in range(40):
            peers.put("other", 9, large)
        peers.flush()
        assert home.lost, "what is too much is given up"
        unsent = max(0 if line.link is None else line.link.unsent_bytes for line in _lines(peers))
        assert unsent <= 4 * limits.MIB
        for _, link in other.links:
            link.resume_reading(Pause.WORK_IN_HAND)
        await until(lambda: len(other.messages(bulk=True)) + len(home.lost) == 40)


async def test_a_line_is_dialled_again_after_it_broke_and_at_once_when_the_other_one_calls() -> None:
    other = Other()
    async with pair(other) as (home, peers):
        for _, link in other.links:
            link.abort(ConnectionLost("cut"))
        await until(lambda: len(other.links) >= 4)
        peers.met(PeerHello("cluster", "other", "b", "h:2"), ("h", 2))
        assert peers.addresses_of("other") == [("h", 2), *home.where["other"]]


async def test_a_broker_that_is_no_longer_wanted_is_hung_up_on() -> None:
    other = Other()
    async with pair(other) as (home, peers):
        peers.heard("other", Pulse(1), {1})
        assert peers.is_alive("other")
        peers.set_peers([])
        assert peers.known == []
        assert not peers.is_alive("other")
        await until(lambda: not other.listener.links)
        peers.send("other", 1, VOTE)
        assert home.lost == [(1, 2)]


# ---------------------------------------------------------------------- snapshots


PIECE = snapshots.Piece(1, 1, 2, 3, 1, 0, 10, 3, rows=[(b"k", b"v" * 100_000)])


async def test_pieces_of_snapshots_leave_at_a_bounded_rate_and_answers_at_once() -> None:
    other = Other()
    async with pair(other, rate=1_000_000) as (_, peers):
        started = peers.loop.time()
        for _ in range(4):
            peers.send_snapshot("other", PIECE)
        reply = snapshots.Reply(1, 2, 1, 3, 1, 0, 0)
        peers.send_snapshot("other", reply)
        await until(lambda: len(other.heard[True]) == 5)
        assert peers.loop.time() - started >= 0.29
        values = [snapshots.decode(request.bulk) for request in other.heard[True]]
        assert [type(value) for value in values[:2]] == [snapshots.Piece, snapshots.Reply]


async def test_a_snapshot_for_a_broker_that_is_away_is_lost() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        peers.send_snapshot("unknown", PIECE)
        await asyncio.sleep(0.02)
        assert other.heard[True] == []


# ---------------------------------------------------------------------- pulses


async def test_a_pulse_tells_what_is_new_and_now_and_then_everything() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        for _ in range(module.PULSES_UNTIL_ALL):
            peers.pulse(1_000, [(1, 5), (2, 6)])
        await until(lambda: len(other.heard[False]) == module.PULSES_UNTIL_ALL)
        told = [request.control.leads for request in other.heard[False]]
        assert told[0] == [(1, 5), (2, 6)]
        assert told[1:-1] == [[]] * (module.PULSES_UNTIL_ALL - 2)
        assert told[-1] == [(1, 5), (2, 6)]
        peers.pulse(1_000, [(1, 7)])
        await until(lambda: len(other.heard[False]) > module.PULSES_UNTIL_ALL)
        assert other.heard[False][-1].control.leads == [(1, 7)]


async def test_a_pulse_says_of_members_what_is_meant_for_its_receiver() -> None:
    other = Other()
    asked: list[str] = []

    def sign_for(node_id: str) -> Sign:
        asked.append(node_id)
        return Sign([7, 9], 1_234, 567)

    async with pair(other) as (_, peers):
        peers.pulse(1_000, [])
        peers.pulse(1_000, [], sign_for=sign_for)
        await until(lambda: len(other.heard[False]) == 2)
        before, after = (request.control for request in other.heard[False])
        assert (before.heard, before.sent_ms, before.echo_ms) == ([], 0, 0), "below the level of members"
        assert (after.heard, after.sent_ms, after.echo_ms) == ([7, 9], 1_234, 567)
    peers.pulse(1_000, [], sign_for=sign_for)
    assert asked == ["other"], "what cannot be sent is not taken"


async def test_reports_of_tries_go_over_the_pulse_line_in_frames_of_bounded_size() -> None:
    other = Other()
    items = [ReportItem(7, set_id, ReportKind.PREPARED) for set_id in range(limits.REPORT_ITEMS_MAX + 1)]
    async with pair(other) as (_, peers):
        peers.report("nobody", items)
        peers.report("", items)
        peers.report("other", items)
        await until(lambda: len(other.heard[False]) == 2)
        frames = [request.control.items for request in other.heard[False]]
        assert [len(frame) for frame in frames] == [limits.REPORT_ITEMS_MAX, 1] and frames[0] + frames[1] == items
        assert other.heard[True] == []


async def test_leaders_are_known_by_hearing_and_an_older_term_does_not_count() -> None:
    async with pair(Other()) as (_, peers):
        peers.heard("other", Pulse(1, [(1, 5), (99, 1)]), {1, 2})
        assert peers.leaders == {1: (5, "other")}, "sets that do not exist are not remembered"
        peers.heard("other", Pulse(1, [(1, 4)]), {1, 2})
        assert peers.leaders == {1: (5, "other")}
        peers.heard("stranger", Pulse(1, [(2, 9)]), {1, 2})
        assert peers.leaders == {1: (5, "other")}
        peers.forget_leaders({2})
        assert peers.leaders == {}


async def test_leadership_may_not_go_to_a_broker_that_has_said_it_stops() -> None:
    async with pair(Other()) as (_, peers):
        assert not peers.may_lead("other") and peers.may_lead("own")
        peers.heard("other", Pulse(1), ())
        assert peers.may_lead("other")
        peers.heard("other", Pulse(1, leaving=True), ())
        assert not peers.may_lead("other") and peers.is_alive("other")
        peers.heard("other", Pulse(1), ())  # it has started again
        assert peers.may_lead("other")


async def test_a_broker_that_falls_silent_is_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_SECONDS", 0.05)
    async with pair(Other()) as (_, peers):
        silent: list[str] = []
        peers.on_silent = silent.append
        assert not peers.is_alive("other") and peers.is_alive("own")
        peers.heard("other", Pulse(1), ())
        peers.watch()
        assert silent == []
        await asyncio.sleep(0.06)
        assert not peers.is_alive("other")
        peers.watch()
        peers.watch()
        assert silent == ["other"]


async def test_a_broker_whose_port_is_closed_is_not_waited_for() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        silent: list[str] = []
        peers.on_silent = silent.append
        await until(lambda: len(other.links) >= 2)
        peers.heard("other", Pulse(1), ())
        await other.listener.close()
        started = asyncio.get_running_loop().time()
        await until(lambda: silent == ["other"])
        assert asyncio.get_running_loop().time() - started < module.ALIVE_SECONDS
        assert not peers.is_alive("other")


# ---------------------------------------------------------------------- asking


async def test_calls_share_one_connection_and_bring_back_what_the_other_one_said() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        replies = await asyncio.gather(
            *(peers.call("other", Command.PING, Empty(), timeout_ms=5_000) for _ in range(5))
        )
        assert [reply.control for reply in replies] == [Empty()] * 5
        assert len(other.links) == 3
        other.answer = lambda link, request: link.fail(request, NotLeader("not here"))
        with pytest.raises(NotLeader, match="not here"):
            await peers.call("other", Command.PING, Empty(), timeout_ms=5_000)


async def test_a_call_that_is_not_answered_ends_at_its_deadline() -> None:
    other = Other()
    other.answer = lambda link, request: None
    async with pair(other) as (_, peers):
        with pytest.raises(DeadlineExceeded, match="did not answer within 50 ms"):
            await peers.call("other", Command.PING, Empty(), timeout_ms=50)
        with pytest.raises(ConnectionLost, match="not known here"):
            await peers.call("nobody", Command.PING, Empty(), timeout_ms=50)


async def test_why_the_connection_ended_is_no_answer_to_a_call() -> None:
    other = Other()
    other.answer = lambda link, request: link.end(RequestTimeout("a frame was not whole in time"))
    async with pair(other) as (_, peers):
        with pytest.raises(ConnectionLost, match="not whole in time"):
            await peers.call("other", Command.PING, Empty(), timeout_ms=5_000)


async def test_a_call_after_the_connection_broke_dials_again() -> None:
    other = Other()
    async with pair(other) as (_, peers):
        await peers.call("other", Command.PING, Empty(), timeout_ms=5_000)
        other.links[-1][1].abort(ConnectionLost("cut"))
        await until(lambda: not _peer(peers)._calls.is_open)
        await peers.call("other", Command.PING, Empty(), timeout_ms=5_000)


# ---------------------------------------------------------------------- who is there


async def test_another_node_at_the_address_is_not_talked_to() -> None:
    async with pair(Other(node_id="stranger")) as (home, peers):
        with pytest.raises(ConflictError, match="answers as node stranger, where node other is expected"):
            await peers.dial("other", bulk=False)
        with pytest.raises(ConnectionLost, match="answers as node stranger"):  # to who asks, it is just not there
            await peers.call("other", Command.PING, Empty(), timeout_ms=5_000)
        peers.send("other", 1, APPEND)
        await until(lambda: home.lost == [(1, 2)])


async def test_another_cluster_at_the_address_is_not_talked_to() -> None:
    async with pair(Other(cluster_id="elsewhere")) as (_, peers):
        with pytest.raises(ConflictError, match="answers as cluster elsewhere"):
            await peers.dial("other", bulk=False)


async def test_a_broker_that_is_told_of_its_removal_passes_that_on() -> None:
    other = Other()
    other.refusal = BrokerRemoved("broker 'a' (own) was removed", node_id="own")
    async with pair(other) as (home, peers):
        with pytest.raises(BrokerRemoved, match="broker 'a'"):
            await peers.dial("other", bulk=False)
        assert {error.details["node_id"] for error in home.removals} == {"own"}


async def test_a_broker_is_found_at_the_second_of_its_addresses() -> None:
    other = Other()
    async with pair(other) as (home, peers):
        home.where["other"].insert(0, ("127.0.0.1", 1))
        link = await peers.dial("other", bulk=False)
        assert link.hello_reply.node_id == "other"
        await link.close()
        with pytest.raises(ConnectionLost, match="not known yet"):
            await peers.dial("nowhere", bulk=False)


async def test_brokers_that_do_not_know_each_other_ask_at_an_address() -> None:
    other = Other()
    async with pair(other) as (home, peers):
        assert await peers.ask_at(home.where["other"][0], Command.PING, Empty()) == Empty()
        other.answer = lambda link, request: link.fail(request, ServiceUnavailable("later"))
        with pytest.raises(ServiceUnavailable):
            await peers.ask_at(home.where["other"][0], Command.PING, Empty())


def _peer(peers: Peers) -> module._Peer:
    return peers._peers["other"]


def _lines(peers: Peers) -> list[module._Line]:
    return [_peer(peers).bulk, _peer(peers).pulse]
