"""Queue's other calls over a broker that is only a script: what they ask for, what they answer, what they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lanner import limits
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.queue.v1 import queue_pb2 as calls
from lanner.api.grpc.queue_ids import Receipt
from lanner.api.grpc.queue_service import QueueService
from lanner.errors import ConflictError, LannerError, LeaseLost, NotFoundError, TopicNotFound, ValidationError
from lanner.forwarding.values import NewMessage, Stored
from lanner.wire.administration import CreateTopic, PartitionState, TopicDescription
from lanner.wire.cluster import BrokerState, ClusterDescription, PartitionReplicas, PartitionsDescription, ReplicaState
from lanner.wire.messages import Settle, Settled, SettledItem
from tests.unit.api.grpc.scripted import Script, ScriptedCaller

NODES = ("00000000000000a1" + "0" * 16, "00000000000000b2" + "0" * 16)
RECEIPT = Receipt("orders", 0, 5, 7, "g", "c").to_bytes()


def broker_state(at: int, **addresses: str) -> BrokerState:
    return BrokerState(f"b{at}", NODES[at], "", "active", addresses, 1, 1, 1, "voter", True)


CLUSTER = ClusterDescription(
    "c",
    NODES[1],
    5,
    1,
    1,
    2,
    0,
    [broker_state(0), broker_state(1, native="h:7400", grpc="h:8000", http="h:8080")],
)
REPLICAS = [ReplicaState(at + 1, node, f"b{at}", "voter", at == 1, at == 1, 0) for at, node in enumerate(NODES)]
ROWS = PartitionsDescription(
    [
        PartitionReplicas(3, "orders", 0, NODES[1], 2, REPLICAS),
        PartitionReplicas(4, "refunds", 0, "", 1, []),
    ]
)


class Scripted(Script):
    """A broker that takes messages too."""

    async def publish_messages(self, identity: object, topic: str, messages: list[NewMessage]) -> list[Stored]:
        self.asked.append((topic, messages))
        return [Stored(2, 9, 1, False)]


def service(**answers: Any) -> tuple[Scripted, QueueService, Any]:
    script = Scripted(**answers)
    broker: Any = script
    return script, QueueService(Backing(broker)), ScriptedCaller()


async def test_a_topic_is_made_as_large_as_it_was_asked_for() -> None:
    partitions = [PartitionState(number, "n", 0, 0, 0, 0, 0) for number in range(3)]
    script, queue, caller = service(CreateTopic=TopicDescription("orders", 1, {}, partitions))
    made = await queue.create_topic(
        calls.CreateTopicRequest(topic="orders", number_of_partitions=3, replication_factor=1), caller
    )
    assert (made.topic.topic, made.topic.num_of_partitions) == ("orders", 3)
    assert script.asked == [CreateTopic("orders", {"partitions": 3, "replication": 1})]


async def test_a_message_is_published_under_its_key_and_told_where_it_went() -> None:
    script, queue, caller = service()
    sent = await queue.send_message(calls.SendMessageRequest(topic="orders", partition_key="k", data=b"v"), caller)
    assert (sent.message.partition_id, sent.message.id) == ("orders-2", b"orders/2/9")
    await queue.send_message(calls.SendMessageRequest(topic="orders", data=b"v"), caller)
    assert [messages[0].key for _, messages in script.asked] == [b"k", None]


REFUSED: list[tuple[str, Any, type[LannerError], str]] = [
    ("create_topic", calls.CreateTopicRequest(topic="orders"), ValidationError, "number_of_partitions is 0"),
    (
        "create_topic",
        calls.CreateTopicRequest(topic="orders", number_of_partitions=1),
        ValidationError,
        "replication_factor is 0",
    ),
    ("create_topic", calls.CreateTopicRequest(topic="no way"), ValidationError, "not valid"),
    (
        "send_message",
        calls.SendMessageRequest(topic="orders", partition_key="k" * (limits.KEY_BYTES_MAX + 1)),
        ValidationError,
        "partition_key has",
    ),
    ("connect", calls.ConnectRequest(consumer_id="c", consumer_group="g"), ValidationError, "topics names 0 topics"),
    ("connect", calls.ConnectRequest(consumer_group="g", topics=["orders"]), ValidationError, "consumer_id"),
    (
        "receive",
        calls.ReceiveMessageForPartitionIDRequest(consumer_id="c", partition_id="orders-0"),
        NotFoundError,
        "call Connect here first",
    ),
    (
        "ack",
        calls.AckMessageRequest(consumer_id="c", partition_id="orders-1", message_id=RECEIPT),
        ValidationError,
        "message_id is of orders-0, not of orders-1",
    ),
    (
        "ack",
        calls.AckMessageRequest(consumer_id="d", partition_id="orders-0", message_id=RECEIPT),
        LeaseLost,
        "does not hold this message",
    ),
    (
        "ack",
        calls.AckMessageRequest(consumer_id="c", partition_id="orders-0", message_id=RECEIPT),
        LeaseLost,
        "lease",
    ),
    ("shard_info", calls.ShardInfoRequest(topics=["nowhere", "orders"]), TopicNotFound, "there is no topic nowhere"),
    ("manage_brokers", calls.ManageBrokersRequest(), ValidationError, "only ADD"),
    (
        "manage_brokers",
        calls.ManageBrokersRequest(action=calls.ManageBrokersRequest.ACTION_ADD),
        ValidationError,
        "raft_address is missing",
    ),
    (
        "manage_brokers",
        calls.ManageBrokersRequest(
            action=calls.ManageBrokersRequest.ACTION_ADD, broker_action={"raft_address": "h:9999"}
        ),
        ConflictError,
        "lanner up --join h:7400",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
async def test_what_cannot_be_done_is_refused_by_name(case: int) -> None:
    method, asked, error, why = REFUSED[case]
    lost = Settled([SettledItem(LeaseLost.code, 0)])
    _, queue, caller = service(DescribeCluster=CLUSTER, DescribePartitions=ROWS, Settle=lost)
    with pytest.raises(error, match=why):
        await getattr(queue, method)(asked, caller)


async def test_an_ack_settles_the_message_that_its_receipt_names_on_any_broker() -> None:
    script, queue, caller = service(Settle=Settled([SettledItem(0, 1)]))
    await queue.ack(calls.AckMessageRequest(consumer_id="c", partition_id="orders-0", message_id=RECEIPT), caller)
    (asked,) = script.calls(Settle)
    assert (asked.group, asked.topic, asked.member_id) == ("g", "orders", "")
    (item,) = asked.items
    assert (item.partition, item.token, item.first_offset, item.count) == (0, 7, 5, 1)


async def test_the_broker_that_answers_stands_first_among_those_that_serve_a_partition() -> None:
    script, queue, caller = service(DescribeCluster=CLUSTER, DescribePartitions=ROWS)
    script.node_id = NODES[0]
    found = await queue.shard_info(calls.ShardInfoRequest(topics=["orders"]), caller)
    assert set(found.shard_info) == {"orders-0"}
    assert [one.id for one in found.shard_info["orders-0"].brokers] == [0xA1, 0xB2]
    assert (found.leader.id, found.leader.raft_address) == (0xB2, "h:7400")
    script.node_id = NODES[1]
    found = await queue.shard_info(calls.ShardInfoRequest(), caller)
    assert set(found.shard_info) == {"orders-0", "refunds-0"}
    assert [one.id for one in found.shard_info["orders-0"].brokers] == [0xB2, 0xA1]


async def test_a_broker_that_entered_by_itself_is_confirmed() -> None:
    _, queue, caller = service(DescribeCluster=CLUSTER)
    request = calls.ManageBrokersRequest(
        action=calls.ManageBrokersRequest.ACTION_ADD, broker_action={"raft_address": "h:7400"}
    )
    assert await queue.manage_brokers(request, caller) == calls.ManageBrokersResponse()


async def test_a_ping_of_a_consumer_that_is_not_connected_ends_the_stream() -> None:
    async def pings() -> AsyncIterator[calls.HealthCheckRequest]:
        yield calls.HealthCheckRequest(consumer_id="c")

    _, queue, caller = service()
    with pytest.raises(NotFoundError, match="call Connect here first"):
        await queue.health_check(pings(), caller)
    assert caller.sent == []
