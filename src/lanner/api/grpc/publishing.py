"""Publish and PublishStream: messages in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from lanner.api.deduplication import check_key, dedup_ids
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, streaming, unary
from lanner.api.grpc.shapes import new_message
from lanner.broker.desks.calls import NewMessage, Stored
from lanner.errors import TopicNotFound
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
        messages = [new_message(shape, f"messages[{place}]", now) for place, shape in enumerate(asked.messages)]
        key = check_key(asked.idempotency_key.encode(), "idempotency_key") if asked.idempotency_key else b""
        kinds = [(shape.delay_ms, shape.ttl_ms) for shape in asked.messages] if key else None
        stored = await self._publish(topic, list(dedup_ids(key, messages, kinds)))
        return shapes.PublishResponse(
            messages=[
                shapes.StoredMessage(
                    id=f"{topic}/{one.partition}/{one.offset}",
                    partition=one.partition,
                    offset=one.offset,
                    timestamp_ms=one.append_ms,
                    duplicate=one.duplicate,
                )
                for one in stored
            ]
        )

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
