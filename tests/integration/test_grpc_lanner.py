"""`lanner.v1.Queue` over gRPC, with a client that is compiled from its proto in the test, against a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.testing.proxy_process import ProxyProcess
from tests.grpc_client import Service, error_of

PROTOS = Path(__file__).parents[2] / "proto"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, place: str) -> Iterator[BrokerProcess]:
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}", "default_partitions": 1}
    with BrokerProcess(tmp_path_factory.mktemp("grpc") / "data", settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
def channel(broker: BrokerProcess, proxy: ProxyProcess | None) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.settings["grpc"] if proxy is None else proxy.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def queue(channel: grpc.Channel) -> Service:
    return Service(channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")


def refused(call: Callable[..., Any], **fields: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(**fields)
    return error_of(caught.value)


def publish(queue: Service, topic: str, *values: bytes) -> Any:
    return queue.Publish(topic=topic, messages=[{"value": value} for value in values]).messages


def leases_of(messages: Any) -> list[dict[str, int]]:
    return [{"partition": one.message.partition, "offset": one.message.offset, "token": one.token} for one in messages]


def test_messages_come_back_as_they_were_published_the_most_urgent_first(queue: Service) -> None:
    stored = queue.Publish(
        topic="letters",
        messages=[
            {"value": b"plain"},
            {"value": b"urgent", "priority": 9, "key": b"k", "headers": {"kind": b"\xff"}, "ttl_ms": 60_000},
            {"value": b"named", "priority_name": "low", "partition": 0},
            {"value": b"later", "delay_ms": 3_600_000},
        ],
    ).messages
    assert [one.id for one in stored] == [f"letters/0/{one.offset}" for one in stored]
    assert sorted(one.offset for one in stored) == [0, 1, 2, 3]
    found = queue.ReceiveMessages(topic="letters", group="g", max_messages=10).messages
    assert [one.message.value for one in found] == [b"urgent", b"plain", b"named"]
    urgent = found[0].message
    assert (urgent.key, dict(urgent.headers), urgent.priority) == (b"k", {"kind": b"\xff"}, 9)
    assert urgent.expires_at_ms - urgent.timestamp_ms in range(59_000, 61_000)
    assert not found[1].message.HasField("key")
    assert [one.attempt for one in found] == [1, 1, 1]
    settled = queue.Ack(topic="letters", group="g", leases=leases_of(found))
    assert (settled.settled, settled.failed) == (3, 0)


def test_the_same_request_under_the_same_key_is_stored_once(queue: Service) -> None:
    messages = [{"value": b"a"}, {"value": b"b", "priority": 9}]
    first = queue.Publish(topic="once", messages=messages, idempotency_key="order-7").messages
    again = queue.Publish(topic="once", messages=messages, idempotency_key="order-7").messages
    assert [one.id for one in again] == [one.id for one in first]
    assert [one.duplicate for one in first] == [False, False]
    assert [one.duplicate for one in again] == [True, True]


def test_a_stream_is_stored_in_its_order_and_ends_with_the_first_error(queue: Service) -> None:
    requests = [{"topic": "streamed", "messages": [{"value": b"%d" % n} for n in range(9)]} for _ in range(20)]
    answers = list(queue.PublishStream(requests, timeout=30))
    assert [one.offset for answer in answers for one in answer.messages] == list(range(180))
    bad = [requests[0], {"topic": "a/b"}, requests[0]]
    stream = queue.PublishStream(bad, timeout=30)
    assert len(next(stream).messages) == 9
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert error_of(caught.value) == ("INVALID_ARGUMENT", "ValidationError")
    (partition,) = queue.DescribeTopic(topic="streamed").partitions
    assert partition.end_offset == 189


def test_nack_extend_and_reject_do_what_they_say(queue: Service) -> None:
    queue.CreateTopic(topic="jobs", settings={"partitions": "1", "max_deliveries": "3", "backoff_ms": "0"})
    publish(queue, "jobs", b"1", b"2")
    first, second = queue.ReceiveMessages(topic="jobs", group="g", max_messages=2).messages
    extended = queue.Extend(topic="jobs", group="g", leases=leases_of([first]), lease_ms=600_000)
    assert extended.settled == 1
    queue.Nack(topic="jobs", group="g", leases=leases_of([first]), delay_ms=0, reason="again")
    queue.Reject(topic="jobs", group="g", leases=leases_of([second]), reason="bad")
    (again,) = queue.ReceiveMessages(topic="jobs", group="g", max_messages=2, wait_ms=5_000).messages
    assert (again.message.value, again.attempt) == (b"1", 2)
    late = queue.Ack(topic="jobs", group="g", leases=leases_of([first]))
    assert (late.settled, late.failed, late.leases[0].error) == (0, 1, "LeaseLost")
    letters = queue.ListDeadLetters(topic="jobs", group="g")
    (letter,) = letters.letters
    assert (letters.total, letter.reason, letter.message.value) == (1, "bad", b"2")
    choice = {"topic": "jobs", "group": "g"}
    assert refused(queue.DiscardDeadLetters, **choice) == ("INVALID_ARGUMENT", "ValidationError")
    assert queue.RedriveDeadLetters(**choice, partition=0, offsets=[letter.offset]).count == 1
    (redriven,) = queue.ReceiveMessages(topic="jobs", group="g", wait_ms=5_000).messages
    queue.Reject(topic="jobs", group="g", leases=leases_of([redriven]), reason="bad")
    assert queue.DiscardDeadLetters(**choice, all=True).count == 1
    assert queue.ListDeadLetters(**choice).total == 0


def test_a_group_reads_without_leases_too(queue: Service) -> None:
    publish(queue, "log", *(b"%d" % number for number in range(5)))
    page = queue.Peek(topic="log", max_messages=3)
    assert [one.value for one in page.messages] == [b"0", b"1", b"2"]
    rest = queue.Peek(topic="log", max_messages=10, after=page.next)
    assert [one.value for one in rest.messages] == [b"3", b"4"]
    assert not rest.HasField("next")
    queue.Commit(topic="log", group="stream", offsets={0: 3}, reader="r", sequence=1)
    assert dict(queue.Committed(topic="log", group="stream").offsets) == {0: 3}
    assert queue.DescribeGroup(topic="log", group="stream").kind == "stream"
    (found,) = queue.ReceiveMessages(topic="log", group="queue", start="earliest").messages
    assert found.message.value == b"0"
    queue.Seek(topic="log", group="queue", offsets={"offsets": {0: 4}})
    (found,) = queue.ReceiveMessages(topic="log", group="queue").messages
    assert found.message.value == b"4"
    queue.Seek(topic="log", group="queue", place="earliest")
    (state,) = queue.DescribeGroup(topic="log", group="queue").partitions
    assert (state.lag, state.leased) == (5, 0)
    assert list(queue.ListGroups(topic="log").groups) == ["queue", "stream"]
    queue.DropGroup(topic="log", group="queue")
    assert list(queue.ListGroups(topic="log").groups) == ["stream"]


def test_topics_and_the_cluster_are_described(queue: Service, broker: BrokerProcess) -> None:
    made = queue.CreateTopic(topic="described", settings={"partitions": "2", "hold_for": "audit, archive"})
    assert made.settings["hold_for"] == "audit,archive"
    assert len(made.partitions) == 2
    assert queue.AlterTopic(topic="described", settings={"lease_ms": "5000"}).settings["lease_ms"] == "5000"
    assert "described" in queue.ListTopics().topics
    queue.DeleteTopic(topic="described")
    assert refused(queue.DescribeTopic, topic="described") == ("NOT_FOUND", "TopicNotFound")
    (one,) = queue.DescribeCluster().brokers
    assert one.addresses["grpc"] == broker.settings["grpc"]
    assert one.addresses["native"] == broker.native


NAMED = {"topic": "x", "group": "g"}


@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("Publish", {"topic": "x"}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "", "messages": [{}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"priority": 10}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"priority_name": "soon"}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"partition": 7}]}, "NOT_FOUND"),
        ("Publish", {"topic": "x", "messages": [{"key": b"k" * 70_000}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"headers": {"h": b"h" * 70_000}}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"headers": {str(n): b"" for n in range(101)}}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"delay_ms": 2**63}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{"value": b"v" * (1 << 20) + b"v"}]}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{}] * 1_001}, "INVALID_ARGUMENT"),
        ("Publish", {"topic": "x", "messages": [{}], "idempotency_key": "a b"}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {"topic": "x"}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "start": "now"}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "max_messages": 10_001}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "max_bytes": 2**63}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "wait_ms": 100_000, "timeout": 300}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "lease_ms": 1}, "INVALID_ARGUMENT"),
        ("ReceiveMessages", {**NAMED, "partitions": [7]}, "NOT_FOUND"),
        ("ReceiveMessages", {**NAMED, "partitions": [4_000_000_000]}, "INVALID_ARGUMENT"),
        ("Ack", {"topic": "x", "leases": [{}]}, "INVALID_ARGUMENT"),
        ("Ack", {**NAMED, "leases": [{"partition": 7}]}, "NOT_FOUND"),
        ("Ack", {**NAMED, "leases": [{"token": 2**63}]}, "INVALID_ARGUMENT"),
        ("Ack", {**NAMED, "leases": [{}] * 10_001}, "INVALID_ARGUMENT"),
        ("Nack", {**NAMED, "leases": [{}], "delay_ms": 2**63}, "INVALID_ARGUMENT"),
        ("Nack", {**NAMED, "leases": [{}], "reason": "r" * 1_001}, "INVALID_ARGUMENT"),
        ("Extend", {**NAMED, "leases": [{}], "lease_ms": 2**63}, "INVALID_ARGUMENT"),
        ("Reject", {**NAMED, "leases": [{}], "reason": "r" * 1_001}, "INVALID_ARGUMENT"),
        ("Peek", {"topic": "none"}, "NOT_FOUND"),
        ("Peek", {"topic": "x", "max_messages": 4_000_000_000}, "INVALID_ARGUMENT"),
        ("Commit", {**NAMED, "offsets": {0: 0}, "reader": "r"}, "INVALID_ARGUMENT"),
        ("Commit", {**NAMED, "offsets": {0: 2**63}}, "INVALID_ARGUMENT"),
        ("Commit", {**NAMED, "offsets": {7: 0}}, "NOT_FOUND"),
        ("Committed", {"topic": "none", "group": "g"}, "NOT_FOUND"),
        ("Seek", NAMED, "INVALID_ARGUMENT"),
        ("Seek", {**NAMED, "place": "middle"}, "INVALID_ARGUMENT"),
        ("Seek", {**NAMED, "time_ms": 2**63}, "INVALID_ARGUMENT"),
        ("ListDeadLetters", {"topic": "x", "group": "none"}, "NOT_FOUND"),
        ("ListDeadLetters", {**NAMED, "limit": 4_000_000_000}, "INVALID_ARGUMENT"),
        ("RedriveDeadLetters", {**NAMED, "offsets": [1]}, "INVALID_ARGUMENT"),
        ("DiscardDeadLetters", {**NAMED, "offsets": [1], "all": True}, "INVALID_ARGUMENT"),
        ("CreateTopic", {"topic": "x"}, "ALREADY_EXISTS"),
        ("CreateTopic", {"topic": "y", "settings": {"partitions": "many"}}, "INVALID_ARGUMENT"),
        ("CreateTopic", {"topic": "y", "settings": {"colour": "red"}}, "INVALID_ARGUMENT"),
        ("AlterTopic", {"topic": "none", "settings": {}}, "NOT_FOUND"),
        ("AlterTopic", {"topic": "x", "settings": {"lease_ms": "-1"}}, "INVALID_ARGUMENT"),
        ("DeleteTopic", {"topic": "none"}, "NOT_FOUND"),
        ("DescribeTopic", {"topic": "."}, "INVALID_ARGUMENT"),
        ("ListGroups", {"topic": "none"}, "NOT_FOUND"),
        ("DescribeGroup", {"topic": "x", "group": "none"}, "NOT_FOUND"),
        ("DropGroup", {"topic": "x", "group": "none"}, "NOT_FOUND"),
    ],
)
def test_bad_input_gets_the_error_of_the_catalogue(
    queue: Service, method: str, fields: dict[str, Any], code: str
) -> None:
    if not queue.ListTopics().topics or "x" not in queue.ListTopics().topics:
        queue.CreateTopic(topic="x", settings={"partitions": "1"})
        queue.ReceiveMessages(topic="x", group="g")
    found, name = refused(getattr(queue, method), **fields)
    assert (found, bool(name)) == (code, True)


def test_a_subscription_with_bad_input_is_refused(queue: Service) -> None:
    assert refused(lambda: list(queue.Subscribe(topic="a/b", group="g")))[0] == "INVALID_ARGUMENT"


def test_a_receive_that_its_caller_cancels_takes_nothing(queue: Service, channel: grpc.Channel) -> None:
    queue.CreateTopic(topic="cancelled", settings={"partitions": "1", "lease_ms": "600000"})
    queue.ReceiveMessages(topic="cancelled", group="g")
    waiting = queue.ReceiveMessages.future(topic="cancelled", group="g", wait_ms=60_000, timeout=60)
    other = queue.ReceiveMessages.future(topic="cancelled", group="other", wait_ms=60_000, timeout=60)
    waiting.cancel()
    publish(queue, "cancelled", b"x")
    assert [one.message.value for one in other.result().messages] == [b"x"]
    (found,) = queue.ReceiveMessages(topic="cancelled", group="g", wait_ms=20_000, timeout=30).messages
    assert (found.message.value, found.attempt) == (b"x", 1)


def test_a_deadline_is_kept_and_what_came_too_late_is_delivered_again(queue: Service) -> None:
    queue.CreateTopic(topic="late", settings={"partitions": "1", "lease_ms": "600000"})
    try:
        assert list(queue.ReceiveMessages(topic="late", group="g", wait_ms=60_000, timeout=1.0).messages) == []
    except grpc.RpcError as error:  # a busy machine may need longer for the empty answer than is left for it
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    publish(queue, "late", b"x")
    (found,) = queue.ReceiveMessages(topic="late", group="g", wait_ms=20_000, timeout=30).messages
    assert (found.message.value, found.attempt) == (b"x", 1)


def leased_count(queue: Service, topic: str) -> int:
    return sum(part.leased for part in queue.DescribeGroup(topic=topic, group="g").partitions)


def at_rest(value: Callable[[], int]) -> int:
    """What a number comes to when it has stopped changing."""
    before, same = value(), 0
    while same < 10:
        time.sleep(0.05)
        now = value()
        same = same + 1 if now == before else 0
        before = now
    return before


@pytest.mark.parametrize("place", ["broker"], indirect=True)
def test_a_subscription_stops_pushing_when_its_client_stops_reading(queue: Service, broker: BrokerProcess) -> None:
    queue.CreateTopic(topic="pushed", settings={"partitions": "1", "lease_ms": "600000"})
    count, size = 120, 500_000
    for _ in range(count // 10):
        publish(queue, "pushed", *(bytes(size) for _ in range(10)))
    before = broker.anonymous_bytes()
    stream = queue.Subscribe(topic="pushed", group="g", max_messages=2, timeout=120)
    received = len(next(stream).messages)
    stalled = at_rest(lambda: leased_count(queue, "pushed"))
    assert received <= stalled < count // 2
    assert broker.anonymous_bytes() - before < count * size // 2
    while received < count:
        received += len(next(stream).messages)
    assert leased_count(queue, "pushed") == count
    stream.cancel()


def test_a_subscription_brings_what_is_published_later_and_ends_with_the_broker(tmp_path: Path) -> None:
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}"}
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        grpc.insecure_channel(settings["grpc"]) as channel,
    ):
        queue = Service(channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")
        stream = queue.Subscribe(topic="news", group="g", timeout=60)
        publishes = queue.PublishStream(iter(forever := Forever()), timeout=60)
        publish(queue, "news", b"one")
        assert [one.message.value for one in next(stream).messages] == [b"one"]
        began = time.monotonic()
        assert broker.stop() == 0
        forever.ends.set()
        for ended in (stream, publishes):
            with pytest.raises(grpc.RpcError) as caught:
                list(ended)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - began < 20


class Forever:
    """Requests that never come, until it ends."""

    def __init__(self) -> None:
        self.ends = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.ends.wait(60)
        yield from ()


def test_health_and_reflection_are_there(channel: grpc.Channel) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "lanner.v1.Queue", "queue.v1.QueueService"):
        assert check(health_pb2.HealthCheckRequest(service=service), timeout=10).status == 1  # SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check(health_pb2.HealthCheckRequest(service="else"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    reflect = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="queue.v1.QueueService"),
    ]
    listed, described = list(reflect(iter(asked), timeout=10))
    assert {"lanner.v1.Queue", "queue.v1.QueueService"} <= {one.name for one in listed.list_services_response.service}
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in described.file_descriptor_response.file_descriptor_proto
    ]
    assert "queue.v1" in {file.package for file in files}


def test_a_broker_that_does_not_lead_serves_the_same(tmp_path: Path) -> None:
    ports = {number: f"{HOST}:{free_port()}" for number in (1, 2, 3)}
    cluster = ClusterProcess(tmp_path)
    for number, broker in cluster.brokers.items():
        broker.settings["grpc"] = ports[number]
    with cluster, grpc.insecure_channel(ports[1]) as first:
        made = Service(first, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")
        made.CreateTopic(topic="orders", settings={"partitions": "1", "lease_ms": "600000"})
        leader = cluster.leader("orders")
        follower = next(number for number in ports if number != leader)
        with grpc.insecure_channel(ports[follower]) as channel:
            queue = Service(channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")
            batches = [{"topic": "orders", "messages": [{"value": b"%d" % n} for n in range(10)]} for _ in range(3)]
            answers = list(queue.PublishStream(batches, timeout=30))
            assert [one.offset for answer in answers for one in answer.messages] == list(range(30))
            waiting = queue.ReceiveMessages.future(topic="orders", group="idle", start="latest", wait_ms=60_000)
            stream = queue.Subscribe(topic="orders", group="g", max_messages=10, timeout=60)
            found = [one for _ in range(3) for one in next(stream).messages]
            assert [one.message.offset for one in found] == list(range(30))
            assert queue.Ack(topic="orders", group="g", leases=leases_of(found[1:])).settled == 29
            assert queue.Reject(topic="orders", group="g", leases=leases_of(found[:1]), reason="bad").settled == 1
            stream.cancel()  # not before: a broker that is not sure that the last answer went out gives it back
            (letter,) = queue.ListDeadLetters(topic="orders", group="g").letters
            assert (letter.offset, letter.message.value) == (0, b"0")
            assert sum(part.lag for part in queue.DescribeGroup(topic="orders", group="g").partitions) == 0
            waiting.cancel()
            queue.ReceiveMessages(topic="orders", group="idle", start="latest")
            publish(queue, "orders", b"late")
            (late,) = queue.ReceiveMessages(topic="orders", group="idle", wait_ms=20_000, timeout=30).messages
            assert (late.message.value, late.attempt) == (b"late", 1)
            names = {one.addresses["grpc"] for one in queue.DescribeCluster().brokers}
            assert names == set(ports.values())
