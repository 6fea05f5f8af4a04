"""What the door asks of the broker: calls of the table, and single messages in and out of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from lanner import limits
from lanner.api.following import poll_as_member, seen_by
from lanner.api.grpc.seen_clients import CONNECTION
from lanner.calls import Answer, Identity
from lanner.errors import from_wire
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import NewMessage, Placed
from lanner.wire.messages import AnswerT, Call, Metadata, Poll, TopicInfo

if TYPE_CHECKING:
    from lanner.api.ports import Service

MadeT = TypeVar("MadeT")
_INLINE_BYTES_MAX: Final = 64 * limits.KIB
IDENTITY: Final = Identity("anonymous", "grpc")


def _identity() -> Identity:
    """Who makes the call that is being served."""
    return Identity(IDENTITY.name, IDENTITY.door, CONNECTION.get())


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
        return await self._service.ask(_identity(), call)

    async def made(self, make: Callable[[], MadeT], size: int) -> MadeT:
        """What takes long to make of so many bytes is made in a reader thread, so that the loop goes on."""
        return make() if size <= _INLINE_BYTES_MAX else await self._service.in_reader(make)

    async def publish(self, topic: str, messages: Sequence[NewMessage]) -> Placed:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""
        return await self._service.publish_messages(IDENTITY, topic, messages)

    def member(self, name: str) -> str:
        """The name that the connection of the call being served polls under."""
        connection = CONNECTION.get()
        return name if connection is None else f"{name}-{connection.number}"

    async def poll(self, call: Poll) -> Handed:
        """Leased messages, decoded."""
        if call.member_id:
            return await poll_as_member(self._service, _identity(), call)
        return await self._service.poll_messages(_identity(), call)

    async def seen_by(self, group: str, member_id: str, number: int, generation: int) -> tuple[int, int]:
        """The view that a member acts on; what it left out is what it has now."""
        return await seen_by(self._service, _identity(), group, member_id, number, generation)

    async def topics(self, names: Sequence[str], *, create: bool = False) -> list[TopicInfo]:
        """Topics by their names; the error of the first that is not there."""
        found = (await self.ask(Metadata(list(names), create))).topics
        for topic in found:
            if topic.error:
                error = from_wire(topic.error, "")
                raise type(error)(f"{topic.name}: {error.message}", topic=topic.name)
        return found
