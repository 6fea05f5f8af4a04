"""Queue's calls over a broker that is only a script: what a receive does when its answer is not taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.queue.v1 import queue_pb2 as calls
from lanner.api.grpc.queue_service import QueueService
from lanner.calls import Answer
from lanner.errors import NotSupported
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import Delivered
from lanner.model import Message
from lanner.wire.members import JoinGroup
from lanner.wire.messages import MetadataReply, PartitionInfo, Poll, TopicInfo

LEASED = Delivered(
    Message(topic="orders", partition=0, offset=5, value=b"x", key=None, priority=4, timestamp_ms=1), 7, 0
)


class ScriptedBroker:
    """Hands out one message, and counts when it goes back."""

    def __init__(self) -> None:
        self.polls: list[Poll] = []
        self.given_back = 0

    async def ask(self, identity: object, call: Any, bulk: Any = ()) -> Any:
        if isinstance(call, JoinGroup):
            raise NotSupported  # a cluster at an older feature level: every consumer has every partition
        return Answer(MetadataReply("c", [], [TopicInfo("orders", 1, [PartitionInfo(0, "n")])]))

    async def poll_messages(self, identity: object, call: Poll) -> Handed:
        self.polls.append(call)
        return Handed([LEASED], self.give_back)

    def give_back(self) -> None:
        self.given_back += 1


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
    connected = await queue.connect(
        calls.ConnectRequest(consumer_id="c", consumer_group="g", topics=["orders"]), asking
    )
    assert list(connected.consumer.partitions) == ["orders-0"]
    assert list(connected.consumer_group.consumers) == ["c"]
    request = calls.ReceiveMessageForPartitionIDRequest(consumer_id="c", partition_id="orders-0")
    with pytest.raises(asyncio.CancelledError):
        await queue.receive(request, asking)
    (poll,) = broker.polls
    assert (poll.group, poll.topic, poll.member, poll.partitions, poll.max_messages) == ("g", "orders", "c", [0], 1)
    assert (poll.member_id, broker.given_back) == ("", 1)
