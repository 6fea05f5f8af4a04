"""Publishing: batches as they are."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, TypeVar

from lanner import batch, limits
from lanner.broker.desks.desk import Desk
from lanner.broker.ports import Applied
from lanner.broker.replicas.replica import Replica
from lanner.calls import Answer, Bulk, Identity
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
from lanner.partition import Appended, Staged, encode_append
from lanner.wire.messages import OpenProducer, ProducerOpened, Publish, Published

Stored = TypeVar("Stored", Appended, Staged)

_OVERLOADED_RETRY_MS: Final = 100
_FULL_RETRY_MS: Final = 1_000
_BLOCK_SECONDS: Final = 600.0  # so long a block of producer ids is handed out


class Publications(Desk):
    """What producers call."""

    def publish(self, identity: Identity, call: Publish, data: bytes | memoryview) -> asyncio.Future[Appended]:
        """Check who publishes, and append one encoded batch, without a task. What is wrong is raised at once; the
        future tells its outcome."""
        self.check(identity, call)
        return self._publish(call, data)

    async def append(self, call: Publish, bulk: Bulk = ()) -> Answer[Published]:
        """The same for somebody who was checked, and waits."""
        base_offset, count, append_ms, duplicate = await self._publish(call, whole(bulk))
        return Answer(Published(base_offset, append_ms, count, duplicate))

    def _publish(self, call: Publish, data: bytes | memoryview) -> asyncio.Future[Appended]:
        found = self._topic(call.topic, call.incarnation)
        replica = self._replica(found, call.partition)
        header = batch.verify(data)
        self._check_publish(found.settings, replica, header)
        future = self._append(
            found, call.partition, replica, encode_append(self._clock.now_ms(), data), header, Appended
        )
        if found.settings.max_bytes:
            self._on_the_way[replica.set_id] += header.length
            future.add_done_callback(lambda _: self._arrived(replica.set_id, header.length))
        return future

    def _arrived(self, set_id: int, size: int) -> None:
        self._on_the_way[set_id] -= size
        if not self._on_the_way[set_id]:
            del self._on_the_way[set_id]

    def _append(
        self, topic: Topic, partition: int, replica: Replica, payload: bytes, header: batch.Header, kind: type[Stored]
    ) -> asyncio.Future[Stored]:
        """Propose a batch to its partition; the future is done when it has applied."""
        future: asyncio.Future[Stored] = self._loop.create_future()
        headers = self._engine.headers

        def applied(result: Applied) -> None:
            headers.forget(payload)
            if future.done():
                return
            if isinstance(result, LannerError):
                # Stored or not: under the same names, the next leader answers with the first result.
                future.set_exception(self._lost(topic, partition) if isinstance(result, NotLeader) else result)
            else:
                assert isinstance(result, kind)
                future.set_result(result)

        try:
            self._engine.propose(replica.set_id, payload, applied)
        except NotLeader:  # it is being handed over
            raise self._routes.not_leader(topic, partition) from None
        headers.know(payload, header)
        self._kick()
        return future

    def _check_publish(self, settings: TopicSettings, replica: Replica, header: batch.Header) -> None:
        self._check_room(settings, replica, header)
        if header.dedup_id:
            replica.partition.check_dedup(bytes(header.dedup_id), settings, self._clock.now_ms())
        if settings.max_bytes and settings.full_policy is FullPolicy.REJECT:
            # What is prepared has its room; what is merely staged stops nobody.
            held = replica.partition.stored_bytes + replica.partition.prepared_bytes + self._on_the_way[replica.set_id]
            if held + header.length > settings.max_bytes:
                raise TopicFull(
                    f"the partition holds {held} of {settings.max_bytes} bytes, and {header.length} more do not fit: "
                    "raise max_bytes, or set full_policy=drop_oldest",
                    retry_after_ms=_FULL_RETRY_MS,
                )

        elif settings.hold_for and replica.partition.hold_refuses(settings, header.length, self._clock.now_ms()):
            raise TopicFull(
                f"the partition has {replica.partition.stored_bytes} of {settings.max_bytes} bytes, and the oldest are "
                f"held for {', '.join(settings.hold_for)}: let that read on, or set hold_full=release",
                retry_after_ms=_FULL_RETRY_MS,
            )

    def _check_room(self, settings: TopicSettings, replica: Replica, header: batch.Header) -> None:
        """Whether the broker can take this batch now, whatever the topic holds."""
        if self._room.is_full:
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

    async def open_producer(self, call: OpenProducer) -> Answer[ProducerOpened]:
        """A producer id that nobody had before. Ids come from the cluster in blocks."""
        if self._loop.time() > self._producer_ids_until:
            self._producer_ids = iter(())  # ids rise with time: a partition refuses those that are old and unknown
        producer_id = next(iter(self._producer_ids), None)
        while producer_id is None:
            first = await self._change_cluster(encode_allocate_producers(limits.PRODUCER_ID_BLOCK))
            assert isinstance(first, int)
            self._producer_ids = itertools.chain(self._producer_ids, range(first, first + limits.PRODUCER_ID_BLOCK))
            self._producer_ids_until = self._loop.time() + _BLOCK_SECONDS
            producer_id = next(iter(self._producer_ids), None)
        return Answer(ProducerOpened(producer_id))


def whole(bulk: Bulk) -> bytes | memoryview:
    """The one batch that a call brought."""
    return bulk[0] if len(bulk) == 1 else b"".join(bulk)
