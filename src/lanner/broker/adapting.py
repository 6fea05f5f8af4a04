"""Calls as today's methods of the service and the forwarder: goes as the desks take the structs themselves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lanner.broker.desks import calls
from lanner.calls import Answer
from lanner.errors import LannerError
from lanner.wire import administration, cluster, dead, messages, staging
from lanner.wire.messages import Call, Control

if TYPE_CHECKING:
    from lanner.broker.desks.calls import Identity
    from lanner.broker.service import Service


_CONFIRMED: Final[Answer[Any]] = Answer(messages.Empty())


async def metadata(service: Service, identity: Identity, asked: messages.Metadata) -> Answer[Any]:
    named = asked.topics is not None
    names = await service.topics(identity) if asked.topics is None else asked.topics
    await service.look_up(names)
    topics = []
    for name in names:
        try:
            if asked.create and named:
                await service.ensure_topic(identity, name)
            topic = service.topic_route(identity, name)
        except LannerError as error:
            topics.append(messages.TopicInfo(name, 0, [], error=error.code))
            continue
        partitions = [messages.PartitionInfo(part.id, part.leader, list(part.replicas)) for part in topic.partitions]
        # Settings go only to those who ask by name: ten thousand topics must fit into one frame.
        settings = dict(topic.settings) if named else {}
        topics.append(messages.TopicInfo(name, topic.incarnation, partitions, settings))
    brokers = [
        messages.BrokerInfo(broker.node_id, broker.host, broker.port, broker.name, broker.rack, broker.http)
        for broker in service.broker_routes(identity)
    ]
    return Answer(messages.MetadataReply(service.cluster_id, brokers, topics, service.metadata_index))


async def open_producer(service: Service, identity: Identity, asked: messages.OpenProducer) -> Answer[Any]:
    return Answer(messages.ProducerOpened(*await service.open_producer(identity)))


async def fetch(service: Service, identity: Identity, asked: messages.Fetch) -> Answer[Any]:
    found = await service.fetch(
        identity,
        asked.topic,
        asked.partition,
        asked.offset,
        asked.max_bytes,
        asked.wait_ms,
        asked.incarnation,
        asked.lanes,
        asked.follower,
    )
    batches = [messages.FetchedBatch(*item[:3], len(item.data)) for item in found.batches]
    control = messages.Fetched(
        found.first_offset,
        found.end_offset,
        found.next_offset,
        batches,
        incarnation=found.incarnation,
        damaged=list(found.damaged),
        lanes=found.lanes,
        holes=list(found.holes),
        follower=found.follower,
        time_ms=found.time_ms,
    )
    return Answer(control, [item.data for item in found.batches])


def polled(found: calls.PollResult) -> Answer[Any]:
    batches = [
        messages.PolledBatch(
            *item[:6], size=len(item.data), ranges=[messages.LeasedRange(*part) for part in item.ranges]
        )
        for item in found.batches
    ]
    return Answer(messages.Polled(batches, found.limited, found.priority), [item.data for item in found.batches])


async def glance(service: Service, identity: Identity, asked: messages.Glance) -> Answer[Any]:
    priority = await service.glance(identity, asked.topic, asked.group, asked.partitions, asked.wait_ms, asked.start)
    return Answer(messages.Glanced(priority))


def settle_items(items: Sequence[messages.SettleItem]) -> list[calls.SettleItem]:
    return [
        calls.SettleItem(
            item.partition, item.token, item.first_offset, item.count, item.kind, item.delay_ms, item.reason
        )
        for item in items
    ]


def settled(results: Sequence[calls.SettleResult]) -> messages.Settled:
    return messages.Settled([messages.SettledItem(*result) for result in results])


async def settle(service: Service, identity: Identity, asked: messages.Settle) -> Answer[Any]:
    return Answer(settled(await service.settle(identity, asked.topic, asked.group, settle_items(asked.items))))


async def release(service: Service, identity: Identity, asked: messages.Release) -> Answer[Any]:
    return Answer(settled(await service.release(identity, asked.topic, asked.group, settle_items(asked.items))))


async def peek(service: Service, identity: Identity, asked: messages.Peek) -> Answer[Any]:
    found = await service.peek(
        identity, asked.topic, _partitions(asked), asked.offset, asked.max_messages, asked.max_bytes, asked.after
    )
    shown = [
        messages.PeekedMessage(
            message.partition,
            message.offset,
            message.timestamp_ms,
            message.priority,
            message.value,
            message.key,
            dict(message.headers),
            message.producer_timestamp_ms,
            message.deliver_at_ms,
            message.expires_at_ms,
        )
        for message in found
    ]
    return Answer(messages.Peeked(shown, found.next))


async def commit(service: Service, identity: Identity, asked: messages.Commit) -> Answer[Any]:
    await service.commit(identity, asked.topic, asked.group, asked.offsets, asked.reader, asked.sequence, asked.known)
    return _CONFIRMED


async def committed(service: Service, identity: Identity, asked: messages.Committed) -> Answer[Any]:
    offsets = await service.committed(identity, asked.topic, asked.group, asked.partitions)
    return Answer(messages.CommittedReply(offsets))


async def offsets(service: Service, identity: Identity, asked: messages.Offsets) -> Answer[Any]:
    counting = calls.ByteCount(asked.starts, asked.max_bytes, asked.lanes) if asked.starts is not None else None
    incarnation, found = await service.offsets(identity, asked.topic, asked.time_ms, asked.partitions, counting)
    return Answer(messages.OffsetsReply([messages.PartitionOffsets(*item) for item in found], incarnation))


async def create_topic(service: Service, identity: Identity, asked: administration.CreateTopic) -> Answer[Any]:
    return _description(await service.create_topic(identity, asked.name, asked.settings, asked.create_id))


async def alter_topic(service: Service, identity: Identity, asked: administration.AlterTopic) -> Answer[Any]:
    return _description(await service.alter_topic(identity, asked.name, asked.settings))


async def delete_topic(service: Service, identity: Identity, asked: administration.DeleteTopic) -> Answer[Any]:
    await service.delete_topic(identity, asked.name)
    return _CONFIRMED


async def describe_topic(service: Service, identity: Identity, asked: administration.DescribeTopic) -> Answer[Any]:
    return _description(await service.topic(identity, asked.name, asked.partitions))


def _description(topic: calls.TopicResult) -> Answer[Any]:
    partitions = [
        administration.PartitionState(
            *part[:7], depth=dict(part.depth), holds=[administration.HoldState(*hold) for hold in part.holds]
        )
        for part in topic.partitions
    ]
    return Answer(administration.TopicDescription(topic.name, topic.incarnation, dict(topic.settings), partitions))


async def list_groups(service: Service, identity: Identity, asked: administration.ListGroups) -> Answer[Any]:
    return Answer(administration.GroupsReply(await service.groups(identity, asked.name, asked.partitions)))


async def describe_group(service: Service, identity: Identity, asked: administration.DescribeGroup) -> Answer[Any]:
    found = await service.group(identity, asked.topic, asked.group, asked.partitions)
    now_ms = time.time_ns() // 1_000_000
    partitions = [
        administration.GroupPartition(
            *part[:7],
            depth=dict(part.depth),
            oldest_ms=part.oldest_ms,
            oldest_age_ms=calls.age_ms(part.oldest_ms, now_ms),
        )
        for part in found.partitions
    ]
    return Answer(administration.GroupDescription(found.topic, found.group, found.kind, partitions))


async def drop_group(service: Service, identity: Identity, asked: administration.DropGroup) -> Answer[Any]:
    await service.drop_group(identity, asked.topic, asked.group, asked.partitions)
    return _CONFIRMED


async def seek(service: Service, identity: Identity, asked: administration.Seek) -> Answer[Any]:
    await service.seek(
        identity,
        asked.topic,
        asked.group,
        offsets=asked.offsets,
        time_ms=asked.time_ms,
        to=asked.to,
        partitions=asked.partitions,
    )
    return _CONFIRMED


async def list_dead(service: Service, identity: Identity, asked: administration.ListDead) -> Answer[Any]:
    found = await service.dead_letters(
        identity, asked.topic, asked.group, _partitions(asked), asked.start_offset, asked.limit, asked.after
    )
    letters = [administration.DeadLetter(*letter[:7], size=len(letter.data)) for letter in found.letters]
    return Answer(
        administration.DeadLetters(letters, found.total, found.next), [letter.data for letter in found.letters]
    )


async def fetch_dead(service: Service, identity: Identity, asked: dead.FetchDead) -> Answer[Any]:
    return Answer(*await service.fetch_dead(identity, asked))


async def redrive(service: Service, identity: Identity, asked: administration.RedriveDead) -> Answer[Any]:
    count = await service.redrive(identity, asked.topic, asked.group, _partitions(asked), asked.offsets)
    return Answer(administration.CountReply(count))


async def discard(service: Service, identity: Identity, asked: administration.DiscardDead) -> Answer[Any]:
    count = await service.discard(identity, asked.topic, asked.group, _partitions(asked), asked.offsets)
    return Answer(administration.CountReply(count))


def _partitions(
    asked: messages.Peek | administration.ListDead | administration.RedriveDead | administration.DiscardDead,
) -> Sequence[int] | None:
    """One partition, or several that the asker knows to be led here; None: all."""
    return asked.partitions if asked.partition is None else [asked.partition]


async def describe_cluster(service: Service, identity: Identity, asked: cluster.DescribeCluster) -> Answer[Any]:
    found = await service.describe_cluster(identity)
    brokers = [
        cluster.BrokerState(
            row.name,
            row.node_id,
            row.rack,
            row.state,
            dict(row.addresses),
            row.replicas,
            row.leads,
            row.should_lead,
            row.metadata,
            row.alive,
            _plan(row.drain),
            None if row.scrub is None else cluster.ScrubProgress(*row.scrub),
        )
        for row in found.brokers
    ]
    plans = [cluster.PlanProgress(*plan) for plan in found.plans]
    return Answer(
        cluster.ClusterDescription(
            *found[:7], brokers, plans, found.time_ahead_ms, found.feature_level_possible, list(found.behind)
        )
    )


async def describe_partitions(service: Service, identity: Identity, asked: cluster.DescribePartitions) -> Answer[Any]:
    rows = await service.describe_partitions(identity, asked.topic)
    partitions = [
        cluster.PartitionReplicas(*row[:5], replicas=[cluster.ReplicaState(*replica) for replica in row.replicas])
        for row in rows
    ]
    return Answer(cluster.PartitionsDescription(partitions))


async def change_cluster(service: Service, identity: Identity, asked: cluster.ChangeCluster) -> Answer[Any]:
    plan = await service.change_cluster(
        identity,
        asked.action,
        broker=asked.broker,
        target=asked.target,
        topic=asked.topic,
        partition=asked.partition,
        plan_id=asked.plan_id,
    )
    return Answer(cluster.ClusterChanged(_plan(plan)))


def _plan(plan: calls.PlanResult | None) -> cluster.PlanProgress | None:
    return None if plan is None else cluster.PlanProgress(*plan)


async def raft_status(service: Service, identity: Identity, asked: cluster.RaftStatus) -> Answer[Any]:
    return Answer(
        cluster.RaftStatusReply(await service.raft_status(identity, asked.topic, asked.partition, asked.node_id))
    )


async def scrub(service: Service, identity: Identity, asked: cluster.Scrub) -> Answer[Any]:
    return Answer(cluster.ScrubProgress(*await service.scrub(identity, asked.start)))


def plain(
    serve: Callable[[Any, Identity, Any], Awaitable[Control]],
) -> Callable[[Any, Identity, Any], Awaitable[Answer[Any]]]:
    """A call that takes the request and gives the answer as they travel."""

    async def call(service: Any, identity: Identity, asked: Any) -> Answer[Any]:
        return Answer(await serve(service, identity, asked))

    return call


async def publish(service: Any, identity: Identity, asked: messages.Publish, data: bytes | memoryview) -> Answer[Any]:
    found = await service.publish(identity, asked.topic, asked.partition, data, asked.incarnation)
    return Answer(messages.Published(found.base_offset, found.append_ms, found.count, found.duplicate))


async def poll(service: Service, identity: Identity, asked: messages.Poll) -> Answer[Any]:
    fields = {name: getattr(asked, name) for name in asked.__struct_fields__ if name != "settles"}
    return polled(await service.poll(identity, **fields))


CALLS: Final[Mapping[type[Call[Any]], Callable[[Any, Identity, Any], Awaitable[Answer[Any]]]]] = {
    messages.Metadata: metadata,
    messages.OpenProducer: open_producer,
    messages.Fetch: fetch,
    messages.Poll: poll,
    messages.Settle: settle,
    messages.Release: release,
    messages.Peek: peek,
    messages.Glance: glance,
    messages.Commit: commit,
    messages.Committed: committed,
    messages.Offsets: offsets,
    administration.CreateTopic: create_topic,
    administration.AlterTopic: alter_topic,
    administration.DeleteTopic: delete_topic,
    administration.DescribeTopic: describe_topic,
    administration.ListGroups: list_groups,
    administration.DescribeGroup: describe_group,
    administration.DropGroup: drop_group,
    administration.Seek: seek,
    administration.ListDead: list_dead,
    dead.FetchDead: fetch_dead,
    administration.RedriveDead: redrive,
    administration.DiscardDead: discard,
    cluster.DescribeCluster: describe_cluster,
    cluster.DescribePartitions: describe_partitions,
    cluster.ChangeCluster: change_cluster,
    cluster.RaftStatus: raft_status,
    cluster.Scrub: scrub,
    staging.Prepare: plain(lambda service, identity, asked: service.prepare(identity, asked)),
    staging.DiscardStages: plain(lambda service, identity, asked: service.discard_stages(identity, asked)),
    staging.Begin: plain(lambda service, identity, asked: service.begin(identity, asked)),
    staging.End: plain(lambda service, identity, asked: service.end(identity, asked)),
    staging.Look: plain(lambda service, identity, asked: service.look(identity, asked)),
    staging.Claim: plain(lambda service, identity, asked: service.claim(identity, asked)),
    staging.ListTransactions: plain(lambda service, identity, asked: service.list_transactions(identity, asked)),
    staging.Forget: plain(lambda service, identity, asked: service.forget(identity, asked)),
}
