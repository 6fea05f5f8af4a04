"""`/v1/topics/{topic}/groups`: queue use (poll and settle), stream progress, and how a group stands."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import msgspec
from msgspec import UnsetType

from lanner import limits
from lanner.api.following import poll_as_member, seen_by
from lanner.api.rest.group_shapes import (
    AckRequest,
    CommitRequest,
    CommittedReply,
    ExtendRequest,
    GroupPartition,
    GroupReply,
    GroupsReply,
    NackRequest,
    PlainAckRequest,
    PollRequest,
    RejectRequest,
    SeekRequest,
    SettleReply,
    Settling,
)
from lanner.api.rest.operations import JSON, Call, Prepared, Raw
from lanner.api.rest.polled import cost_of, polled_reply
from lanner.api.rest.settled import acked_reply, settled_reply
from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.api.rest.values import bytes_of, given, texts_of
from lanner.api.settling import Ask, acknowledge, settle
from lanner.errors import ServiceUnavailable, TopicNotFound, ValidationError
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import age_ms
from lanner.wire import administration as wire
from lanner.wire.messages import Commit, Committed, Poll, Settle, SettledItem, SettleItem, SettleKind

_NO_TOPIC_SECONDS: Final = 0.25  # between two looks for a topic that is not there


async def poll_group(call: Call[PollRequest, NoQuery]) -> Prepared:
    """A client that has gone must not keep leases: what a poll brought it is given back at once, uncounted. Nor must
    its poll go on waiting, to take for good what nobody gets."""
    handed = await (_poll_while_there(call) if call.body.wait_ms else _poll(call))
    delivered = handed.messages
    return Prepared(lambda: polled_reply(call.topic, call.group, delivered), cost_of(delivered), handed.unheard)


async def _poll_while_there(call: Call[PollRequest, NoQuery]) -> Handed:
    """A poll that ends with its client. Whatever else ends this, leases that come all the same are given back."""
    polling = asyncio.ensure_future(_poll(call))
    leaving = asyncio.ensure_future(call.disconnected())
    try:
        await asyncio.wait({polling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return polling.result()
    except BaseException:
        polling.cancel()
        call.door.spawn(_release_unheard(polling))
        raise
    finally:
        leaving.cancel()
    polling.cancel()
    await _release_unheard(polling)
    raise ServiceUnavailable("the client has gone")


async def _release_unheard(polling: asyncio.Future[Handed]) -> None:
    await asyncio.wait({polling})
    if not polling.cancelled() and polling.exception() is None and (unheard := polling.result().unheard) is not None:
        unheard()


async def ack_messages(call: Call[AckRequest | PlainAckRequest, NoQuery]) -> Raw:
    targets = call.body.messages
    return Raw(JSON, acked_reply(targets, await acknowledge(targets, _asking(call))))


async def nack_messages(call: Call[NackRequest, NoQuery]) -> SettleReply:
    return await _settle(call, SettleKind.NACK, call.body.delay_ms, call.body.reason)


async def extend_leases(call: Call[ExtendRequest, NoQuery]) -> SettleReply:
    return await _settle(call, SettleKind.EXTEND, call.body.lease_ms)


async def reject_messages(call: Call[RejectRequest, NoQuery]) -> SettleReply:
    return await _settle(call, SettleKind.REJECT, reason=call.body.reason)


async def list_groups(call: Call[NoBody, NoQuery]) -> GroupsReply:
    return GroupsReply(topic=call.topic, groups=(await call.ask(wire.ListGroups(call.topic))).control.groups)


async def describe_group(call: Call[NoBody, NoQuery]) -> GroupReply:
    group = (await call.ask(wire.DescribeGroup(call.topic, call.group))).control
    now_ms = time.time_ns() // 1_000_000
    depth: Counter[int] = Counter()
    partitions = []
    for state in group.partitions:
        depth.update(state.depth)
        partitions.append(
            GroupPartition(
                partition=state.partition,
                offset=state.offset,
                lag=state.lag,
                ready=state.ready,
                leased=state.leased,
                waiting=state.waiting,
                dead=state.dead,
                depth={str(priority): count for priority, count in state.depth.items()},
                oldest_age_ms=age_ms(state.oldest_ms, now_ms),
            )
        )
    return GroupReply(
        topic=group.topic,
        group=group.group,
        kind=group.kind,
        lag=sum(state.lag for state in partitions),
        ready=sum(state.ready for state in partitions),
        leased=sum(state.leased for state in partitions),
        waiting=sum(state.waiting for state in partitions),
        dead=sum(state.dead for state in partitions),
        depth={str(priority): count for priority, count in sorted(depth.items())},
        oldest_age_ms=max((state.oldest_age_ms for state in partitions), default=0),
        partitions=partitions,
    )


async def drop_group(call: Call[NoBody, NoQuery]) -> None:
    await call.ask(wire.DropGroup(call.topic, call.group))


async def seek_group(call: Call[SeekRequest, NoQuery]) -> None:
    body = call.body
    offsets = None if isinstance(body.offsets, UnsetType) else body.offsets
    time_ms = None if isinstance(body.time_ms, UnsetType) else body.time_ms
    to = None if isinstance(body.to, UnsetType) else body.to
    if sum(choice is not None for choice in (offsets, time_ms, to)) != 1:
        raise ValidationError("give exactly one of offsets, time_ms and to", field="to")
    await call.ask(wire.Seek(call.topic, call.group, offsets, time_ms, to, force=body.force))


async def commit_offsets(call: Call[CommitRequest, NoQuery]) -> None:
    body, member_id = call.body, given(call.body.member_id)
    if member_id:
        await call.ask(await _commit_of_member(call, member_id))
        return
    if bool(body.reader) != (body.sequence >= 0):
        raise ValidationError(
            "give both reader and sequence, or neither", field="sequence" if body.reader else "reader"
        )
    await call.ask(
        Commit(call.group, call.topic, body.offsets, body.reader, body.sequence, metadata=_commit_metadata(body))
    )


async def _commit_of_member(call: Call[CommitRequest, NoQuery], member_id: str) -> Commit:
    """A member's commits are numbered, if at all, under its id, which is new with every join."""
    body = call.body
    if isinstance(body.generation, UnsetType):
        raise ValidationError("a member commits under the generation that it has seen: give it", field="generation")
    if body.reader:
        raise ValidationError("give member_id or reader, not both", field="reader")
    number, generation = await seen_by(call.service, call.identity, call.group, member_id, body.number, body.generation)
    return Commit(
        call.group,
        call.topic,
        body.offsets,
        member_id if body.sequence >= 0 else "",
        body.sequence,
        member_id=member_id,
        number=number,
        generation=generation,
        metadata=_commit_metadata(body),
    )


