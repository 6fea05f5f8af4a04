"""The home of members: this broker hears them, keeps their heartbeats waiting for news, and tells whom it has heard.

A member may send its heartbeats to any broker, and change between two of them. The home answers from its own copy of
the metadata. With its pulses it tells the broker that leads the metadata the numbers of the members that it has heard
since the last one. That broker's pulses tell in turn which of ours has arrived: so a home knows for how long nobody may
have counted what it hears, and says so (`confirmed_ms`).

It refuses to know sessions, silence and rebalances: the leader's coordinator has those. Nothing here is saved.

Rules
- What was heard is kept until a pulse has taken it along.
- A call that waits counts for as long as it waits.
- A waiting heartbeat wakes when the view of *its* member has changed, not with every change of the group.
- One assignment may be news for a thousand members: they are woken some at a time, and others have their turn between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

from lanner import limits
from lanner.broker.replicas.engine import Engine
from lanner.cluster import Group
from lanner.net.waiters import answer_to

_WOKEN_PER_TURN: Final = 64  # heartbeats: each makes its member's view, and has it sent


class Sign(NamedTuple):
    """What a pulse to one broker says of members."""

    heard: list[int]  # numbers of members; only for the broker that leads the metadata
    sent_ms: int  # by the sender's steady clock
    echo_ms: int  # what the receiver's latest pulse said as its own `sent_ms`; 0: none was heard


class _Beat(NamedTuple):
    """A heartbeat that waits for news of one member."""

    member: int
    generation: int  # the newest one that the member has seen
    woken: asyncio.Future[None]


class Homes:
    """Every member that is heard on this broker."""

    def __init__(
        self, node_id: str, engine: Engine, metadata_leader: Callable[[], str], steady_ms: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._metadata_leader = metadata_leader  # its node id; empty while none is known
        self._steady_ms = steady_ms
        self._heard: set[int] = set()  # members, since the last pulse
        self._present: Counter[int] = Counter()  # members with calls that wait here
        self._beats: dict[int, set[_Beat]] = {}  # group → heartbeats that wait
        self._news: dict[_Beat, None] = {}  # heartbeats that have something to say, each in its turn
        self._waking = False  # it goes on with the next turn of the loop
        self._sent_ms: dict[str, int] = {}  # broker → by its clock, when it sent the latest pulse that was heard
        self._confirmed_ms: dict[str, int] = {}  # broker → by our clock, when we sent what it has heard
        self.on_changed: list[Callable[[Collection[str]], None]] = []  # told the names of groups that have changed

    # ------------------------------------------------------------------ who is heard

    def heard(self, group: str, member_id: str) -> None:
        """A call has come that names this member. One that is no member means nothing here."""
        number = self._number(group, member_id)
        if number:
            self._heard.add(number)

    @contextmanager
    def present(self, group: str, member_id: str) -> Iterator[None]:
        """Count a call that waits as a heartbeat, for as long as it waits."""
        number = self._number(group, member_id)
        if not number:
            yield
            return
        self._present[number] += 1
        try:
            yield
        finally:
            self._heard.add(number)
            self._present[number] -= 1
            if not self._present[number]:
                del self._present[number]

    def _number(self, group: str, member_id: str) -> int:
        found = self._engine.cluster.group(group) if member_id else None
        return 0 if found is None else found.ids.get(member_id, 0)

    def take_heard(self) -> list[int]:
        """Return the members that were heard since the last call; they are somebody else's to tell now."""
        heard = sorted(self._heard.union(self._present))
        self._heard = set(heard[limits.MEMBERS_HEARD_MAX :])  # as many as one pulse may hold; the others with the next
        return heard[: limits.MEMBERS_HEARD_MAX]

    # ------------------------------------------------------------------ what pulses say

    def sign_for(self, node_id: str) -> Sign:
        """What the next pulse to this broker says. The broker that leads the metadata is told who was heard."""
        heard = self.take_heard() if node_id == self._metadata_leader() else []
        return Sign(heard, self._steady_ms(), self._sent_ms.get(node_id, 0))

    def take_sign(self, node_id: str, sent_ms: int, echo_ms: int) -> None:
        """A pulse of another broker has come."""
        self._sent_ms[node_id] = sent_ms
        if 0 < echo_ms <= self._steady_ms():
            self._confirmed_ms[node_id] = echo_ms

    @property
    def confirmed_ms(self) -> int:
        """How long ago the broker that leads the metadata was told whom this one hears, and got it; -1: never."""
        leader = self._metadata_leader()
        if leader == self._node_id:
            return 0
        sent_ms = self._confirmed_ms.get(leader)
        return -1 if sent_ms is None else self._steady_ms() - sent_ms

    # ------------------------------------------------------------------ heartbeats that wait

    async def wait_for_news(self, group: Group, member: int, generation: int, wait_ms: int) -> None:
        """Return when the view is newer than this generation, when it is a member no more, or after a while."""
        if _has_news(group, member, generation):
            return
        loop = asyncio.get_running_loop()
        beat = _Beat(member, generation, loop.create_future())
        waiting = self._beats.setdefault(group.row.number, set())
        waiting.add(beat)
        timer = loop.call_later(wait_ms / 1_000, answer_to(beat.woken), None)
        try:
            await beat.woken
        finally:
            timer.cancel()
            waiting.discard(beat)
            if not waiting:
                self._beats.pop(group.row.number, None)

    def changed(self, numbers: Iterable[int]) -> None:
        """These groups have changed in this broker's copy, or are gone."""
        groups = self._engine.cluster.groups()
        names = []
        for number in numbers:
            group = groups.get(number)
            for beat in tuple(self._beats.get(number, ())):
                if group is None or _has_news(group, beat.member, beat.generation):
                    self._news[beat] = None
            if group is not None:
                names.append(group.row.name)
        if self._news and not self._waking:
            self._wake_some()
        for tell in self.on_changed:
            tell(names)

    def _wake_some(self) -> None:
        """Wake as many as one turn of the loop takes, and the rest in the next ones."""
        for beat in tuple(islice(self._news, _WOKEN_PER_TURN)):
            del self._news[beat]
            answer_to(beat.woken)(None)
        self._waking = bool(self._news)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    @property
    def awaited(self) -> Sequence[int]:
        """The groups whose members have heartbeats waiting here."""
        return tuple(self._beats)

    def wake_all(self) -> None:
        """Answer every heartbeat that waits: this broker stops."""
        for waiting in tuple(self._beats.values()):
            for beat in tuple(waiting):
                answer_to(beat.woken)(None)


def _has_news(group: Group, member: int, generation: int) -> bool:
    return group.seen.get(member, generation + 1) > generation


__all__ = ["Homes", "Sign"]
