"""Topics, groups, dead letters, the cluster: what an operator or a setup script asks.

Results are the protocol's own structs. Brokers are named by their name or by their node id.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import structs

from lanner import limits
from lanner.batch import decode
from lanner.client.arguments import moment_ms
from lanner.client.brokers import CHANGE_MS, Brokers
from lanner.client.leaders import Leaders
from lanner.client.member_admin import MemberAdmin
from lanner.client.routing import Routing
from lanner.client.transaction_admin import TransactionAdmin
from lanner.errors import LannerError, NotFoundError, ServiceUnavailable, TopicExists, ValidationError
from lanner.model import Looked, LookPlace, Message, TopicSettings, check_name
from lanner.wire.administration import (
    AlterTopic,
    CreateTopic,
    DeadLetter,
    DeleteTopic,
    DescribeGroup,
    DescribeTopic,
    DiscardDead,
    DropGroup,
    GroupDescription,
    ListDead,
    ListGroups,
    RedriveDead,
    Seek,
    TopicDescription,
)
from lanner.wire.cluster import (
    ChangeCluster,
    ClusterDescription,
    DescribeCluster,
    DescribePartitions,
    PartitionReplicas,
    PlanProgress,
    RaftStatus,
    Scrub,
    ScrubProgress,
)
from lanner.wire.messages import (
    Command,
    Committed,
    Empty,
    Metadata,
    MetadataReply,
    Offsets,
    PartitionOffsets,
    Peek,
)

_CONNECTING_S: Final = 2.0


class DeadMessage(NamedTuple):
    """A dead letter: the message as it was sent, and why it is parked."""

    message: Message | None  # None: its bytes cannot be read any more
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int


class DeadMessages(NamedTuple):
    letters: list[DeadMessage]
    total: int  # of the group, not only of those listed
    next: tuple[int, int] | None = None  # where the next page begins (partition, offset); None: that was all


class Admin(TransactionAdmin, MemberAdmin):
    """Reached as `queue.admin`."""

    def __init__(self, session: Brokers, routing: Routing) -> None:
        super().__init__(session)
        self._routing = routing
        self._identity = secrets.token_hex(8)  # under which its commits are numbered
        self._commits = itertools.count()

    async def ping(self) -> None:
        """Return when the broker has answered."""
        await self._session.ask(Empty())

    async def cluster(self) -> MetadataReply:
        """The cluster's id, its brokers, and every topic with its partitions."""
        return await self._session.ask(Metadata())

    # ------------------------------------------------------------------ topics

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in (await self.cluster()).topics)

    async def create_topic(self, name: str, *, exist_ok: bool = False, **settings: Any) -> TopicDescription:
        """Make a topic; settings by name, such as partitions=3 or retention="acked"."""
        TopicSettings.from_dict(settings)  # refuses here, with a traceback that helps
        request = CreateTopic(check_name(name, "topic"), settings, secrets.token_hex(8))
        try:
            reply = await self._change_topic(request)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.describe(name)
        self._routing.forget(name)
        return reply

    async def alter_topic(self, name: str, **settings: Any) -> TopicDescription:
        """Change settings; they hold from the next decision on. Partitions can only grow."""
        request = AlterTopic(check_name(name, "topic"), settings)
        reply = await self._change_topic(request)
        self._routing.forget(name)
        return reply

    async def _change_topic(self, request: CreateTopic | AlterTopic) -> TopicDescription:
        """Ask for a change that may be repeated: a create is known by its id, an alter is done already.

        One broker takes it as well as another; so there must be others that are known.
        """
        session = self._session
        if not session.are_several:
            with contextlib.suppress(LannerError):
                known, _ = await session.request(Metadata([]), timeout_ms=CHANGE_MS)
                session.learn(known.brokers)
        reply, _ = await session.request(request, attempt_ms=CHANGE_MS)
        return reply

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it."""
        request = DeleteTopic(check_name(name, "topic"))
        await self._session.ask(request)
        self._routing.forget(name)

    async def describe(self, name: str) -> TopicDescription:
        """Settings and partitions of a topic, with offsets, bytes and depth by priority."""
        request = DescribeTopic(check_name(name, "topic"))
        return await self._session.ask(request)

    async def offsets(self, topic: str, time: int | datetime | None = None) -> list[PartitionOffsets]:
        """First and end offset of each partition; with a time also the first offset appended at or after it."""
        time_ms = -1 if time is None else moment_ms(time, "time")
        request = Offsets(check_name(topic, "topic"), time_ms)
        return (await self._session.ask(request)).partitions

    async def peek(
        self,
        topic: str,
        max_messages: int = 10,
        *,
        partition: int | None = None,
        offset: int = 0,
        max_bytes: int = limits.MIB,
        after: LookPlace | None = None,
    ) -> Looked:
        """Look without leasing: the most urgent first among what is at or after the offset. One page, of bounded bytes;
        give its `next` as `after` to go on."""
        request = Peek(check_name(topic, "topic"), partition, offset, max_messages, max_bytes, after=after)
        reply = await self._session.ask(request)
        page = Looked(found.of_topic(topic) for found in reply.messages)
        page.next = reply.next
        return page

    # ------------------------------------------------------------------ groups

    async def groups(self, topic: str) -> list[str]:
        request = ListGroups(check_name(topic, "topic"))
        return (await self._session.ask(request)).groups

    async def group(self, topic: str, group: str) -> GroupDescription:
        """A group's progress on each partition: lag, ready, leased, waiting, dead, depth by priority, oldest."""
        reply = await self._session.ask(_group_name(topic, group))
        return with_ages(reply, time.time_ns() // 1_000_000)

    async def drop_group(self, topic: str, group: str) -> None:
        """Forget a group and its progress."""
        request = DropGroup(check_name(topic, "topic"), check_name(group, "group"))
        await self._session.ask(request)

    async def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | None = None,
        offsets: Mapping[int, int] | None = None,
        time: int | datetime | None = None,
        force: bool = False,
    ) -> None:
        """Move a group: to "earliest" or "latest", to offsets by partition, or to a time. Its leases there end.

        While a group of readers has members that is refused (GroupInUse, MembershipRequired), unless by force.
        """
        if sum(choice is not None for choice in (to, offsets, time)) != 1:
            raise ValidationError("give exactly one of to, offsets and time", field="to")
        name = _group_name(topic, group)
        request = Seek(
            name.topic,
            name.group,
            None if offsets is None else dict(offsets),
            None if time is None else moment_ms(time, "time"),
            to,
            force=force,
        )
        await self._session.ask(request)

    async def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set a stream group's next offsets."""
        name = _group_name(topic, group)
        if offsets:
            leaders = Leaders(self._session, self._routing)
            await leaders.commit(name.topic, name.group, offsets, self._identity, next(self._commits))

    async def committed(self, topic: str, group: str) -> dict[int, int]:
        """A stream group's next offsets; partitions without a commit are absent."""
        name = _group_name(topic, group)
        return (await self._session.ask(Committed(name.group, name.topic))).offsets

    # ------------------------------------------------------------------ dead letters

    async def dead_letters(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        start_offset: int = 0,
        limit: int = 100,
        after: tuple[int, int] | None = None,
    ) -> DeadMessages:
        """A group's dead letters with their messages, by partition and offset. One page, of bounded bytes; give its
        `next` as `after` to go on."""
        name = _group_name(topic, group)
        request = ListDead(name.topic, name.group, partition, start_offset, limit, after=after)
        reply, bulk = await self._session.request(request)
        letters = []
        position = 0
        for letter in reply.letters:
            letters.append(_dead_message(topic, letter, bulk[position : position + letter.size]))
            position += letter.size
        return DeadMessages(letters, reply.total, reply.next)

    async def redrive(
        self, topic: str, group: str, *, partition: int | None = None, offsets: Sequence[int] | None = None
    ) -> int:
        """Deliver dead letters again, with the priority they have; how many."""
        return await self._choose_dead(RedriveDead, topic, group, partition, offsets)

    async def discard(
        self, topic: str, group: str, *, partition: int | None = None, offsets: Sequence[int] | None = None
    ) -> int:
        """Settle dead letters for good; how many."""
        return await self._choose_dead(DiscardDead, topic, group, partition, offsets)

    async def _choose_dead(
        self,
        kind: type[RedriveDead | DiscardDead],
        topic: str,
        group: str,
        partition: int | None,
        offsets: Sequence[int] | None,
    ) -> int:
        if offsets is not None and partition is None:
            raise ValidationError("offsets are of one partition: say which", field="partition")
        name = _group_name(topic, group)
        request = kind(name.topic, name.group, partition, None if offsets is None else list(offsets))
        return (await self._session.ask(request)).count

    # ------------------------------------------------------------------ the cluster

    async def describe_cluster(self) -> ClusterDescription:
        """Brokers with what they hold and lead, what is missing, and the plans that move replicas."""
        return await self._session.ask(DescribeCluster())

    async def describe_partitions(self, topic: str | None = None) -> list[PartitionReplicas]:
        """Where the replicas of a topic (or of every topic) are, who leads, and how far the others are behind."""
        request = DescribePartitions(None if topic is None else check_name(topic, "topic"))
        return (await self._session.ask(request)).partitions

    async def drain(self, broker: str) -> PlanProgress | None:
        """Begin to move everything off a broker. Asking again takes up what was left."""
        return await self._change(ChangeCluster("drain", broker=check_name(broker, "broker")))

    async def undrain(self, broker: str) -> None:
        """Let a drained broker take partitions again; what is still on its way off it is taken back."""
        await self._change(ChangeCluster("undrain", broker=check_name(broker, "broker")))

    async def remove(self, broker: str) -> PlanProgress | None:
        """Let a broker that holds nothing go for good: its node id may not come back."""
        return await self._change(ChangeCluster("remove", broker=check_name(broker, "broker")))

    async def rebalance(self) -> PlanProgress | None:
        """Begin to fill up missing replicas and to spread all of them evenly over the brokers."""
        return await self._change(ChangeCluster("rebalance"))

    async def upgrade(self) -> int:
        """Let the brokers use what their release brings, once all of them run it; the feature level from then on."""
        await self._change(ChangeCluster("upgrade"))
        return (await self.describe_cluster()).feature_level

    async def move(self, topic: str, partition: int, source: str, target: str) -> PlanProgress | None:
        """Begin to move one replica from a broker to another."""
        request = ChangeCluster(
            "move",
            broker=check_name(source, "source"),
            target=check_name(target, "target"),
            topic=check_name(topic, "topic"),
            partition=partition,
        )
        return await self._change(request)

    async def transfer(self, topic: str, partition: int, target: str) -> None:
        """Say which broker should lead a partition; it takes over as soon as it has caught up."""
        request = ChangeCluster(
            "transfer", target=check_name(target, "target"), topic=check_name(topic, "topic"), partition=partition
        )
        await self._change(request)

    async def cancel(self, plan_id: int) -> PlanProgress | None:
        """Stop a plan: what has not begun is dropped, what can be taken back is."""
        return await self._change(ChangeCluster("cancel", plan_id=plan_id))

    async def raft_status(self, topic: str, partition: int, broker: str = "") -> dict[str, Any]:
        """What one replica's Raft says of itself; without a broker, the leader's."""
        request = RaftStatus(check_name(topic, "topic"), partition, broker)
        return (await self._session.ask(request)).status

    async def scrub(self, broker: str) -> ScrubProgress:
        """Have a broker read and verify what lies on its disk, now; a pass that is under way counts. How it begins."""
        return await self._scrub(broker, Scrub(start=True))

    async def scrub_progress(self, broker: str) -> ScrubProgress:
        """How far that is, or how the latest one ended."""
        return await self._scrub(broker, Scrub())

    async def _scrub(self, broker: str, request: Scrub) -> ScrubProgress:
        """Only the broker itself answers that."""
        known = (await self.cluster()).brokers
        self._session.learn(known)
        found = next((one for one in known if broker in (one.node_id, one.name)), None)
        if found is None:
            names = ", ".join(sorted(one.name for one in known))
            raise NotFoundError(f"there is no broker {broker!r}; there are: {names}", broker=broker)
        session = self._session.to(found.node_id)
        if session is None:
            raise ServiceUnavailable(f"{found.name} cannot be reached: nobody knows its address", broker=found.name)
        await session.wait_until_tried(asyncio.get_running_loop().time() + _CONNECTING_S)
        outcome = await session.ask(Command.SCRUB, request)
        if isinstance(outcome, LannerError):
            raise outcome
        assert isinstance(outcome.control, ScrubProgress)
        return outcome.control

    async def _change(self, request: ChangeCluster) -> PlanProgress | None:
        """Repeated only when it surely had no effect: a second rebalance or move would be another one."""
        return (await self._session.ask(request)).plan


