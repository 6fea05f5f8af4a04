"""Settles and releases of messages that are led on any broker.

Every item goes to the leader of its partition and has its own outcome. Those that nobody took are tried again until the
deadline; then each says so by its own code, and the others have taken effect all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lanner.broker.desks.calls import Identity, SettleItem, SettleResult
from lanner.broker.forwarding.spreading import UNANSWERED, Backoff, Spreading
from lanner.errors import LannerError, NotLeader

_UNANSWERED_CODES: Final = frozenset(kind.code for kind in UNANSWERED)


class ForwardedSettles(Spreading):
    """What workers say about what they were given."""

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        return await self._settle("settle", identity, topic, group, items)

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        return await self._settle("release", identity, topic, group, items)

    async def _settle(
        self, what: str, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        """Each item where its partition is led. One that nobody took until the deadline says so by its own code."""
        found = await self.find_topic(topic)
        self._service.check_partitions(found, [item.partition for item in items])
        results: list[SettleResult] = [SettleResult(NotLeader.code, 0)] * len(items)
        waiting = list(range(len(items)))
        backoff = Backoff(self._loop)

        async def settle_at(node_id: str, mine: Sequence[int]) -> list[LannerError]:
            places = [place for place in waiting if items[place].partition in mine]
            call = getattr(self.at(node_id, backoff.left_ms), what)
            try:
                answers = await call(identity, topic, group, [items[place] for place in places])
            except UNANSWERED as error:
                for place in places:
                    results[place] = SettleResult(error.code, 0)
                return [error]
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
            return []

        while waiting:
            places = self.placed(found, dict.fromkeys(items[place].partition for place in waiting))
            unserved = places.pop("", None)
            errors = await self.together(settle_at(node_id, mine) for node_id, mine in places.items())
            waiting = [place for place in waiting if results[place].code in _UNANSWERED_CODES]
            if waiting:
                error = next((one for found_wrong in errors for one in found_wrong), None)
                if unserved is not None or error is None:
                    error = self._routes.not_leader(found, items[waiting[0]].partition)
                try:
                    await backoff.pause(error)
                except UNANSWERED:
                    break
        return results
