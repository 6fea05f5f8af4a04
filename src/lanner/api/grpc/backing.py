"""What the door asks of the broker: calls of the table, and single messages in and out of batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lanner.broker.desks.calls import Delivered, NewMessage, Stored
from lanner.calls import Identity
from lanner.errors import LannerError, from_wire
from lanner.wire.messages import AnswerT, Call, Metadata, Poll, Release, SettleItem, SettleKind, TopicInfo

if TYPE_CHECKING:
    from lanner.broker.service import Service

_log: Final = logging.getLogger("lanner.api.grpc")
IDENTITY: Final = Identity("anonymous", "grpc")


class Backing:
    """The broker, as the methods of the door see it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def node_id(self) -> str:
        return self._service.node_id

    @property
    def ready(self) -> bool:
        return self._service.ready

    async def ask(self, call: Call[AnswerT]) -> AnswerT:
        """What a call is answered, from wherever it can be answered."""
        return (await self._service.ask(IDENTITY, call)).control

    async def publish(self, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""
        return await self._service.publish_messages(IDENTITY, topic, messages)

    async def poll(self, call: Poll) -> list[Delivered]:
        """Leased messages, decoded."""
        return (await self._service.poll_messages(IDENTITY, call)).messages

    def release_later(self, call: Poll, delivered: Sequence[Delivered]) -> None:
        """Give back what a poll leased and its caller did not get, without counting a delivery."""
        if call.auto_ack or not delivered:
            return
        items = [
            SettleItem(one.message.partition, one.token, one.message.offset, 1, int(SettleKind.ACK))
            for one in delivered
        ]
        task = asyncio.get_running_loop().create_task(self._release(Release(call.group, call.topic, items)))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, call: Release) -> None:
        try:
            await self.ask(call)
        except LannerError as error:
            _log.info("leases that no caller got could not be released: %s", error)  # they end by themselves

    async def released(self) -> None:
        """Waits until everything is given back that is being given back."""
        await asyncio.gather(*self._releasing)

    async def topics(self, names: Sequence[str], *, create: bool = False) -> list[TopicInfo]:
        """Topics by their names; the error of the first that is not there."""
        found = (await self.ask(Metadata(list(names), create))).topics
        for topic in found:
            if topic.error:
                error = from_wire(topic.error, "")
                raise type(error)(f"{topic.name}: {error.message}", topic=topic.name)
        return found