def with_ages(found: GroupDescription, now_ms: int) -> GroupDescription:
    """The same; where a broker of 0.2.0 does not say how old the oldest messages are, by the clock here."""
    if all(part.oldest_age_ms or not part.oldest_ms for part in found.partitions):
        return found
    aged = [
        structs.replace(part, oldest_age_ms=part.oldest_age_ms or max(0, now_ms - part.oldest_ms))
        if part.oldest_ms
        else part
        for part in found.partitions
    ]
    return structs.replace(found, partitions=aged)


def _group_name(topic: str, group: str) -> DescribeGroup:
    return DescribeGroup(check_name(topic, "topic"), check_name(group, "group"))


def _dead_message(topic: str, letter: DeadLetter, data: memoryview) -> DeadMessage:
    message: Message | None = None
    if letter.size:
        batch = decode(data)
        batch.verify_messages()
        timestamps = batch.timestamps()
        message = Message(
            topic,
            letter.partition,
            letter.offset,
            batch.values()[0],
            batch.keys()[0],
            batch.headers()[0],
            letter.priority,
            letter.append_ms,
            None if timestamps is None else timestamps[0],
            batch.header.deliver_at_ms,
            batch.header.expires_at_ms,
            letter.attempts,
        )
    return DeadMessage(
        message, letter.partition, letter.offset, letter.priority, letter.attempts, letter.reason, letter.died_ms
    )
