"""The dead letters of a group as a stream: page after page, in the order in which they died.

The first read of a group's stream on a partition has its dead numbered, by a decision; after that a read only looks.
Of each batch the dead messages of a page are cut out together, in a reader thread; a batch that cannot be read or does
not decode is told without its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from lanner import batch, features, limits
from lanner.broker.desks.desk import Desk
from lanner.broker.replicas.replica import Replica
from lanner.calls import Answer
from lanner.cluster import Topic
from lanner.errors import GroupKindConflict, GroupNotFound, LannerError, NotSupported, StaleIncarnation
from lanner.forwarding.checks import check_number
from lanner.model import GroupKind, check_name
from lanner.partition import DeadRun, DeadStretch, NumberDead, batch_start
from lanner.wire import dead

_TOLD_BYTES_MAX: Final = 2 * limits.MIB  # of reasons, numbers and times in one page
_RUN_BYTES: Final = 64

assert _TOLD_BYTES_MAX + limits.LIST_BYTES_MAX + limits.BATCH_BYTES_MAX < limits.FRAME_BYTES_MAX


class DeadStreams(Desk):
    """What readers of dead letters call."""

    async def fetch_dead(self, asked: dead.FetchDead) -> Answer[dead.FetchedDead]:
        """What died in a group on a partition, from a number on. A group that is not there has an empty stream."""
        topic = self._topic(asked.topic, asked.incarnation)
        check_name(asked.group, "group")
        check_number("max_letters", asked.max_letters, 0, limits.POLL_MESSAGES_MAX)
        check_number("max_bytes", asked.max_bytes, 1, limits.LIST_BYTES_MAX)
        check_number("wait_ms", asked.wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        if self._engine.feature_level < features.STAGES:
            raise NotSupported(
                f"dead letters as a stream need feature level {features.STAGES}, and the cluster is at "
                f"{self._engine.feature_level}: upgrade every broker, then run `lanner cluster upgrade`"
            )
        stretch = await self._dead_stretch(topic, asked)
        batches, bulk, next_number = await self._cut_out(topic, asked, stretch)
        holes = [hole for hole in stretch.holes if hole[0] < next_number]
        return Answer(
            dead.FetchedDead(
                stretch.first_number,
                stretch.end_number,
                next_number,
                batches,
                holes,
                topic.incarnation,
                stretch.group_id,
            ),
            bulk,
        )

    async def _dead_stretch(self, topic: Topic, asked: dead.FetchDead) -> DeadStretch:
        """What there is, once there is something or the wait is over."""
        deadline = self._loop.time() + asked.wait_ms / 1_000
        while True:
            replica = self._replica(topic, asked.partition)
            await self._number(topic, replica, asked)
            machine = replica.partition
            stretch = machine.dead_stretch(asked.group, asked.number, asked.max_letters)
            if asked.group_id and stretch.group_id != asked.group_id:
                raise StaleIncarnation(
                    f"the group {asked.group!r} was dropped and made again on {topic.name}/{asked.partition}: "
                    "its dead letters are numbered from 0 again; start anew",
                    topic=topic.name,
                )
            left = deadline - self._loop.time()
            if asked.number < stretch.end_number or left <= 0 or self._readiness.draining or replica.closed:
                return stretch
            await self._questions.news([replica], left)

    async def _number(self, topic: Topic, replica: Replica, asked: dead.FetchDead) -> None:
        kind = replica.partition.kind_of(asked.group)
        if kind is GroupKind.STREAM:
            raise GroupKindConflict(f"{asked.group!r} is a stream group: it has no dead letters", group=asked.group)
        if replica.partition.has_unnumbered_dead(asked.group):
            try:
                await self._ask(topic, asked.partition, NumberDead(asked.group))
            except GroupNotFound:
                return  # it was dropped meanwhile

    async def _cut_out(
        self, topic: Topic, asked: dead.FetchDead, stretch: DeadStretch
    ) -> tuple[list[dead.DeadBatch], list[bytes], int]:
        """Extracts of the batches, as far as the page has room; and the number to go on at."""
        batches: list[dead.DeadBatch] = []
        bulk: list[bytes] = []
        size = read_bytes = 0
        set_id = topic.set_ids[asked.partition]
        fitting = _fitting(stretch.runs)
        following = stretch.runs[len(fitting)].number if len(fitting) < len(stretch.runs) else stretch.next_number
        for runs in _by_batch(fitting):
            ref = runs[0].ref
            if batches and (size >= asked.max_bytes or read_bytes >= limits.READ_BYTES_MAX):
                return batches, bulk, runs[0].number
            (payload,) = await self._reader.payloads([(set_id, ref.index)])
            read_bytes += ref.size
            data = b"" if payload is None else await self._reader.in_reader(partial(_extract, payload, runs))
            told = [dead.DeadRun(*run[:6]) for run in runs]
            batches.append(dead.DeadBatch(ref.base_offset, ref.append_ms, ref.lane, len(data), told))
            bulk.append(data)
            size += len(data)
        return batches, bulk, following


def _fitting(runs: Sequence[DeadRun]) -> Sequence[DeadRun]:
    """As many as fit into a reply beside the extracts, with all that is said of them; one always does."""
    left = _TOLD_BYTES_MAX
    for at, run in enumerate(runs):
        left -= _RUN_BYTES + len(run.reason.encode())
        if left < 0 and at:
            return runs[:at]
    return runs


def _by_batch(runs: Sequence[DeadRun]) -> Iterator[Sequence[DeadRun]]:
    """Neighbours of the same batch together, as long as their offsets rise: then one extract holds them in order."""
    start = 0
    for at in range(1, len(runs) + 1):
        if (
            at == len(runs)
            or runs[at].ref.index != runs[start].ref.index
            or runs[at].first_offset < runs[at - 1].first_offset
        ):
            yield runs[start:at]
            start = at


def _extract(payload: bytes, runs: Sequence[DeadRun]) -> bytes:
    base_offset = runs[0].ref.base_offset
    positions = [run.first_offset - base_offset + at for run in runs for at in range(run.count)]
    try:
        return batch.decode(memoryview(payload)[batch_start(payload) :]).extract(positions)
    except LannerError:
        return b""
