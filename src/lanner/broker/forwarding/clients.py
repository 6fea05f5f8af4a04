"""The clients of all brokers, a page at a time.

Every broker knows its own connections: all are asked at once, and one that does not answer is named, so that nobody
takes a part for the whole. A native client polls the leaders itself, so its broker knows what it holds there. Who comes
by another door is served through its broker by whichever broker leads: what it holds is asked of all of them.
"""

from __future__ import annotations

from typing import Final

from lanner import limits
from lanner.broker.forwarding.neighbours import Neighbours
from lanner.calls import Answer, Identity
from lanner.calls.client_pages import Holder, clients_merge, holders_elsewhere, with_holdings
from lanner.errors import LannerError
from lanner.forwarding.asking import Asking
from lanner.wire.members import ClientList, ListClients

_REPORT_MS: Final = 2_000


class ClientPages(Asking):
    """The way of LIST_CLIENTS."""

    _neighbours: Neighbours

    async def list_clients(self, identity: Identity, call: ListClients) -> Answer[ClientList]:
        mine = (await self._here.handle(call)).control
        if call.holders is not None:
            return Answer(mine)  # what brokers ask each other is about one of them
        own, brokers = self._neighbours.node_id, self._neighbours.brokers()
        others = sorted(brokers.keys() - {own})
        told = await self.together(self._told(node_id, identity, call) for node_id in others)
        answers = {own: mine, **{node_id: page for node_id, page in zip(others, told, strict=True) if page is not None}}
        missing = sorted(brokers[node_id] for node_id in others if node_id not in answers)
        page = clients_merge(call, answers, missing)
        holders = holders_elsewhere(page)
        if holders:
            asked = [node_id for node_id in answers if node_id != own]
            counts = await self.together(self._held(node_id, identity, holders) for node_id in (own, *asked))
            page = with_holdings(page, holders, counts)
        return Answer(page)

    async def _told(self, node_id: str, identity: Identity, call: ListClients) -> ClientList | None:
        if not self._neighbours.is_alive(node_id):
            return None
        try:
            return (await self.serve_at(node_id, identity, call, timeout_ms=_REPORT_MS)).control
        except LannerError:
            return None

    async def _held(self, node_id: str, identity: Identity, holders: list[Holder]) -> list[tuple[int, int]]:
        """What these hold at one broker; nothing where it does not answer."""
        call = ListClients(holders=holders[: limits.CLIENT_HOLDERS_MAX])
        try:
            return (await self.serve_at(node_id, identity, call, timeout_ms=_REPORT_MS)).control.held
        except LannerError:
            return []
