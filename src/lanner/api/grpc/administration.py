"""Topics, groups and dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, unary
from lanner.api.grpc.shapes import bounded, dead_letter, shaped, text_settings, topic_settings
from lanner.errors import ValidationError
from lanner.model import check_name
from lanner.wire.administration import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeGroup,
    DescribeTopic,
    DiscardDead,
    DropGroup,
    ListDead,
    ListGroups,
    ListTopics,
    RedriveDead,
    TopicDescription,
)
from lanner.wire.messages import Offsets


class Administration:
    """What operators ask."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def methods(self) -> Mapping[str, Method]:
        return {
            "ListDeadLetters": unary(shapes.ListDeadLettersRequest, self.list_dead_letters),
            "RedriveDeadLetters": unary(shapes.DeadLetterChoice, self.redrive_dead_letters),
            "DiscardDeadLetters": unary(shapes.DeadLetterChoice, self.discard_dead_letters),
            "CreateTopic": unary(shapes.CreateTopicRequest, self.create_topic),
            "AlterTopic": unary(shapes.AlterTopicRequest, self.alter_topic),
            "DeleteTopic": unary(shapes.DeleteTopicRequest, self.delete_topic),
            "DescribeTopic": unary(shapes.DescribeTopicRequest, self.describe_topic),
            "ListTopics": unary(shapes.ListTopicsRequest, self.list_topics),
            "Offsets": unary(shapes.OffsetsRequest, self.offsets),
            "ListGroups": unary(shapes.ListGroupsRequest, self.list_groups),
            "DescribeGroup": unary(shapes.DescribeGroupRequest, self.describe_group),
            "DropGroup": unary(shapes.DropGroupRequest, self.drop_group),
        }

    # ------------------------------------------------------------------ dead letters

    async def list_dead_letters(
        self, asked: shapes.ListDeadLettersRequest, caller: Caller
    ) -> shapes.ListDeadLettersResponse:
        call = ListDead(
            check_name(asked.topic, "topic"),
            check_name(asked.group, "group"),
            asked.partition if asked.HasField("partition") else None,
            limit=asked.limit or 100,
            after=(asked.after.partition, asked.after.offset) if asked.HasField("after") else None,
        )
        found, bulk, _ = await self._backing.ask_with_bulk(bounded(call))
        letters = [dead_letter(asked.topic, one, data) for one, data in zip(found.letters, bulk, strict=True)]
        response = shapes.ListDeadLettersResponse(letters=letters, total=found.total)
        if found.next is not None:
            partition, offset = found.next
            response.next.CopyFrom(shapes.DeadPlace(partition=partition, offset=offset))
        return response

    async def redrive_dead_letters(self, asked: shapes.DeadLetterChoice, caller: Caller) -> shapes.DeadLetterCount:
        call = RedriveDead(check_name(asked.topic, "topic"), check_name(asked.group, "group"), *_chosen(asked))
        return shapes.DeadLetterCount(count=(await self._backing.ask(bounded(call))).count)

    async def discard_dead_letters(self, asked: shapes.DeadLetterChoice, caller: Caller) -> shapes.DeadLetterCount:
        call = DiscardDead(check_name(asked.topic, "topic"), check_name(asked.group, "group"), *_chosen(asked))
        return shapes.DeadLetterCount(count=(await self._backing.ask(bounded(call))).count)

    # ------------------------------------------------------------------ topics

    async def create_topic(self, asked: shapes.CreateTopicRequest, caller: Caller) -> shapes.Topic:
        call = CreateTopic(check_name(asked.topic, "topic"), dict(topic_settings(asked.settings)))
        return _topic(await self._backing.ask(call))

    async def alter_topic(self, asked: shapes.AlterTopicRequest, caller: Caller) -> shapes.Topic:
        call = AlterTopic(check_name(asked.topic, "topic"), dict(topic_settings(asked.settings)))
        return _topic(await self._backing.ask(call))

    async def delete_topic(self, asked: shapes.DeleteTopicRequest, caller: Caller) -> shapes.DeleteTopicResponse:
        await self._backing.ask(DeleteTopic(check_name(asked.topic, "topic")))
        return shapes.DeleteTopicResponse()

    async def describe_topic(self, asked: shapes.DescribeTopicRequest, caller: Caller) -> shapes.Topic:
        return _topic(await self._backing.ask(DescribeTopic(check_name(asked.topic, "topic"))))

    async def list_topics(self, asked: shapes.ListTopicsRequest, caller: Caller) -> shapes.ListTopicsResponse:
        return shapes.ListTopicsResponse(topics=(await self._backing.ask(ListTopics())).names)

    async def offsets(self, asked: shapes.OffsetsRequest, caller: Caller) -> shapes.OffsetsResponse:
        time_ms = asked.time_ms if asked.HasField("time_ms") else -1
        found = await self._backing.ask(bounded(Offsets(check_name(asked.topic, "topic"), time_ms)))
        return shapes.OffsetsResponse(
            partitions=[
                shaped(shapes.OffsetsOfPartition, one, at_time=None if one.at_time < 0 else one.at_time)
                for one in found.partitions
            ]
        )

    # ------------------------------------------------------------------ groups

    async def list_groups(self, asked: shapes.ListGroupsRequest, caller: Caller) -> shapes.ListGroupsResponse:
        found = await self._backing.ask(ListGroups(check_name(asked.topic, "topic")))
        return shapes.ListGroupsResponse(groups=found.groups)

    async def describe_group(self, asked: shapes.DescribeGroupRequest, caller: Caller) -> shapes.Group:
        call = DescribeGroup(check_name(asked.topic, "topic"), check_name(asked.group, "group"))
        found = await self._backing.ask(call)
        partitions = [shaped(shapes.GroupPartition, part) for part in found.partitions]
        return shaped(shapes.Group, found, partitions=partitions)

    async def drop_group(self, asked: shapes.DropGroupRequest, caller: Caller) -> shapes.DropGroupResponse:
        await self._backing.ask(DropGroup(check_name(asked.topic, "topic"), check_name(asked.group, "group")))
        return shapes.DropGroupResponse()


def _chosen(asked: shapes.DeadLetterChoice) -> tuple[int | None, list[int] | None]:
    """Partition and offsets; either given or plainly meant to be all."""
    partition = asked.partition if asked.HasField("partition") else None
    if bool(asked.offsets) == asked.all:
        raise ValidationError("give the offsets, or say all", field="offsets")
    if asked.offsets and partition is None:
        raise ValidationError("offsets need their partition: give it too", field="partition")
    return partition, list(asked.offsets) or None


def _topic(found: TopicDescription) -> shapes.Topic:
    partitions = [shaped(shapes.Partition, part) for part in found.partitions]
    return shaped(shapes.Topic, found, settings=text_settings(found.settings), partitions=partitions)
