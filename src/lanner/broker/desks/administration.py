"""Topics and groups, dead letters, and what operators ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lanner import features, limits
from lanner.broker.desks.calls import (
    DeadLettersResult,
    DeadPlace,
    GroupPartitionResult,
    GroupResult,
    Identity,
    PartitionStateResult,
    TopicResult,
)
from lanner.broker.desks.checks import check_number
from lanner.broker.desks.desk import Desk
from lanner.broker.desks.routes import BrokerRoute, TopicRoute
from lanner.broker.replicas.replica import Replica
from lanner.cluster import Topic, check_settings, encode_alter_topic, encode_create_topic, encode_delete_topic
from lanner.errors import (
    DeadlineExceeded,
    GroupNotFound,
    TopicExists,
    TopicNotFound,
    ValidationError,
)
from lanner.model import TopicSettings, check_name
from lanner.partition import (
    Discard,
    DropGroup,
    Redrive,
    Seek,
)

_LEADERS_TIMEOUT_MS: Final = 10_000


class Administration(Desk):
    """What operators call."""

    async def create_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any], create_id: str = ""
    ) -> TopicResult:
        """A new topic as it was made, whether or not others have heard of it, filled it, or deleted it meanwhile."""
        made = await self.make_topic(identity, name, settings, create_id)
        states = [
            PartitionStateResult(number, self._routes.leader_of(set_id), 0, 0, 0, 0, 0, {})
            for number, set_id in enumerate(made.set_ids)
        ]
        return TopicResult(made.name, made.incarnation, made.settings.to_dict(), states)

    async def make_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any], create_id: str = ""
    ) -> Topic:
        """A new topic, on whichever brokers; done when every partition of it has a leader.

        Under its id the create is known when it is asked again, here or at another broker."""
        self._admit(identity, "administer", name)
        check_settings(settings, self._engine.feature_level)
        given = {"partitions": self._node.settings.default_partitions, **settings}
        created_ms = self._node.now_ms()
        known = self._engine.feature_level >= features.IDENTITIES
        create_id = (create_id or secrets.token_hex(8)) if known else ""
        command = encode_create_topic(name, TopicSettings.from_dict(given), created_ms, create_id)
        try:
            made: Topic = await self._change_cluster(command)
        except TopicExists:
            # Below that level the attempt before, whose answer was lost, is known only by its moment.
            found = self._engine.cluster.topics.get(name)
            if known or found is None or found.created_ms != created_ms:
                raise
            made = found
        await self._served(name)
        return made

    async def alter_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        await self.change_topic(identity, name, settings)
        return await self.topic(identity, name)

    async def change_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> None:
        self._admit(identity, "administer", name)
        check_settings(settings, self._engine.feature_level)
        self._topic(name).settings.changed(settings)
        await self._change_cluster(encode_alter_topic(name, dict(settings), self._node.now_ms()))
        await self._served(name)

    async def _served(self, name: str) -> None:
        """Wait until every partition of a topic has a leader, or the topic is gone again; NotLeader if that is long."""

        def unserved() -> int | None:
            topic = self._engine.cluster.topics.get(name)
            set_ids = () if topic is None else topic.set_ids
            return next((number for number, set_id in enumerate(set_ids) if not self._routes.leader_of(set_id)), None)

        if unserved() is None:
            return
        try:
            await self._node.until(lambda: unserved() is None, _LEADERS_TIMEOUT_MS)
        except DeadlineExceeded:
            partition = unserved()
            if partition is not None:
                raise self._routes.not_leader(self._topic(name), partition) from None

    async def delete_topic(self, identity: Identity, name: str) -> None:
        self._admit(identity, "administer", name)
        self._topic(name)
        await self._change_cluster(encode_delete_topic(name))

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        """Make the topic if it is missing and the broker may make topics by itself."""
        self._admit(identity, "publish", name)
        topic = self._engine.cluster.topics.get(name)
        if topic is not None:
            if self._node.now_ms() - topic.created_ms < _LEADERS_TIMEOUT_MS:
                await self._served(name)  # somebody else may be making it just now
            return
        if not self.auto_create:
            raise TopicNotFound(f"topic {name!r} does not exist, and this broker makes none by itself", topic=name)
        try:
            await self.make_topic(identity, name, {})
        except TopicExists:
            await self._served(name)

    async def topics(self, identity: Identity) -> list[str]:
        self._admit(identity, "describe")
        return sorted(self._engine.cluster.topics)

    async def look_up(self, names: Sequence[str]) -> None:
        """Nothing to do: this broker tells what it knows."""

    def topic_route(self, identity: Identity, name: str) -> TopicRoute:
        """Who leads and who holds each partition, as far as this broker has heard."""
        self._admit(identity, "describe", name)
        return self._routes.topic(self._topic(name))

    def broker_routes(self, identity: Identity) -> list[BrokerRoute]:
        """Every broker, and where it is reached."""
        self._admit(identity, "describe")
        return self._routes.brokers()

    async def topic(self, identity: Identity, name: str, partitions: Sequence[int] | None = None) -> TopicResult:
        self._admit(identity, "describe", name)
        found = self._topic(name)
        states = []
        for number, replica in self._replicas(found, partitions):
            machine = replica.partition
            states.append(
                PartitionStateResult(
                    number,
                    self.node_id,
                    machine.first_offset,
                    machine.end_offset,
                    machine.stored_bytes,
                    machine.batch_count,
                    machine.pinned_bytes,
                    machine.lane_depths(),
                    machine.holds(found.settings),
                )
            )
        return TopicResult(found.name, found.incarnation, found.settings.to_dict(), states)

    async def groups(self, identity: Identity, topic: str, partitions: Sequence[int] | None = None) -> list[str]:
        self._admit(identity, "describe", topic)
        names: set[str] = set()
        for _, replica in self._replicas(self._topic(topic), partitions):
            names.update(replica.partition.groups())
        return sorted(names)

    async def group(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> GroupResult:
        self._admit(identity, "describe", topic)
        check_name(group, "group")
        now_ms = self._node.now_ms()
        kind = ""
        states = []
        for number, replica in self._replicas(self._topic(topic), partitions):
            if not replica.partition.has_group(group):
                continue
            state = replica.partition.describe_group(group, now_ms)
            kind = str(state.kind)
            states.append(
                GroupPartitionResult(
                    number,
                    state.offset,
                    state.lag,
                    state.ready,
                    state.leased,
                    state.waiting,
                    state.dead,
                    state.depth,
                    state.oldest_ms,
                )
            )
        if not states:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r}", topic=topic, group=group)
        return GroupResult(topic, group, kind, states)

    def _replicas_with(self, topic: Topic, group: str, partitions: Sequence[int] | None) -> list[tuple[int, Replica]]:
        """The replicas of these partitions that know the group; there must be one."""
        check_name(group, "group")
        replicas = self._replicas(topic, partitions)
        found = [(number, replica) for number, replica in replicas if replica.partition.has_group(group)]
        if not found:
            raise GroupNotFound(f"topic {topic.name!r} has no group {group!r} there", topic=topic.name, group=group)
        return found

    async def drop_group(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> None:
        self._admit(identity, "consume", topic)
        found = self._topic(topic)
        for partition, _ in self._replicas_with(found, group, partitions):
            await self._ask(found, partition, DropGroup(group))

    async def seek(
        self,
        identity: Identity,
        topic: str,
        group: str,
        *,
        offsets: Mapping[int, int] | None = None,
        time_ms: int | None = None,
        to: str | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """Move a group, forward or back; its leases there end."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        if sum(choice is not None for choice in (offsets, time_ms, to)) != 1:
            raise ValidationError("give exactly one of offsets, time_ms and to", field="seek")
        if to is not None and to not in ("earliest", "latest"):
            raise ValidationError(f"to is {to!r}: choose earliest or latest", field="to")
        found = self._topic(topic)
        moves: list[tuple[int, int | str]] = []
        if offsets is not None:
            for partition, offset in offsets.items():
                check_number("offset", offset, 0, limits.OFFSET_MAX)
                self._replica(found, partition)
                moves.append((partition, offset))
        else:
            if time_ms is not None:
                check_number("time_ms", time_ms, 0, limits.TIME_MS_MAX)
            for partition, replica in self._replicas_with(found, group, partitions):
                target = replica.partition.offset_at_time(time_ms) if time_ms is not None else to
                assert target is not None
                moves.append((partition, target))
        await asyncio.gather(*(self._ask(found, partition, Seek(group, target)) for partition, target in moves))

    async def dead_letters(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        start_offset: int,
        limit: int,
        after: DeadPlace | None = None,
    ) -> DeadLettersResult:
        """What a group gave up on, with the messages themselves; a page of bounded bytes, from `after` on."""
        self._admit(identity, "consume", topic)
        check_number("start_offset", start_offset, 0, limits.OFFSET_MAX)
        check_number("limit", limit, 1, limits.LIST_ITEMS_MAX)
        replicas = self._replicas_with(self._topic(topic), group, partitions)
        total = sum(replica.partition.dead_count(group) for _, replica in replicas)
        letters, following = await self._pages.dead_letters(replicas, group, start_offset, limit, after)
        return DeadLettersResult(letters, total, following)

    async def redrive(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> int:
        """Put dead letters back into their lanes; how many."""
        return await self._choose_dead(identity, topic, group, partitions, offsets, Redrive)

    async def discard(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> int:
        """Let go of dead letters for good; how many."""
        return await self._choose_dead(identity, topic, group, partitions, offsets, Discard)

    async def _choose_dead(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
        kind: Callable[..., Any],
    ) -> int:
        self._admit(identity, "consume", topic)
        if offsets is not None:
            if partitions is None or len(partitions) != 1:
                raise ValidationError("offsets need the partition they belong to", field="partition")
            check_number("offsets", len(offsets), 1, limits.SETTLE_RANGES_MAX)
        total = 0
        found = self._topic(topic)
        for partition, _ in self._replicas_with(found, group, partitions):
            while True:  # a decision takes a bounded number of them
                count = await self._ask(found, partition, kind(group, offsets))
                total += count
                if offsets is not None or not count:
                    break
        return total

    async def raft_status(self, identity: Identity, topic: str, partition: int, node_id: str = "") -> dict[str, object]:
        """How the log of a partition stands: of the leader's replica, or of the one on the broker that is named."""
        self._admit(identity, "describe", topic)
        found = self._topic(topic)
        self._check_partition(found, partition)
        replica = self._engine.replicas.get(found.set_ids[partition])
        if replica is None or (node_id != self.node_id and not replica.leads):
            raise self._routes.not_leader(found, partition)
        route = self._routes.topic(found).partitions[partition]
        names = [self._routes.name_of(holder) for holder in route.replicas]
        return {
            **replica.node.status(),
            "broker": self._routes.name_of(self.node_id),
            "leader_broker": self._routes.name_of(route.leader) if route.leader else "",
            "replicas": names,
            "staged_bytes": replica.partition.staged_bytes,
            "prepared_bytes": replica.partition.prepared_bytes,
        }
