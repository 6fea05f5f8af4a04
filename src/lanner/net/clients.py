"""Who is connected to this broker, by which door, since when, and which groups each connection uses.

A door enters a connection when it opens and strikes it off when it closes; other brokers are not clients and are not
entered. Each call that names a group is noted with its connection, where the call is checked: a look into a dictionary
and the time. How much is remembered of one connection is bounded. Nothing here is stored, and nothing is decided by it:
a connection is not a member of a group, and its end is no leave.

What a connection holds leased is not known here. The partitions know it, by the name that it polls under.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.net.clock import now_ms as wall_ms
from lanner.wire.members import Heartbeat, LeaveGroup
from lanner.wire.messages import AnyCall, BestPriority, Commit, Fetch, Poll


class Use(NamedTuple):
    """One group that a connection uses, and as whom."""

    group: str
    topic: str  # empty: only heartbeats came
    member: str  # the name that it polls or commits under; empty: it did not yet
    member_id: str  # empty: it has not joined


_new = tuple.__new__  # a named tuple's own takes several times as long, and there is one for each call
_NOTED: Final[dict[type[AnyCall], Callable[[Any], Use]]] = {
    Poll: lambda call: _new(Use, (call.group, call.topic, call.member, call.member_id)),
    Commit: lambda call: _new(Use, (call.group, call.topic, call.reader, call.member_id)),
    Fetch: lambda call: _new(Use, (call.group, call.topic, "", call.member_id)),  # of a member; others name no group
    BestPriority: lambda call: _new(Use, (call.group, call.topic, "", "")),  # it waits for something to poll
    Heartbeat: lambda call: _new(Use, (call.group, "", "", call.member_id)),
}


class Client:
    """One open connection."""

    __slots__ = ("_now_ms", "address", "door", "name", "number", "since_ms", "uses")

    def __init__(self, number: int, door: str, address: str, name: str, now_ms: Callable[[], int]) -> None:
        self.number = number  # on this broker, never used twice while it runs
        self.door = door
        self.address = address
        self.name = name  # how it calls itself
        self.since_ms = now_ms()
        self.uses: dict[Use, int] = {}  # → when it was used last
        self._now_ms = now_ms

    def call_itself(self, name: str) -> None:
        """Take the name that the client gives itself."""
        self.name = name[: limits.NAME_LENGTH_MAX]

    def note(self, call: AnyCall) -> None:
        """Remember which group a call uses, if it uses one."""
        use_of = _NOTED.get(type(call))
        if use_of is None:
            if isinstance(call, LeaveGroup):
                self._forget(call)
            return
        use, uses = use_of(call), self.uses
        if use[0]:
            if len(uses) >= limits.CLIENT_USES_MAX and use not in uses:
                del uses[next(iter(uses))]
            uses[use] = self._now_ms()

    def uses_now(self) -> dict[Use, int]:
        """The uses as they are; that it waits for messages is left out where it has polled as somebody since."""
        named = {(use.group, use.topic) for use in self.uses if use.member or use.member_id}
        return {
            use: used_ms
            for use, used_ms in self.uses.items()
            if use.member or use.member_id or (use.group, use.topic) not in named
        }

    def _forget(self, left: LeaveGroup) -> None:
        gone = [use for use in self.uses if use.member_id == left.member_id and use.group == left.group]
        for use in gone:
            del self.uses[use]


class Clients:
    """The open connections of all doors, in the order in which they came."""

    def __init__(self, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._open: dict[int, Client] = {}
        self._entered = 0

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, door: str, address: str, name: str = "") -> Client:
        """A connection has opened."""
        self._entered += 1
        client = Client(self._entered, door, address[: limits.ADDRESS_LENGTH_MAX], "", self._now_ms)
        client.call_itself(name)
        self._open[client.number] = client
        return client

    def leave(self, client: Client) -> None:
        """A connection has closed. To be told so twice changes nothing."""
        self._open.pop(client.number, None)

    def after(self, number: int) -> list[Client]:
        """The connections that came after the one of this number."""
        return [client for client in self._open.values() if client.number > number]


def address_text(peer: object) -> str:
    """HOST:PORT of the other end of a socket; what it calls itself where it is none of these."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        host, port = str(peer[0]), peer[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(peer or "")


__all__ = ["Client", "Clients", "Use", "address_text"]
