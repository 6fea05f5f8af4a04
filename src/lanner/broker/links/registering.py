"""Registration: the metadata knows where every broker is reached, and which feature levels it supports."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.ports import Clock, Fail, Proposer
from lanner.broker.replicas.engine import Engine
from lanner.cluster import Broker, Registration, encode_register_broker
from lanner.errors import ConflictError, LannerError

log = logging.getLogger("lanner.broker")

_AGAIN_SECONDS: Final = 1.0


async def keep_registered(
    identity: BrokerIdentity, engine: Engine, proposer: Proposer, own_clock: Clock, fail: Fail
) -> None:
    """Tell the metadata what has changed about this broker since it was here last; again until it has taken effect."""
    while True:
        known = engine.cluster.brokers.get(identity.node_id)
        own = identity.registration
        if known is not None and _said(known) == _said(own):
            _advise_upgrade(engine)
            return
        try:
            await proposer.propose(encode_register_broker(own, own_clock.now_ms()))
        except ConflictError as error:
            fail(error)
            return
        except LannerError as error:
            log.warning("could not tell the cluster about this broker: %s", error.message)
        await asyncio.sleep(_AGAIN_SECONDS)


def _said(of: Broker | Registration) -> tuple[object, ...]:
    """What a broker says of itself, and may say otherwise after a restart."""
    return of.rack, of.addresses, of.feature_min, of.feature_max


def _advise_upgrade(engine: Engine) -> None:
    found = engine.cluster.describe_cluster()
    if found.feature_level < found.feature_level_possible:
        log.warning(
            "the cluster is at feature level %d and every broker supports %d: `lanner cluster upgrade` raises it, "
            "so that they use all that their release brings; older releases cannot join from then on",
            found.feature_level,
            found.feature_level_possible,
        )


__all__ = ["keep_registered"]
