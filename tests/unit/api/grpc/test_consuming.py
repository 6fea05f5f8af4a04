"""Receives and subscriptions over a broker that is only a script: what happens to leases that nobody got."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.consuming import Consuming
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import Delivered
from lanner.model import Message
from lanner.wire.messages import Poll


class ScriptedBroker:
    """Hands out one message after the other, and keeps what it is asked."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.polls = 0

    async def poll_messages(self, identity: object, call: Poll) -> Handed:
        self.polls += 1
        offset = self.polls
        unheard = None if call.auto_ack else lambda: self.released.append(offset)
        return Handed([Delivered(Message("orders", 0, offset, b"x"), 7, 0)], unheard)


class ScriptedCaller:
    """Takes so many responses, then none."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.full = asyncio.Event()

    def wait_ms(self, wanted: int) -> int:
        return wanted

    async def send(self, response: object) -> None:
        if self.takes == 0:
            self.full.set()
            await asyncio.Event().wait()
        self.takes -= 1


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_subscription_polls_again_only_when_its_caller_took_the_last_response(auto_ack: bool) -> None:
    broker: Any = ScriptedBroker()
    backing = Backing(broker)
    scripted = ScriptedCaller(takes=3)
    caller: Any = scripted
    asked = shapes.SubscribeRequest(topic="orders", group="g", auto_ack=auto_ack)
    running = asyncio.ensure_future(Consuming(backing).subscribe(asked, caller))
    await scripted.full.wait()
    assert broker.polls == 4
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert broker.released == ([] if auto_ack else [4])


async def test_a_receive_whose_answer_is_not_taken_gives_its_leases_back() -> None:
    broker: Any = ScriptedBroker()
    backing = Backing(broker)
    scripted = ScriptedCaller(takes=0)
    caller: Any = scripted
    receiving = Consuming(backing).receive(shapes.ReceiveMessagesRequest(topic="orders", group="g"), caller)
    running = asyncio.ensure_future(receiving)
    await scripted.full.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert broker.released == [1]
