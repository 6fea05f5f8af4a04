"""Topics and groups, dead letters, and what operators ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanner import batch, limits
from lanner.broker.calls import (
    DeadLetterResult,
    DeadLettersResult,
    GroupPartitionResult,
    GroupResult,
    Identity,
    PartitionStateResult,
    TopicResult,
)
from lanner.broker.checks import check_number
from lanner.broker.desk import Desk
from lanner.broker.replica import Replica
from lanner.cluster import encode_alter_topic, encode_create_topic, encode_delete_topic
from lanner.errors import (
    GroupNotFound,
    LannerError,
    TopicExists,
    TopicNotFound,
    ValidationError,
)
from lanner.model import TopicSettings, check_name
from lanner.partition import (
    APPEND_PREFIX_BYTES,
    Discard,
    DropGroup,
    Redrive,
    Seek,
)


class Administration(Desk):
    """What operators call."""

    async def create_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        self._admit(identity, "administer", name)
        given = {"partitions": self._node.settings.default_partitions, **settings}
        checked = TopicSettings.from_dict(given)
        await self._change_cluster(encode_create_topic(name, checked, self._node.now_ms()))
        return self.topic(identity, name)

    async def alter_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        self._admit(identity, "administer", name)
        self._topic(name).settings.changed(settings)
        await self._change_cluster(encode_alter_topic(name, dict(settings)))
        return self.topic(identity, name)

    async def delete_topic(self, identity: Identity, name: str) -> None:
        self._admit(identity, "administer", name)
        self._topic(name)
        await self._change_cluster(encode_delete_topic(name))

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        """Make the topic if it is missing and the broker may make topics by itself."""
        self._admit(identity, "publish", name)
        topic = self._engine.cluster.topics.get(name)
        if topic is not None:
            if not all(replica.leads for _, replica in self._replicas(topic, None)):
                await self._node.all_led()  # somebody else is making it just now
            return
        if not self.auto_create:
            raise TopicNotFound(f"topic {name!r} does not exist, and this broker makes none by itself", topic=name)
        try:
            await self.create_topic(identity, name, {})
        except TopicExists:
            await self._node.all_led()

    def topics(self, identity: Identity) -> list[str]:
        self._admit(identity, "describe")
        return sorted(self._engine.cluster.topics)

    def topic(self, identity: Identity, name: str) -> TopicResult:
        self._admit(identity, "describe", name)
        found = self._topic(name)
        partitions = []
        for number, replica in self._replicas(found, None):
            machine = replica.partition
            partitions.append(
                PartitionStateResult(
                    number,
                    self.node_id if replica.leads else "",
                    machine.first_offset,
                    machine.end_offset,
                    machine.stored_bytes,
                    machine.batch_count,
                    machine.pinned_bytes,
                    machine.lane_depths(),
                )
            )
        return TopicResult(found.name, found.incarnation, found.settings.to_dict(), partitions)

    def groups(self, identity: Identity, topic: str) -> list[str]:
        self._admit(identity, "describe", topic)
        names: set[str] = set()
        for _, replica in self._replicas(self._topic(topic), None):
            names.update(replica.partition.groups())
        return sorted(names)

    def group(self, identity: Identity, topic: str, group: str) -> GroupResult:
        self._admit(identity, "describe", topic)
        check_name(group, "group")
        now_ms = self._node.now_ms()
        kind = ""
        partitions = []
        for number, replica in self._replicas(self._topic(topic), None):
            if group not in replica.partition.groups():
                continue
            state = replica.partition.describe_group(group, now_ms)
            kind = str(state.kind)
            partitions.append(
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
        if not partitions:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r}", topic=topic, group=group)
        return GroupResult(topic, group, kind, partitions)

    def _replicas_with(self, topic: str, group: str, partition: int | None = None) -> list[tuple[int, Replica]]:
        check_name(group, "group")
        replicas = self._replicas(self._topic(topic), None if partition is None else [partition])
        found = [(number, replica) for number, replica in replicas if group in replica.partition.groups()]
        if not found:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r} there", topic=topic, group=group)
        return found

    async def drop_group(self, identity: Identity, topic: str, group: str) -> None:
        self._admit(identity, "consume", topic)
        for _, replica in self._replicas_with(topic, group):
            await self._polling.ask(replica, DropGroup(group))

    async def seek(
        self,
        identity: Identity,
        topic: str,
        group: str,
        *,
        offsets: Mapping[int, int] | None = None,
        time_ms: int | None = None,
        to: str | None = None,
    ) -> None:
        """Move a group, forward or back; its leases there end."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        if sum(choice is not None for choice in (offsets, time_ms, to)) != 1:
            raise ValidationError("give exactly one of offsets, time_ms and to", field="seek")
        if to is not None and to not in ("earliest", "latest"):
            raise ValidationError(f"to is {to!r}: choose earliest or latest", field="to")
        found = self._topic(topic)
        moves: list[tuple[Replica, int | str]] = []
        if offsets is not None:
            for partition, offset in offsets.items():
                check_number("offset", offset, 0, limits.OFFSET_MAX)
                moves.append((self._replica(found, partition), offset))
        else:
            if time_ms is not None:
                check_number("time_ms", time_ms, 0, limits.TIME_MS_MAX)
            for _, replica in self._replicas_with(topic, group):
                target = replica.partition.offset_at_time(time_ms) if time_ms is not None else to
                assert target is not None
                moves.append((replica, target))
        await asyncio.gather(*(self._polling.ask(replica, Seek(group, target)) for replica, target in moves))

    async def dead_letters(
        self, identity: Identity, topic: str, group: str, partition: int | None, start_offset: int, limit: int
    ) -> DeadLettersResult:
        """What a group gave up on, with the messages themselves."""
        self._admit(identity, "consume", topic)
        check_number("start_offset", start_offset, 0, limits.OFFSET_MAX)
        check_number("limit", limit, 1, limits.LIST_ITEMS_MAX)
        total = 0
        found: list[tuple[int, Replica, Any]] = []
        for number, replica in self._replicas_with(topic, group, partition):
            machine = replica.partition
            total += machine.dead_count(group)
            if len(found) < limit:
                entries = machine.dead_letters(group, start_offset, limit - len(found))
                found.extend((number, replica, entry) for entry in entries)
        payloads = await self._node.payloads([(replica.set_id, entry.ref.index) for _, replica, entry in found])

        def extracts() -> list[bytes]:
            return [
                _one_message(payload, entry.offset - entry.ref.base_offset)
                for payload, (_, _, entry) in zip(payloads, found, strict=True)
            ]

        letters = [
            DeadLetterResult(
                number, entry.offset, entry.lane, entry.attempts, entry.reason, entry.died_ms, entry.ref.append_ms, data
            )
            for (number, _, entry), data in zip(found, await self._node.in_reader(extracts), strict=True)
        ]
        return DeadLettersResult(letters, total)

    async def redrive(
        self, identity: Identity, topic: str, group: str, partition: int | None, offsets: Sequence[int] | None
    ) -> int:
        """Put dead letters back into their lanes; how many."""
        return await self._choose_dead(identity, topic, group, partition, offsets, Redrive)

    async def discard(
        self, identity: Identity, topic: str, group: str, partition: int | None, offsets: Sequence[int] | None
    ) -> int:
        """Let go of dead letters for good; how many."""
        return await self._choose_dead(identity, topic, group, partition, offsets, Discard)

    async def _choose_dead(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partition: int | None,
        offsets: Sequence[int] | None,
        kind: Callable[..., Any],
    ) -> int:
        self._admit(identity, "consume", topic)
        if offsets is not None:
            if partition is None:
                raise ValidationError("offsets need the partition they belong to", field="partition")
            check_number("offsets", len(offsets), 1, limits.SETTLE_RANGES_MAX)
        total = 0
        for _, replica in self._replicas_with(topic, group, partition):
            while True:  # a decision takes a bounded number of them
                count, _ = await self._polling.ask(replica, kind(group, offsets))
                total += count
                if offsets is not None or not count:
                    break
        return total

    def raft_status(self, identity: Identity, topic: str, partition: int) -> dict[str, object]:
        self._admit(identity, "describe", topic)
        return self._replica(self._topic(topic), partition).node.status()


def _one_message(payload: bytes | None, position: int) -> bytes:
    if payload is None:
        return b""
    try:
        return batch.extract(memoryview(payload)[APPEND_PREFIX_BYTES:], [position])
    except LannerError:
        return b""
