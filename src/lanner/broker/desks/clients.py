"""Who is connected to this broker, and what each holds leased here.

A page is bounded by its clients and by its bytes. Leases are counted for those on the page only, one partition after
the other, so that the loop is never kept for longer than one partition takes; and only so many are looked at for one
page. What is beyond that is not counted, and said to be so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from lanner import features, limits
from lanner.broker.desks.member_desk import MemberDesk
from lanner.calls import Answer
from lanner.calls.client_pages import Holder, polled_for
from lanner.errors import NotSupported
from lanner.net.clients import Client, Use
from lanner.wire.members import ClientList, ClientState, ClientUse, ListClients

_NOT_COUNTED: Final = (-1, 0)
_LOOKS_PER_TURN: Final = 2_000  # at clients, or at partitions and leases
_CLIENT_BYTES: Final = 128  # of a client, or of a use, besides its names


class Clients(MemberDesk):
    """The open connections of this broker."""

    async def list_clients(self, call: ListClients) -> Answer[ClientList]:
        """A page of this broker's own; or what some holders have, where this broker leads."""
        self._check_level()
        if call.holders is not None:
            held = await self._leases_of(call.holders)
            return Answer(ClientList([], held=[held.get(holder, (0, 0)) for holder in call.holders]))
        chosen, more = await self._clients_chosen(call)
        held = await self._leases_of(_holders(uses for _, uses in chosen))
        now_ms = self._wall_ms()
        clients = [self._client_state(client, uses, held, now_ms) for client, uses in chosen]
        return Answer(ClientList(clients, (self.node_id, clients[-1].number) if more else None))

    def _check_level(self) -> None:
        level = self._engine.feature_level
        if level < features.MEMBERS:
            raise NotSupported(
                f"to list clients needs feature level {features.MEMBERS}, and the cluster is at {level}: upgrade every "
                "broker, then run `lanner cluster upgrade`"
            )

    async def _clients_chosen(self, call: ListClients) -> tuple[list[tuple[Client, dict[Use, int]]], bool]:
        """The clients of a page with their uses as they are now, and whether there are more."""
        node_id, number = call.after or ("", 0)
        if node_id > self.node_id:
            return [], False
        page: list[tuple[Client, dict[Use, int]]] = []
        size = 0
        for looked_at, client in enumerate(self.clients.after(number if node_id == self.node_id else 0), start=1):
            if looked_at % _LOOKS_PER_TURN == 0:
                await asyncio.sleep(0)
            if call.group and all(use.group != call.group for use in client.uses):
                continue
            size += _size_of(client)
            if page and (len(page) >= call.limit or size > limits.CLIENT_LIST_BYTES_MAX):
                return page, True
            page.append((client, client.uses_now()))
        return page, False

    def _client_state(
        self, client: Client, uses: Mapping[Use, int], held: Mapping[Holder, tuple[int, int]], now_ms: int
    ) -> ClientState:
        return ClientState(
            self.node_id,
            self._routes.name_of(self.node_id),
            client.number,
            client.door,
            client.address,
            client.name,
            client.since_ms,
            max(0, now_ms - client.since_ms),
            [
                ClientUse(*use, *held.get(use[:3], (0, 0)), idle_ms=max(0, now_ms - used_ms))
                for use, used_ms in uses.items()
            ],
        )

    async def _leases_of(self, holders: Collection[Holder]) -> dict[Holder, tuple[int, int]]:
        """How many messages these hold where this broker leads, and until when."""
        wanted: dict[tuple[str, str], set[str]] = {}
        for group, topic, member in holders:
            wanted.setdefault((group, topic), set()).add(member)
        found: dict[Holder, tuple[int, int]] = {}
        looks = _Looks()
        for (group, topic), members in wanted.items():
            if looks.are_over:
                found |= {(group, topic, member): _NOT_COUNTED for member in members}
                continue
            for member, held in (await self._leases_in(group, topic, members, looks)).items():
                found[group, topic, member] = held
        return found

    async def _leases_in(self, group: str, topic: str, members: set[str], looks: _Looks) -> dict[str, tuple[int, int]]:
        """The same in one group on one topic; all of it, so that what is said of one member is never a part."""
        found: dict[str, tuple[int, int]] = {}
        names: dict[str, list[str]] = {}
        for member in members:
            names.setdefault(polled_for(member), []).append(member)
        known = self._engine.cluster.topics.get(topic)
        for set_id in () if known is None else known.set_ids:
            replica = self._engine.replicas.get(set_id)
            if replica is None or not replica.leads:
                await looks.look(1)
                continue
            by_member = replica.partition.held_by_member(group)
            for name, held in by_member.items():
                for member in names.get(polled_for(name), ()):
                    messages, until_ms = found.get(member, (0, 0))
                    found[member] = (messages + held.messages, max(until_ms, held.until_ms))
            await looks.look(1 + sum(held.parts for held in by_member.values()))
        return found


class _Looks:
    """Counts what was looked at, and lets others have their turn."""

    def __init__(self) -> None:
        self._left = limits.CLIENT_LEASES_LOOKED_AT
        self._until_turn = _LOOKS_PER_TURN

    @property
    def are_over(self) -> bool:
        return self._left <= 0

    async def look(self, count: int) -> None:
        self._left -= count
        self._until_turn -= count
        if self._until_turn <= 0:
            self._until_turn = _LOOKS_PER_TURN
            await asyncio.sleep(0)


def _holders(pages: Iterable[Mapping[Use, int]]) -> set[Holder]:
    return {(use.group, use.topic, use.member) for uses in pages for use in uses if use.topic and use.member}


def _size_of(client: Client) -> int:
    """About how many bytes a client takes in a page."""
    size = _CLIENT_BYTES + len(client.address) + 4 * len(client.name)
    return size + sum(_CLIENT_BYTES + sum(map(len, use)) for use in client.uses)