def _commit_metadata(body: CommitRequest) -> dict[int, bytes]:
    found = {
        partition: bytes_of(text, body.metadata_encoding, f"metadata.{partition}")
        for partition, text in body.metadata.items()
    }
    for partition, data in found.items():
        if len(data) > limits.COMMIT_METADATA_BYTES_MAX:
            raise ValidationError(
                f"the metadata of partition {partition} has {len(data)} bytes; "
                f"{limits.COMMIT_METADATA_BYTES_MAX} are allowed",
                field=f"metadata.{partition}",
            )
    return found


async def committed_offsets(call: Call[NoBody, NoQuery]) -> CommittedReply:
    found = (await call.ask(Committed(call.group, call.topic))).control
    if not found.offsets:  # a group that has not committed, or none at all: that is GroupNotFound
        await call.ask(wire.DescribeGroup(call.topic, call.group))
    reply = CommittedReply(
        topic=call.topic,
        group=call.group,
        offsets={str(partition): offset for partition, offset in sorted(found.offsets.items())},
    )
    if found.metadata:
        kept = {str(partition): data for partition, data in sorted(found.metadata.items())}
        reply.metadata, reply.metadata_encoding = texts_of(kept)
    return reply


async def _poll(call: Call[PollRequest, NoQuery]) -> Handed:
    """A worker may come before its topic, or outlive it: the topic is made where that is allowed, else waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + call.body.wait_ms / 1_000
    while True:
        left_s = max(0.0, deadline - loop.time())
        try:
            return await _poll_topic(call, round(left_s * 1_000))
        except TopicNotFound as error:
            missing = error
        try:
            await call.service.ensure_topic(call.identity, call.topic)
        except TopicNotFound:
            if left_s <= 0:
                raise missing from None
            await asyncio.sleep(min(left_s, _NO_TOPIC_SECONDS))


async def _poll_topic(call: Call[PollRequest, NoQuery], wait_ms: int) -> Handed:
    body = call.body
    poll = Poll(
        group=call.group,
        topic=call.topic,
        member=call.poller,
        sequence=-1,
        partitions=None if isinstance(body.partitions, UnsetType) else body.partitions,
        max_messages=body.max_messages,
        max_bytes=body.max_bytes,
        wait_ms=wait_ms,
        lease_ms=-1 if isinstance(body.lease_ms, UnsetType) else body.lease_ms,
        auto_ack=body.auto_ack,
        start=body.start,
        member_id=given(body.member_id),
        number=body.number,
        generation=body.generation,
    )
    if poll.member_id:
        return await poll_as_member(call.service, call.identity, poll)
    return await call.service.poll_messages(call.identity, poll)


async def _settle(
    call: Call[Settling, NoQuery],
    kind: SettleKind,
    delay_ms: int | UnsetType = msgspec.UNSET,
    reason: str = "",
) -> SettleReply:
    targets, delay = call.body.messages, -1 if isinstance(delay_ms, UnsetType) else delay_ms
    items = [
        SettleItem(target.partition, target.token, target.offset, target.count, int(kind), delay, reason)
        for target in targets
    ]
    return settled_reply(targets, await settle(items, _asking(call)))


def _asking(call: Call[Settling | PlainAckRequest, NoQuery]) -> Ask:
    async def ask(ranges: list[SettleItem]) -> list[SettledItem]:
        return (await call.ask(Settle(call.group, call.topic, ranges, given(call.body.member_id)))).control.items

    return ask
