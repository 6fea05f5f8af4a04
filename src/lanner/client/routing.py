"""What the client knows of topics: how many partitions each has, who leads each, and which one a message goes to.

An explicit partition wins; a key chooses by consistent hash; without one the dedup id chooses; without that the
caller goes round by batch.

Rules:
- Knowledge is refreshed in passing, so that a topic that grows is noticed; and at once when an error shows that it is
  old. A hint in a NotLeader is taken without asking.
- One question about leaders is under way at a time, for all topics together, and the longer it goes on without the
  answer helping, the longer the pauses, with chance in them: thousands of clients that lose a broker at the same
  moment do not all ask at the same moment.
- An answer to a question that was asked before a hint came does not undo the hint; one from a broker that is behind
  does not make a topic shrink.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.batch import partition_for_key
from lanner.client.arguments import partition_number
from lanner.client.brokers import Brokers
from lanner.client.session import Session
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    PartitionNotFound,
    ServiceUnavailable,
    TopicNotFound,
    from_wire,
)
from lanner.model import check_name
from lanner.wire.messages import Metadata, TopicInfo

REFRESH_S: Final = 30.0
TOPICS_KEPT_MAX: Final = 10_000
_TOPICS_PER_REQUEST: Final = 1_000
_LOOKUP_MS: Final = 5_000
_ATTEMPT_MS: Final = 1_500
_QUIET_S: Final = 2.0  # after so long without a question the next one is not a repetition
_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_PAUSE_SHARE: Final = 0.125  # of the time that a search already takes
_LOOKS: Final = 2
_SECOND_LOOK_S: Final = 0.15
_LAG_S: Final = 1.0  # so far may brokers be behind each other
_SEARCH_S: Final = 30.0  # so long a leader is looked for without anybody asking again

WORTH_A_LOOK: Final = (NotLeader, ConnectionLost, DeadlineExceeded, ServiceUnavailable, BadGateway)


class Route(NamedTuple):
    """A topic as the client last saw it."""

    topic: str
    incarnation: int
    partitions: int
    settings: dict[str, Any]
    seen_at: float
    leaders: tuple[str, ...] = ()  # node ids by partition; empty: nobody leads it at present
    replicas: tuple[tuple[str, ...], ...] = ()  # node ids of all that have a copy, by partition


class Routing:
    """Routes by topic, looked up once and refreshed when they grow old or prove wrong."""

    def __init__(self, brokers: Brokers, *, refresh_s: float = REFRESH_S) -> None:
        self.on_change: list[Callable[[str], None]] = []  # a topic's leaders or partitions are others now
        self._brokers = brokers
        self._refresh_s = refresh_s
        self._routes: dict[str, Route] = {}
        self._hinted: dict[tuple[str, int], float] = {}  # when a hint named the leader
        self._lookups: dict[str, asyncio.Task[Route]] = {}
        self._wanted: dict[str, None] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._asked_at = -_QUIET_S
        self._search_began = 0.0
        brokers.on_lost.append(self._lost)

    def known(self, topic: str) -> Route | None:
        """The route if it is known; an old one is refreshed in the background."""
        route = self._routes.get(topic)
        if route is not None and time.monotonic() - route.seen_at > self._refresh_s:
            self.refresh(topic)
        return route

    async def route(self, topic: str, *, create: bool = False) -> Route:
        """The route, asked for when it is not known. `create` makes the topic where the broker allows that."""
        route = self._routes.get(topic)
        if route is not None:
            return route
        check_name(topic, "topic")
        return await asyncio.shield(self._lookup(topic, create=create))

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = list(self._lookups.values())
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ leaders

    def leader(self, topic: str, partition: int) -> Session | None:
        """Whom to ask about a partition; the session may still be on its way. None: it is not known, and looked for."""
        route = self._routes.get(topic)
        if route is None:  # any broker tells whether the topic is gone
            return self._brokers.any_up()
        leaders = route.leaders
        session = self._brokers.to(leaders[partition] if partition < len(leaders) else "")
        if session is None:
            self.refresh(topic)
        return session

    def follower(self, topic: str, partition: int) -> Session | None:
        """A broker that has a copy of a partition and does not lead it, as far as one is connected; None: ask the
        leader. One that is not connected yet is, for the next time."""
        route = self._routes.get(topic)
        if route is None or partition >= len(route.replicas):
            return None
        others = [node_id for node_id in route.replicas[partition] if node_id and node_id != route.leaders[partition]]
        sessions = [session for node_id in others if (session := self._brokers.to(node_id)) is not None]
        up = [session for session in sessions if session.is_up and not session.is_suspect]
        return random.choice(up) if up else None

    def by_leader(self, topic: str, partitions: Iterable[int]) -> tuple[dict[Session, list[int]], list[int]]:
        """These partitions by who leads them, and those of which that is not known."""
        led: dict[Session, list[int]] = {}
        orphans: list[int] = []
        for partition in partitions:
            session = self.leader(topic, partition)
            if session is None:
                orphans.append(partition)
            else:
                led.setdefault(session, []).append(partition)
        return led, orphans

    def is_gone(self, topic: str, partition: int, since: float) -> bool:
        """Whether a broker says, a while after this time (`time.monotonic`), that the topic lacks a partition that it
        had then: it was made anew. What is said earlier may be from before it grew, by a broker that lags."""
        route = self._routes.get(topic)
        return route is not None and partition >= route.partitions and route.seen_at > since + _LAG_S

    def failed(self, topic: str, partition: int, asked: Session | None, error: LannerError) -> bool:
        """Learn from an error. True: there is reason to ask again at once, somewhere else."""
        if not isinstance(error, WORTH_A_LOOK):
            return False
        if isinstance(error, NotLeader) and self._take_hint(topic, partition, asked, error):
            return True
        self.refresh(topic)
        return False

    def _take_hint(self, topic: str, partition: int, asked: Session | None, error: NotLeader) -> bool:
        node_id, address = error.details.get("leader"), error.details.get("address")
        route = self._routes.get(topic)
        if not isinstance(node_id, str) or not node_id or route is None or partition >= len(route.leaders):
            return False
        if error.details.get("partition", partition) != partition:
            return False  # of several that were asked about, another one moved
        if asked is not None and asked.node_id == node_id:
            return False  # it names itself and does not lead: it is about to, or was
        if isinstance(address, str):
            self._brokers.learn_one(node_id, address)
        self._hinted[topic, partition] = time.monotonic()
        if route.leaders[partition] != node_id:
            leaders = list(route.leaders)
            leaders[partition] = node_id
            self._keep(route._replace(leaders=tuple(leaders)))
        return True

    def _lost(self, session: Session) -> None:
        """A connection ended, or cannot be made: look who leads now what was led there."""
        for topic, route in self._routes.items():
            if session.node_id in route.leaders:
                self.refresh(topic)

    # ------------------------------------------------------------------ asking

    def refresh(self, topic: str) -> None:
        """Ask who leads this topic's partitions, soon; with everything else that is to be asked."""
        self._wanted[topic] = None
        if self._refreshing is None and not self._brokers.is_closed:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_wanted())

    async def _refresh_wanted(self) -> None:
        try:
            while self._wanted:
                await self._pause()
                topics = list(self._wanted)[:_TOPICS_PER_REQUEST]
                for topic in topics:
                    del self._wanted[topic]
                asked_at = self._asked_at = time.monotonic()
                try:
                    reply = await self._brokers.ask(
                        Metadata(topics),
                        timeout_ms=_LOOKUP_MS,
                        attempt_ms=_ATTEMPT_MS,
                    )
                except LannerError:
                    continue  # a call that still needs it asks for it again
                self._brokers.learn(reply.brokers)
                for found in reply.topics:
                    self._apply(found, asked_at)
        finally:
            self._refreshing = None

    async def _pause(self) -> None:
        now = time.monotonic()
        if now - self._asked_at > _QUIET_S:
            self._search_began = now
        searching_s = now - self._search_began
        pause_s = min(_PAUSE_S_MAX, max(_PAUSE_S_MIN, searching_s * _PAUSE_SHARE)) * (0.5 + random.random())
        await asyncio.sleep(max(0.0, self._asked_at + pause_s - now))

    def learn(self, found: TopicInfo, asked_at: float) -> None:
        """What a broker told of a topic to somebody else, who asked at this time (`time.monotonic`)."""
        self._apply(found, asked_at)

    def _apply(self, found: TopicInfo, asked_at: float) -> Route | None:
        """Take in what a broker says of one topic; None: it says that there is no such topic."""
        known = self._routes.get(found.name)
        if known is not None and known.incarnation == found.incarnation and known.partitions > len(found.partitions):
            return known
        if found.error:
            if known is not None:
                self.forget(found.name)
                self._changed(found.name)
            return None
        leaders = ["" for _ in found.partitions]
        replicas: list[tuple[str, ...]] = [() for _ in found.partitions]
        for info in found.partitions:
            if 0 <= info.id < len(leaders):
                leaders[info.id] = info.leader
                replicas[info.id] = tuple(info.replicas)
        if known is not None and known.incarnation == found.incarnation:
            for partition in range(min(len(leaders), len(known.leaders))):
                if self._hinted.get((found.name, partition), -1.0) > asked_at:
                    leaders[partition] = known.leaders[partition]
        route = Route(
            found.name,
            found.incarnation,
            len(leaders),
            found.settings,
            time.monotonic(),
            tuple(leaders),
            tuple(replicas),
        )
        self._keep(route)
        searching_s = time.monotonic() - self._search_began
        amiss = [leader for leader in set(leaders) if not leader or self._brokers.is_failing(leader)]
        if amiss and searching_s < _SEARCH_S:
            self._wanted[found.name] = None
            if self._refreshing is None:
                self.refresh(found.name)
        return route

    def _keep(self, route: Route) -> None:
        known = self._routes.get(route.topic)
        if known is None and len(self._routes) >= TOPICS_KEPT_MAX:
            self._routes.clear()
        if len(self._hinted) > limits.PARTITIONS_TOTAL_MAX:
            self._hinted.clear()
        self._routes[route.topic] = route
        if known is not None and (known.leaders != route.leaders or known.incarnation != route.incarnation):
            self._changed(route.topic)

    def _changed(self, topic: str) -> None:
        for notify in list(self.on_change):
            notify(topic)

    def _lookup(self, topic: str, *, create: bool) -> asyncio.Task[Route]:
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._ask(topic, create))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(topic, None))
            lookup.add_done_callback(_observe)
        return lookup

    async def _ask(self, topic: str, create: bool) -> Route:
        code = TopicNotFound.code
        for attempt in range(_LOOKS):
            asked_at = time.monotonic()
            reply = await self._brokers.ask(Metadata([topic], create))
            self._brokers.learn(reply.brokers)
            for found in reply.topics:
                if found.name == topic:
                    route = self._apply(found, asked_at)
                    if route is not None:
                        return route
                    code = found.error
            if not self._brokers.are_several or code != TopicNotFound.code or attempt == _LOOKS - 1:
                break
            await asyncio.sleep(_SECOND_LOOK_S)  # it may have been made a moment ago, at another broker
        self._routes.pop(topic, None)
        raise from_wire(
            code,
            f"there is no topic {topic!r}: create it first, or let the broker create topics by itself"
            if code == TopicNotFound.code
            else f"no partition of {topic!r} can be used at present: a majority of its brokers may be away",
        )


