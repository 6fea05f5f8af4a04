"""Stages: batches that a broker keeps, and nobody sees before they are committed together with others.

A writer stages the messages of one task under an *attempt*: 16 random bytes of its own. On each partition its batches
are numbered from 0, and sent in that order; one that is sent again under its number is stored once. `finish` gives a
plain value that names all of it. That value may travel to another process, which commits it.

It knows nothing of commits. Stages that no commit names expire.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Unpack

from lanner import batch, limits
from lanner.client.accumulator import MESSAGE_OVERHEAD_BYTES, side_bytes
from lanner.client.arguments import (
    Columns,
    Text,
    check_bound,
    checked_column,
    column_bytes,
    deliver_moment,
    expiry_moment,
    header_map,
    key_bytes,
    lane_number,
    split_by_size,
    value_bytes,
)
from lanner.client.brokers import Brokers
from lanner.client.options import StageColumnOptions, StagedMessageOptions, check_options
from lanner.client.pending import is_worth_repeating
from lanner.client.routing import Route, Routing, choose_partition, divide_by_key
from lanner.client.session import Outcome
from lanner.errors import LannerError, NotFoundError, NotLeader, ServiceUnavailable, ValidationError
from lanner.model import PRIORITY_NORMAL
from lanner.net.backoff import Backoff
from lanner.net.clock import now_ms
from lanner.net.waiters import answer_to
from lanner.wire.messages import Command
from lanner.wire.staging import Stage
from lanner.wire.staging import Staged as StagedReply

CODECS: Final = {"none": batch.Codec.NONE, "lz4": batch.Codec.LZ4, "zstd": batch.Codec.ZSTD}
BATCH_BYTES: Final = 512 * limits.KIB
BATCH_MESSAGES: Final = 10_000
_BUFFER_BYTES_MAX: Final = 32 * limits.MIB
_WINDOW: Final = 8  # batches of a partition that are under way at once
_CONNECTING_S: Final = 2.0
_ATTEMPT_BYTES: Final = 16


class StagedPartition(NamedTuple):
    """What one attempt has staged on one partition."""

    topic: str
    incarnation: int
    partition: int
    stages: int


class Staged(NamedTuple):
    """What one writer has staged. It names everything that a commit needs, in plain values: pass it on as you like."""

    transaction: str
    owner: str
    sequence: int
    task: int
    attempt: bytes
    partitions: tuple[StagedPartition, ...]
    messages: int
    repeated: bool = False  # the sequence was committed before: nothing was staged


class _PartitionQueue:
    """One partition, as one attempt fills it."""

    __slots__ = ("first", "incarnation", "next", "partition", "sending", "topic", "waiting")

    def __init__(self, route: Route, partition: int) -> None:
        self.topic = route.topic
        self.incarnation = route.incarnation
        self.partition = partition
        self.waiting: deque[bytes] = deque()  # batches that are not confirmed, in the order of their numbers
        self.first = 0  # the number of the first of them
        self.next = 0
        self.sending: asyncio.Task[None] | None = None


class _Kind(NamedTuple):
    """Messages alike in all of this share a batch."""

    topic: str
    partition: int
    priority: int
    deliver_at_ms: int
    expires_at_ms: int


class _Open:
    """A batch that still grows."""

    __slots__ = ("headers", "keys", "size", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[dict[str, bytes] | None] = []
        self.size = 0


class StageWriter:
    """Stages what one task publishes. `finish` sends the rest and tells what was staged; `discard` drops it all."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        transaction: str,
        owner: str,
        sequence: int,
        *,
        task: int = 0,
        hold_ms: int = limits.STAGE_HOLD_MS,
        batch_bytes: int = BATCH_BYTES,
        batch_messages: int = BATCH_MESSAGES,
        codec: str = "none",
        repeated: bool = False,
    ) -> None:
        if codec not in CODECS:
            raise ValidationError(f"codec {codec!r} is not known: choose one of {', '.join(CODECS)}", field="codec")
        check_bound("task", task, 0, limits.OFFSET_MAX)
        check_bound("hold_ms", hold_ms, 1, limits.STAGE_HOLD_MS_MAX)
        check_bound("batch_bytes", batch_bytes, 1, limits.BATCH_BYTES_MAX // 2)
        check_bound("batch_messages", batch_messages, 1, limits.BATCH_MESSAGES_MAX)
        self.transaction = transaction
        self.owner = owner
        self.sequence = sequence
        self.task = task
        self.attempt = secrets.token_bytes(_ATTEMPT_BYTES)
        self.repeated = repeated  # the sequence was committed before: what is published here goes nowhere
        self.messages = 0
        self._brokers = brokers
        self._routing = routing
        self._hold_ms = hold_ms
        self._batch_bytes = batch_bytes
        self._batch_messages = batch_messages
        self._codec = CODECS[codec]
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[str, int], _PartitionQueue] = {}
        self._open: dict[_Kind, _Open] = {}
        self._round: dict[tuple[str, int], int] = {}  # where messages without a key go at present
        self._buffered = 0
        self._news = asyncio.Event()
        self._failure: LannerError | None = None
        self._ended = False

    # ------------------------------------------------------------------ taking messages

    async def publish(self, topic: str, value: Text, **options: Unpack[StagedMessageOptions]) -> None:
        """Stage one message; it shows once the transaction is committed. Waits only while the buffer is full."""
        self._check_usable()
        _check_message_options("publish", options, StagedMessageOptions)
        data = value_bytes(value)
        key = key_bytes(options.get("key"))
        headers = header_map(options.get("headers"))
        priority = lane_number(options.get("priority", PRIORITY_NORMAL))
        deliver_at_ms = deliver_moment(options.get("delay_ms"), options.get("deliver_at"), now_ms)
        expires_at_ms = expiry_moment(options.get("ttl_ms"), options.get("expires_at"), now_ms)
        route = await self._route(topic)
        chosen = choose_partition(route, options.get("partition"), key, b"")
        if self.repeated:
            return
        partition = self._turn(route, priority) if chosen is None else chosen
        kind = _Kind(topic, partition, priority, deliver_at_ms, expires_at_ms)
        opened = self._open.get(kind)
        size = len(data) + MESSAGE_OVERHEAD_BYTES + side_bytes(key, headers)
        if opened is not None and opened.size + size > self._batch_bytes:
            self._seal(kind)
            opened = None
        if opened is None:
            opened = self._open[kind] = _Open()
        opened.values.append(data)
        opened.keys.append(key)
        opened.headers.append(headers)
        opened.size += size
        self._buffered += size
        self.messages += 1
        if opened.size >= self._batch_bytes or len(opened.values) >= self._batch_messages:
            self._seal(kind)
            if chosen is None:
                self._round[topic, priority] = (partition + 1) % route.partitions
        await self._room()

    async def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[StageColumnOptions]) -> None:
        """Stage columns of messages: a key and a map of headers for each value, the rest shared by all."""
        self._check_usable()
        _check_message_options("publish_many", options, StageColumnOptions)
        column = column_bytes(values)
        keys = checked_column("keys", options.get("keys"), len(column), key_bytes)
        headers = checked_column("headers", options.get("headers"), len(column), header_map)
        priority = lane_number(options.get("priority", PRIORITY_NORMAL))
        deliver_at_ms = deliver_moment(options.get("delay_ms"), options.get("deliver_at"), now_ms)
        expires_at_ms = expiry_moment(options.get("ttl_ms"), options.get("expires_at"), now_ms)
        columns = Columns(column, keys, headers, deliver_at_ms, expires_at_ms)
        route = await self._route(topic)
        divided = divide_by_key(route, options.get("partition"), keys, len(column))
        if self.repeated:
            return
        for chosen, places in divided:
            await self._stage_columns(route, chosen, priority, columns, places)

    async def _stage_columns(
        self, route: Route, chosen: int | None, priority: int, columns: Columns, places: list[int] | None
    ) -> None:
        """Cut what goes to one partition (None: to any) into batches."""
        values = columns.values if places is None else [columns.values[place] for place in places]
        sizes = columns.sizes(places)
        for start, stop in split_by_size(sizes, self._batch_bytes, self._batch_messages):
            partition = chosen
            if partition is None:
                partition = self._turn(route, priority)
                self._round[route.topic, priority] = (partition + 1) % route.partitions
            kind = _Kind(route.topic, partition, priority, columns.deliver_at_ms, columns.expires_at_ms)
            self._seal(kind)  # what came before goes first
            indexes = range(start, stop) if places is None else places[start:stop]
            self._stage(
                kind,
                values[start:stop],
                None if columns.keys is None else [columns.keys[place] for place in indexes],
                None if columns.headers is None else [columns.headers[place] for place in indexes],
            )
            self.messages += stop - start
            await self._room()

    async def partitions_of(self, topic: str) -> int:
        """How many there are. Unlike `publish`, this and `stage_rows` make no topics."""
        route = self._routing.known(topic) or await self._routing.route(topic)
        return route.partitions

    async def stage_rows(
        self,
        topic: str,
        partition: int | None,
        priority: int,
        deliver_at_ms: int,
        expires_at_ms: int,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """Stage columns that fit into one batch, for callers that divide their rows themselves. `timestamps` are the
        producers' own, in milliseconds.

        Nothing is looked at message by message; what cannot be put into a batch is refused when it is made.
        """
        self._check_usable()
        route = self._routing.known(topic) or await self._routing.route(topic)
        chosen = choose_partition(route, partition, None, b"")
        if self.repeated:
            return
        if chosen is None:
            chosen = self._turn(route, priority)
            self._round[topic, priority] = (chosen + 1) % route.partitions
        self._stage(_Kind(topic, chosen, priority, deliver_at_ms, expires_at_ms), values, keys, headers, timestamps)
        self.messages += len(values)
        await self._room()

    def _turn(self, route: Route, priority: int) -> int:
        """Round robin by batch. Each task begins elsewhere, so that small ones do not all meet on one partition."""
        turn = self._round.setdefault((route.topic, priority), (self.attempt[0] + self.task) % route.partitions)
        return turn % route.partitions

    async def _route(self, topic: str) -> Route:
        return self._routing.known(topic) or await self._routing.route(topic, create=True)

    async def _room(self) -> None:
        while self._buffered > _BUFFER_BYTES_MAX and self._failure is None:
            for kind in list(self._open):
                self._seal(kind)
            self._news.clear()
            await self._news.wait()
        self._check_usable()

    # ------------------------------------------------------------------ sending batches

    def _seal(self, kind: _Kind) -> None:
        """A batch that grew goes out."""
        opened = self._open.pop(kind, None)
        if opened is not None:
            self._buffered -= opened.size
            keys = opened.keys if any(key is not None for key in opened.keys) else None
            self._stage(kind, opened.values, keys, opened.headers if any(opened.headers) else None)

    def _stage(
        self,
        kind: _Kind,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        data = batch.encode(
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            priority=kind.priority,
            codec=self._codec,
            deliver_at_ms=kind.deliver_at_ms,
            expires_at_ms=kind.expires_at_ms,
        )
        lane = self._lanes.get((kind.topic, kind.partition))
        if lane is None:
            route = self._routing.known(kind.topic)
            if route is None:
                raise NotFoundError(f"topic {kind.topic!r} was deleted while it was published to", topic=kind.topic)
            lane = self._lanes[kind.topic, kind.partition] = _PartitionQueue(route, kind.partition)
        if lane.next >= limits.STAGES_PER_ATTEMPT_MAX:
            raise ValidationError(
                f"one task may stage {limits.STAGES_PER_ATTEMPT_MAX} batches on {lane.topic}/{lane.partition}: use "
                "larger batches, or more tasks",
                field="batch_bytes",
            )
        lane.next += 1
        lane.waiting.append(data)
        self._buffered += len(data)
        if lane.sending is None:
            lane.sending = self._loop.create_task(self._send(lane))

    async def _send(self, lane: _PartitionQueue) -> None:
        """Send what a lane holds, in order, until nothing is left. What fails for good fails the writer."""
        deadline = self._loop.time() + self._brokers.timeout_ms / 1000
        backoff = Backoff()
        try:
            while lane.waiting:
                error = await self._send_window(lane, deadline)
                if error is None:
                    deadline = self._loop.time() + self._brokers.timeout_ms / 1000
                    backoff.reset()
                    continue
                pause_s = backoff.pause_until(deadline, self._loop.time(), error.retry_after_ms)
                if not is_worth_repeating(error) or pause_s is None:
                    self._failure = self._failure or error
                    return
                await asyncio.sleep(pause_s)
        except LannerError as error:
            self._failure = self._failure or error
        finally:
            lane.sending = None
            self._news.set()

    async def _send_window(self, lane: _PartitionQueue, deadline: float) -> LannerError | None:
        """The next batches of a lane together; why the first that failed did. Those behind it are sent again."""
        await self._routing.route(lane.topic)
        session = self._routing.leader(lane.topic, lane.partition)
        if session is None:
            return NotLeader(f"nobody leads {lane.topic}/{lane.partition} at present", sent=False)
        await session.wait_until_tried(min(deadline, self._loop.time() + _CONNECTING_S))
        left_ms = (deadline - self._loop.time()) * 1000
        window = list(islice(lane.waiting, _WINDOW))
        answers: list[asyncio.Future[Outcome[StagedReply]]] = []
        for place, data in enumerate(window):
            answer: asyncio.Future[Outcome[StagedReply]] = self._loop.create_future()
            answers.append(answer)
            session.call(Command.STAGE, self._named(lane, lane.first + place), (data,), answer_to(answer), left_ms)
        for data, outcome in zip(window, await asyncio.gather(*answers), strict=True):
            if isinstance(outcome, LannerError):
                if isinstance(outcome, NotFoundError):
                    self._routing.forget(lane.topic)
                self._routing.failed(lane.topic, lane.partition, session, outcome)
                return outcome
            lane.waiting.popleft()
            lane.first += 1
            self._buffered -= len(data)
            self._news.set()
        return None

    def _named(self, lane: _PartitionQueue, number: int) -> Stage:
        return Stage(
            lane.topic,
            lane.partition,
            lane.incarnation,
            self.transaction,
            self.owner,
            self.sequence,
            self.task,
            self.attempt,
            number,
            self._hold_ms,
        )

    # ------------------------------------------------------------------ ending

    async def finish(self) -> Staged:
        """Send the rest and wait until all of it is stored; what a commit needs to know of it."""
        for kind in list(self._open):
            self._seal(kind)
        while self._failure is None and any(lane.sending is not None for lane in self._lanes.values()):
            self._news.clear()
            await self._news.wait()
        self._check_usable()
        self._ended = True
        return self.staged()

    def staged(self) -> Staged:
        """What was staged so far, or may have been: for a discard."""
        partitions = tuple(
            StagedPartition(lane.topic, lane.incarnation, lane.partition, lane.next)
            for _, lane in sorted(self._lanes.items())
        )
        return Staged(
            self.transaction,
            self.owner,
            self.sequence,
            self.task,
            self.attempt,
            partitions,
            self.messages,
            self.repeated,
        )

    async def abandon(self) -> None:
        """Send nothing more. What is staged stays until it is discarded, or expires."""
        self._ended = True
        tasks = [lane.sending for lane in self._lanes.values() if lane.sending is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.details)
        if self._ended:
            raise ServiceUnavailable("this transaction has ended: begin another one")


def _check_message_options(call: str, given: Mapping[str, Any], known: type) -> None:
    if "dedup_id" in given:
        raise ValidationError(
            "a message in a transaction has no dedup_id: the sequence does its work", field="dedup_id"
        )
    check_options(call, given, known)
