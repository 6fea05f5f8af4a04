"""What the client knows of topics: how many partitions each has, and which one a message goes to.

An explicit partition wins; a key chooses by consistent hash; without one the dedup id chooses; without that the
caller goes round by batch. Knowledge is refreshed in passing, so that a topic that grows is noticed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from lanner.batch import partition_for_key
from lanner.client.session import Session
from lanner.errors import PartitionNotFound, TopicNotFound, from_wire
from lanner.model import check_name
from lanner.wire.messages import Command, Metadata, MetadataReply

REFRESH_S: Final = 30.0
TOPICS_KEPT_MAX: Final = 10_000


class Route(NamedTuple):
    """A topic as the client last saw it."""

    topic: str
    incarnation: int
    partitions: int
    settings: dict[str, Any]
    seen_at: float


class Routing:
    """Routes by topic, looked up once and refreshed when they grow old."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._routes: dict[str, Route] = {}
        self._lookups: dict[str, asyncio.Task[Route]] = {}

    def known(self, topic: str) -> Route | None:
        """The route if it is known; an old one is refreshed in the background."""
        route = self._routes.get(topic)
        if route is not None and time.monotonic() - route.seen_at > REFRESH_S:
            self._lookup(topic, create=False)
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
        for lookup in list(self._lookups.values()):
            lookup.cancel()

    def _lookup(self, topic: str, *, create: bool) -> asyncio.Task[Route]:
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._ask(topic, create))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(topic, None))
            lookup.add_done_callback(_observe)
        return lookup

    async def _ask(self, topic: str, create: bool) -> Route:
        reply, _ = await self._session.request(Command.METADATA, Metadata([topic], create), MetadataReply)
        for found in reply.topics:
            if found.name == topic and not found.error:
                route = Route(
                    topic,
                    found.incarnation,
                    len(found.partitions),
                    found.settings,
                    time.monotonic(),
                )
                if len(self._routes) >= TOPICS_KEPT_MAX:
                    self._routes.clear()
                self._routes[topic] = route
                return route
        self._routes.pop(topic, None)
        code = next((found.error for found in reply.topics if found.name == topic), TopicNotFound.code)
        raise from_wire(
            code, f"there is no topic {topic!r}: create it first, or let the broker create topics by itself"
        )


def _observe(lookup: asyncio.Task[Route]) -> None:
    """A lookup that nobody waits for any more, and that fails, is tried again by whoever needs the route next."""
    if not lookup.cancelled():
        lookup.exception()


def choose_partition(route: Route, partition: int | None, key: bytes | None, dedup_id: bytes) -> int | None:
    """The partition of a message; None: any, the caller goes round."""
    if partition is not None:
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
    route: Route, partition: int | None, keys: list[bytes | None] | None, count: int
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
