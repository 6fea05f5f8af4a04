"""Queue's service over gRPC, with a client compiled from Queue's names and numbers that knows nothing of Lanner.

One broker, and three with every call through a broker that does not lead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.testing.proxy_process import ProxyProcess
from tests.grpc_client import Service, error_of

HERE = Path(__file__).parent


def client_of(channel: grpc.Channel) -> Service:
    return Service(channel, HERE, "queue_client.proto", "queue.v1.QueueService")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, place: str) -> Iterator[BrokerProcess]:
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}"}
    with BrokerProcess(tmp_path_factory.mktemp("grpc") / "data", settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
def channel(broker: BrokerProcess, proxy: ProxyProcess | None) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.settings["grpc"] if proxy is None else proxy.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def queue(channel: grpc.Channel) -> Service:
    return client_of(channel)


def refused(call: Callable[..., Any], **fields: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(**fields)
    return error_of(caught.value)


def refused_in_the_end(call: Callable[[], Any], seconds: float = 10.0) -> tuple[str, str]:
    """The error of a call that succeeds until the broker has heard why it must not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            call()
        except grpc.RpcError as error:
            return error_of(error)
    raise AssertionError("it was never refused")


def receive_all(queue: Service, consumer: str, partitions: list[str], count: int) -> list[Any]:
    """Messages of these partitions, received one by one until there are so many."""
    found: list[Any] = []
    while len(found) < count:
        for partition in partitions:
            answer = queue.ReceiveMessageForPartitionID(consumer_id=consumer, partition_id=partition)
            if answer.HasField("message"):
                found.append(answer.message)
    return found


def test_a_client_of_queue_does_all_it_did(queue: Service) -> None:
    made = queue.CreateTopic(topic="orders", number_of_partitions=2, replication_factor=1)
    assert (made.topic.topic, made.topic.num_of_partitions) == ("orders", 2)
    connected = queue.Connect(consumer_id="c1", consumer_group="billing", topics=["orders"])
    consumer = connected.consumer
    assert (consumer.id, consumer.consumer_group, consumer.is_active) == ("c1", "billing", True)
    assert sorted(consumer.partitions) == ["orders-0", "orders-1"]
    assert list(consumer.topics) == ["orders"]
    assert abs(consumer.last_health_check_at.ToMilliseconds() / 1_000 - time.time()) < 60
    assert connected.consumer_group.id == "billing"
    assert list(connected.consumer_group.consumers) == ["c1"]
    sent = {}
    for number in range(6):
        data = b"message %d" % number
        answer, call = queue.SendMessage.with_call(topic="orders", data=data, partition_key=str(number))
        assert (answer.message.topic, answer.message.data) == ("orders", data)
        assert answer.message.partition_key == str(number)
        trailers = dict(call.trailing_metadata())
        assert (trailers["topic"], trailers["partition"]) == ("orders", answer.message.partition_id)
        sent[data] = answer.message
    received = receive_all(queue, "c1", list(consumer.partitions), 6)
    assert sorted(message.data for message in received) == sorted(sent)
    for message in received:
        twin = sent[message.data]
        assert (message.partition_id, message.partition_key) == (twin.partition_id, twin.partition_key)
        assert message.id.startswith(twin.id)
        queue.AckMessage(consumer_id="c1", partition_id=message.partition_id, message_id=message.id)
    for partition in consumer.partitions:
        answer = queue.ReceiveMessageForPartitionID(consumer_id="c1", partition_id=partition)
        assert not answer.HasField("message")
    pings = [{"consumer_id": "c1"}, {"consumer_id": "c1"}]
    assert [pong.message for pong in queue.HealthCheck(pings, timeout=10)] == ["PONG", "PONG"]


def test_shard_info_tells_where_partitions_and_brokers_are(queue: Service, broker: BrokerProcess) -> None:
    queue.CreateTopic(topic="mapped", number_of_partitions=2, replication_factor=1)
    found = queue.ShardInfo(topics=["mapped"])
    assert sorted(found.shard_info) == ["mapped-0", "mapped-1"]
    shard = found.shard_info["mapped-1"]
    assert (shard.topic, shard.partition_id, shard.shard_type) == ("mapped", "mapped-1", 2)
    assert [one.reach_grpc_address for one in shard.brokers] == [broker.settings["grpc"]]
    (known,) = found.brokers
    assert known.raft_address == broker.native
    assert known.reach_http_address == f"{HOST}:{broker.http_port}"
    assert found.leader.id == known.id != 0
    queue.ManageBrokers(action=1, broker_action={"replica_id": 1, "raft_address": broker.native})


