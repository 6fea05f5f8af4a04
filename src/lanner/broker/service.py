"""The use-cases of a broker: the only door that the APIs call.

Every call names who calls, passes one authorisation and limits check (`desk`), and returns a typed value or raises an
error of the catalogue. Nothing here knows of HTTP, frames or gRPC; nothing here touches a disk.

The service itself serves what is led on this broker and tells everybody else who leads (NotLeader); `anywhere` has the
same calls and serves them all, asking the other brokers where it must.
"""

from __future__ import annotations

from lanner.broker.desks.administration import Administration
from lanner.broker.desks.consumption import Consumption
from lanner.broker.desks.dead_streams import DeadStreams
from lanner.broker.desks.overview import Overview
from lanner.broker.desks.staging import Staging
from lanner.broker.desks.streams import Streams
from lanner.broker.forwarding.forwarder import Forwarder
from lanner.broker.node import Node


class Service(Staging, Consumption, Streams, DeadStreams, Administration, Overview):
    """What a broker does for its callers."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.anywhere = Forwarder(self, node, self._routes)

    def drain(self) -> None:
        super().drain()
        self.anywhere.wake_all()
