"""Publish and PublishStream: messages in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from lanner.api.deduplication import check_key, dedup_ids, refuse_other_messages
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, streaming, unary
from lanner.api.grpc.shapes import new_message
from lanner.errors import TopicNotFound
from lanner.forwarding.values import NewMessage, Stored
from lanner.model import check_name
from lanner.net.clock import now_ms


class Publishing:
    """Messages in, one request or a stream of them."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def methods(self) -> Mapping[str, Method]:
        return {
            "Publish": unary(shapes.PublishRequest, self.publish),
            "PublishStream": streaming(shapes.PublishRequest, self.publish_stream),
        }

    async def publish(self, asked: shapes.PublishRequest, caller: Caller) -> shapes.PublishResponse:
        topic, now = check_name(asked.topic, "topic"), now_ms()
        messages = [new_message(shape, place, now) for place, shape in enumerate(asked.messages)]
        key = check_key(asked.idempotency_key.encode(), "idempotency_key") if asked.idempotency_key else b""
        kinds = [(shape.delay_ms, shape.ttl_ms) for shape in asked.messages] if key else None
        marked = list(dedup_ids(key, messages, kinds))
        stored = await self._publish(topic, marked)
        if key:
            await refuse_other_messages(self._backing.ask_with_bulk, topic, marked, stored)
        response = shapes.PublishResponse()
        add = response.messages.add  # a list of messages would be copied one by one
        for partition, offset, append_ms, duplicate in stored:
            add(
                id=f"{topic}/{partition}/{offset}",
                partition=partition,
                offset=offset,
                timestamp_ms=append_ms,
                duplicate=duplicate,
            )
        return response

    async def _publish(self, topic: str, messages: list[NewMessage]) -> list[Stored]:
        try:
            return await self._backing.publish(topic, messages)
        except TopicNotFound:
            await self._backing.topics([topic], create=True)  # where that is allowed
            return await self._backing.publish(topic, messages)

    async def publish_stream(self, requests: AsyncIterator[shapes.PublishRequest], caller: Caller) -> None:
        """One after the other, so that messages are stored in the order in which they came."""
        async for request in requests:
            await caller.send(await self.publish(request, caller))
