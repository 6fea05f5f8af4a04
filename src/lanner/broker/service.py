"""The use-cases of a broker: the only door that the APIs call.

Every call names who calls, passes one authorisation and limits check (`desk`), and returns a typed value or raises an
error of the catalogue. Nothing here knows of HTTP, frames or gRPC; nothing here touches a disk.

The service itself serves what is led on this broker and tells everybody else who leads (NotLeader); `anywhere` has the
same calls and serves them all, asking the other brokers where it must.
"""

from __future__ import annotations

from typing import Any

from lanner.broker.adapting import CALLS, publish
from lanner.broker.desks.administration import Administration
from lanner.broker.desks.consumption import Consumption
from lanner.broker.desks.dead_streams import DeadStreams
from lanner.broker.desks.overview import Overview
from lanner.broker.desks.staging import Staging
from lanner.broker.desks.streams import Streams
from lanner.broker.forwarding.forwarder import Forwarder
from lanner.broker.node import Node
from lanner.calls import Answer, Bulk, Identity
from lanner.wire.messages import AnswerT, Call, Publish


class Service(Staging, Consumption, Streams, DeadStreams, Administration, Overview):
    """What a broker does for its callers."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.anywhere = Forwarder(self, node, self._routes)

    async def serve(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Check who asks, and serve the call on this broker alone."""
        return await _adapted(self, identity, call, bulk)

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Answer a call from wherever it can be answered: here, or one hop away."""
        return await _adapted(self.anywhere, identity, call, bulk)

    def drain(self) -> None:
        super().drain()
        self.anywhere.wake_all()


async def _adapted(service: Any, identity: Identity, call: Call[AnswerT], bulk: Bulk) -> Answer[AnswerT]:
    if isinstance(call, Publish):
        return await publish(service, identity, call, b"".join(bulk))
    return await CALLS[type(call)](service, identity, call)
