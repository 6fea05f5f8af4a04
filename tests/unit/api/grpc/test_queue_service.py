"""Queue's calls over a broker that is only a script: what a receive does when its answer is not taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.queue.v1 import queue_pb2 as calls
from lanner.api.grpc.queue_service import QueueService
from lanner.broker.desks.calls import Delivered
from lanner.broker.desks.unpacking import Handed
from lanner.calls import Answer
from lanner.model import Message
from lanner.wire.messages import Metadata, MetadataReply, PartitionInfo, Release, Settled, SettledItem, TopicInfo

LEASED = Delivered(
    Message(topic="orders", partition=0, offset=5, value=b"x", key=None, priority=4, timestamp_ms=1), 7, 0
)


class ScriptedBroker:
    """Answers what a door asks, and keeps it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, identity: object, call: Any, bulk: Any = ()) -> Any:
        self.asked.append(call)
        if isinstance(call, Metadata):
            return Answer(MetadataReply("c", [], [TopicInfo("orders", 1, [PartitionInfo(0, "n")])]))
        return Answer(Settled([SettledItem(0, 1)]))

    async def poll_messages(self, identity: object, call: Any) -> Handed:
        return Handed([LEASED])


class DeafCaller:
    """A caller that has gone when the answer is there."""

    def trail(self, **trailers: str) -> None: ...

    async def send(self, response: object) -> None:
        raise asyncio.CancelledError


async def test_a_lease_whose_message_was_not_taken_goes_back_uncounted() -> None:
    broker: Any = ScriptedBroker()
    backing = Backing(broker)
    queue, caller = QueueService(backing), DeafCaller()
    asking: Any = caller
    await queue.connect(calls.ConnectRequest(consumer_id="c", consumer_group="g", topics=["orders"]), asking)
    request = calls.ReceiveMessageForPartitionIDRequest(consumer_id="c", partition_id="orders-0")
    with pytest.raises(asyncio.CancelledError):
        await queue.receive(request, asking)
    await backing.released()
    (release,) = [call for call in broker.asked if isinstance(call, Release)]
    (item,) = release.items
    assert (release.group, release.topic) == ("g", "orders")
    assert (item.partition, item.token, item.first_offset, item.count) == (0, 7, 5, 1)
