"""ReceiveMessages, Subscribe and what settles their leases; and reading without a lease.

What a poll leased and its caller did not get goes back at once, without counting a delivery. A subscription polls again
only when gRPC has room for the next response: a client that stops reading stops being served, and what is leased for it
meanwhile is what fits between the two.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, sending, unary
from lanner.api.grpc.plain import Encoded, acked_response, receive_response
from lanner.api.grpc.shapes import bounded, fetched, message, settle_response, start_of
from lanner.api.reading import FETCH_BYTES
from lanner.api.settling import Ask, acknowledge, settle
from lanner.errors import TopicNotFound, ValidationError
from lanner.forwarding.delivery import raw_bytes
from lanner.forwarding.unpacking import Handed
from lanner.model import check_name, parse_priority
from lanner.wire.administration import Seek
from lanner.wire.messages import Commit, Committed, Fetch, Peek, Poll, Settle, SettledItem, SettleItem, SettleKind

Settling = shapes.AckRequest | shapes.NackRequest | shapes.ExtendRequest | shapes.RejectRequest
_FETCH_MESSAGES: Final = 100
_SUBSCRIPTION_MESSAGES: Final = 100
_SUBSCRIPTION_WAIT_MS: Final = 30_000


class Consuming:
    """Messages out."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._member = f"grpc-{secrets.token_hex(8)}"

    def methods(self) -> Mapping[str, Method]:
        return {
            "ReceiveMessages": sending(shapes.ReceiveMessagesRequest, self.receive),
            "Subscribe": sending(shapes.SubscribeRequest, self.subscribe),
            "Ack": unary(shapes.AckRequest, self.ack),
            "Nack": unary(shapes.NackRequest, self.nack),
            "Extend": unary(shapes.ExtendRequest, self.extend),
            "Reject": unary(shapes.RejectRequest, self.reject),
            "Peek": unary(shapes.PeekRequest, self.peek),
            "Fetch": unary(shapes.FetchRequest, self.fetch),
            "Commit": unary(shapes.CommitRequest, self.commit),
            "Committed": unary(shapes.CommittedRequest, self.committed),
            "Seek": unary(shapes.SeekRequest, self.seek),
        }

    async def receive(self, asked: shapes.ReceiveMessagesRequest, caller: Caller) -> None:
        await self._hand_over(self._poll(asked, asked.max_messages or 1, caller.wait_ms(asked.wait_ms)), caller)

    async def subscribe(self, asked: shapes.SubscribeRequest, caller: Caller) -> None:
        """Until the caller ends it, its deadline is over, or the broker stops."""
        count = asked.max_messages or _SUBSCRIPTION_MESSAGES
        while (wait_ms := caller.wait_ms(_SUBSCRIPTION_WAIT_MS)) > 0:
            await self._hand_over(self._poll(asked, count, wait_ms), caller, empty=False)

    def _poll(self, asked: shapes.ReceiveMessagesRequest | shapes.SubscribeRequest, count: int, wait_ms: int) -> Poll:
        call = Poll(
            check_name(asked.group, "group"),
            check_name(asked.topic, "topic"),
            self._backing.member(self._member),
            -1,
            list(asked.partitions) or None,
            count,
            asked.max_bytes or limits.MIB,
            wait_ms,
            asked.lease_ms or -1,
            asked.auto_ack,
            start_of(asked.start),
            member_id=asked.member_id,
        )
        if isinstance(asked, shapes.ReceiveMessagesRequest):
            call = replace(call, number=asked.number, generation=asked.generation)
        return bounded(call)

    async def _hand_over(self, poll: Poll, caller: Caller, *, empty: bool = True) -> None:
        """Lease messages and send them; `empty`: say so when there are none."""
        handed = await self._leased(poll)
        if not handed.messages and not empty:
            return
        try:
            await caller.send(receive_response(handed.messages))
        except BaseException:
            if handed.unheard is not None:
                handed.unheard()
            raise

    async def _leased(self, poll: Poll) -> Handed:
        try:
            return await self._backing.poll(poll)
        except TopicNotFound:
            await self._backing.topics([poll.topic], create=True)  # where that is allowed: a worker may come first
            return await self._backing.poll(poll)

    # ------------------------------------------------------------------ settles

    async def ack(self, asked: shapes.AckRequest, caller: Caller) -> Encoded:
        targets = list(asked.leases)
        return acked_response(targets, await acknowledge(targets, self._asking(asked)))

    async def nack(self, asked: shapes.NackRequest, caller: Caller) -> shapes.SettleResponse:
        delay_ms = asked.delay_ms if asked.HasField("delay_ms") else -1
        return await self._settle(asked, SettleKind.NACK, delay_ms, asked.reason)

    async def extend(self, asked: shapes.ExtendRequest, caller: Caller) -> shapes.SettleResponse:
        return await self._settle(asked, SettleKind.EXTEND, asked.lease_ms or -1)

    async def reject(self, asked: shapes.RejectRequest, caller: Caller) -> shapes.SettleResponse:
        return await self._settle(asked, SettleKind.REJECT, reason=asked.reason)

    async def _settle(
        self,
        asked: shapes.NackRequest | shapes.ExtendRequest | shapes.RejectRequest,
        kind: SettleKind,
        delay_ms: int = -1,
        reason: str = "",
    ) -> shapes.SettleResponse:
        items = [
            SettleItem(one.partition, one.token, one.offset, one.count or 1, int(kind), delay_ms, reason)
            for one in asked.leases
        ]
        return settle_response(asked.leases, await settle(items, self._asking(asked)))

    def _asking(self, asked: Settling) -> Ask:
        group, topic = check_name(asked.group, "group"), check_name(asked.topic, "topic")

        async def ask(ranges: list[SettleItem]) -> list[SettledItem]:
            return (await self._backing.ask(bounded(Settle(group, topic, ranges, asked.member_id)))).items

        return ask

    # ------------------------------------------------------------------ without a lease

    async def peek(self, asked: shapes.PeekRequest, caller: Caller) -> shapes.PeekResponse:
        after = asked.after
        call = Peek(
            check_name(asked.topic, "topic"),
            asked.partition if asked.HasField("partition") else None,
            asked.offset,
            asked.max_messages or 1,
            asked.max_bytes or limits.MIB,
            after=(after.priority, after.partition, after.offset) if asked.HasField("after") else None,
        )
        found = await self._backing.ask(bounded(call))
        response = shapes.PeekResponse(messages=[message(one.of_topic(asked.topic)) for one in found.messages])
        if found.next is not None:
            priority, partition, offset = found.next
            response.next.CopyFrom(shapes.PeekPlace(priority=priority, partition=partition, offset=offset))
        return response

    async def fetch(self, asked: shapes.FetchRequest, caller: Caller) -> shapes.FetchResponse:
        count = asked.max_messages or _FETCH_MESSAGES
        if count > limits.LIST_ITEMS_MAX:
            raise ValidationError(f"max_messages is {count}: at most {limits.LIST_ITEMS_MAX}", field="max_messages")
        lanes = 0
        for priority in asked.priorities:
            lanes |= 1 << parse_priority(priority)
        call = Fetch(
            check_name(asked.topic, "topic"),
            asked.partition,
            asked.offset,
            FETCH_BYTES,
            caller.wait_ms(asked.wait_ms),
            lanes=lanes,
        )
        if asked.member_id:
            group = check_name(asked.group, "group")
            number, generation = await self._backing.seen_by(group, asked.member_id, asked.number, asked.generation)
            call = replace(call, group=group, member_id=asked.member_id, number=number, generation=generation)
        call = bounded(call)
        found = await self._backing.ask_with_bulk(call)
        return await self._backing.made(lambda: fetched(call, found, count), sum(map(raw_bytes, found.bulk)))

    async def commit(self, asked: shapes.CommitRequest, caller: Caller) -> shapes.CommitResponse:
        reader = asked.reader
        if asked.member_id:
            if reader or not asked.generation:
                field = "reader" if reader else "generation"
                raise ValidationError("a member commits by member_id and generation, without a reader", field=field)
            reader = asked.member_id if asked.HasField("sequence") else ""
        if bool(reader) != asked.HasField("sequence"):
            raise ValidationError("give both reader and sequence, or neither", field="sequence")
        call = Commit(
            check_name(asked.group, "group"),
            check_name(asked.topic, "topic"),
            dict(asked.offsets),
            reader,
            asked.sequence if reader else -1,
            metadata=dict(asked.metadata),
        )
        if asked.member_id:
            number, generation = await self._backing.seen_by(
                call.group, asked.member_id, asked.number, asked.generation
            )
            call = replace(call, member_id=asked.member_id, number=number, generation=generation)
        await self._backing.ask(bounded(call))
        return shapes.CommitResponse()

    async def committed(self, asked: shapes.CommittedRequest, caller: Caller) -> shapes.CommittedResponse:
        call = Committed(check_name(asked.group, "group"), check_name(asked.topic, "topic"))
        found = await self._backing.ask(call)
        return shapes.CommittedResponse(offsets=found.offsets, metadata=found.metadata)

    async def seek(self, asked: shapes.SeekRequest, caller: Caller) -> shapes.SeekResponse:
        to = asked.WhichOneof("to")
        if to is None:
            raise ValidationError("give one of place, time_ms and offsets", field="to")
        if to == "place" and asked.place not in ("earliest", "latest"):
            raise ValidationError(f"place is {asked.place[:80]!r}: give earliest or latest", field="place")
        call = Seek(
            check_name(asked.topic, "topic"),
            check_name(asked.group, "group"),
            dict(asked.offsets.offsets) if to == "offsets" else None,
            asked.time_ms if to == "time_ms" else None,
            asked.place if to == "place" else None,
            force=asked.force,
        )
        await self._backing.ask(bounded(call))
        return shapes.SeekResponse()
