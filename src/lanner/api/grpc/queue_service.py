"""`queue.v1.QueueService`: the eight calls that clients of Queue were compiled for.

What they get is Lanner's: a receive leases, an ack counts for the lease that its consumer was given, and consumers are
members of their group (`queue_members`), each with partitions of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from lanner import limits
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.consumers import Consumers
from lanner.api.grpc.generated.queue.v1 import queue_pb2 as calls
from lanner.api.grpc.generated.types.v1 import types_pb2 as types
from lanner.api.grpc.methods import Caller, Method, sending, streaming, unary
from lanner.api.grpc.queue_ids import Receipt, check_consumer, parse_partition_id, parse_receipt, partition_id
from lanner.api.grpc.queue_members import QueueMembers
from lanner.errors import ConflictError, LeaseLost, TopicNotFound, ValidationError, from_wire
from lanner.forwarding.values import NewMessage
from lanner.model import check_name
from lanner.wire.administration import CreateTopic
from lanner.wire.cluster import BrokerState, ClusterDescription, DescribeCluster, DescribePartitions, PartitionReplicas
from lanner.wire.members import GroupMembers
from lanner.wire.messages import Settle, SettleItem, SettleKind

SERVICE = calls.DESCRIPTOR.services_by_name["QueueService"].full_name


class QueueService:
    """Queue's calls over the broker."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._consumers = Consumers()
        self._members = QueueMembers(backing, self._consumers)

    def methods(self) -> Mapping[str, Method]:
        return {
            "CreateTopic": unary(calls.CreateTopicRequest, self.create_topic),
            "SendMessage": unary(calls.SendMessageRequest, self.send_message),
            "Connect": unary(calls.ConnectRequest, self.connect),
            "ReceiveMessageForPartitionID": sending(calls.ReceiveMessageForPartitionIDRequest, self.receive),
            "AckMessage": unary(calls.AckMessageRequest, self.ack),
            "HealthCheck": streaming(calls.HealthCheckRequest, self.health_check),
            "ShardInfo": unary(calls.ShardInfoRequest, self.shard_info),
            "ManageBrokers": unary(calls.ManageBrokersRequest, self.manage_brokers),
        }

    async def create_topic(self, asked: calls.CreateTopicRequest, caller: Caller) -> calls.CreateTopicResponse:
        name = check_name(asked.topic, "topic")
        for field, value in (
            ("number_of_partitions", asked.number_of_partitions),
            ("replication_factor", asked.replication_factor),
        ):
            if value < 1:
                raise ValidationError(f"{field} is {value}: give 1 or more", field=field)
        settings = {"partitions": asked.number_of_partitions, "replication": asked.replication_factor}
        made = await self._backing.ask(CreateTopic(name, settings))
        return calls.CreateTopicResponse(topic=types.Topic(topic=name, num_of_partitions=len(made.partitions)))

    async def send_message(self, asked: calls.SendMessageRequest, caller: Caller) -> calls.SendMessageResponse:
        topic = check_name(asked.topic, "topic")
        key = asked.partition_key.encode() or None
        if key is not None and len(key) > limits.KEY_BYTES_MAX:
            raise ValidationError(
                f"partition_key has {len(key)} bytes; {limits.KEY_BYTES_MAX} are allowed", field="partition_key"
            )
        (stored,) = await self._backing.publish(topic, [NewMessage(asked.data, key)])
        place = partition_id(topic, stored.partition)
        caller.trail(topic=topic, partition=place)
        return calls.SendMessageResponse(
            message=types.Message(
                topic=topic,
                partition_key=asked.partition_key,
                partition_id=place,
                data=asked.data,
                id=f"{topic}/{stored.partition}/{stored.offset}".encode(),
            )
        )

    async def connect(self, asked: calls.ConnectRequest, caller: Caller) -> calls.ConnectResponse:
        consumer_id, group = check_consumer(asked.consumer_id), check_name(asked.consumer_group, "consumer_group")
        names = list(dict.fromkeys(check_name(name, "topics") for name in asked.topics))
        if not 1 <= len(names) <= limits.LIST_ITEMS_MAX:
            raise ValidationError(
                f"topics names {len(names)} topics: give 1 to {limits.LIST_ITEMS_MAX}", field="topics"
            )
        topics = await self._backing.topics(names)
        consumer = await self._members.connect(consumer_id, group, names, _now_ms())
        found = await self._members.settled(consumer)
        places = [(topic.name, part.id) for topic in topics for part in topic.partitions]
        return calls.ConnectResponse(
            consumer=types.Consumer(
                id=consumer.id,
                partitions=[partition_id(*place) for place in places if consumer.shared or place in consumer.held],
                consumer_group=group,
                topics=names,
                is_active=True,
                last_health_check_at=_timestamp(consumer.heard_ms),
            ),
            consumer_group=self._group(group, found),
        )

    def _group(self, name: str, found: GroupMembers | None) -> types.ConsumerGroup:
        if found is None:
            known = self._consumers.of_group(name)
            members = [(one.id, one.topics) for one in known]
        else:
            members = [(one.client or one.instance or one.member_id, tuple(one.topics)) for one in found.members]
        return types.ConsumerGroup(
            id=name,
            consumers=sorted(member for member, _ in members),
            topics=sorted({topic for _, topics in members for topic in topics}),
        )

    async def receive(self, asked: calls.ReceiveMessageForPartitionIDRequest, caller: Caller) -> None:
        """Lease one message. One that its caller did not get goes back at once, and does not count as delivered."""
        topic, partition = parse_partition_id(asked.partition_id)
        consumer = self._consumers.heard(asked.consumer_id, _now_ms())
        if topic not in consumer.topics:
            raise ConflictError(
                f"consumer {consumer.id} is not connected to topic {topic}: name it in Connect", topic=topic
            )
        handed = await self._members.poll(consumer, topic, partition)
        try:
            caller.trail(topic=topic, partition=asked.partition_id)
            response = calls.ReceiveMessageForPartitionIDResponse()
            for message, token, _ in handed.messages:
                receipt = Receipt(topic, partition, message.offset, token, consumer.group, consumer.id)
                response.message.CopyFrom(
                    types.Message(
                        topic=topic,
                        partition_key=(message.key or b"").decode("utf-8", "replace"),
                        partition_id=asked.partition_id,
                        data=message.value,
                        id=receipt.to_bytes(),
                    )
                )
            await caller.send(response)
        except BaseException:
            if handed.unheard is not None:
                handed.unheard()
            raise

    async def ack(self, asked: calls.AckMessageRequest, caller: Caller) -> calls.AckMessageResponse:
        place = parse_partition_id(asked.partition_id)
        receipt = parse_receipt(asked.message_id)
        if place != (receipt.topic, receipt.partition):
            raise ValidationError(
                f"message_id is of {partition_id(receipt.topic, receipt.partition)}, not of {asked.partition_id}",
                field="partition_id",
            )
        if receipt.consumer != asked.consumer_id:
            raise LeaseLost(
                f"consumer {asked.consumer_id[:80]!r} does not hold this message: {receipt.consumer} received it"
            )
        item = SettleItem(receipt.partition, receipt.token, receipt.offset, 1, int(SettleKind.ACK))
        known = self._consumers.find(asked.consumer_id)  # any broker takes an ack; one that knows the consumer hears it
        member_id = known.member_id if known is not None and known.group == receipt.group else ""
        (result,) = (await self._backing.ask(Settle(receipt.group, receipt.topic, [item], member_id))).items
        if result.code:
            error = from_wire(result.code, "")
            raise type(error)(error.message, topic=receipt.topic, partition=receipt.partition, offset=receipt.offset)
        caller.trail(topic=receipt.topic, partition=asked.partition_id)
        return calls.AckMessageResponse()

    async def health_check(self, pings: AsyncIterator[calls.HealthCheckRequest], caller: Caller) -> None:
        async for ping in pings:
            await self._members.hear(self._consumers.heard(ping.consumer_id, _now_ms()))
            await caller.send(calls.HealthCheckResponse(message="PONG"))

    async def shard_info(self, asked: calls.ShardInfoRequest, caller: Caller) -> calls.ShardInfoResponse:
        wanted = {check_name(name, "topics") for name in asked.topics}
        cluster = await self._backing.ask(DescribeCluster())
        rows = (await self._backing.ask(DescribePartitions())).partitions
        missing = sorted(wanted - {row.topic for row in rows})
        if missing:
            raise TopicNotFound(f"there is no topic {missing[0]}", topic=missing[0])
        brokers = {broker.node_id: _broker(broker) for broker in cluster.brokers}
        leader = brokers.get(cluster.metadata_leader)
        return calls.ShardInfoResponse(
            shard_info={
                partition_id(row.topic, row.partition): self._shard(row, brokers)
                for row in rows
                if not wanted or row.topic in wanted
            },
            brokers=list(brokers.values()),
            leader=leader,
        )

    def _shard(self, row: PartitionReplicas, brokers: Mapping[str, types.Broker]) -> types.ShardInfo:
        """Any broker takes any request. So the one that answers, which knows the consumer that asks, stands first."""
        holders = sorted(row.replicas, key=lambda replica: replica.node_id != row.leader)
        order = dict.fromkeys([self._backing.node_id, *(replica.node_id for replica in holders)])
        return types.ShardInfo(
            shard_type=types.SHARD_TYPE_PARTITIONS,
            shard_id=row.set_id,
            topic=row.topic,
            partition_id=partition_id(row.topic, row.partition),
            brokers=[brokers[node_id] for node_id in order if node_id in brokers],
        )

    async def manage_brokers(self, asked: calls.ManageBrokersRequest, caller: Caller) -> calls.ManageBrokersResponse:
        """A broker enters a cluster by itself. So ADD confirms one that has, and says of another how it does."""
        if asked.action != calls.ManageBrokersRequest.ACTION_ADD:
            raise ValidationError(f"action is {asked.action}: only ADD (1) is known", field="action")
        address = asked.broker_action.raft_address
        if not 1 <= len(address) <= limits.ADDRESS_LENGTH_MAX:
            raise ValidationError("raft_address is missing: give HOST:PORT", field="broker_action.raft_address")
        cluster = await self._backing.ask(DescribeCluster())
        if not any(broker.addresses.get("native") == address for broker in cluster.brokers):
            raise ConflictError(
                f"no broker of this cluster is at {address}: start it there with `lanner up --join "
                f"{_entrance(cluster)}`, and it enters by itself",
                address=address,
            )
        return calls.ManageBrokersResponse()


def _entrance(cluster: ClusterDescription) -> str:
    return next((broker.addresses["native"] for broker in cluster.brokers if "native" in broker.addresses), "HOST:PORT")


def _broker(broker: BrokerState) -> types.Broker:
    return types.Broker(
        id=int(broker.node_id[:16], 16),
        raft_address=broker.addresses.get("native", ""),
        reach_grpc_address=broker.addresses.get("grpc", ""),
        reach_http_address=broker.addresses.get("http", ""),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _timestamp(time_ms: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(time_ms)
    return stamp
