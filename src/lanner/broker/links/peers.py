"""The links to the other brokers: what this broker says to them, and what it knows of them by hearing.

Each broker dials every other one and talks only on what it dialled: a *bulk* line for entries and snapshots, a *pulse*
line for votes, heartbeats and acknowledgements, and a third connection for calls when there is something to ask. So
bulk never delays what keeps a leader in office.

Rules
- Messages gather during a turn of the loop and leave together, several replica sets in one frame. What belongs on the
  pulse line travels in front of entries that leave anyway, if nothing is before them: one write instead of two.
- What cannot be sent is lost, and the Raft nodes are told so: nothing waits here for a broker that is away. What waits
  for one that reads slowly is bounded in bytes.
- At every dial the other end must be the broker that is expected: its node id and its cluster are compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from random import Random
from typing import Final, Protocol

from lanner import limits
from lanner.broker.coordination.homes import Sign
from lanner.broker.links.identity import Address
from lanner.broker.links.notices import Notices
from lanner.broker.replicas import snapshots
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    RequestTimeout,
)
from lanner.net.addresses import join_address
from lanner.net.backoff import FIRST_S, Backoff
from lanner.net.connector import ClientLink, open_connection
from lanner.raft import Message, MessageKind, encode_message
from lanner.wire.connection import Reply
from lanner.wire.messages import AnswerT, Asked, Command, Control, PeerHello
from lanner.wire.peers import Pulse, RaftFrame, SnapshotFrame
from lanner.wire.staging import Report, ReportItem

log = logging.getLogger("lanner.peers")

PULSES_UNTIL_ALL: Final = 20
ALIVE_SECONDS: Final = 1.0
DIAL_TIMEOUT_MS: Final = 2_000
LINE_BYTES_MAX: Final = 16 * limits.MIB
_RECONNECT_SECONDS_MAX: Final = 1.0
_BULK: Final = frozenset(int(kind) for kind in (MessageKind.APPEND, MessageKind.COMMIT, MessageKind.SNAPSHOT))


class Home(Protocol):
    """What the links need to know of the broker they belong to."""

    @property
    def node_id(self) -> str: ...
    @property
    def hello(self) -> PeerHello: ...
    @property
    def seeds(self) -> Sequence[Address]: ...
    def addresses_of(self, node_id: str) -> Sequence[Address]: ...


class _Line:
    """One connection that is dialled again and again, and what waits to go over it in this turn."""

    def __init__(self, peers: Peers, node_id: str, *, bulk: bool) -> None:
        self._peers = peers
        self._node_id = node_id
        self._bulk = bulk
        self.outbox: list[tuple[int, Message]] = []
        self.link: ClientLink | None = None
        self.told: dict[int, int] = {}  # on the pulse line: what this connection was told of leadership
        self.pulses = 0
        self.dial_now = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"lanner-line-{node_id[:8]}")

    @property
    def usable(self) -> ClientLink | None:
        link = self.link
        return link if link is not None and link.is_open and link.unsent_bytes <= LINE_BYTES_MAX else None

    def flush(self) -> None:
        """Send what gathered, in frames of bounded size; tell the Raft nodes when it cannot go."""
        outbox, self.outbox = self.outbox, []
        link = self.usable
        if link is None:
            self._give_up(outbox)
            return
        items: list[tuple[int, int]] = []
        buffers: list[bytes | memoryview] = []
        size = 0
        for number, (set_id, message) in enumerate(outbox):
            if not items and link.unsent_bytes > LINE_BYTES_MAX:
                self._give_up(outbox[number:])
                break
            parts = encode_message(message)
            length = sum(map(len, parts))
            items.append((set_id, length))
            buffers += parts
            size += length
            if size >= limits.RAFT_FRAME_BYTES:
                self.tell(link, Command.RAFT, RaftFrame(items), buffers)
                items, buffers, size = [], [], 0
        if items:
            self.tell(link, Command.RAFT, RaftFrame(items), buffers)
        link.flush()

    def tell(
        self, link: ClientLink, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = ()
    ) -> None:
        """Send one frame. What this connection cannot carry is lost with it, and never hurts the broker."""
        try:
            link.tell(command, control, bulk)
        except LannerError as error:
            self._peers.say(self._node_id, f"{self._peers.shown(self._node_id)}: {error.message}")
            link.abort(error)

    def _give_up(self, messages: Sequence[tuple[int, Message]]) -> None:
        for set_id, message in messages:
            self._peers.on_unreachable(set_id, message.receiver)

    async def _run(self) -> None:
        backoff = Backoff(FIRST_S, _RECONNECT_SECONDS_MAX, self._peers.rng.random)
        while True:
            try:
                self.link = await self._peers.dial(self._node_id, bulk=self._bulk)
                backoff.reset()
                self.told = {}
                if not self._bulk:
                    self._peers.on_reached(self._node_id)
                await asyncio.shield(self.link.closed)
                self._peers.say(self._node_id, f"the connection to {self._peers.shown(self._node_id)} ended")
            except LannerError as error:
                self._peers.say(self._node_id, error.message)
                if isinstance(error.__cause__, ConnectionRefusedError):
                    self._peers.refused(self._node_id)
            except Exception:  # a line that dies would cut this broker off until its restart
                log.exception("a line to %s failed", self._peers.shown(self._node_id))
            self.link = None
            self.dial_now.clear()
            try:
                async with asyncio.timeout(backoff.pause_s()):
                    await self.dial_now.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self.link is not None:
            self.link.hang_up()


class _Peer:
    """Both lines to one broker, and the connection for calls."""

    def __init__(self, peers: Peers, node_id: str) -> None:
        self._peers = peers
        self.node_id = node_id
        self.bulk = _Line(peers, node_id, bulk=True)
        self.pulse = _Line(peers, node_id, bulk=False)
        self._calls: ClientLink | None = None
        self._dialling: asyncio.Task[ClientLink] | None = None

    def flush(self) -> None:
        """Send what waits on both lines; with one write instead of two, where that delays nothing."""
        bulk, pulse = self.bulk, self.pulse
        link = bulk.usable if bulk.outbox and pulse.outbox else None
        if link is not None and link.is_idle:
            bulk.outbox[:0] = pulse.outbox
            pulse.outbox.clear()
        if pulse.outbox:
            pulse.flush()
        if bulk.outbox:
            bulk.flush()

    async def call_link(self) -> ClientLink:
        """Return the connection for calls; one dial serves all that wait for it."""
        if self._calls is not None and self._calls.is_open:
            return self._calls
        if self._dialling is None or self._dialling.done():
            self._dialling = self._peers.loop.create_task(self._peers.dial(self.node_id, bulk=False))
            self._dialling.add_done_callback(self._dialled)
        return await asyncio.shield(self._dialling)

    def _dialled(self, dialling: asyncio.Task[ClientLink]) -> None:
        if not dialling.cancelled() and dialling.exception() is None:
            self._calls = dialling.result()

    async def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        await asyncio.gather(self.bulk.close(), self.pulse.close())
        if self._calls is not None:
            self._calls.hang_up()


class Peers:
    """Every other broker, as seen from this one."""

    def __init__(self, home: Home, *, rng: Random, snapshot_bytes_per_second: int) -> None:
        self.home = home
        self.rng = rng
        self.loop = asyncio.get_running_loop()
        self.leaders: dict[int, tuple[int, str]] = {}
        self.on_silent: Callable[[str], None] = lambda _node_id: None
        self.on_reached: Callable[[str], None] = lambda _node_id: None
        self.on_unreachable: Callable[[int, int], None] = lambda _set_id, _replica_id: None  # a message is lost
        self.on_removed: Callable[[BrokerRemoved], None] = lambda _error: None  # another broker says so of this one
        self._peers: dict[str, _Peer] = {}
        self._heard: dict[str, float] = {}
        self._leaving: set[str] = set()  # brokers that said that they stop
        self._addresses: dict[str, Address] = {}  # as they said themselves
        self._dirty: dict[_Peer, None] = {}
        self._flush_due = False
        self._snapshot_rate = snapshot_bytes_per_second
        self._snapshot_free_seconds = 0.0
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._notices = Notices(log)

    # ------------------------------------------------------------------ who there is

    def set_peers(self, node_ids: Sequence[str]) -> None:
        """Keep lines to exactly these brokers."""
        if self._closed:
            return
        wanted = set(node_ids) - {self.home.node_id, ""}
        for node_id in wanted - self._peers.keys():
            self._peers[node_id] = _Peer(self, node_id)
        for node_id in self._peers.keys() - wanted:
            gone = self._peers.pop(node_id)
            self._heard.pop(node_id, None)
            self._leaving.discard(node_id)
            self._addresses.pop(node_id, None)
            self.on_silent(node_id)
            closing = self.loop.create_task(gone.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    @property
    def known(self) -> list[str]:
        return list(self._peers)

    def __contains__(self, node_id: str) -> bool:
        """Whether there are lines to that broker."""
        return node_id in self._peers

    def met(self, peer: PeerHello, address: Address | None) -> None:
        """Take note that a broker has connected: it is there, and says where it is reached."""
        found = self._peers.get(peer.node_id)
        if found is not None:
            if address is not None:
                self._addresses[peer.node_id] = address
            found.bulk.dial_now.set()
            found.pulse.dial_now.set()

    def heard(self, node_id: str, pulse: Pulse, sets: Container[int]) -> None:
        """Take note of a pulse: the broker lives, and leads some of these sets."""
        if node_id not in self._peers:
            return
        self._heard[node_id] = self.loop.time()
        if pulse.leaving:
            self._leaving.add(node_id)
        else:
            self._leaving.discard(node_id)
        leaders = self.leaders
        for set_id, term in pulse.leads:
            known = leaders.get(set_id)
            if set_id in sets and (known is None or known[0] <= term):
                leaders[set_id] = (term, node_id)

    def is_alive(self, node_id: str) -> bool:
        """Return whether a pulse was heard a moment ago; this broker itself always lives."""
        heard = self._heard.get(node_id)
        return node_id == self.home.node_id or (heard is not None and self.loop.time() - heard <= ALIVE_SECONDS)

    def may_lead(self, node_id: str) -> bool:
        """Return whether leadership may go there: the broker lives, and has not said that it stops."""
        return node_id not in self._leaving and self.is_alive(node_id)

    @property
    def others_may_lead(self) -> bool:
        """Whether there are other brokers that neither stop nor have a slow disk."""
        return any(map(self.may_lead, self._peers))

    def address_of(self, node_id: str) -> Address | None:
        """Return the likeliest address of a broker's native door; None when none is known."""
        return next(iter(self.addresses_of(node_id)), None)

    def forget_leaders(self, sets: Container[int]) -> None:
        """Forget the leaders of sets that are no longer there."""
        for set_id in [one for one in self.leaders if one not in sets]:
            del self.leaders[set_id]

    def shown(self, node_id: str) -> str:
        address = self.address_of(node_id)
        return f"broker {node_id[:8]}" + ("" if address is None else f" at {join_address(*address)}")

    def say(self, node_id: str, text: str) -> None:
        self._notices.say(node_id, text)

    def addresses_of(self, node_id: str) -> list[Address]:
        """Return where a broker may be reached, the likeliest first."""
        said = self._addresses.get(node_id)
        found = [] if said is None else [said]
        return list(dict.fromkeys([*found, *self.home.addresses_of(node_id)]))

    # ------------------------------------------------------------------ connections

    async def dial(self, node_id: str, *, bulk: bool) -> ClientLink:
        """Connect to a broker at the first of its addresses that answers in its name."""
        problem: LannerError = ConnectionLost(f"where broker {node_id[:8]} is reached is not known yet")
        addresses = self.addresses_of(node_id)
        if not any(map(self.is_alive, self._peers)):
            # All may have moved since they last spoke: then they are where the operator says now.
            addresses += [seed for seed in self.home.seeds if seed not in addresses]
        for host, port in addresses:
            try:
                return await self._dial_at(node_id, host, port, bulk=bulk)
            except BrokerRemoved as error:
                self.on_removed(error)
                raise
            except LannerError as error:
                problem = error
        raise problem

    async def _dial_at(self, node_id: str, host: str, port: int, *, bulk: bool) -> ClientLink:
        own = self.home.hello
        peer = PeerHello(own.cluster_id, own.node_id, own.name, own.address, bulk)
        link = await open_connection(
            host,
            port,
            client="lanner-broker",
            timeout_ms=DIAL_TIMEOUT_MS,
            peer=peer,
            silent_ms_max=limits.PEER_SILENT_MS_MAX,
        )
        there = link.hello_reply
        if there.node_id == node_id and there.cluster_id in ("", own.cluster_id):
            return link
        link.hang_up()
        what = "node" if there.node_id != node_id else "cluster"
        found, expected = (there.node_id, node_id) if what == "node" else (there.cluster_id, own.cluster_id)
        raise ConflictError(
            f"{join_address(host, port)} answers as {what} {found}, where {what} {expected} is expected: another "
            "broker listens there; nothing is sent to it",
            address=join_address(host, port),
        )

    # ------------------------------------------------------------------ saying

    def put(self, node_id: str, set_id: int, message: Message) -> None:
        """Keep a message for the next `flush`."""
        peer = self._peers.get(node_id)
        if peer is None:
            self.on_unreachable(set_id, message.receiver)
            return
        line = peer.bulk if message.kind in _BULK else peer.pulse
        line.outbox.append((set_id, message))
        self._dirty[peer] = None

    def send(self, node_id: str, set_id: int, message: Message) -> None:
        """Send a message when this turn of the loop is over."""
        self.put(node_id, set_id, message)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        dirty, self._dirty = self._dirty, {}
        for peer in dirty:
            peer.flush()

    def send_snapshot(self, node_id: str, value: snapshots.Piece | snapshots.Reply) -> None:
        """Send pieces at a bounded rate, over all peers together, and answers at once."""
        data = snapshots.encode(value)
        now = self.loop.time()
        if isinstance(value, snapshots.Reply):
            self._tell_snapshot(node_id, data)
            return
        start = max(now, self._snapshot_free_seconds)
        self._snapshot_free_seconds = start + len(data) / self._snapshot_rate
        if start > now:
            self.loop.call_at(start, self._tell_snapshot, node_id, data)
        else:
            self._tell_snapshot(node_id, data)

    def _tell_snapshot(self, node_id: str, data: bytes) -> None:
        peer = self._peers.get(node_id)
        link = None if peer is None else peer.bulk.usable
        if peer is not None and link is not None:
            peer.bulk.tell(link, Command.SNAPSHOT, SnapshotFrame(), [data])

    def pulse(
        self,
        now_ms: int,
        led: Sequence[tuple[int, int]],
        *,
        leaving: bool = False,
        sign_for: Callable[[str], Sign] | None = None,
    ) -> None:
        """Send a sign of life to every broker; each connection is told what is new, and now and then everything.

        `sign_for`: what a broker is told of members of groups."""
        for peer in self._peers.values():
            link = peer.pulse.usable
            if link is not None:
                line = peer.pulse
                line.pulses += 1
                if line.pulses % PULSES_UNTIL_ALL == 0:  # for a broker that heard some of it too early
                    line.told = {}
                told = line.told
                news = [(set_id, term) for set_id, term in led if told.get(set_id) != term]
                told.update(news)
                sign = () if sign_for is None else sign_for(peer.node_id)
                line.tell(link, Command.PULSE, Pulse(now_ms, news, leaving, *sign))

    def report(self, node_id: str, items: Sequence[ReportItem]) -> None:
        """Send reports of tries to the broker that conducts; without one they are lost, and come again."""
        peer = self._peers.get(node_id)
        link = None if peer is None else peer.pulse.usable
        if peer is not None and link is not None:
            for start in range(0, len(items), limits.REPORT_ITEMS_MAX):
                part = list(items[start : start + limits.REPORT_ITEMS_MAX])
                peer.pulse.tell(link, Command.REPORT, Report(part))

    def watch(self) -> None:
        """Notice which brokers have gone silent since the last look."""
        now = self.loop.time()
        for node_id in [one for one, heard in self._heard.items() if now - heard > ALIVE_SECONDS]:
            self.refused(node_id)

    def refused(self, node_id: str) -> None:
        """Count a broker as silent at once: no process listens where it was."""
        if self._heard.pop(node_id, None) is not None:
            self._leaving.discard(node_id)
            self.on_silent(node_id)

    # ------------------------------------------------------------------ asking

    async def call(
        self,
        node_id: str,
        command: Command,
        control: Asked[AnswerT],
        bulk: Sequence[bytes | memoryview] = (),
        *,
        timeout_ms: int,
        caller: str = "",
    ) -> Reply[AnswerT]:
        """Send one request to a broker, which serves it itself or refuses; return its answer.

        A `caller` is named where what somebody else asked is passed on."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise ConnectionLost(f"broker {node_id[:8]} is not known here")
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1_000):
                try:
                    link = await peer.call_link()
                except ConflictError as error:  # another broker listens there: the caller need not know
                    raise ConnectionLost(error.message, **error.details) from error
                return await link.request(command, control, bulk, caller)
        except RequestTimeout as error:  # why the connection ended, which is no answer: it may have taken effect
            raise ConnectionLost(error.message, **error.details) from error
        except TimeoutError:
            raise DeadlineExceeded(f"{self.shown(node_id)} did not answer within {timeout_ms} ms") from None

    async def ask_at(self, address: Address, command: Command, control: Asked[AnswerT]) -> AnswerT:
        """Send one request to an address: for brokers that do not know each other yet."""
        link = await open_connection(*address, client="lanner-broker", timeout_ms=DIAL_TIMEOUT_MS, peer=self.home.hello)
        try:
            async with asyncio.timeout(10 * DIAL_TIMEOUT_MS / 1_000):
                return (await link.request(command, control)).control
        except TimeoutError:
            raise DeadlineExceeded(f"{join_address(*address)} did not answer") from None
        finally:
            link.hang_up()

    async def close(self) -> None:
        self._closed = True
        peers, self._peers = self._peers, {}
        await asyncio.gather(*(peer.close() for peer in peers.values()), *self._closing)


__all__ = ["Address", "Home", "Peers"]
