"""The parts of a running broker that its service is made of; `Node` puts them together, and tests their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from lanner.broker.coordination.changes import Changes
from lanner.broker.coordination.coordination import Coordination
from lanner.broker.coordination.figures import Counts
from lanner.broker.coordination.homes import Homes
from lanner.broker.outages import Outages
from lanner.broker.ports import Belonging, Clock, Conditions, Kick, Leaders, PayloadReader, Peering, Proposer
from lanner.broker.readiness import Readiness
from lanner.broker.replicas.engine import Engine
from lanner.broker.room import Room
from lanner.broker.scrubbing import Scrubbing
from lanner.broker.settings import BrokerSettings
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.errors import LannerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Each desk and forwarder takes from these what it uses."""

    node_id: str
    name: str
    settings: BrokerSettings
    engine: Engine
    clock: Clock  # by which a leader decides
    wall_ms: Callable[[], int]
    reader: PayloadReader
    proposer: Proposer
    waiting: Conditions
    leaders: Leaders
    peers: Peering
    membership: Belonging
    steward: Steward
    tries: Tries
    homes: Homes
    coordination: Coordination
    changes: Changes  # of groups
    group_counts: Counts
    outages: Outages
    scrubbing: Scrubbing
    room: Room
    readiness: Readiness
    failed: asyncio.Future[LannerError]
    kick: Kick


__all__ = ["Parts"]
