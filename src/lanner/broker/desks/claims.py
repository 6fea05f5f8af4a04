"""What members ask of partitions before they work there: a claim, and that the group begins.

A claim is the first thing that a new owner of a stream's partition does. From then on the partition refuses older
owners, and the answer says how far they had come: nothing of theirs can land between the two. Each partition of a claim
has its own result, because each has its own owner. A group begins on many partitions at once (MAKE_GROUP), so that what
is published from then on is new to it everywhere.
"""

from __future__ import annotations

import asyncio

from lanner import limits, partition
from lanner.broker.desks.member_desk import MemberDesk
from lanner.calls import Answer
from lanner.cluster import Topic
from lanner.errors import LannerError, NotLeader, ValidationError
from lanner.forwarding.checks import check_start
from lanner.model import GroupKind, check_name
from lanner.wire.members import ClaimedPartition, ClaimedPartitions, ClaimPartitions, MakeGroup
from lanner.wire.messages import Empty


class Claims(MemberDesk):
    """What members ask of partitions that are led here."""

    async def claim_partitions(self, call: ClaimPartitions) -> Answer[ClaimedPartitions]:
        """Begin to own partitions of a stream; how far the group had come on each."""
        self._check_members()
        check_name(call.group, "group")
        check_start(call.start)
        if not 1 <= len(call.member_id) <= limits.IDENTITY_LENGTH_MAX:
            raise ValidationError(
                f"a claim names its member: 1 to {limits.IDENTITY_LENGTH_MAX} characters", field="member_id"
            )
        self._fencing.hear(call.group, call.member_id)
        found = self._topic(call.topic, call.incarnation)
        replicas = self._replicas(found, call.partitions)  # all led here, before anything is claimed
        claimed = await asyncio.gather(*(self._claim(call, found, number) for number, _ in replicas))
        return Answer(ClaimedPartitions(claimed))

    async def _claim(self, call: ClaimPartitions, topic: Topic, number: int) -> ClaimedPartition:
        try:
            fence = await self._fencing.fence(call, topic, number)
            assert fence is not None, "members are always resolved"
            claimed = await self._ask(topic, number, partition.Claim(call.group, call.member_id, fence, call.start))
            assert isinstance(claimed, partition.Claimed)
        except NotLeader:
            raise
        except LannerError as error:
            self._note_refusal(call, error)
            return ClaimedPartition(number, error.code)
        return ClaimedPartition(number, 0, claimed.offset, claimed.committed, claimed.metadata, claimed.sequence)

    async def make_group(self, call: MakeGroup) -> Answer[Empty]:
        """Begin a group wherever it is not there yet."""
        self._check_members()
        check_name(call.group, "group")
        check_start(call.start)
        if call.kind not in list(GroupKind):
            raise ValidationError(f"{call.kind!r} is no kind of group: stream or queue", field="kind")
        found = self._topic(call.topic)
        replicas, kind = self._replicas(found, call.partitions), GroupKind(call.kind)
        self._polling.check_kind(replicas, call.group, kind)
        try:
            await self._polling.make_group(replicas, call.group, call.start, kind)
        except NotLeader:
            raise self._lost_one(found, replicas) from None
        return Answer(Empty())
