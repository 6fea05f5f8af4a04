"""Where every call reports first: who calls, what is named, and which replica serves it.

A partition that is not led here is served elsewhere: the caller is told by whom (NotLeader), before anything is done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from lanner.broker.desks.fencing import REFUSALS, Fencing, placed
from lanner.broker.desks.leases import LeaseReader
from lanner.broker.desks.pages import Pages
from lanner.broker.desks.polling import Polling
from lanner.broker.desks.questions import Questions
from lanner.broker.desks.routes import Routes
from lanner.broker.parts import Parts
from lanner.broker.ports import Applied
from lanner.broker.readiness import Verdict
from lanner.broker.replicas.replica import Replica
from lanner.broker.tries import Figures
from lanner.calls import Action, Answer, AnyCall, Bulk, Handlers, Identity, row_of
from lanner.cluster import METADATA_SET, Topic
from lanner.errors import (
    DeadlineExceeded,
    LannerError,
    MemberFenced,
    NotLeader,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
    ValidationError,
)
from lanner.forwarding.batches import Router
from lanner.forwarding.checks import check_partition
from lanner.model import check_name
from lanner.net.clients import Clients
from lanner.partition import Answer as PartitionAnswer
from lanner.partition import Request
from lanner.wire.messages import AnswerT, Call

_NO_LEADER_RETRY_MS: Final = 1_000


class Desk:
    """One check for every call, and the look-ups that all calls share."""

    handlers: Handlers  # by call; each takes what its row says

    def __init__(self, parts: Parts) -> None:
        self._engine = parts.engine
        self._settings = parts.settings
        self._clock = parts.clock
        self._wall_ms = parts.wall_ms
        self._reader = parts.reader
        self._proposer = parts.proposer
        self._waiting = parts.waiting
        self._leaders = parts.leaders
        self._peers = parts.peers
        self._membership = parts.membership
        self._steward = parts.steward
        self._tries = parts.tries
        self._homes = parts.homes  # told of every call that names a member
        self._outages = parts.outages
        self._scrubbing = parts.scrubbing
        self._room = parts.room
        self._readiness = parts.readiness
        self._failed = parts.failed
        self._kick = parts.kick
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._producer_ids: Iterable[int] = iter(())
        self._producer_ids_until = 0.0
        self._on_the_way: Counter[int] = Counter()  # bytes of publishes by set, where the topic bounds them
        self._questions = Questions(parts.engine, parts.kick)
        parts.homes.on_changed.append(self._questions.wake_groups)
        self._polling = Polling(parts.engine, parts.clock, self._router, self._questions)
        self._fencing = Fencing(parts.engine, parts.waiting, parts.homes)
        self._leases = LeaseReader(parts.reader)
        self._pages = Pages(parts.reader)
        self._routes = Routes(parts.node_id, parts.name, parts.engine, parts.leaders, parts.peers)
        self.fenced: Counter[str] = Counter()  # calls refused because of what their callers stand for, by call
        self.fetched_bytes = {"leader": 0, "follower": 0}  # handed to readers of streams, by what this broker was
        self.clients = Clients(parts.wall_ms)  # the doors write down who is connected
        self.auto_create = parts.settings.auto_create_topics
        self.node_id = parts.node_id
        self.own = Identity(parts.node_id, "broker")  # who works here for several callers, or for none
        self.addresses = self._routes.addresses

    @property
    def cluster_id(self) -> str:
        return self._membership.cluster_id

    @property
    def stopped_partitions(self) -> dict[str, str]:
        """Partitions whose replica on this broker met a record of a newer release, and cannot go on."""
        return self._outages.stopped

    @property
    def disk_figures(self) -> dict[str, int]:
        """What the scrubber has read, and how much of what lies here is damaged."""
        scrubbing = self._scrubbing
        return {
            "scrubbed_bytes": scrubbing.read_bytes,
            "scrub_passes": scrubbing.passes,
            "damaged": len(self._engine.damages),
        }

    @property
    def transaction_figures(self) -> Figures:
        """What there is to tell of transactions here."""
        return self._tries.figures(self._clock.now_ms())

    @property
    def readiness(self) -> Verdict:
        """Whether callers should come here, and why not."""
        return self._readiness.verdict()

    @property
    def time_ahead_ms(self) -> int:
        """How far the latest time that anything was decided at here is ahead of the wall clock; 0 when it is not."""
        replicas = self._engine.replicas.items()
        latest_ms = max((one.partition.machine_ms for set_id, one in replicas if set_id != METADATA_SET), default=0)
        return max(0, latest_ms - self._wall_ms())

    @property
    def draining(self) -> bool:
        return self._readiness.draining

    def drain(self) -> None:
        """Refuse new work and end the long polls, so that the doors can close without cutting anybody off."""
        self._readiness.draining = True
        self._questions.wake_all()
        self._homes.wake_all()

    # ------------------------------------------------------------------ calls

    async def handle(self, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Serve a call on this broker, for somebody who was checked."""
        handler = self.handlers[type(call)]
        try:
            return await (handler(call, bulk) if bulk else handler(call))
        except REFUSALS as error:
            self._note_refusal(call, error)
            raise

    def _note_refusal(self, call: AnyCall, error: LannerError) -> None:
        if isinstance(error, REFUSALS):
            self.fenced[row_of(call).command.name.lower()] += 1

    async def serve(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Check who asks, and serve the call on this broker alone."""
        self.check(identity, call)
        return await self.handle(call, bulk)

    def check(self, identity: Identity, call: AnyCall) -> None:
        """Whether the caller may make this call, as its row says."""
        row = row_of(call)
        self.admit(identity, row.action_of(call), row.topics(call), while_draining=row.while_draining)
        if identity.connection is not None:
            identity.connection.note(call)

    def admit(
        self, identity: Identity, action: Action, topics: Iterable[str] = (), *, while_draining: bool = False
    ) -> None:
        """Who may do what, and what may be named. Access rules hang here; for now everybody may do everything."""
        if not identity.name:
            raise ValidationError("the call names nobody", field="identity")
        self.check_serving()
        known = self._engine.cluster.topics
        for topic in topics:
            if topic not in known:
                check_name(topic, "topic")
        if self._readiness.draining and not while_draining:
            raise ServiceUnavailable(
                "the broker is draining; try another one, or again after its restart", refused=True
            )
        if self._failed.done():
            raise ServiceUnavailable(f"the broker has stopped: {self._failed.result().message}")

    def check_serving(self) -> None:
        """Refuse calls before the metadata is here: there is nothing to look anything up in."""
        if not self._readiness.serving:
            raise ServiceUnavailable(
                "the broker is starting; try another one, or again soon", retry_after_ms=1_000, refused=True
            )

    def _topic(self, name: str, incarnation: int = 0) -> Topic:
        topic = self._engine.cluster.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first", topic=name)
        if incarnation and topic.incarnation != incarnation:
            raise StaleIncarnation(f"topic {name!r} was deleted and created again; look it up anew", topic=name)
        return topic

    def find_topic(self, name: str, incarnation: int = 0) -> Topic:
        """For the forwarder: the topic, as this broker knows it."""
        return self._topic(name, incarnation)

    def _replica(self, topic: Topic, partition: int) -> Replica:
        check_partition(topic, partition)
        replica = self._engine.replicas.get(topic.set_ids[partition])
        if replica is None or not replica.leads:
            raise self._routes.not_leader(topic, partition)
        return replica

    def _replicas(self, topic: Topic, partitions: Sequence[int] | None) -> list[tuple[int, Replica]]:
        """The replicas of these partitions, of all of them for None; each must be led here."""
        if partitions is not None and not partitions:
            raise ValidationError(
                "partitions is empty: name at least one, or none at all for every one", field="partitions"
            )
        chosen = range(len(topic.set_ids)) if partitions is None else dict.fromkeys(partitions)
        return [(partition, self._replica(topic, partition)) for partition in chosen]

    async def _ask(self, topic: Topic, partition: int, request: Request) -> PartitionAnswer:
        """Put a question to a partition that is led here; what it answered."""
        replica = self._replica(topic, partition)
        try:
            answer, _ = await self._questions.ask(replica, request)
        except NotLeader:
            raise self._lost(topic, partition) from None
        except MemberFenced as error:
            raise placed(error, partition) from None
        return answer

    def _lost(self, topic: Topic, partition: int) -> NotLeader:
        """Leadership went while something was on its way: it may have taken effect, or not."""
        place = f"{topic.name}/{partition}"
        return self._routes.not_leader(
            topic, partition, f"the leader of {place} changed before the outcome was known; ask again"
        )

    def _lost_one(self, topic: Topic, replicas: Sequence[tuple[int, Replica]]) -> NotLeader:
        """The same for a call over several partitions, about one that is no longer led here."""
        gone = next((partition for partition, replica in replicas if not replica.leads), replicas[0][0])
        return self._lost(topic, gone)

    async def _change_cluster(self, command: bytes) -> Applied:
        """Put a change into the cluster's log; its result once it has applied on this broker, too."""
        try:
            return await self._proposer.propose(command)
        except DeadlineExceeded as error:
            raise self._undecided(error) from error

    def _undecided(self, error: DeadlineExceeded) -> LannerError:
        """Why a change of the metadata was not heard of in time."""
        if self._leaders.leader_of(METADATA_SET):
            return error
        return ServiceUnavailable(
            "nobody leads the metadata at the moment; the change may still take effect: look, or ask again soon",
            retry_after_ms=_NO_LEADER_RETRY_MS,
        )
