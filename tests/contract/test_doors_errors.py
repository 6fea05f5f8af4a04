"""Errors of the catalogue over every door that can bring them about, and bad input over each.

Adapters hold what a door tells (name, number, status, whether it is worth repeating) against the catalogue.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest

from lanner import batch
from lanner.errors import (
    ConflictError,
    DeadLetterNotFound,
    DeadLettersFull,
    FenceConflict,
    GroupExpired,
    GroupKindConflict,
    GroupNotFound,
    IdempotencyConflict,
    LeaseLost,
    MalformedBatch,
    MessageTooLarge,
    MethodNotAllowed,
    NotFoundError,
    OffsetOutOfRange,
    PartitionNotFound,
    PermissionDenied,
    ProducerFenced,
    ProducerUnknown,
    ProtocolError,
    RequestTimeout,
    SequenceGap,
    SequencePassed,
    StaleIncarnation,
    TopicExists,
    TopicFull,
    TopicNotFound,
    TransactionUnknown,
    UnsupportedVersion,
    ValidationError,
    from_wire,
)
from lanner.wire.messages import Commit, ErrorReply, Publish
from lanner.wire.staging import Begin, Claim, Forget
from tests.contract.doors.door import Door, Grant, Leased, New, Seen, View
from tests.contract.doors.grpc import GrpcDoor
from tests.contract.doors.native import NativeDoor
from tests.contract.doors.parity import brings, everywhere
from tests.contract.doors.rest import RestDoor

# ------------------------------------------------------------------ what is named is not there, or is already


@brings(TopicNotFound)
def test_a_topic_that_is_not_there(door: Door, topic: str) -> None:
    for call in (door.describe_topic, door.delete_topic, door.list_groups):
        with pytest.raises(TopicNotFound):
            call(topic)
    for group_call in (door.describe_group, door.list_dead, door.committed, door.drop_group):
        with pytest.raises(TopicNotFound):
            group_call(topic, "g")
    with pytest.raises(TopicNotFound):
        door.fetch(topic, 0, 0)
    with pytest.raises(TopicNotFound):
        door.alter_topic(topic, lease_ms=1_000)


@brings(PartitionNotFound)
def test_a_partition_that_is_not_there(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    with pytest.raises(PartitionNotFound):
        door.publish(topic, New(b"v", partition=2))
    with pytest.raises(PartitionNotFound):
        door.fetch(topic, 2, 0)
    with pytest.raises(PartitionNotFound):
        door.poll(topic, "g", partitions=[0, 2])
    with pytest.raises(PartitionNotFound):
        door.commit(topic, "g", {2: 0})


@brings(GroupNotFound)
def test_a_group_that_is_not_there(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    for call in (door.describe_group, door.list_dead, door.redrive, door.discard):
        with pytest.raises(GroupNotFound):
            call(topic, "nobody")
    with pytest.raises(GroupNotFound):
        door.seek(topic, "nobody", to="earliest")


@brings(NotFoundError)
def test_something_else_that_is_not_there(door: Door) -> None:
    if isinstance(door, GrpcDoor):
        check = door.channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x07nothing", timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert dict(caught.value.trailing_metadata())["lanner-error"] == "NotFoundError"
        return
    with pytest.raises(NotFoundError):
        door.change_cluster("drain", broker="nobody")
    if isinstance(door, RestDoor):
        with pytest.raises(NotFoundError):
            door.ask("GET /v1/nothing")


@brings(DeadLetterNotFound)
def test_a_dead_letter_that_is_not_there(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"v"))
    door.poll(topic, "g")
    for call in (door.redrive, door.discard):
        with pytest.raises(DeadLetterNotFound):
            call(topic, "g", partition=0, offsets=[0])


@brings(OffsetOutOfRange)
def test_an_offset_beyond_the_end(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"v"))
    door.poll(topic, "g")
    with pytest.raises(OffsetOutOfRange):
        door.seek(topic, "g", offsets={0: 99})
    with pytest.raises(OffsetOutOfRange):
        door.commit(topic, "readers", {0: 99})


@brings(TopicExists)
def test_a_topic_that_is_there_already(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    with pytest.raises(TopicExists):
        door.create_topic(topic, partitions=1)


@brings(GroupExpired)
def test_a_reader_whose_commits_were_forgotten(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1, group_idle_ms=1_000)
    door.publish(topic, New(b"v"))
    door.commit(topic, "readers", {0: 1})
    ends = time.monotonic() + 30
    while door.list_groups(topic):  # time alone brings it about, and tells nobody
        assert time.monotonic() < ends
        time.sleep(0.05)
    with pytest.raises(GroupExpired):
        door.ask(Commit("readers", topic, {0: 1}, known=[0]))


# ------------------------------------------------------------------ the state forbids it


@brings(ConflictError)
def test_a_topic_cannot_have_more_replicas_than_there_are_brokers(door: Door, topic: str) -> None:
    with pytest.raises(ConflictError):
        door.create_topic(topic, partitions=1, replication=3)


@brings(GroupKindConflict)
def test_a_group_is_of_one_kind(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"v"))
    door.poll(topic, "workers")
    with pytest.raises(GroupKindConflict):
        door.commit(topic, "workers", {0: 1})
    door.commit(topic, "readers", {0: 1})
    with pytest.raises(GroupKindConflict):
        door.poll(topic, "readers")


@brings(LeaseLost)
def test_a_lease_that_was_never_given_settles_nothing(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"v"))
    (leased,) = door.poll(topic, "g")
    strangers = leased._replace(token=leased.token + 1)
    for kind in ("ack", "nack", "extend", "reject"):
        assert door.settle(kind, topic, "g", [strangers]) == [(0, "LeaseLost")]
    assert door.settle("ack", topic, "g", [leased]) == [(1, "")]


@brings(IdempotencyConflict)
def test_an_idempotency_key_that_was_used_for_other_messages(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    first = [New(b"a", b"k", {"h": b"1"}), New(b"b", b"k")]
    stored = door.publish(topic, *first, idempotency_key="order-7")
    others = (
        [New(b"A", b"k", {"h": b"1"}), New(b"b", b"k")],
        [New(b"a", b"k", {"h": b"2"}), New(b"b", b"k")],
        [New(b"a", b"k", {"h": b"1"})],
        [*first, New(b"c", b"k")],
        [one._replace(ttl_ms=90_000) for one in first],
        [one._replace(delay_ms=90_000) for one in first],
    )
    for other in others:
        with pytest.raises(IdempotencyConflict):
            door.publish(topic, *other, idempotency_key="order-7")
    again = door.publish(topic, *first, idempotency_key="order-7")
    assert again == [one._replace(duplicate=True) for one in stored]
    assert door.describe_topic(topic).partitions[0].end_offset == 2


@brings(IdempotencyConflict)
def test_an_idempotency_key_that_was_used_for_messages_with_other_delays_and_ttls(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    spans = ((3_600_000, 0), (0, 3_600_000), (3_600_000, 7_200_000))
    for number, (delay_ms, ttl_ms) in enumerate(spans):
        first, key = New(b"a", delay_ms=delay_ms, ttl_ms=ttl_ms), f"order-{number}"
        stored = door.publish(topic, first, idempotency_key=key)
        others = [{"delay_ms": delay_ms and delay_ms - 120_000}, {"ttl_ms": ttl_ms and ttl_ms + 120_000}]
        others += [{"delay_ms": 0 if delay_ms else 60_000}, {"ttl_ms": 0 if ttl_ms else 60_000}]
        if delay_ms and ttl_ms:
            others += [{"ttl_ms": ttl_ms + 1}]
        for other in others:
            message = first._replace(**other)
            if message != first:
                with pytest.raises(IdempotencyConflict):
                    door.publish(topic, message, idempotency_key=key)
        again = door.publish(topic, first, idempotency_key=key)
        assert again == [one._replace(duplicate=True) for one in stored]
    assert door.describe_topic(topic).partitions[0].end_offset == len(spans)


@brings(DeadLettersFull)
def test_dead_letters_at_their_bound_are_not_added_to(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, pinned_bytes_max=0, dead_full="reject")
    door.publish(topic, New(b"v" * 100))
    assert door.settle("reject", topic, "g", door.poll(topic, "g")) == [(0, "DeadLettersFull")]


@brings(ProducerUnknown)
def test_a_producer_that_begins_in_the_middle(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    with pytest.raises(ProducerUnknown):
        door.ask(Publish(topic, 0), [batch.encode([b"v"], producer_id=99_001, sequence=5)])


@brings(SequenceGap)
def test_a_batch_of_a_producer_is_missing(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.ask(Publish(topic, 0), [batch.encode([b"v"], producer_id=99_002, sequence=0)])
    with pytest.raises(SequenceGap):
        door.ask(Publish(topic, 0), [batch.encode([b"v"], producer_id=99_002, sequence=2)])


@brings(ProducerFenced)
def test_a_producer_of_an_older_epoch(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.ask(Publish(topic, 0), [batch.encode([b"v"], producer_id=99_003, producer_epoch=2, sequence=0)])
    with pytest.raises(ProducerFenced):
        door.ask(Publish(topic, 0), [batch.encode([b"v"], producer_id=99_003, producer_epoch=1, sequence=0)])


@brings(StaleIncarnation)
def test_a_topic_that_was_made_again(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    with pytest.raises(StaleIncarnation):
        door.ask(Publish(topic, 0, 1), [batch.encode([b"v"])])


# ------------------------------------------------------------------ not now


@brings(TopicFull)
def test_a_topic_at_its_bound(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, max_bytes=2_000, full_policy="reject")
    with pytest.raises(TopicFull):
        for _ in range(10):
            door.publish(topic, New(b"v" * 1_000))


# ------------------------------------------------------------------ transactions


def _begin(topic: str, **changes: Any) -> Begin:
    return Begin(
        **{"transaction": topic, "owner": "nightly", "sequence": 7, "commit_id": bytes(16), **changes}, participants=[]
    )


@brings(TransactionUnknown)
def test_a_transaction_that_was_forgotten(door: NativeDoor, topic: str) -> None:
    door.ask(_begin(topic))
    door.ask(Forget([topic]))
    with pytest.raises(TransactionUnknown):
        door.ask(_begin(topic))


@brings(FenceConflict)
def test_a_transaction_that_another_owner_has_claimed(door: NativeDoor, topic: str) -> None:
    door.ask(_begin(topic))
    door.ask(Claim(topic, "weekly"))
    with pytest.raises(FenceConflict):
        door.ask(_begin(topic, sequence=8, commit_id=b"1" * 16))


@brings(SequencePassed)
def test_a_sequence_that_its_transaction_has_passed(door: NativeDoor, topic: str) -> None:
    door.ask(_begin(topic))
    with pytest.raises(SequencePassed):
        door.ask(_begin(topic, sequence=6, commit_id=b"1" * 16))


# ------------------------------------------------------------------ the shape of requests


@brings(MessageTooLarge)
def test_a_message_that_is_larger_than_its_topic_allows(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, message_bytes_max=10)
    door.publish(topic, New(b"v" * 10))
    with pytest.raises(MessageTooLarge):
        door.publish(topic, New(b"v" * 2_000))  # of a batch the broker knows the whole length only, headers included


@brings(MethodNotAllowed)
def test_a_method_that_a_path_does_not_know(door: RestDoor) -> None:
    with pytest.raises(MethodNotAllowed):
        door.ask("PUT /v1/topics")


@brings(PermissionDenied)
def test_a_page_of_another_site(door: RestDoor) -> None:
    with pytest.raises(PermissionDenied):
        door.ask("GET /v1/topics", headers={"Origin": "https://evil.example"})


@brings(MalformedBatch)
def test_a_batch_that_does_not_decode(door: NativeDoor, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    data = bytearray(batch.encode([b"v"]))
    data[-1] ^= 0xFF
    for bad in (bytes(data), b"", b"rubbish" * 20):
        with pytest.raises(MalformedBatch):
            door.ask(Publish(topic, 0), [bad])


@brings(ProtocolError)
def test_a_frame_that_does_not_follow_the_protocol(door: NativeDoor) -> None:
    with pytest.raises(ProtocolError):
        _raise_told(door, b"\x7f" + struct.pack(">I", 4) + b"\0\0\0\1")


@brings(UnsupportedVersion)
def test_a_version_of_the_protocol_that_nobody_speaks(door: NativeDoor) -> None:
    with pytest.raises(UnsupportedVersion):
        _raise_told(door, b"\x01\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03\x91\x91\x63")


def _raise_told(door: Door, said: bytes) -> None:
    """Say something on a fresh connection, and raise the error that it is answered with."""
    with door.connect() as client:
        client.sendall(said)
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    assert answer[0] == 0xFF
    (length,) = struct.unpack(">I", answer[9:13])
    reply = msgspec.msgpack.decode(answer[13 : 13 + length], type=ErrorReply)
    raise from_wire(reply.code, reply.message)


@brings(RequestTimeout)
def test_a_request_that_does_not_arrive_whole(door: Door) -> None:
    if isinstance(door, GrpcDoor):
        wait = threading.Event()

        def never() -> Iterator[bytes]:
            wait.wait(30)
            yield b""

        publish = door.channel.stream_unary("/lanner.v1.Queue/Publish")
        with pytest.raises(grpc.RpcError) as caught:
            publish(never(), timeout=30)
        wait.set()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert dict(caught.value.trailing_metadata())["lanner-error"] == "RequestTimeout"
    elif isinstance(door, RestDoor):
        head = b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
        with door.connect() as client:
            client.sendall(head)
            assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
    else:
        hello = b"\x01\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03\x91\x91\x01"
        with door.connect() as client:
            client.sendall(hello)
            assert client.recv(4096)[0] == 0x81
            client.sendall(b"\x02" + struct.pack(">I", 100) + b"\0")
            answer = client.recv(4096)
        assert answer[0] == 0xFF
        reply = msgspec.msgpack.decode(answer[13 : 13 + struct.unpack(">I", answer[9:13])[0]], type=ErrorReply)
        assert reply.code == RequestTimeout.code


# ------------------------------------------------------------------ bad input

VIEW = View("m", 1, 1, 30_000, "sticky", False, True, [Grant("t", 1, 0, 1)], [])
LEASE = Leased(Seen(0, 0, b"", None, {}, 4), 1, 1)
BAD: dict[str, Callable[[Door, str], Any]] = {
    "no name of a topic": lambda door, topic: door.create_topic(""),
    "a character that no name has": lambda door, topic: door.create_topic("a\x7fb"),
    "a topic's name of dots": lambda door, topic: door.create_topic(".."),
    "a topic's name that is too long": lambda door, topic: door.create_topic("x" * 201),
    "no partitions": lambda door, topic: door.create_topic("bad", partitions=0),
    "too many partitions": lambda door, topic: door.create_topic("bad", partitions=1_001),
    "a setting that is none": lambda door, topic: door.create_topic("bad", colour="blue"),
    "a setting that is no number": lambda door, topic: door.create_topic("bad", lease_ms="soon"),
    "a choice that is none": lambda door, topic: door.alter_topic(topic, retention="sometimes"),
    "a group's name that is none": lambda door, topic: door.poll(topic, "a b"),
    "no group": lambda door, topic: door.commit(topic, "g" * 201, {0: 0}),
    "a priority beyond the last": lambda door, topic: door.publish(topic, New(b"v", priority=10)),
    "a priority by no name": lambda door, topic: door.publish(topic, New(b"v", priority="urgent")),
    "a delay beyond a year": lambda door, topic: door.publish(topic, New(b"v", delay_ms=1 << 45)),
    "no messages": lambda door, topic: door.publish(topic),
    "too many messages in a poll": lambda door, topic: door.poll(topic, "g", max_messages=10_001),
    "too long a wait": lambda door, topic: door.poll(topic, "g", wait_ms=60_001),
    "too short a lease": lambda door, topic: door.poll(topic, "g", lease_ms=9),
    "a place to begin that is none": lambda door, topic: door.poll(topic, "g", start="middle"),
    "too long a reason": lambda door, topic: door.settle("nack", topic, "g", [LEASE], reason="r" * 1_001),
    "too long a lease to extend by": lambda door, topic: door.settle("extend", topic, "g", [LEASE], lease_ms=1 << 45),
    "an offset beyond all offsets": lambda door, topic: door.fetch(topic, 0, 1 << 60),
    "a seek to nowhere": lambda door, topic: door.seek(topic, "g"),
    "a seek to a place that is none": lambda door, topic: door.seek(topic, "g", to="middle"),
    "offsets without their partition": lambda door, topic: door.redrive(topic, "g", offsets=[1]),
    "a group to join whose name is none": lambda door, topic: door.join_group("a b", topic),
    "a topic to join for whose name is none": lambda door, topic: door.join_group(topic, "a b"),
    "nothing to join for": lambda door, topic: door.join_group(topic),
    "a pattern that is none": lambda door, topic: door.join_group(topic, patterns=["a/b"]),
    "more patterns than a member may have": lambda door, topic: door.join_group(topic, patterns=["a*"] * 33),
    "more topics than a member may name": lambda door, topic: door.join_group(topic, *(["t"] * 1_001)),
    "a kind of group that is none": lambda door, topic: door.join_group(topic, topic, kind="topic"),
    "an assignor that is none": lambda door, topic: door.join_group(topic, topic, assignor="fair"),
    "too short a session": lambda door, topic: door.join_group(topic, topic, session_ms=999),
    "too long a session": lambda door, topic: door.join_group(topic, topic, session_ms=300_001),
    "an instance that is no name": lambda door, topic: door.join_group(topic, topic, instance="a b"),
    "too long a member id": lambda door, topic: door.join_group(topic, topic, member_id="m" * 65),
    "a client's name that cannot be printed": lambda door, topic: door.join_group(topic, topic, client="a\x07"),
    "a place to join at that is none": lambda door, topic: door.join_group(topic, topic, start="middle"),
    "a claim of no partition": lambda door, topic: door.claim_partitions(topic, topic, VIEW, []),
    "a claim from a place that is none": lambda door, topic: door.claim_partitions(
        topic, topic, VIEW, [0], start="middle"
    ),
    "too long a reason to leave": lambda door, topic: door.leave_group(topic, "m", reason="r" * 1_001),
    "too long a reason to evict": lambda door, topic: door.evict_member(topic, "m", reason="r" * 1_001),
    "more members than a page has": lambda door, topic: door.list_members(topic, limit=1_001),
    "an assignor to alter to that is none": lambda door, topic: door.alter_group(topic, assignor="fair"),
    "too long a time to revoke": lambda door, topic: door.alter_group(topic, revoke_ms=3_600_001),
    "a generation beyond all generations": lambda door, topic: door.heartbeat(topic, VIEW._replace(generation=1 << 60)),
    "more releases than a heartbeat may have": lambda door, topic: door.heartbeat(
        topic, VIEW, [Grant("t", 1, 0, 1)] * 1_001
    ),
    "more dead letters than a page has": lambda door, topic: door.list_dead(topic, "g", limit=1_001),
}
# The native protocol has no words for these: its clients make batches, which hold a priority's number and a time.
NOT_NATIVE = {
    "a priority beyond the last",
    "a priority by no name",
    "a delay beyond a year",
    "no messages",
}


@brings(ValidationError)
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_by_name(door: Door, topic: str, what: str, doors: dict[str, Door]) -> None:
    if what in NOT_NATIVE and isinstance(door, NativeDoor):
        return
    doors["native"].create_topic(topic, partitions=1)
    doors["native"].publish(topic, New(b"v"))
    doors["native"].poll(topic, "g")
    with pytest.raises(ValidationError):
        BAD[what](door, topic)
    door.list_topics()  # the connection and the broker go on


@everywhere()
def test_a_refusal_names_what_is_wrong(door: Door, topic: str) -> None:
    with pytest.raises(ValidationError, match="partitions is 0") as caught:
        door.create_topic(topic, partitions=0)
    assert caught.value.details["field"] == "partitions"
    with pytest.raises(ValidationError, match="colour") as caught:
        door.create_topic(topic, colour="blue")
    assert caught.value.details["field"] == "colour"
