"""How the partitions that a stream's member was given are claimed, before anything is read there.

A claim that failed for now is repeated, and one partition that nobody leads holds up no other. One that is refused for
another reason than that the partition is somebody else's (the group is a queue's on that topic, say) is repeated too,
with longer pauses: to release it would bring it back at once, and the group would never come to rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from lanner.client.assignments import Granted
from lanner.errors import (
    InstanceFenced,
    LannerError,
    MemberFenced,
    MemberUnknown,
    PartitionNotFound,
    StaleIncarnation,
    TopicNotFound,
)
from lanner.net.backoff import Backoff

_log: Final = logging.getLogger("lanner.client")

GONE: Final = (MemberFenced, StaleIncarnation, TopicNotFound, PartitionNotFound)  # a partition is not this member's
REFUSALS: Final = (MemberUnknown, InstanceFenced, *GONE)
_REFUSED_S_MAX: Final = 30.0

Claimed = Mapping[Granted, int | LannerError]  # where to begin in each partition, or why it cannot be had


async def claim_all(
    claim: Callable[[Sequence[Granted]], Awaitable[Claimed]],
    granted: Sequence[Granted],
    may_claim: Callable[[Granted], bool],
    told: Callable[[Claimed], None],
) -> None:
    """Claim until each of these is had, or is not to be claimed any more; `told` learns what came of each try."""
    backoff, refusals = Backoff(), Backoff(1.0, _REFUSED_S_MAX)
    warned: set[str] = set()
    while left := [one for one in granted if may_claim(one)]:
        found: Claimed
        try:
            found = await claim(left)
        except LannerError as error:
            found = dict.fromkeys(left, error)
        told(found)
        errors = [why for one, why in found.items() if may_claim(one) and isinstance(why, LannerError)]
        for why in errors:
            if not why.retryable and not isinstance(why, REFUSALS) and why.message not in warned:
                warned.add(why.message)
                _log.warning("%s; until that is mended nothing is read there", why.message)
        if any(may_claim(one) for one in left):
            are_refused = bool(errors) and not any(why.retryable for why in errors)
            await asyncio.sleep((refusals if are_refused else backoff).pause_s())


__all__ = ["GONE", "REFUSALS", "Claimed", "claim_all"]
