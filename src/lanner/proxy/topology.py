"""Which topics there are and who leads them, as far as METADATA has told it: the proxy's map.

It knows what brokers said, and when that proved old. It decides nothing: a broker that is asked in vain says who leads,
and a topic that is not what the map says is looked up anew.

A partition's number is made of its topic's incarnation, which no other topic of the cluster ever has. So a topic that
was forgotten and found again has the same numbers, and what is counted by them (the doors' own sequences) goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.routing import TOPICS_KEPT_MAX, Route, Routing
from lanner.client.session import Session
from lanner.errors import LannerError, NotLeader, TopicNotFound
from lanner.forwarding.ports import KnownTopic
from lanner.model import TopicSettings
from lanner.wire.messages import BrokerInfo, MetadataReply, TopicInfo

REFRESH_S: Final = 5.0  # so old may be what is known of a topic in use: it may have grown elsewhere
_JUST_S: Final = 1.0
_NO_LEADER_RETRY_MS: Final = 200
_GONE_MAX: Final = 100_000
_NUMBERS: Final = limits.PARTITIONS_MAX
_SETTING_NAMES: Final = frozenset(field.name for field in fields(TopicSettings))


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str
    incarnation: int
    settings: TopicSettings
    set_ids: tuple[int, ...]


class LiveSets:
    """The partitions that may still be there: all but those of topics that are known to be gone."""

    def __init__(self) -> None:
        self._gone: dict[int, None] = {}  # incarnations

    def end(self, incarnation: int) -> None:
        self._gone[incarnation] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def __contains__(self, set_id: object) -> bool:
        return isinstance(set_id, int) and set_id // _NUMBERS not in self._gone


class Topology:
    """The map of a proxy, which leads nothing itself."""

    node_id = ""  # no broker stands here

    def __init__(self, brokers: Brokers) -> None:
        self.live_sets = LiveSets()
        self.cluster_id = ""
        self._brokers = brokers
        self._routing = Routing(brokers, refresh_s=REFRESH_S)
        self._topics: dict[str, tuple[Route, _Topic]] = {}  # made of the route, once
        self._by_incarnation: dict[int, str] = {}
        self._broker_names: dict[str, str] = {}  # by node id

    async def close(self) -> None:
        await self._routing.close()

    # ------------------------------------------------------------------ topics

    def find_topic(self, name: str) -> KnownTopic:
        route = self._routing.known(name)
        if route is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first", topic=name)
        known = self._topics.get(name)
        if known is not None and known[0] is route:
            return known[1]
        if known is not None and known[1].incarnation != route.incarnation:
            self._end(known[1])
        first = route.incarnation * _NUMBERS
        topic = _Topic(
            name, route.incarnation, _settings(route.settings), tuple(range(first, first + route.partitions))
        )
        if len(self._topics) >= TOPICS_KEPT_MAX:
            self._topics.clear()
            self._by_incarnation.clear()
        self._topics[name] = route, topic
        self._by_incarnation[route.incarnation] = name
        return topic

    def knows(self, name: str) -> bool:
        return self._routing.known(name) is not None

    def has_just_seen(self, name: str) -> bool:
        """Whether a broker said a moment ago that there is such a topic."""
        route = self._routing.known(name)
        return route is not None and time.monotonic() - route.seen_at < _JUST_S

    async def hear_of(self, topics: Iterable[str]) -> None:
        for name in topics:
            if self._routing.known(name) is None:
                with suppress(TopicNotFound):
                    await self._routing.route(name)

    async def catch_up(self) -> None:
        """Do nothing: what must be new is asked of a broker, which catches up itself."""

    def doubt(self, name: str) -> bool:
        """What is known of a topic proved wrong: look it up before it is used again. False: nothing was known."""
        known = self._routing.known(name) is not None
        self._routing.forget(name)
        return known

    def drop(self, name: str) -> None:
        """A topic was deleted."""
        known = self._topics.get(name)
        if known is not None:
            self._end(known[1])
        self._routing.forget(name)

    def _end(self, topic: _Topic) -> None:
        self.live_sets.end(topic.incarnation)
        self._topics.pop(topic.name, None)
        self._by_incarnation.pop(topic.incarnation, None)

    # ------------------------------------------------------------------ leaders

    def leader_of(self, set_id: int) -> str:
        incarnation, partition = divmod(set_id, _NUMBERS)
        name = self._by_incarnation.get(incarnation)
        route = None if name is None else self._routing.known(name)
        if route is None or partition >= len(route.leaders):
            return ""
        leader = route.leaders[partition]
        if leader and self._brokers.is_failing(leader):
            self._routing.refresh(route.topic)
            return ""
        if not leader:
            self._routing.refresh(route.topic)
        return leader

    def leads(self, topic: str, partition: int) -> Session | None:
        """The connection to the leader of a partition; None: who that is, is being looked for."""
        return self._routing.leader(topic, partition)

    def not_leader(self, topic: KnownTopic, partition: int) -> NotLeader:
        return nobody_leads(topic.name, partition)

    def failed(self, topic: str, partition: int, asked: Session | None, error: LannerError) -> bool:
        """Learn from an error of a broker. True: it says where to ask next."""
        return self._routing.failed(topic, partition, asked, error)

    # ------------------------------------------------------------------ what brokers tell

    def name_of(self, node_id: str) -> str:
        """A broker's name, for people; its id where it has none."""
        return self._broker_names.get(node_id, node_id)

    def learn(self, reply: MetadataReply, asked_at: float) -> None:
        """Take in an answer to METADATA that was asked for at this time."""
        self.cluster_id = reply.cluster_id or self.cluster_id
        self._broker_names = {info.node_id: info.name or info.node_id for info in reply.brokers}
        self._brokers.learn(reply.brokers)
        for found in reply.topics:
            if found.settings or found.error:  # settings come with topics that were asked for by name
                self._routing.learn(found, asked_at)


def told_as_own(reply: MetadataReply, own: BrokerInfo) -> MetadataReply:
    """The same answer for somebody who can reach this proxy alone: it is the only broker, and leads what is led.

    Of replicas it tells nothing: it has none, and those there are cannot be reached. Who wants to know where they are
    asks DESCRIBE_PARTITIONS.
    """
    return replace(reply, brokers=[own], topics=[_led_by(found, own.node_id) for found in reply.topics])


def _led_by(found: TopicInfo, node_id: str) -> TopicInfo:
    partitions = [replace(part, leader=node_id if part.leader else "", replicas=[]) for part in found.partitions]
    return replace(found, partitions=partitions)


def nobody_leads(topic: str, partition: int) -> NotLeader:
    return NotLeader(
        f"nobody leads {topic}/{partition} at the moment; ask again soon",
        leader="",
        address="",
        topic=topic,
        partition=partition,
        refused=True,
        retry_after_ms=_NO_LEADER_RETRY_MS,
    )


def without_hint(error: NotLeader) -> NotLeader:
    """Remove the address from the error: clients cannot reach the leader, so they ask here again."""
    return NotLeader(error.message, **{**error.details, "leader": "", "address": ""})


def _settings(given: Mapping[str, object]) -> TopicSettings:
    """As far as this release knows them: brokers may be newer."""
    return TopicSettings.from_dict({name: value for name, value in given.items() if name in _SETTING_NAMES})


__all__ = ["LiveSets", "Topology", "nobody_leads", "told_as_own", "without_hint"]