def _observe(lookup: asyncio.Task[Route]) -> None:
    """A lookup that nobody waits for any more, and that fails, is tried again by the call that needs the route next."""
    if not lookup.cancelled():
        lookup.exception()


def choose_partition(route: Route, partition: int | None, key: bytes | None, dedup_id: bytes) -> int | None:
    """The partition of a message; None: any, the caller goes round."""
    if partition is not None:
        partition = partition_number(partition)
        if not 0 <= partition < route.partitions:
            raise PartitionNotFound(
                f"{route.topic} has no partition {partition}: there are {route.partitions}, counted from 0",
                topic=route.topic,
                partition=partition,
            )
        return partition
    if key is not None:
        return partition_for_key(key, route.partitions) if route.partitions > 1 else 0
    if dedup_id:
        return partition_for_key(dedup_id, route.partitions) if route.partitions > 1 else 0
    return None


def divide_by_key(
    route: Route, partition: int | None, keys: Sequence[bytes | None] | None, count: int
) -> list[tuple[int | None, list[int] | None]]:
    """Which messages go to which partition: (partition or any, their places or all)."""
    if partition is not None or keys is None:
        return [(choose_partition(route, partition, None, b""), None)]
    memory: dict[bytes | None, int | None] = {}
    divided: dict[int | None, list[int]] = {}
    for place, key in enumerate(keys):
        if key in memory:
            chosen = memory[key]
        else:
            chosen = memory[key] = choose_partition(route, None, key, b"")
        divided.setdefault(chosen, []).append(place)
    return list(divided.items())
