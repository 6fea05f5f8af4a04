"""Publish and PublishStream: messages in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from lanner.api.deduplication import check_key, dedup_ids, refuse_other_messages
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, streaming, unary
from lanner.api.grpc.plain import Encoded, PlainPublish, publish_response
from lanner.api.grpc.shapes import new_message
from lanner.errors import TopicNotFound
from lanner.forwarding.values import NewMessage, Placed, PlainMessages
from lanner.model import check_name
from lanner.net.clock import now_ms


class Publishing:
    """Messages in, one request or a stream of them."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def methods(self) -> Mapping[str, Method]:
        return {
            "Publish": unary(PlainPublish, self.publish),
            "PublishStream": streaming(PlainPublish, self.publish_stream),
        }

    async def publish(self, asked: shapes.PublishRequest | PlainPublish, caller: Caller) -> Encoded:
        topic = check_name(asked.topic, "topic")
        messages: Sequence[NewMessage]
        kinds: list[object] | None = None
        now = now_ms()
        if isinstance(asked, PlainPublish):
            messages = PlainMessages(asked.values)
        else:
            messages = [new_message(shape, place, now) for place, shape in enumerate(asked.messages)]
            kinds = [(shape.delay_ms, shape.ttl_ms) for shape in asked.messages] if asked.idempotency_key else None
        key = check_key(asked.idempotency_key.encode(), "idempotency_key") if asked.idempotency_key else b""
        marked = dedup_ids(key, messages, kinds)
        stored = await self._publish(topic, marked)
        if key:
            await refuse_other_messages(self._backing.ask_with_bulk, topic, marked, stored, now)
        return publish_response(topic, stored)

    async def _publish(self, topic: str, messages: Sequence[NewMessage]) -> Placed:
        try:
            return await self._backing.publish(topic, messages)
        except TopicNotFound:
            await self._backing.topics([topic], create=True)  # where that is allowed
            return await self._backing.publish(topic, messages)

    async def publish_stream(
        self, requests: AsyncIterator[shapes.PublishRequest | PlainPublish], caller: Caller
    ) -> None:
        """One after the other, so that messages are stored in the order in which they came."""
        async for request in requests:
            await caller.send(await self.publish(request, caller))