def test_an_ack_counts_for_the_lease_of_its_consumer_only(queue: Service) -> None:
    queue.CreateTopic(topic="held", number_of_partitions=1, replication_factor=1)
    queue.Connect(consumer_id="a", consumer_group="workers", topics=["held"])
    queue.Connect(consumer_id="b", consumer_group="others", topics=["held"])
    sent = [queue.SendMessage(topic="held", data=b"%d" % number).message for number in range(4)]
    (first,) = receive_all(queue, "a", ["held-0"], 1)
    (second,) = receive_all(queue, "b", ["held-0"], 1)
    assert (first.data, second.data) == (b"0", b"0")

    def ack(consumer: str, message_id: bytes, partition: str = "held-0") -> tuple[str, str]:
        return refused(queue.AckMessage, consumer_id=consumer, partition_id=partition, message_id=message_id)

    assert ack("b", first.id) == ("FAILED_PRECONDITION", "LeaseLost")
    assert ack("a", sent[3].id) == ("INVALID_ARGUMENT", "ValidationError")  # never received: skips nothing
    assert ack("a", first.id.replace(b"/0/0#", b"/0/2#")) == ("FAILED_PRECONDITION", "LeaseLost")
    assert ack("a", b"99") == ("INVALID_ARGUMENT", "ValidationError")
    assert ack("a", first.id, "held-1") == ("INVALID_ARGUMENT", "ValidationError")
    queue.AckMessage(consumer_id="a", partition_id="held-0", message_id=first.id)
    queue.AckMessage(consumer_id="a", partition_id="held-0", message_id=first.id)  # asked again: the first answer again
    rest = receive_all(queue, "a", ["held-0"], 3)
    assert [message.data for message in rest] == [b"1", b"2", b"3"]


# ------------------------------------------------------------------ consumers are members


def partitions_of(queue: Service, consumer: str, group: str, topic: str) -> list[str]:
    """What a consumer has; asked again, what it has now."""
    return sorted(queue.Connect(consumer_id=consumer, consumer_group=group, topics=[topic]).consumer.partitions)


def test_a_second_consumer_gets_its_share_and_the_first_hears_of_it(queue: Service) -> None:
    queue.CreateTopic(topic="split", number_of_partitions=4, replication_factor=1)
    every = [f"split-{number}" for number in range(4)]
    assert partitions_of(queue, "a", "shares", "split") == every
    second = queue.Connect(consumer_id="b", consumer_group="shares", topics=["split"])
    hers = sorted(second.consumer.partitions)
    assert len(hers) == 2
    assert list(second.consumer_group.consumers) == ["a", "b"]
    told = refused(queue.ReceiveMessageForPartitionID, consumer_id="a", partition_id=hers[0])
    assert told == ("FAILED_PRECONDITION", "MemberFenced")
    his = partitions_of(queue, "a", "shares", "split")
    assert sorted([*his, *hers]) == every
    for number in range(20):
        queue.SendMessage(topic="split", data=b"%d" % number, partition_key=str(number))
    received: list[int] = []
    while len(received) < 20:
        for consumer, mine in (("a", his), ("b", hers)):
            for partition in mine:
                got = queue.ReceiveMessageForPartitionID(consumer_id=consumer, partition_id=partition)
                if got.HasField("message"):
                    received.append(int(got.message.data))
                    queue.AckMessage(consumer_id=consumer, partition_id=partition, message_id=got.message.id)
    assert sorted(received) == list(range(20))
    for consumer in "cde":
        partitions_of(queue, consumer, "shares", "split")
    shares = [partitions_of(queue, consumer, "shares", "split") for consumer in "abcde"]
    assert sorted(partition for share in shares for partition in share) == every
    assert sorted(map(len, shares)) == [0, 1, 1, 1, 1]  # the fifth stands by


@pytest.mark.parametrize("place", ["broker"], indirect=True)
@pytest.mark.slow
def test_a_consumer_that_is_silent_for_30_seconds_is_lost_and_its_partitions_move(queue: Service) -> None:
    queue.CreateTopic(topic="quiet", number_of_partitions=2, replication_factor=1)
    partitions_of(queue, "silent", "watched", "quiet")
    assert len(partitions_of(queue, "alive", "watched", "quiet")) == 1
    ends, pause = time.monotonic() + 120, threading.Event()
    mine: list[str] = []
    while len(mine) < 2:
        assert time.monotonic() < ends
        assert [pong.message for pong in queue.HealthCheck([{"consumer_id": "alive"}], timeout=10)] == ["PONG"]
        connected = queue.Connect(consumer_id="alive", consumer_group="watched", topics=["quiet"])
        mine = sorted(connected.consumer.partitions)
        pause.wait(0.5)
    assert mine == ["quiet-0", "quiet-1"]
    assert list(connected.consumer_group.consumers) == ["alive"]
    with pytest.raises(grpc.RpcError) as caught:
        list(queue.HealthCheck([{"consumer_id": "silent"}], timeout=10))
    assert error_of(caught.value) == ("NOT_FOUND", "MemberUnknown")
    assert len(partitions_of(queue, "silent", "watched", "quiet")) == 1  # it may come back


