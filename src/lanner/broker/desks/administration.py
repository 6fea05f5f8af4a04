"""Topics and groups, dead letters, and what operators ask of one partition."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from lanner import features, limits, partition
from lanner.broker.desks.desk import Desk
from lanner.broker.desks.fencing import Said
from lanner.broker.replicas.replica import Replica
from lanner.calls import Answer, Identity
from lanner.calls.merging import chosen_partitions, dead_partitions
from lanner.cluster import Topic, check_settings, encode_alter_topic, encode_create_topic, encode_delete_topic
from lanner.errors import (
    DeadlineExceeded,
    GroupInUse,
    GroupNotFound,
    LannerError,
    TopicExists,
    TopicNotFound,
    ValidationError,
)
from lanner.forwarding.checks import check_number, check_partition
from lanner.forwarding.values import age_ms
from lanner.model import TopicSettings, check_name
from lanner.net.clock import now_ms as wall_clock_ms
from lanner.wire.administration import (
    AlterTopic,
    CountReply,
    CreateTopic,
    DeadLetters,
    DeleteTopic,
    DescribeGroup,
    DescribeTopic,
    DiscardDead,
    DropGroup,
    GroupDescription,
    GroupPartition,
    GroupsReply,
    HoldState,
    ListDead,
    ListGroups,
    ListTopics,
    PartitionState,
    RedriveDead,
    Seek,
    TopicDescription,
    TopicNames,
)
from lanner.wire.cluster import RaftStatus, RaftStatusReply
from lanner.wire.members import AlterGroup
from lanner.wire.messages import BrokerInfo, Empty, Metadata, MetadataReply, PartitionInfo, TopicInfo

_LEADERS_TIMEOUT_MS: Final = 10_000


class Administration(Desk):
    """What operators call."""

    # ------------------------------------------------------------------ the metadata

    async def metadata(self, call: Metadata) -> Answer[MetadataReply]:
        """Brokers and topics with their leaders, as far as this broker has heard; missing topics are made if wished."""
        named = call.topics is not None
        topics = []
        for name in sorted(self._engine.cluster.topics) if call.topics is None else call.topics:
            try:
                if call.create and named:
                    await self._ensure(name)
                topics.append(self._route(name, with_settings=named))
            except LannerError as error:
                topics.append(TopicInfo(name, 0, [], error=error.code))
        brokers = [
            BrokerInfo(broker.node_id, broker.host, broker.port, broker.name, broker.rack, broker.http)
            for broker in self._routes.brokers()
        ]
        return Answer(MetadataReply(self.cluster_id, brokers, topics, self._engine.cluster.applied_index))

    def _route(self, name: str, *, with_settings: bool) -> TopicInfo:
        """Settings go only to those who ask by name: ten thousand topics must fit into one frame."""
        if name not in self._engine.cluster.topics:
            check_name(name, "topic")
        found = self._routes.topic(self._topic(name))
        partitions = [PartitionInfo(part.id, part.leader, list(part.replicas)) for part in found.partitions]
        return TopicInfo(name, found.incarnation, partitions, dict(found.settings) if with_settings else {})

    async def list_topics(self, call: ListTopics) -> Answer[TopicNames]:
        return Answer(TopicNames(sorted(self._engine.cluster.topics)))

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        """Have a topic made as METADATA with `create` does, for a caller who wants to know what stands against it."""
        self.admit(identity, "publish", [name])
        await self._ensure(name)

    async def _ensure(self, name: str) -> None:
        """Make the topic if it is missing and the broker may make topics by itself."""
        topic = self._engine.cluster.topics.get(name)
        if topic is not None:
            if self._clock.now_ms() - topic.created_ms < _LEADERS_TIMEOUT_MS:
                await self._served(name)  # somebody else may be making it just now
            return
        check_name(name, "topic")
        if not self.auto_create:
            raise TopicNotFound(f"topic {name!r} does not exist, and this broker makes none by itself", topic=name)
        try:
            await self._make(name, {})
        except TopicExists:
            await self._served(name)

    # ------------------------------------------------------------------ topics

    async def create_topic(self, call: CreateTopic) -> Answer[TopicDescription]:
        """A new topic as it was made, whether or not others have heard of it, filled it, or deleted it meanwhile."""
        return Answer(self._as_known(await self._make(call.name, call.settings, call.create_id)))

    async def _make(self, name: str, settings: Mapping[str, object], create_id: str = "") -> Topic:
        """A new topic, on whichever brokers; done when every partition of it has a leader.

        Under its id the create is known when it is asked again, here or at another broker."""
        check_settings(settings, self._engine.feature_level)
        given = {"partitions": self._settings.default_partitions, **settings}
        created_ms = self._clock.now_ms()
        known = self._engine.feature_level >= features.IDENTITIES
        create_id = (create_id or secrets.token_hex(8)) if known else ""
        command = encode_create_topic(name, TopicSettings.from_dict(given), created_ms, create_id)
        try:
            made = await self._change_cluster(command)
            assert isinstance(made, Topic)
        except TopicExists:
            # Below that level the attempt before, whose answer was lost, is known only by its moment.
            found = self._engine.cluster.topics.get(name)
            if known or found is None or found.created_ms != created_ms:
                raise
            made = found
        await self._served(name)
        return made

    async def alter_topic(self, call: AlterTopic) -> Answer[TopicDescription]:
        """Change settings. What the partitions hold is known to their leaders: they are asked afterwards."""
        check_settings(call.settings, self._engine.feature_level)
        self._topic(call.name).settings.changed(call.settings)
        await self._change_cluster(encode_alter_topic(call.name, dict(call.settings), self._clock.now_ms()))
        await self._served(call.name)
        return Answer(self._as_known(self._topic(call.name)))

    def _as_known(self, topic: Topic) -> TopicDescription:
        """A topic by the metadata alone: nothing is said of what it holds."""
        states = [
            PartitionState(number, self._leaders.leader_of(set_id), 0, 0, 0, 0, 0)
            for number, set_id in enumerate(topic.set_ids)
        ]
        return TopicDescription(topic.name, topic.incarnation, topic.settings.to_dict(), states)

    async def _served(self, name: str) -> None:
        """Wait until every partition of a topic has a leader, or the topic is gone again; NotLeader if that is long."""

        def unserved() -> int | None:
            topic = self._engine.cluster.topics.get(name)
            set_ids = () if topic is None else topic.set_ids
            return next((number for number, set_id in enumerate(set_ids) if not self._leaders.leader_of(set_id)), None)

        if unserved() is None:
            return
        try:
            await self._waiting.until(lambda: unserved() is None, _LEADERS_TIMEOUT_MS)
        except DeadlineExceeded:
            partition = unserved()
            if partition is not None:
                raise self._routes.not_leader(self._topic(name), partition) from None

    async def delete_topic(self, call: DeleteTopic) -> Answer[Empty]:
        self._topic(call.name)
        await self._change_cluster(encode_delete_topic(call.name))
        return Answer(Empty())

    async def describe_topic(self, call: DescribeTopic) -> Answer[TopicDescription]:
        found = self._topic(call.name)
        states = []
        for number, replica in self._replicas(found, call.partitions):
            machine = replica.partition
            states.append(
                PartitionState(
                    number,
                    self.node_id,
                    machine.first_offset,
                    machine.end_offset,
                    machine.stored_bytes,
                    machine.batch_count,
                    machine.pinned_bytes,
                    dict(machine.lane_depths()),
                    [HoldState(*hold) for hold in machine.holds(found.settings)],
                )
            )
        return Answer(TopicDescription(found.name, found.incarnation, found.settings.to_dict(), states))

    # ------------------------------------------------------------------ groups

    async def list_groups(self, call: ListGroups) -> Answer[GroupsReply]:
        names: set[str] = set()
        for _, replica in self._replicas(self._topic(call.name), call.partitions):
            names.update(replica.partition.groups())
        return Answer(GroupsReply(sorted(names)))

    async def describe_group(self, call: DescribeGroup) -> Answer[GroupDescription]:
        now_ms, wall_ms = self._clock.now_ms(), wall_clock_ms()
        kind = ""
        states = []
        for number, replica in self._replicas_with(self._topic(call.topic), call.group, call.partitions):
            state = replica.partition.describe_group(call.group, now_ms)
            kind = str(state.kind)
            states.append(
                GroupPartition(
                    number,
                    state.offset,
                    state.lag,
                    state.ready,
                    state.leased,
                    state.waiting,
                    state.dead,
                    dict(state.depth),
                    state.oldest_ms,
                    age_ms(state.oldest_ms, wall_ms),
                )
            )
        return Answer(GroupDescription(call.topic, call.group, kind, states))

    def _replicas_with(self, topic: Topic, group: str, partitions: Sequence[int] | None) -> list[tuple[int, Replica]]:
        """The replicas of these partitions that know the group; there must be one."""
        check_name(group, "group")
        replicas = self._replicas(topic, partitions)
        found = [(number, replica) for number, replica in replicas if replica.partition.has_group(group)]
        if not found:
            raise GroupNotFound(f"topic {topic.name!r} has no group {group!r}", topic=topic.name, group=group)
        return found

    async def drop_group(self, call: DropGroup) -> Answer[Empty]:
        found = self._topic(call.topic)
        group = self._engine.cluster.group(call.group)
        if group is not None and group.members:
            raise GroupInUse(
                f"group {call.group!r} has {len(group.members)} members: stop them first, or evict them "
                f"(`lanner group members {shlex.quote(call.group)}` shows them)",
                group=call.group,
                members=len(group.members),
            )
        for number, _ in self._replicas_with(found, call.group, call.partitions):
            await self._ask(found, number, partition.DropGroup(call.group))
        return Answer(Empty())

    async def seek(self, call: Seek) -> Answer[Empty]:
        """Move a group, forward or back; its leases there end."""
        check_name(call.group, "group")
        if sum(choice is not None for choice in (call.offsets, call.time_ms, call.to)) != 1:
            raise ValidationError("give exactly one of offsets, time_ms and to", field="seek")
        if call.to is not None and call.to not in ("earliest", "latest"):
            raise ValidationError(f"to is {call.to!r}: choose earliest or latest", field="to")
        found = self._topic(call.topic)
        moves: list[tuple[int, int | str]] = []
        if call.offsets is not None:
            for number, offset in call.offsets.items():
                check_number("offset", offset, 0, limits.OFFSET_MAX)
                self._replica(found, number)
                moves.append((number, offset))
        else:
            if call.time_ms is not None:
                check_number("time_ms", call.time_ms, 0, limits.TIME_MS_MAX)
            for number, replica in self._replicas_with(found, call.group, call.partitions):
                target = replica.partition.offset_at_time(call.time_ms) if call.time_ms is not None else call.to
                assert target is not None
                moves.append((number, target))
        word = await self._word_of(call)
        seeks = [
            (number, partition.Seek(call.group, target, await self._fencing.fence(word, found, number)))
            for number, target in moves
        ]
        await asyncio.gather(*(self._ask(found, number, seek) for number, seek in seeks))
        return Answer(Empty())

    async def _word_of(self, call: Seek) -> Said:
        """As what a seek acts: as an outsider where no members work, and by force under a generation of its own.

        The present generation may equal the grant of an owner, whose next commit would undo the seek."""
        group = self._engine.cluster.group(call.group)
        if call.generation or group is None or group.shared or not group.members:
            return Said(call.group, "", call.number, call.generation)
        if not call.force:
            raise GroupInUse(
                f"the {len(group.members)} members of group {call.group!r} are at work: stop them first, or seek by "
                "force (--force); then they lose what they have in hand, and go on from there",
                group=call.group,
                members=len(group.members),
            )
        begun = (await self.handle(AlterGroup(call.group))).control
        return Said(call.group, "", begun.number, begun.generation)

    # ------------------------------------------------------------------ dead letters

    async def list_dead(self, call: ListDead) -> Answer[DeadLetters]:
        """What a group gave up on, with the messages themselves; a page of bounded bytes, from `after` on."""
        check_number("start_offset", call.start_offset, 0, limits.OFFSET_MAX)
        check_number("limit", call.limit, 1, limits.LIST_ITEMS_MAX)
        replicas = self._replicas_with(self._topic(call.topic), call.group, chosen_partitions(call))
        total = sum(replica.partition.dead_count(call.group) for _, replica in replicas)
        page, following = await self._pages.dead_letters(
            replicas, call.group, call.start_offset, call.limit, call.after
        )
        return Answer(DeadLetters([letter for letter, _ in page], total, following), [data for _, data in page])

    async def redrive(self, call: RedriveDead) -> Answer[CountReply]:
        """Put dead letters back into their lanes; how many."""
        return await self._choose_dead(call, partition.Redrive(call.group, call.offsets))

    async def discard(self, call: DiscardDead) -> Answer[CountReply]:
        """Let go of dead letters for good; how many."""
        return await self._choose_dead(call, partition.Discard(call.group, call.offsets))

    async def _choose_dead(
        self, call: RedriveDead | DiscardDead, request: partition.Redrive | partition.Discard
    ) -> Answer[CountReply]:
        partitions = dead_partitions(call)
        if call.offsets is not None:
            check_number("offsets", len(call.offsets), 1, limits.SETTLE_RANGES_MAX)
        total = 0
        found = self._topic(call.topic)
        for number, _ in self._replicas_with(found, call.group, partitions):
            while True:  # a decision takes a bounded number of them
                count = await self._ask(found, number, request)
                assert isinstance(count, int)
                total += count
                if call.offsets is not None or not count:
                    break
        return Answer(CountReply(total))

    # ------------------------------------------------------------------ one log

    async def raft_status(self, call: RaftStatus) -> Answer[RaftStatusReply]:
        """How the log of a partition stands: of the leader's replica, or of the one on the broker that is named."""
        found = self._topic(call.topic)
        check_partition(found, call.partition)
        replica = self._engine.replicas.get(found.set_ids[call.partition])
        if replica is None or (call.node_id != self.node_id and not replica.leads):
            raise self._routes.not_leader(found, call.partition)
        route = self._routes.topic(found).partitions[call.partition]
        status = {
            **replica.node.status(),
            "broker": self._routes.name_of(self.node_id),
            "leader_broker": self._routes.name_of(route.leader) if route.leader else "",
            "replicas": [self._routes.name_of(holder) for holder in route.replicas],
            "staged_bytes": replica.partition.staged_bytes,
            "prepared_bytes": replica.partition.prepared_bytes,
        }
        return Answer(RaftStatusReply(status))
