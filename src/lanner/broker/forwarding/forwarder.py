"""Any request on any broker: the calls of the service, served here where the partition is led here, else by one hop.

A forwarder knows where partitions are led and how to put answers together; what a call means is the service's business,
here or on the other broker. The rules of asking again are in `spreading`; publishing, polls, settles and what operators
ask have modules of their own.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lanner import limits
from lanner.broker.desks.calls import (
    ByteCount,
    DeadLettersResult,
    DeadPlace,
    FetchResult,
    GroupResult,
    Identity,
    OffsetsResult,
    PublishResult,
    TopicResult,
)
from lanner.broker.desks.routes import BrokerRoute, TopicRoute
from lanner.broker.forwarding.cluster import ForwardedOverview
from lanner.broker.forwarding.merging import merged_letters, merged_looks
from lanner.broker.forwarding.polls import ForwardedPolls
from lanner.broker.forwarding.publishes import ForwardedPublishes
from lanner.broker.forwarding.staging import ForwardedStaging
from lanner.broker.tries import Figures
from lanner.errors import GroupNotFound, ValidationError
from lanner.model import Looked, LookPlace

if TYPE_CHECKING:
    from lanner.broker.desks.routes import Routes
    from lanner.broker.node import Node
    from lanner.broker.service import Service

FETCHES_WAITING_MAX: Final = 256


class Forwarder(ForwardedPublishes, ForwardedPolls, ForwardedOverview, ForwardedStaging):
    """The service of the whole cluster, asked on this broker."""

    def __init__(self, service: Service, node: Node, routes: Routes) -> None:
        super().__init__(service, node, routes)
        self.node_id = service.node_id
        self.addresses = service.addresses
        self.auto_create = service.auto_create
        self._fetches = 0  # forwarded ones that wait
        self._reader = secrets.token_hex(8)  # under which it commits for callers without an identity
        self._commits = itertools.count()

    @property
    def cluster_id(self) -> str:
        found: str = self._service.cluster_id
        return found

    @property
    def ready(self) -> bool:
        found: bool = self._service.ready
        return found

    @property
    def disk_slow(self) -> str:
        found: str = self._service.disk_slow
        return found

    @property
    def others_may_lead(self) -> bool:
        found: bool = self._service.others_may_lead
        return found

    @property
    def missing(self) -> str:
        found: str = self._service.missing
        return found

    @property
    def time_ahead_ms(self) -> int:
        found: int = self._service.time_ahead_ms
        return found

    @property
    def stopped_partitions(self) -> dict[str, str]:
        found: dict[str, str] = self._service.stopped_partitions
        return found

    @property
    def disk_figures(self) -> dict[str, int]:
        found: dict[str, int] = self._service.disk_figures
        return found

    @property
    def fetched_bytes(self) -> dict[str, int]:
        found: dict[str, int] = self._service.fetched_bytes
        return found

    @property
    def transaction_figures(self) -> Figures:
        found: Figures = self._service.transaction_figures
        return found

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        """Run what takes a while, such as making a large reply, in a reader thread."""
        return await self._node.in_reader(work)

    # ------------------------------------------------------------------ one partition

    async def _at_leader(self, name: str, partition: int, call: Any) -> Any:
        return (await self.spread(name, [partition], lambda service, _: call(service)))[0]

    async def publish(
        self, identity: Identity, topic: str, partition: int, data: bytes | memoryview, incarnation: int = 0
    ) -> PublishResult:
        """One encoded batch, under whatever identity its producer gave it."""
        found: PublishResult = await self._at_leader(
            topic, partition, lambda service: service.publish(identity, topic, partition, data, incarnation)
        )
        return found

    async def fetch(
        self,
        identity: Identity,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = limits.MIB,
        wait_ms: int = 0,
        incarnation: int = 0,
        lanes: int = 0,
    ) -> FetchResult:
        if self._fetches >= FETCHES_WAITING_MAX:
            wait_ms = 0  # another broker holds only so many of ours: the caller comes again

        async def fetch(service: Any) -> FetchResult:
            found: FetchResult = await service.fetch(
                identity, topic, partition, offset, max_bytes, wait_ms, incarnation, lanes
            )
            return found

        self._fetches += wait_ms > 0
        try:
            answer: FetchResult = await self._at_leader(topic, partition, fetch)
            return answer
        finally:
            self._fetches -= wait_ms > 0

    # ------------------------------------------------------------------ stream use

    async def peek(
        self,
        identity: Identity,
        topic: str,
        partitions: Sequence[int] | None,
        offset: int,
        max_messages: int,
        max_bytes: int = limits.LIST_BYTES_MAX,
        after: LookPlace | None = None,
    ) -> Looked:
        pages = await self.spread(
            topic,
            partitions,
            lambda service, mine: service.peek(identity, topic, mine, offset, max_messages, max_bytes, after),
        )
        return merged_looks(pages, max_messages, min(max_bytes, limits.LIST_BYTES_MAX))

    async def commit(
        self,
        identity: Identity,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        reader: str = "",
        sequence: int = -1,
    ) -> None:
        """A caller without an identity gets one from here: what is asked again must not undo what came since."""
        if not reader:
            reader, sequence = self._reader, next(self._commits)

        async def commit(service: Any, mine: list[int]) -> None:
            chosen = {partition: offsets[partition] for partition in mine}
            await service.commit(identity, topic, group, chosen, reader, sequence)

        await self.spread(topic, list(offsets), commit)

    async def committed(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        answers = await self.spread(
            topic, partitions, lambda service, mine: service.committed(identity, topic, group, mine)
        )
        return dict(sorted(item for answer in answers for item in answer.items()))

    async def offsets(
        self,
        identity: Identity,
        topic: str,
        time_ms: int = -1,
        partitions: Sequence[int] | None = None,
        counting: ByteCount | None = None,
    ) -> tuple[int, list[OffsetsResult]]:
        answers = await self.spread(
            topic, partitions, lambda service, mine: service.offsets(identity, topic, time_ms, mine, counting)
        )
        found = sorted(item for _, items in answers for item in items)
        return max(incarnation for incarnation, _ in answers), found

    # ------------------------------------------------------------------ topics

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        await self._service.ensure_topic(identity, name)

    async def create_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any], create_id: str = ""
    ) -> TopicResult:
        made: TopicResult = await self._service.create_topic(identity, name, settings, create_id)
        return made

    async def alter_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        await self.find_topic(name)
        await self._service.change_topic(identity, name, settings)
        return await self._topic(identity, name)

    async def delete_topic(self, identity: Identity, name: str) -> None:
        await self.find_topic(name)
        await self._service.delete_topic(identity, name)

    async def topics(self, identity: Identity) -> list[str]:
        await self.catch_up()
        found: list[str] = await self._service.topics(identity)
        return found

    async def look_up(self, names: Sequence[str]) -> None:
        """Catch up with the metadata's leader if any of these topics is not known here."""
        self._service.check_serving()
        topics = self._node.engine.cluster.topics
        if any(name not in topics for name in names):
            await self.catch_up()

    def topic_route(self, identity: Identity, name: str) -> TopicRoute:
        found: TopicRoute = self._service.topic_route(identity, name)
        return found

    def broker_routes(self, identity: Identity) -> list[BrokerRoute]:
        found: list[BrokerRoute] = self._service.broker_routes(identity)
        return found

    @property
    def metadata_index(self) -> int:
        found: int = self._service.metadata_index
        return found

    async def topic(self, identity: Identity, name: str, partitions: Sequence[int] | None = None) -> TopicResult:
        await self.catch_up()
        return await self._topic(identity, name, partitions)

    async def _topic(self, identity: Identity, name: str, partitions: Sequence[int] | None = None) -> TopicResult:
        answers = await self.spread(name, partitions, lambda service, mine: service.topic(identity, name, mine))
        found = self._service.find_topic(name)
        states = sorted((state for answer in answers for state in answer.partitions), key=lambda state: state.id)
        return TopicResult(name, found.incarnation, found.settings.to_dict(), states)

    # ------------------------------------------------------------------ groups

    async def groups(self, identity: Identity, topic: str, partitions: Sequence[int] | None = None) -> list[str]:
        answers = await self.spread(topic, partitions, lambda service, mine: service.groups(identity, topic, mine))
        return sorted({name for names in answers for name in names})

    async def group(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> GroupResult:
        answers = await self.spread_over_groups(
            topic, group, partitions, lambda service, mine: service.group(identity, topic, group, mine)
        )
        states = sorted((state for answer in answers for state in answer.partitions), key=lambda state: state.partition)
        return GroupResult(topic, group, answers[0].kind, states)

    async def drop_group(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> None:
        asked: set[int] = set()

        async def drop(service: Any, mine: list[int]) -> bool:
            again = not asked.isdisjoint(mine)
            asked.update(mine)
            try:
                await service.drop_group(identity, topic, group, mine)
            except GroupNotFound:
                if not again:
                    raise  # else the attempt that nobody answered did it
            return True

        await self.spread_over_groups(topic, group, partitions, drop)

    async def seek(
        self,
        identity: Identity,
        topic: str,
        group: str,
        *,
        offsets: Mapping[int, int] | None = None,
        time_ms: int | None = None,
        to: str | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        if sum(choice is not None for choice in (offsets, time_ms, to)) != 1:
            raise ValidationError("give exactly one of offsets, time_ms and to", field="seek")

        async def seek(service: Any, mine: list[int]) -> bool:
            moves = None if offsets is None else {partition: offsets[partition] for partition in mine}
            chosen = mine if offsets is None else None
            await service.seek(identity, topic, group, offsets=moves, time_ms=time_ms, to=to, partitions=chosen)
            return True

        if offsets is None:
            await self.spread_over_groups(topic, group, partitions, seek)
        else:
            await self.spread(topic, list(offsets), seek)

    # ------------------------------------------------------------------ dead letters

    async def dead_letters(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        start_offset: int,
        limit: int,
        after: DeadPlace | None = None,
    ) -> DeadLettersResult:
        pages = await self.spread_over_groups(
            topic,
            group,
            partitions,
            lambda service, mine: service.dead_letters(identity, topic, group, mine, start_offset, limit, after),
        )
        return merged_letters(pages, limit)

    async def redrive(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> int:
        return await self._choose_dead("redrive", identity, topic, group, partitions, offsets)

    async def discard(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> int:
        return await self._choose_dead("discard", identity, topic, group, partitions, offsets)

    async def _choose_dead(
        self,
        what: str,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> int:
        if offsets is not None and (partitions is None or len(partitions) != 1):
            raise ValidationError("offsets need the partition they belong to", field="partition")
        return sum(
            await self.spread_over_groups(
                topic,
                group,
                partitions,
                lambda service, mine: getattr(service, what)(identity, topic, group, mine, offsets),
            )
        )
