"""What a proxy does for its callers: every call of the table, served by brokers.

The doors ask it what they ask a broker's service. Calls about partitions go to their leaders (`forwarding`), batches by
their lanes (`lanes`), everything else to any broker that answers (`upstream`). Of its own it answers METADATA over the
native door: it names itself as the only broker and the leader of everything, so that clients which route themselves
stay here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from lanner.api.ports import Appended, Pending, Staged
from lanner.calls import Action, Answer, Bulk, Identity, row_of
from lanner.errors import (
    LannerError,
    NotLeader,
    NotSupported,
    PartitionNotFound,
    ServiceUnavailable,
    StaleIncarnation,
    ValidationError,
    from_wire,
)
from lanner.forwarding.checks import check_poll
from lanner.forwarding.polls import ForwardedPolls
from lanner.forwarding.ports import KnownTopic
from lanner.forwarding.publishes import ForwardedPublishes
from lanner.forwarding.unpacking import Handed, Unpacking
from lanner.forwarding.values import NewMessage, Placed
from lanner.model import check_name
from lanner.proxy.lanes import Lanes
from lanner.proxy.topology import Topology, told_as_own, without_hint
from lanner.proxy.upstream import WAITING_MAX, Upstream
from lanner.wire.administration import AlterTopic, CreateTopic, DeleteTopic, DescribeTopic, TopicDescription
from lanner.wire.cluster import RaftStatus, RaftStatusReply, Scrub, ScrubProgress
from lanner.wire.messages import (
    AnswerT,
    BestPriority,
    BrokerInfo,
    Call,
    Empty,
    Metadata,
    MetadataReply,
    Poll,
    Polled,
    Publish,
)
from lanner.wire.staging import Discard, DiscardStages, Manifest, PartitionOutcome, PartitionOutcomes, Prepare, Stage

Result = TypeVar("Result")
ItemT = TypeVar("ItemT", Manifest, Discard)

_READERS: Final = 2
_ASKS_FOR_PEOPLE: Final = ("rest", "grpc")  # doors that show who leads what; of their callers none goes there
_CHANGED: Final = (PartitionNotFound, StaleIncarnation)  # a topic grew, or was made anew


class Verdict(NamedTuple):
    """Whether callers should come to this proxy, and why not."""

    ready: bool
    refusal: str
    status: str


class ProxyHere:
    """What is served where a call enters a proxy: nothing is, so some broker is asked."""

    def __init__(self, topology: Topology, upstream: Upstream, own: Identity) -> None:
        self.own = own
        self.draining = False
        self.serving = False  # some broker has told who there is
        self._topology = topology
        self._upstream = upstream

    def check(self, identity: Identity, call: Call[AnswerT]) -> None:
        row = row_of(call)
        self.admit(identity, row.action_of(call), row.topics(call), while_draining=row.while_draining)

    def admit(self, identity: Identity, action: Action, topics: Iterable[str], *, while_draining: bool = False) -> None:
        """Who may do what is for the brokers to say; here only names are looked at."""
        if not identity.name:
            raise ValidationError("the call names nobody", field="identity")
        if not self.serving:
            raise ServiceUnavailable(
                "the proxy has not reached a broker yet; try another one, or again soon",
                retry_after_ms=1_000,
                refused=True,
            )
        for topic in topics:
            if not self._topology.knows(topic):
                check_name(topic, "topic")
        if self.draining and not while_draining:
            raise ServiceUnavailable("the proxy is draining; try another one, or again after its restart", refused=True)

    async def handle(self, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        if row_of(call).waits(call) > 0 and self._upstream.waiting >= WAITING_MAX:
            call = replace(call, wait_ms=0)  # the caller comes again
        return await self._upstream.ask_any(call, bulk)

    def find_topic(self, name: str) -> KnownTopic:
        return self._topology.find_topic(name)


class ProxyService(ForwardedPublishes, ForwardedPolls):
    """The only thing that the doors of a proxy call."""

    waiting_max = WAITING_MAX

    def __init__(self, topology: Topology, upstream: Upstream, lanes: Lanes, connected: Callable[[], bool]) -> None:
        self.node_id = f"proxy-{secrets.token_hex(8)}"
        self.own = Identity(self.node_id, "proxy")
        self._at = ProxyHere(topology, upstream, self.own)
        super().__init__(self._at, topology, upstream)
        self._topology = topology
        self._upstream = upstream
        self._lanes = lanes
        self._connected = connected
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="lanner-reader")
        self._unpacking = Unpacking(self, self, self.own)
        self.addresses: dict[str, tuple[str, int]] = {}  # of this proxy's own doors
        self.advertised: tuple[str, int] | None = None  # where clients reach the native door
        self.stopped_partitions: dict[str, str] = {}
        self.ways = {
            Poll: self.poll,
            BestPriority: self.best_priority,
            DescribeTopic: self._whole,
            CreateTopic: self._create,
            AlterTopic: self._alter,
            DeleteTopic: self._delete,
            Metadata: self._metadata,
            RaftStatus: self._raft_status,
            Prepare: self._prepare,
            DiscardStages: self._discard_stages,
            Scrub: self._scrub,
        }

    @property
    def cluster_id(self) -> str:
        return self._topology.cluster_id

    @property
    def readiness(self) -> Verdict:
        if self._at.draining:
            return Verdict(False, "the proxy is not ready: it is draining", "")
        if not self._connected():
            return Verdict(False, "the proxy is not ready: no broker can be reached; it goes on trying", "")
        if not self._at.serving:
            return Verdict(False, "the proxy is not ready: it is starting, and no broker has answered yet", "")
        return Verdict(True, "", "ready")

    def open(self) -> None:
        """Some broker has told who there is: callers can be served."""
        self._at.serving = True

    def drain(self) -> None:
        """Refuse new work and end the long polls, so that the doors can close without cutting anybody off."""
        self._at.draining = True
        self.wake_all()

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ what doors ask

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        ask = super().ask
        try:
            return await self._renewed(row_of(call).topics(call), lambda: ask(identity, call, bulk))
        except NotLeader as error:
            raise without_hint(error) from error

    async def serve(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Ask a broker too: nothing is served here."""
        return await self.ask(identity, call, bulk)

    async def _renewed(self, topics: Sequence[str], work: Callable[[], Awaitable[Result]]) -> Result:
        """What was refused because the map is old is asked once more with a new one: nothing was done."""
        try:
            return await work()
        except _CHANGED:
            doubted = [self._topology.doubt(name) for name in topics]
            if not any(doubted):
                raise
        return await work()

    def publish(self, identity: Identity, call: Publish, data: bytes | memoryview) -> Pending[Appended]:
        self._at.check(identity, call)
        return self._lanes.publish(call, data)

    def stage(self, identity: Identity, asked: Stage, data: bytes | memoryview) -> Pending[Staged]:
        self._at.check(identity, asked)
        return self._lanes.stage(asked, data)

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        self._at.admit(identity, "publish", [name])
        if self._topology.has_just_seen(name):
            return
        found = (await self._asked(Metadata([name], create=True))).topics[0]
        if found.error:
            error = from_wire(found.error, "")
            raise type(error)(f"{name}: {error.message}", topic=name)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> Placed:
        publish = super().publish_messages
        try:
            return await self._renewed([topic], lambda: publish(identity, topic, messages))
        except NotLeader as error:
            raise without_hint(error) from error

    async def poll_messages(self, identity: Identity, call: Poll) -> Handed:
        return await self._unpacking.poll(identity, call)

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._readers, work)

    def metrics(self) -> list[str]:
        figures = (
            ("forwarded_calls_total", "counter", "Calls that brokers were asked to serve.", self.forwarded),
            ("proxy_repeated_calls_total", "counter", "Calls asked again of another broker.", self._upstream.repeated),
            ("proxy_waiting_calls", "gauge", "Calls that wait at brokers.", self._upstream.waiting),
            ("proxy_batches_total", "counter", "Batches sent to leaders.", self._lanes.sent),
            ("proxy_repeated_batches_total", "counter", "Batches sent again to another leader.", self._lanes.repeated),
            ("proxy_held_bytes", "gauge", "Bytes of batches that no leader has taken yet.", self._lanes.held_bytes),
        )
        return [
            line
            for name, kind, text, value in figures
            for line in (f"# HELP lanner_{name} {text}", f"# TYPE lanner_{name} {kind}", f"lanner_{name} {value}")
        ]

    # ------------------------------------------------------------------ ways of their own

    async def poll_in_one_place(self, identity: Identity, topic: KnownTopic, call: Poll) -> Answer[Polled] | None:
        """Nothing is led here; only what the poll asks for is looked at."""
        check_poll(call)
        return None

    async def _whole(self, identity: Identity, call: Call[AnswerT]) -> Answer[AnswerT]:
        """A broker knows more than a split and a merge: it is asked for all of it."""
        return await self._upstream.ask_any(call)

    async def _create(self, identity: Identity, call: CreateTopic) -> Answer[TopicDescription]:
        """Ask under one id, so that a second broker does not take the topic that the first made for somebody else's."""
        return await self._upstream.ask_any(replace(call, create_id=call.create_id or secrets.token_hex(8)))

    async def _alter(self, identity: Identity, call: AlterTopic) -> Answer[TopicDescription]:
        answer = await self._upstream.ask_any(call)
        self._topology.doubt(call.name)
        return answer

    async def _delete(self, identity: Identity, call: DeleteTopic) -> Answer[Empty]:
        answer = await self._upstream.ask_any(call)
        self._topology.drop(call.name)
        return answer

    async def _metadata(self, identity: Identity, call: Metadata) -> Answer[MetadataReply]:
        reply = await self._asked(call)
        if identity.door in _ASKS_FOR_PEOPLE:
            return Answer(reply)
        host, port = self.advertised or self.addresses.get("native") or ("", 0)
        return Answer(told_as_own(reply, BrokerInfo(self.node_id, host, port, "proxy")))

    async def _asked(self, call: Metadata) -> MetadataReply:
        asked_at = time.monotonic()
        reply = (await self._upstream.ask_any(call)).control
        self._topology.learn(reply, asked_at)
        return reply

    async def _raft_status(self, identity: Identity, call: RaftStatus) -> Answer[RaftStatusReply]:
        return await (self._upstream.ask_any(call) if call.node_id else self.ask_leaders(identity, call))

    async def _scrub(self, identity: Identity, call: Scrub) -> Answer[ScrubProgress]:
        raise NotSupported("a scrub is asked of one broker, and this is a proxy: connect to that broker itself")

    # ------------------------------------------------------------------ stages of several partitions

    async def _prepare(self, identity: Identity, call: Prepare) -> Answer[PartitionOutcomes]:
        return await self._each(identity, call.manifests, lambda mine: replace(call, manifests=mine))

    async def _discard_stages(self, identity: Identity, call: DiscardStages) -> Answer[PartitionOutcomes]:
        return await self._each(identity, call.items, lambda mine: replace(call, items=mine))

    async def _each(
        self, identity: Identity, items: Sequence[ItemT], narrow: Callable[[list[ItemT]], Call[PartitionOutcomes]]
    ) -> Answer[PartitionOutcomes]:
        """Ask every leader once for its partitions. What is not answered says so by itself; the caller repeats it."""
        await self._topology.hear_of(dict.fromkeys(item.topic for item in items))
        outcomes: list[PartitionOutcome | None] = [None] * len(items)
        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            try:
                topic = self._at.find_topic(item.topic)
                leader = ""
                if 0 <= item.partition < len(topic.set_ids):
                    leader = self._map.leader_of(topic.set_ids[item.partition])
                if not leader:
                    raise NotLeader(f"nobody leads {item.topic}/{item.partition} at the moment; ask again soon")
                places.setdefault(leader, []).append(place)
            except LannerError as error:
                outcomes[place] = _outcome(item, error)

        async def ask_one(node_id: str, mine: list[int]) -> None:
            chosen = [items[place] for place in mine]
            try:
                found: Sequence[PartitionOutcome] = (
                    await self.serve_at(node_id, identity, narrow(chosen))
                ).control.items
            except LannerError as error:
                found = [_outcome(item, error) for item in chosen]
            for place, one in zip(mine, found, strict=True):
                if one.code == NotLeader.code:
                    self._topology.doubt(one.topic)
                outcomes[place] = one

        await self.together(ask_one(node_id, mine) for node_id, mine in places.items())
        return Answer(PartitionOutcomes([one for one in outcomes if one is not None]))


def _outcome(item: Manifest | Discard, error: LannerError) -> PartitionOutcome:
    return PartitionOutcome(item.topic, item.partition, error.code, error.message)


__all__ = ["ProxyService"]
