"""What the door asks of the broker: calls of the table, and single messages in and out of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lanner.broker.desks.calls import NewMessage, Stored
from lanner.broker.desks.unpacking import Handed
from lanner.calls import Answer, Identity
from lanner.errors import from_wire
from lanner.wire.messages import AnswerT, Call, Metadata, Poll, TopicInfo

if TYPE_CHECKING:
    from lanner.broker.service import Service

IDENTITY: Final = Identity("anonymous", "grpc")


class Backing:
    """The broker, as the methods of the door see it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def node_id(self) -> str:
        return self._service.node_id

    @property
    def ready(self) -> bool:
        return self._service.readiness.ready

    async def ask(self, call: Call[AnswerT]) -> AnswerT:
        """What a call is answered, from wherever it can be answered."""
        return (await self.ask_with_bulk(call)).control

    async def ask_with_bulk(self, call: Call[AnswerT]) -> Answer[AnswerT]:
        """The same, for answers that have bytes beside them."""
        return await self._service.ask(IDENTITY, call)

    async def publish(self, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""
        return await self._service.publish_messages(IDENTITY, topic, messages)

    async def poll(self, call: Poll) -> Handed:
        """Leased messages, decoded."""
        return await self._service.poll_messages(IDENTITY, call)

    async def topics(self, names: Sequence[str], *, create: bool = False) -> list[TopicInfo]:
        """Topics by their names; the error of the first that is not there."""
        found = (await self.ask(Metadata(list(names), create))).topics
        for topic in found:
            if topic.error:
                error = from_wire(topic.error, "")
                raise type(error)(f"{topic.name}: {error.message}", topic=topic.name)
        return found