@pytest.mark.parametrize(
    ("method", "fields", "code", "name"),
    [
        ("CreateTopic", {}, "INVALID_ARGUMENT", "ValidationError"),
        ("CreateTopic", {"topic": "a/b", "number_of_partitions": 1}, "INVALID_ARGUMENT", "ValidationError"),
        ("CreateTopic", {"topic": "none", "replication_factor": 1}, "INVALID_ARGUMENT", "ValidationError"),
        ("CreateTopic", {"topic": "none", "number_of_partitions": 1}, "INVALID_ARGUMENT", "ValidationError"),
        (
            "CreateTopic",
            {"topic": "none", "number_of_partitions": 2**64 - 1, "replication_factor": 1},
            "INVALID_ARGUMENT",
            "ValidationError",
        ),
        (
            "CreateTopic",
            {"topic": "none", "number_of_partitions": 1, "replication_factor": 3},
            "FAILED_PRECONDITION",
            "ConflictError",
        ),
        (
            "CreateTopic",
            {"topic": "taken", "number_of_partitions": 1, "replication_factor": 1},
            "ALREADY_EXISTS",
            "TopicExists",
        ),
        ("SendMessage", {"topic": "none", "data": b"x"}, "NOT_FOUND", "TopicNotFound"),
        ("SendMessage", {"topic": "..", "data": b"x"}, "INVALID_ARGUMENT", "ValidationError"),
        ("SendMessage", {"topic": "taken", "data": b"x" * (1 << 20) + b"x"}, "INVALID_ARGUMENT", "MessageTooLarge"),
        (
            "SendMessage",
            {"topic": "taken", "partition_key": "k" * 70_000},
            "INVALID_ARGUMENT",
            "ValidationError",
        ),
        ("Connect", {"consumer_id": "c", "consumer_group": "g"}, "INVALID_ARGUMENT", "ValidationError"),
        ("Connect", {"consumer_id": "c", "topics": ["taken"]}, "INVALID_ARGUMENT", "ValidationError"),
        ("Connect", {"consumer_group": "g", "topics": ["taken"]}, "INVALID_ARGUMENT", "ValidationError"),
        (
            "Connect",
            {"consumer_id": "c" * 201, "consumer_group": "g", "topics": ["taken"]},
            "INVALID_ARGUMENT",
            "ValidationError",
        ),
        (
            "Connect",
            {"consumer_id": "c", "consumer_group": "g", "topics": ["taken", "none"]},
            "NOT_FOUND",
            "TopicNotFound",
        ),
        (
            "ReceiveMessageForPartitionID",
            {"consumer_id": "stranger", "partition_id": "taken-0"},
            "NOT_FOUND",
            "NotFoundError",
        ),
        (
            "ReceiveMessageForPartitionID",
            {"consumer_id": "known", "partition_id": "taken"},
            "INVALID_ARGUMENT",
            "ValidationError",
        ),
        (
            "ReceiveMessageForPartitionID",
            {"consumer_id": "known", "partition_id": "taken-7"},
            "NOT_FOUND",
            "PartitionNotFound",
        ),
        (
            "ReceiveMessageForPartitionID",
            {"consumer_id": "known", "partition_id": "taken-9999999999999999"},
            "NOT_FOUND",
            "PartitionNotFound",
        ),
        (
            "ReceiveMessageForPartitionID",
            {"consumer_id": "known", "partition_id": "other-0"},
            "FAILED_PRECONDITION",
            "ConflictError",
        ),
        ("AckMessage", {}, "INVALID_ARGUMENT", "ValidationError"),
        (
            "AckMessage",
            {"consumer_id": "known", "partition_id": "taken-0", "message_id": b"\xff\x00"},
            "INVALID_ARGUMENT",
            "ValidationError",
        ),
        ("ShardInfo", {"topics": ["none"]}, "NOT_FOUND", "TopicNotFound"),
        ("ShardInfo", {"topics": [""]}, "INVALID_ARGUMENT", "ValidationError"),
        ("ManageBrokers", {}, "INVALID_ARGUMENT", "ValidationError"),
        ("ManageBrokers", {"action": 1}, "INVALID_ARGUMENT", "ValidationError"),
        (
            "ManageBrokers",
            {"action": 1, "broker_action": {"raft_address": "10.0.0.9:7400"}},
            "FAILED_PRECONDITION",
            "ConflictError",
        ),
    ],
)
def test_bad_input_gets_the_error_of_the_catalogue(
    queue: Service, method: str, fields: dict[str, Any], code: str, name: str
) -> None:
    with_topic(queue)
    assert refused(getattr(queue, method), **fields) == (code, name)


