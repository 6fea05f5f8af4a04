"""Calls that are more than a split and a merge: what only some brokers know is put into what this one tells.

The metadata is on every broker, so most is answered here, after catching up with its leader. Who lags is known to the
leaders only, which replicas do not run and how far a scrub is to the brokers that have them: they are asked, all at
once, and one that does not answer leaves a gap, not an error.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from lanner.broker.forwarding.neighbours import Neighbours
from lanner.calls import Answer, Identity, row_of
from lanner.calls.merging import partitions_merge
from lanner.calls.table import (
    ALTER_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_PARTITIONS,
    LIST_TRANSACTIONS,
    METADATA,
)
from lanner.errors import BadGateway, DeadlineExceeded, GroupNotFound, LannerError, ServiceUnavailable
from lanner.forwarding.asking import Asking
from lanner.wire.administration import AlterTopic, DescribeTopic, Seek, TopicDescription
from lanner.wire.cluster import (
    BrokerState,
    ClusterDescription,
    DescribeCluster,
    DescribePartitions,
    PartitionsDescription,
    RaftStatus,
    RaftStatusReply,
    Scrub,
)
from lanner.wire.members import AlterGroup, GroupMembers, ListMembers
from lanner.wire.messages import AnswerT, Call, Empty, Metadata, MetadataReply, TopicInfo
from lanner.wire.staging import ListTransactions, TransactionList

_REPORT_MS: Final = 2_000


class OwnWays(Asking):
    """The ways of calls about topics and about the cluster itself."""

    _neighbours: Neighbours

    async def metadata(self, identity: Identity, call: Metadata) -> Answer[MetadataReply]:
        """Topics are checked one by one: one that the caller may not see does not hide the others."""
        if call.topics is None:
            await self._map.catch_up()
            return await self._here.handle(call)
        await self._map.hear_of(call.topics)
        refused: dict[str, TopicInfo] = {}
        for name in call.topics:
            try:
                self._here.admit(identity, METADATA.action_of(call), [name])
            except LannerError as error:
                refused[name] = TopicInfo(name, 0, [], error=error.code)
        allowed = replace(call, topics=[name for name in call.topics if name not in refused])
        found = (await self._here.handle(allowed)).control
        told = iter(found.topics)
        topics = [refused[name] if name in refused else next(told) for name in call.topics]
        return Answer(replace(found, topics=topics))

    async def alter_topic(self, identity: Identity, call: AlterTopic) -> Answer[TopicDescription]:
        await self.hear(ALTER_TOPIC, call)
        await self._here.handle(call)
        return await self.describe_topic(identity, DescribeTopic(call.name))

    async def seek(self, identity: Identity, call: Seek) -> Answer[Empty]:
        """By force: under one generation that is begun for it, on whatever brokers the partitions are led."""
        if call.force and not call.generation:
            with suppress(GroupNotFound):  # nobody has ever joined it
                begun = (await self.ask(identity, AlterGroup(call.group))).control
                call = replace(call, number=begun.number, generation=begun.generation)
        return await self.ask_leaders(identity, call)

    async def describe_topic(self, identity: Identity, call: DescribeTopic) -> Answer[TopicDescription]:
        """What the leaders say of its partitions; its settings as they are known here, where they may be newer."""
        found = (await self.ask_leaders(identity, call)).control
        topic = self._here.find_topic(call.name)
        return Answer(replace(found, incarnation=topic.incarnation, settings=topic.settings.to_dict()))

    async def describe_cluster(self, identity: Identity, call: DescribeCluster) -> Answer[ClusterDescription]:
        await self.hear(DESCRIBE_CLUSTER, call)
        found = (await self._here.handle(call)).control
        brokers = await self.together(self._with_scrub(identity, row) for row in found.brokers)
        return Answer(replace(found, brokers=brokers))

    async def _with_scrub(self, identity: Identity, row: BrokerState) -> BrokerState:
        if row.scrub is not None or not row.alive:
            return row
        try:
            answer = await self.serve_at(row.node_id, identity, Scrub(), timeout_ms=_REPORT_MS)
        except LannerError:
            return row
        return replace(row, scrub=answer.control)

    async def describe_partitions(self, identity: Identity, call: DescribePartitions) -> Answer[PartitionsDescription]:
        await self.hear(DESCRIBE_PARTITIONS, call)
        seen = (await self._here.handle(call)).control
        others = {row.leader for row in seen.partitions}
        others |= {replica.node_id for row in seen.partitions for replica in row.replicas}
        asked = [one for one in sorted(others - {"", self._neighbours.node_id}) if self._neighbours.is_alive(one)]
        told = await self.together(self._report(node_id, identity, call) for node_id in asked)
        return Answer(partitions_merge(seen, dict(zip(asked, told, strict=True))))

    async def _report(self, node_id: str, identity: Identity, call: DescribePartitions) -> PartitionsDescription:
        try:
            return (await self.serve_at(node_id, identity, call, timeout_ms=_REPORT_MS)).control
        except LannerError:
            return PartitionsDescription([])

    async def raft_status(self, identity: Identity, call: RaftStatus) -> Answer[RaftStatusReply]:
        """Of the leader's replica, or of the one on the broker that is named."""
        if not call.node_id:
            return await self.ask_leaders(identity, call)
        await self.find_topic(call.topic)
        named = self._neighbours.node_called(call.node_id)
        return await self.serve_at(named, identity, replace(call, node_id=named))

    async def list_transactions(self, identity: Identity, call: ListTransactions) -> Answer[TransactionList]:
        """Who is awaited in a try is known where the metadata is led."""
        if call.transaction:
            return await self._at_metadata_leader(identity, call)
        await self.hear(LIST_TRANSACTIONS, call)
        return await self._here.handle(call)

    async def list_members(self, identity: Identity, call: ListMembers) -> Answer[GroupMembers]:
        """Who was heard when, and since when partitions wait for their owners, is known where the metadata is led."""
        return await self._at_metadata_leader(identity, call)

    async def _at_metadata_leader(self, identity: Identity, call: Call[AnswerT]) -> Answer[AnswerT]:
        leader = self._neighbours.metadata_leader
        if leader not in ("", self._neighbours.node_id):
            try:
                return await self.serve_at(leader, identity, call)
            except (BadGateway, DeadlineExceeded, ServiceUnavailable):
                pass  # then what is known here
        await self.hear(row_of(call), call)
        return await self._here.handle(call)
