"""Publishing: batches as they are, or messages given one by one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

from lanner import batch, limits
from lanner.broker.desks.calls import Identity, NewMessage, PublishResult, Stored
from lanner.broker.desks.desk import Desk
from lanner.broker.desks.publishing import group_messages
from lanner.broker.replicas.replica import Replica
from lanner.cluster import Topic, encode_allocate_producers
from lanner.errors import (
    LannerError,
    MessageTooLarge,
    NotLeader,
    Overloaded,
    StorageFull,
    TopicFull,
    ValidationError,
)
from lanner.model import FullPolicy, TopicSettings
from lanner.partition import encode_append

_OVERLOADED_RETRY_MS: Final = 100
_FULL_RETRY_MS: Final = 1_000
_BLOCK_SECONDS: Final = 600.0  # so long a block of producer ids is handed out


class Publications(Desk):
    """What producers call."""

    def publish(
        self, identity: Identity, topic: str, partition: int, data: bytes | memoryview, incarnation: int = 0
    ) -> asyncio.Future[PublishResult]:
        """Append one encoded batch. What is wrong with it is raised at once; the future tells its fate."""
        self._admit(identity, "publish", topic)
        found = self._topic(topic, incarnation)
        replica = self._replica(found, partition)
        header = batch.verify(data)
        self._check_publish(found.settings, replica, header)
        future = self._append(found, partition, replica, encode_append(self._node.now_ms(), data), header)
        if found.settings.max_bytes:
            self._on_the_way[replica.set_id] += header.length
            future.add_done_callback(lambda _: self._arrived(replica.set_id, header.length))
        return future

    def _arrived(self, set_id: int, size: int) -> None:
        self._on_the_way[set_id] -= size
        if not self._on_the_way[set_id]:
            del self._on_the_way[set_id]

    def _append(
        self, topic: Topic, partition: int, replica: Replica, payload: bytes, header: batch.Header
    ) -> asyncio.Future[Any]:
        """Propose a batch to its partition; the future is done when it has applied."""
        future: asyncio.Future[Any] = self._loop.create_future()
        headers = self._engine.headers

        def applied(result: Any) -> None:
            headers.forget(payload)
            if future.done():
                return
            if isinstance(result, LannerError):
                # Stored or not: under the same names, the next leader answers with the first result.
                future.set_exception(self._lost(topic, partition) if isinstance(result, NotLeader) else result)
            else:
                future.set_result(result)

        try:
            self._engine.propose(replica.set_id, payload, applied)
        except NotLeader:  # it is being handed over
            raise self._routes.not_leader(topic, partition) from None
        headers.know(payload, header)
        self._node.kick()
        return future

    def _check_publish(self, settings: TopicSettings, replica: Replica, header: batch.Header) -> None:
        self._check_room(settings, replica, header)
        if header.dedup_id:
            replica.partition.check_dedup(bytes(header.dedup_id), settings, self._node.now_ms())
        if settings.max_bytes and settings.full_policy is FullPolicy.REJECT:
            # What is prepared has its room; what is merely staged stops nobody.
            held = replica.partition.stored_bytes + replica.partition.prepared_bytes + self._on_the_way[replica.set_id]
            if held + header.length > settings.max_bytes:
                raise TopicFull(
                    f"the partition holds {held} of {settings.max_bytes} bytes, and {header.length} more do not fit: "
                    "raise max_bytes, or set full_policy=drop_oldest",
                    retry_after_ms=_FULL_RETRY_MS,
                )

        elif settings.hold_for and replica.partition.hold_refuses(settings, header.length, self._node.now_ms()):
            raise TopicFull(
                f"the partition has {replica.partition.stored_bytes} of {settings.max_bytes} bytes, and the oldest are "
                f"held for {', '.join(settings.hold_for)}: let that read on, or set hold_full=release",
                retry_after_ms=_FULL_RETRY_MS,
            )

    def _check_room(self, settings: TopicSettings, replica: Replica, header: batch.Header) -> None:
        """Whether the broker can take this batch now, whatever the topic holds."""
        if self._node.storage_full:
            raise StorageFull(retry_after_ms=_FULL_RETRY_MS)
        if header.length > limits.BATCH_BYTES_MAX:
            raise MessageTooLarge(f"the batch has {header.length} bytes; {limits.BATCH_BYTES_MAX} are allowed")
        if header.count == 1 and header.raw_length > settings.message_bytes_max + limits.KIB:
            raise MessageTooLarge(f"the topic takes messages of up to {settings.message_bytes_max} bytes")
        if header.is_extract:
            raise ValidationError("an extract cannot be published; encode its messages as a batch", field="flags")
        # The least urgent are turned away first: a lane may fill the room up to its share.
        share = 0.7 + 0.3 * header.priority / 9
        if (
            replica.unapplied_bytes + header.length > limits.UNCOMMITTED_BYTES_MAX_PER_PARTITION * share
            or self._engine.unapplied_bytes + header.length > limits.UNCOMMITTED_BYTES_MAX_PER_BROKER * share
        ):
            raise Overloaded(retry_after_ms=_OVERLOADED_RETRY_MS)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        """Publish messages one by one given, as few batches; where each went, in the order given."""
        self._admit(identity, "publish", topic)
        found = self._topic(topic)
        groups = group_messages(messages, len(found.set_ids), found.settings, self._router)
        futures = [self.publish(identity, topic, group.partition, group.encode()) for group in groups]
        stored: list[Stored | None] = [None] * len(messages)
        for group, outcome in zip(groups, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for place, position in enumerate(group.places):
                offset = outcome.base_offset + place
                stored[position] = Stored(group.partition, offset, outcome.append_ms, outcome.duplicate)
        return [place for place in stored if place is not None]

    async def open_producer(self, identity: Identity) -> tuple[int, int]:
        """A producer id that nobody had before. Ids come from the cluster in blocks."""
        self._admit(identity, "publish")
        if self._loop.time() > self._producer_ids_until:
            self._producer_ids = iter(())  # ids rise with time: a partition refuses those that are old and unknown
        producer_id = next(iter(self._producer_ids), None)
        while producer_id is None:
            first = await self._change_cluster(encode_allocate_producers(limits.PRODUCER_ID_BLOCK))
            self._producer_ids = itertools.chain(self._producer_ids, range(first, first + limits.PRODUCER_ID_BLOCK))
            self._producer_ids_until = self._loop.time() + _BLOCK_SECONDS
            producer_id = next(iter(self._producer_ids), None)
        return producer_id, 0