def with_topic(queue: Service) -> None:
    try:
        queue.CreateTopic(topic="taken", number_of_partitions=1, replication_factor=1)
        queue.Connect(consumer_id="known", consumer_group="g", topics=["taken"])
    except grpc.RpcError as error:
        assert error_of(error) == ("ALREADY_EXISTS", "TopicExists")


def test_a_ping_of_an_unknown_consumer_ends_its_stream_and_nothing_else(queue: Service) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(queue.HealthCheck([{"consumer_id": "nobody"}], timeout=10))
    assert error_of(caught.value) == ("NOT_FOUND", "NotFoundError")
    queue.ShardInfo()


def test_what_is_no_request_is_refused(channel: grpc.Channel) -> None:
    raw = channel.unary_unary("/queue.v1.QueueService/SendMessage")
    assert refused(lambda: raw(b"\xff\xff\xff", timeout=10)) == ("INVALID_ARGUMENT", "ValidationError")
    empty = channel.stream_unary("/queue.v1.QueueService/SendMessage")
    assert refused(lambda: empty(iter(()), timeout=10)) == ("INVALID_ARGUMENT", "ValidationError")
    unknown = channel.unary_unary("/queue.v1.QueueService/Nothing")
    assert refused(lambda: unknown(b"", timeout=10)) == ("UNIMPLEMENTED", "")
    assert refused(lambda: raw(b"x" * (9 << 20), timeout=10))[0] == "RESOURCE_EXHAUSTED"


def test_an_empty_message_is_a_message(queue: Service) -> None:
    queue.CreateTopic(topic="empty", number_of_partitions=1, replication_factor=1)
    queue.Connect(consumer_id="e", consumer_group="g", topics=["empty"])
    queue.SendMessage(topic="empty")
    (message,) = receive_all(queue, "e", ["empty-0"], 1)
    assert message.data == b""


def test_three_brokers_serve_a_client_of_queue_through_any_of_them(tmp_path: Path) -> None:
    ports = {number: f"{HOST}:{free_port()}" for number in (1, 2, 3)}
    cluster = ClusterProcess(tmp_path)
    for number, broker in cluster.brokers.items():
        broker.settings["grpc"] = ports[number]
    with cluster, grpc.insecure_channel(ports[1]) as channel:
        queue = client_of(channel)
        queue.CreateTopic(topic="orders", number_of_partitions=3, replication_factor=3)
        leader = cluster.leader("orders", 0)
        follower = next(number for number in ports if number != leader)
        with grpc.insecure_channel(ports[follower]) as other, grpc.insecure_channel(ports[leader]) as at_leader:
            queue, leading = client_of(other), client_of(at_leader)
            found = queue.ShardInfo(topics=["orders"]).shard_info["orders-0"]
            assert found.brokers[0].reach_grpc_address == ports[follower]  # which knows its consumers
            assert {one.reach_grpc_address for one in found.brokers} == set(ports.values())
            queue.Connect(consumer_id="c", consumer_group="g", topics=["orders"])
            for number in range(12):
                queue.SendMessage(topic="orders", data=b"%d" % number)
            received = receive_all(queue, "c", ["orders-0", "orders-1", "orders-2"], 12)
            assert sorted(int(message.data) for message in received) == list(range(12))
            for place, message in enumerate(received):  # an ack may go to any broker, whatever that has seen
                at = queue if place % 2 else leading
                at.AckMessage(consumer_id="c", partition_id=message.partition_id, message_id=message.id)
            mine = partitions_of(queue, "c", "g", "orders")
            assert partitions_of(leading, "c", "g", "orders") == mine  # the consumer goes on there, with what it had
            fenced = refused_in_the_end(lambda: list(queue.HealthCheck([{"consumer_id": "c"}], timeout=10)))
            assert fenced == ("FAILED_PRECONDITION", "InstanceFenced")  # as soon as this broker has heard of it
            hers = partitions_of(queue, "d", "g", "orders")  # another one, at another broker, gets its share
            assert sorted([*partitions_of(leading, "c", "g", "orders"), *hers]) == mine and len(hers) == 1
            address = cluster.brokers[3].native
            queue.ManageBrokers(action=1, broker_action={"replica_id": 3, "raft_address": address})
        brokers = cluster.get(2, "/v1/brokers")[1]["brokers"]
        assert {one["addresses"]["grpc"] for one in brokers} == set(ports.values())
