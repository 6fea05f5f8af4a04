"""Who is connected: what is remembered of a connection, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner import limits
from lanner.api.grpc import seen_clients
from lanner.api.grpc.seen_clients import SeenClients, address_of
from lanner.net.clients import Client, Clients, Use, address_text
from lanner.wire.members import Heartbeat, LeaveGroup
from lanner.wire.messages import BestPriority, Commit, Fetch, Offsets, Poll


class Time:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def client() -> Client:
    return Clients(Time()).enter("native", "h:1", "worker")


def test_each_use_of_a_group_is_remembered_once_with_when_it_was_last() -> None:
    one = client()
    for _ in range(3):
        one.note(Poll("billing", "orders", "m", 1))
    one.note(Commit("audit", "orders", {0: 1}, "reader"))
    one.note(Fetch("orders", 0, 0, group="audit", member_id="id"))
    one.note(Heartbeat("audit", "id", 1, 1))
    assert list(one.uses.values()) == [1_004, 1_005, 1_006, 1_007]
    assert list(one.uses) == [
        Use("billing", "orders", "m", ""),
        Use("audit", "orders", "reader", ""),
        Use("audit", "orders", "", "id"),
        Use("audit", "", "", "id"),
    ]


def test_one_that_waits_for_messages_is_shown_until_it_has_polled_as_somebody() -> None:
    one = client()
    one.note(BestPriority("billing", "orders"))
    one.note(BestPriority("billing", "refunds"))
    assert [use.topic for use in one.uses_now()] == ["orders", "refunds"]
    one.note(Poll("billing", "orders", "m", 1))
    assert [(use.topic, use.member) for use in one.uses_now()] == [("refunds", ""), ("orders", "m")]


def test_what_names_no_group_leaves_no_trace() -> None:
    one = client()
    one.note(Fetch("orders", 0, 0))
    one.note(Offsets("orders"))
    assert not one.uses


def test_of_too_many_groups_the_first_are_forgotten() -> None:
    one = client()
    for number in range(limits.CLIENT_USES_MAX + 2):
        one.note(Poll(f"g{number}", "orders", "m", 1))
    assert len(one.uses) == limits.CLIENT_USES_MAX
    groups = [use.group for use in one.uses]
    assert groups[0] == "g2" and groups[-1] == f"g{number}"
    one.note(Poll("g5", "orders", "m", 1))
    assert len(one.uses) == limits.CLIENT_USES_MAX, "one that is known takes nobody's place"


def test_a_member_that_leaves_is_forgotten_and_no_other() -> None:
    one = client()
    one.note(Poll("g", "orders", "m", 1, member_id="a"))
    one.note(Heartbeat("g", "a", 1, 1))
    one.note(Heartbeat("g", "b", 1, 1))
    one.note(Heartbeat("other", "a", 1, 1))
    one.note(LeaveGroup("g", "a"))
    assert [(use.group, use.member_id) for use in one.uses] == [("g", "b"), ("other", "a")]


def test_connections_come_in_their_order_and_go_once() -> None:
    clients = Clients(Time())
    first, second, third = (clients.enter("rest", f"h:{number}") for number in range(3))
    clients.leave(second)
    clients.leave(second)
    assert clients.after(0) == [first, third] and clients.after(first.number) == [third]
    assert len(clients) == 2 and third.number == 3


def test_names_and_addresses_from_outside_are_bounded() -> None:
    one = Clients(Time()).enter("rest", "a" * 5_000, "n" * 5_000)
    assert len(one.address) == limits.ADDRESS_LENGTH_MAX and len(one.name) == limits.NAME_LENGTH_MAX


@pytest.mark.parametrize(
    ("peer", "text"),
    [(("127.0.0.1", 7), "127.0.0.1:7"), (("::1", 7, 0, 0), "[::1]:7"), ("/tmp/socket", "/tmp/socket"), (None, "")],
)
def test_an_address_is_written_as_people_write_it(peer: Any, text: str) -> None:
    assert address_text(peer) == text


# ------------------------------------------------------------------ gRPC, which tells of calls only


@pytest.mark.parametrize(
    ("peer", "text"),
    [("ipv4:127.0.0.1:7", "127.0.0.1:7"), ("ipv6:%5B::1%5D:7", "[::1]:7"), ("unix:/tmp/x", "unix:/tmp/x")],
)
def test_what_grpc_calls_a_peer_becomes_an_address(peer: str, text: str) -> None:
    assert address_of(peer) == text


async def test_calls_of_one_peer_are_one_client_until_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_clients, "_IDLE_S", 0.01)
    clients = Clients(Time())
    seen = SeenClients(clients)
    first = seen.begin("ipv4:h:1", [("x", "y"), ("user-agent", "grpc-python/1.7")])
    assert seen.begin("ipv4:h:1", []) is first and first.name == "grpc-python/1.7" and first.door == "grpc"
    other = seen.begin("ipv4:h:2", [("user-agent", b"bytes")])
    seen.end(first)
    seen.end(other)
    async with asyncio.timeout(10):
        while len(clients) > 1:
            await asyncio.sleep(0.005)
    assert clients.after(0) == [first], "one of its calls is still served"
    seen.end(first)
    async with asyncio.timeout(10):
        while len(clients):
            await asyncio.sleep(0.005)
    seen.stop()


async def test_of_too_many_peers_the_longest_silent_is_let_go() -> None:
    clients = Clients(Time())
    seen = SeenClients(clients, count_max=2)
    first = seen.begin("ipv4:h:1", [])
    second = seen.begin("ipv4:h:2", [])
    seen.begin("ipv4:h:1", [])
    third = seen.begin("ipv4:h:3", [])
    assert clients.after(0) == [first, third]
    seen.end(second)
    seen.stop()
    assert not len(clients)
