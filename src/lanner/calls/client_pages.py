"""How the pages of clients that brokers gave become one, and what holders have at several brokers one sum. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.wire.members import ClientList, ClientState, ClientUse, ListClients

Holder = tuple[str, str, str]  # group, topic, and the name that a member polls under
Held = tuple[int, int]  # messages, and when the last lease ends; -1 messages: not counted

_NATIVE: Final = "native"
_BYTES_BESIDES: Final = 128
_DOOR: Final = "door-"
_PREFIX: Final = len(_DOOR) + 16 + 1
_CUT: Final = limits.MEMBER_LENGTH_MAX - _PREFIX


def passed_on(forwarder: str, member: str) -> str:
    """The name under which a forwarder polls for a member whose polls have no numbers: the numbers are its own."""
    return f"{_DOOR}{forwarder:16.16}/{member[:_CUT]}"


def polled_for(member: str) -> str:
    """The member that a poll or a lease under this name is for, as `cut_name` has it."""
    return member[_PREFIX:] if member.startswith(_DOOR) and member[_PREFIX - 1 : _PREFIX] == "/" else cut_name(member)


def cut_name(member: str) -> str:
    """A member's name as far as it goes with a forwarder's before it."""
    return member[:_CUT]


def clients_merge(call: ListClients, answers: Mapping[str, ClientList], missing: Sequence[str]) -> ClientList:
    """One page of what brokers answered, by node id. Where a broker had more than it told, the page ends with it."""
    clients: list[ClientState] = []
    size = 0
    for node_id in sorted(answers):
        told = answers[node_id]
        for client in told.clients:
            size += _size_of(client)
            if len(clients) >= call.limit or (clients and size > limits.CLIENT_LIST_BYTES_MAX):
                return ClientList(clients, _place(clients[-1]), list(missing))
            clients.append(client)
        if told.next is not None:
            return ClientList(clients, told.next, list(missing))
    return ClientList(clients, None, list(missing))


def holders_elsewhere(page: ClientList) -> list[Holder]:
    """Those on a page whose polls their broker has others serve: so others know what they hold."""
    found = {
        (use.group, use.topic, use.member): None
        for client in page.clients
        if client.door != _NATIVE
        for use in client.uses
        if use.topic and use.member
    }
    return list(found)[: limits.CLIENT_HOLDERS_MAX]


def with_holdings(page: ClientList, holders: Sequence[Holder], counts: Sequence[Sequence[Held]]) -> ClientList:
    """The page with what its holders have at all brokers together."""
    sums: dict[Holder, Held] = {}
    for held in counts:
        for holder, (messages, until_ms) in zip(holders, held, strict=False):
            before, latest_ms = sums.get(holder, (0, 0))
            uncounted = before < 0 or messages < 0
            sums[holder] = (-1 if uncounted else before + messages, max(latest_ms, until_ms))

    def counted(use: ClientUse) -> ClientUse:
        messages, until_ms = sums.get((use.group, use.topic, use.member), (use.leased, use.until_ms))
        return replace(use, leased=messages, until_ms=until_ms)

    clients = [
        client if client.door == _NATIVE else replace(client, uses=[counted(use) for use in client.uses])
        for client in page.clients
    ]
    return replace(page, clients=clients)


def _place(client: ClientState) -> tuple[str, int]:
    return client.node_id, client.number


def _size_of(client: ClientState) -> int:
    size = _BYTES_BESIDES + len(client.address) + 4 * len(client.client)
    return size + sum(
        _BYTES_BESIDES + len(use.group) + len(use.topic) + 4 * len(use.member) + len(use.member_id)
        for use in client.uses
    )


__all__ = [
    "Held",
    "Holder",
    "clients_merge",
    "cut_name",
    "holders_elsewhere",
    "passed_on",
    "polled_for",
    "with_holdings",
]
