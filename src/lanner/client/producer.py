"""The producer: takes messages, sends batches, and tells each message's outcome.

The shell around the accumulator: it moves batches onto the session of their partition's leader and answers back
into it, keeps the one timer, opens producer ids. It decides nothing about order, numbers or retries.

While batches of a lane are unanswered, more of that lane go to the same broker, also when another leads by now: one
broker refuses them in order, so that all of them go on to the next in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

from lanner import limits
from lanner.batch import Codec
from lanner.client.accumulator import MESSAGE_OVERHEAD_BYTES, Accumulator, side_bytes
from lanner.client.arguments import (
    Columns,
    Moment,
    Text,
    check_bound,
    check_timeout_ms,
    checked_column,
    column_bytes,
    dedup_bytes,
    deliver_moment,
    expiry_moment,
    header_map,
    key_bytes,
    lane_number,
    split_by_size,
    value_bytes,
)
from lanner.client.brokers import Brokers
from lanner.client.options import MessageOptions, check_options
from lanner.client.pending import Failed, Identity, PendingBatch, ProducerLane
from lanner.client.receipts import Placed, Receipt, Receipts, Sending
from lanner.client.routing import Route, Routing, choose_partition, divide_by_key
from lanner.client.session import Outcome, Session
from lanner.errors import (
    LannerError,
    NotFoundError,
    ServiceUnavailable,
    ValidationError,
)
from lanner.model import PRIORITY_NORMAL
from lanner.net.clock import now_ms, wall_ms_at
from lanner.net.waiters import Waiters
from lanner.wire.messages import Command, OpenProducer, Publish, Published

_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_TICK_S: Final = 0.25  # how often deadlines are looked at while something is held up
_OPEN_MS: Final = 1_500  # then another broker is asked for an id: the disk of this one may hang


class _RoomByLeader:
    """What may be sent in one turn, to each broker."""

    __slots__ = ("_left", "_routing")

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._left: dict[Session, int] = {}

    def left(self, lane: ProducerLane) -> int:
        session: Session | None = lane.place
        if not lane.unanswered or session is None:
            session = lane.place = self._routing.leader(lane.topic, lane.partition)
            if session is None:
                return 0
        left = self._left.get(session)
        if left is None:
            left = self._left[session] = session.room
        return left

    def use(self, lane: ProducerLane, count: int) -> None:
        self._left[lane.place] -= count


class Producer:
    """Batches by partition and priority, keeps several in flight, repeats safely. `async with` flushes at the end."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        *,
        linger_ms: float = 5,
        batch_bytes: int = 128 * limits.KIB,
        batch_messages: int = 1_000,
        buffer_bytes_max: int = 32 * limits.MIB,
        codec: str = "none",
        idempotent: bool = True,
        timestamps: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        if codec not in _CODECS:
            raise ValidationError(f"codec {codec!r} is not known: choose one of {', '.join(_CODECS)}", field="codec")
        check_bound("linger_ms", linger_ms, 0, 60_000)
        check_bound("batch_bytes", batch_bytes, 1, limits.BATCH_BYTES_MAX // 2)
        check_bound("batch_messages", batch_messages, 1, limits.BATCH_MESSAGES_MAX)
        check_bound("buffer_bytes_max", buffer_bytes_max, 1, limits.GIB)
        timeout_ms = brokers.timeout_ms if timeout_ms is None else check_timeout_ms(timeout_ms)
        self._brokers = brokers
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._held = Accumulator(
            rng=random,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes_max=buffer_bytes_max,
            timeout_ms=timeout_ms,
            codec=_CODECS[codec],
            idempotent=idempotent,
            stamp=wall_ms_at if timestamps else None,
        )
        self._linger_ms = linger_ms
        self._round: dict[tuple[str, int], ProducerLane] = {}  # where messages without a key go at present
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._room = Waiters()  # for room in the buffer
        self._flushed = Waiters()  # for the buffer to be empty
        self._unobserved: LannerError | None = None
        self._closed = False
        self._expire_ms = 0.0  # when deadlines are looked at next
        brokers.on_up.append(self._wake)
        routing.on_change.append(self._rerouted)

    # ------------------------------------------------------------------ sending

    @property
    def full(self) -> bool:
        """The buffer is at its bound: `send` refuses until there is `room()`."""
        return self._held.full

    @property
    def buffered_bytes(self) -> int:
        return self._held.buffered_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def room(self) -> None:
        """Return as soon as `send` would take a message."""
        while self.full:
            self._check_open()
            self._held.seal_all()
            self._schedule()
            await self._room.wait()

    async def send(
        self,
        topic: str,
        value: Text,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        priority: int | str = PRIORITY_NORMAL,
        partition: int | None = None,
        delay_ms: float | None = None,
        deliver_at: Moment | None = None,
        ttl_ms: float | None = None,
        expires_at: Moment | None = None,
        dedup_id: Text | None = None,
    ) -> Sending:
        """Take one message into the buffer; waits only while that is full.

        Await what is returned for the message's outcome, or forget it and let `flush` tell of failures.
        """
        held = self._held
        if held.full or self._closed:
            self._check_open()
            await self.room()
        if type(value) is not bytes or len(value) > limits.MESSAGE_BYTES_MAX:
            value = value_bytes(value)
        number = PRIORITY_NORMAL if priority == PRIORITY_NORMAL else lane_number(priority)
        if key is not None:
            key = key_bytes(key)
        maps = header_map(headers) if headers else None
        deliver_at_ms = expires_at_ms = 0
        if delay_ms is not None or deliver_at is not None:
            deliver_at_ms = deliver_moment(delay_ms, deliver_at, now_ms)
        if ttl_ms is not None or expires_at is not None:
            expires_at_ms = expiry_moment(ttl_ms, expires_at, now_ms)
        dedup = b"" if dedup_id is None else dedup_bytes(dedup_id)
        route = self._routing.known(topic) or await self._routing.route(topic, create=True)
        batch = self._place(value, key, maps, number, partition, deliver_at_ms, expires_at_ms, dedup, route)
        sending = Sending(batch, len(batch.values) - 1)
        waiting = batch.lane.sealed
        if waiting and (waiting[-1] is batch or len(batch.values) == 1):
            await asyncio.sleep(0)  # a batch became full: a caller that sends in a tight loop lets it leave
        return sending

    async def publish(self, topic: str, value: Text, **options: Unpack[MessageOptions]) -> Receipt:
        """Send one message and wait for its receipt; options as of `send`."""
        check_options("publish", options, MessageOptions)
        return await (await self.send(topic, value, **options))

    def _place(
        self,
        value: bytes,
        key: bytes | None,
        headers: dict[str, bytes] | None,
        priority: int,
        partition: int | None,
        deliver_at_ms: int,
        expires_at_ms: int,
        dedup_id: bytes,
        route: Route,
    ) -> PendingBatch:
        """Put a checked message where it belongs: at the end of the batch returned."""
        held = self._held
        born_ms = self._loop.time() * 1000
        if partition is None and key is None and not dedup_id:
            lane = self._round_lane(route, priority)
        else:
            chosen = choose_partition(route, partition, key, dedup_id)
            assert chosen is not None
            lane = held.lane(route.topic, chosen, priority, not dedup_id)
        if dedup_id:  # the id is of the batch: such a message travels alone, and needs no sequence
            size = len(value) + MESSAGE_OVERHEAD_BYTES + side_bytes(key, headers)
            batch = held.add_sealed(
                lane, [value], [key], [headers], size, born_ms, deliver_at_ms, expires_at_ms, dedup_id
            )
        else:
            batch = held.add(lane, value, key, headers, born_ms, deliver_at_ms, expires_at_ms)
        if not self._scheduled:
            if self._linger_ms == 0 or lane.sealed:
                self._schedule()
            elif self._timer is None:
                self._timer = self._loop.call_later(self._linger_ms / 1000, self._pump)
        return batch

    def _round_lane(self, route: Route, priority: int) -> ProducerLane:
        """Round robin by batch: stay while a batch is open, then go on to the next partition."""
        lane = self._round.get((route.topic, priority))
        if lane is not None and lane.opened:
            return lane
        following = random.randrange(route.partitions) if lane is None else (lane.partition + 1) % route.partitions
        lane = self._round[route.topic, priority] = self._held.lane(route.topic, following, priority)
        return lane

    # ------------------------------------------------------------------ many at once

    async def publish_many(
        self,
        topic: str,
        values: Sequence[Text],
        *,
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Mapping[str, Text] | None] | None = None,
        priority: int | str = PRIORITY_NORMAL,
        partition: int | None = None,
        delay_ms: float | None = None,
        deliver_at: Moment | None = None,
        ttl_ms: float | None = None,
        expires_at: Moment | None = None,
        return_errors: bool = False,
    ) -> Receipts:
        """Send columns of messages and wait for all of them.

        When some fail, the first error is raised once the outcome of all is known; with `return_errors` the receipts
        tell instead (`Receipts.outcomes`).
        """
        self._check_open()
        column = column_bytes(values)
        count = len(column)
        key_column = checked_column("keys", keys, count, key_bytes)
        header_column = checked_column("headers", headers, count, header_map)
        number = lane_number(priority)
        deliver_at_ms = deliver_moment(delay_ms, deliver_at, now_ms)
        expires_at_ms = expiry_moment(ttl_ms, expires_at, now_ms)
        route = self._routing.known(topic) or await self._routing.route(topic, create=True)
        columns = Columns(column, key_column, header_column, deliver_at_ms, expires_at_ms)
        placed: list[Placed] = []
        for chosen, places in divide_by_key(route, partition, key_column, count):
            await self._place_columns(route, number, chosen, columns, places, placed)
        await self._wait_for(batch for batch, _ in placed)
        receipts = Receipts(placed, count)
        if receipts.error is not None and not return_errors:
            raise type(receipts.error)(
                f"{receipts.failed} of {count} messages failed: {receipts.error.message}", **receipts.error.details
            )
        return receipts

    async def _place_columns(
        self,
        route: Route,
        priority: int,
        partition: int | None,
        columns: Columns,
        places: list[int] | None,
        placed: list[Placed],
    ) -> None:
        """Cut what goes to one partition (None: to any) into batches, as fast as there is room for them."""
        held = self._held
        values = columns.values if places is None else [columns.values[place] for place in places]
        sizes = columns.sizes(places)
        for start, stop in split_by_size(sizes, held.batch_bytes, held.batch_messages):
            while self.full:
                await self.room()
            if partition is None:
                lane = self._round_lane(route, priority)
            else:
                lane = held.lane(route.topic, partition, priority)
            indexes = range(start, stop) if places is None else places[start:stop]
            batch = held.add_sealed(
                lane,
                values[start:stop],
                None if columns.keys is None else [columns.keys[place] for place in indexes],
                None if columns.headers is None else [columns.headers[place] for place in indexes],
                sum(sizes[start:stop]) + MESSAGE_OVERHEAD_BYTES * (stop - start),
                self._loop.time() * 1000,
                columns.deliver_at_ms,
                columns.expires_at_ms,
            )
            batch.observed = True
            self._schedule()
            placed.append(Placed(batch, indexes))

    async def _wait_for(self, batches: Iterable[PendingBatch]) -> None:
        for batch in batches:
            if not batch.settled:
                await batch.waiters.wait()

    # ------------------------------------------------------------------ the pump

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _wake(self, session: Session) -> None:
        """A broker can be reached (again)."""
        self._held.wake(lambda lane: lane.place is session)
        self._schedule()

    def _rerouted(self, topic: str) -> None:
        """Other brokers lead now, or somebody leads again."""
        leader = self._routing.leader
        self._held.wake(lambda lane: lane.topic == topic and lane.place is not leader(topic, lane.partition))
        self._schedule()

    def _pump(self) -> None:
        """Send what may go, then set the timer for what may go later."""
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held = self._held
        moment_ms = self._loop.time() * 1000
        if moment_ms >= self._expire_ms:
            self._expire_ms = moment_ms + _TICK_S * 1000
            self._report(held.expire(moment_ms))
        taken = held.take(moment_ms, _RoomByLeader(self._routing))
        for batch in taken.batches:
            self._hand_over(batch, moment_ms)
        self._report(taken.refused)
        due_ms: float | None = None  # None: an answer, a connection or a producer id will schedule the next turn
        if held.needs_identity:
            if self._opening is None:
                self._opening = self._start(self._open_identity())
        else:
            due_ms = held.next_due_ms(moment_ms)
        if due_ms is None and not held.is_held_up:
            return
        delay_s = _TICK_S if due_ms is None else min(max(due_ms - moment_ms, 1.0) / 1000, _TICK_S)
        self._timer = self._loop.call_later(delay_s, self._pump)

    def _hand_over(self, batch: PendingBatch, moment_ms: float) -> None:
        assert batch.data is not None
        lane = batch.lane
        left_ms = batch.born_ms + self._held.timeout_ms - moment_ms
        lane.place.call(
            Command.PUBLISH,
            Publish(lane.topic, lane.partition),
            (batch.data,),
            partial(self._answered, batch),
            max(left_ms, _TICK_S * 1000),
        )

    def _answered(self, batch: PendingBatch, outcome: Outcome[Published]) -> None:
        moment_ms = self._loop.time() * 1000
        if batch.settled:
            return
        if isinstance(outcome, LannerError):
            lane = batch.lane
            if isinstance(outcome, NotFoundError):
                self._routing.forget(lane.topic)
            elsewhere = self._routing.failed(lane.topic, lane.partition, lane.place, outcome)
            sent = outcome.details.get("sent", True)
            failures = self._held.failed(batch, outcome, moment_ms, sent=sent, elsewhere=elsewhere)
        else:
            published = outcome.control
            failures = self._held.acknowledged(
                batch, published.base_offset, published.append_ms, published.duplicate, moment_ms
            )
            self._finish(batch)
        if failures:
            self._report(failures)
        if self._held.batches and not self._scheduled:
            self._schedule()

    def _report(self, failures: Sequence[Failed]) -> None:
        for batch, error in failures:
            if not batch.observed:
                self._unobserved = self._unobserved or error
            self._finish(batch)

    def _finish(self, batch: PendingBatch) -> None:
        batch.waiters.wake_all()
        if self._room and not self._held.full:
            self._room.wake_all()
        if self._flushed and not self._held.batches:
            self._flushed.wake_all()

    async def _open_identity(self) -> None:
        """A producer id from the broker. When none can be had, what waits for it expires by its own deadline."""
        try:
            opened = await self._brokers.ask(OpenProducer(), attempt_ms=_OPEN_MS)
            self._held.identity = Identity(opened.producer_id, opened.epoch)
        except LannerError:
            await asyncio.sleep(_TICK_S)
            self._report(self._held.expire(self._loop.time() * 1000))
        finally:
            self._opening = None
            self._schedule()

    # ------------------------------------------------------------------ ending

    async def flush(self) -> None:
        """Send everything now and wait until each outcome is known. Raises the first failure nobody awaited."""
        while self._held.batches:
            self._held.seal_all()
            self._schedule()
            await self._flushed.wait()
        error, self._unobserved = self._unobserved, None
        if error is not None:
            raise type(error)(error.message, **error.details)

    async def close(self) -> None:
        """Flush, then end."""
        try:
            if not self._closed:
                await self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End at once: what is not confirmed yet is reported as failed, though the broker may still get it."""
        self._closed = True
        if self._wake in self._brokers.on_up:
            self._brokers.on_up.remove(self._wake)
            self._routing.on_change.remove(self._rerouted)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        self._report(self._held.abandon(ServiceUnavailable("the producer was closed before the broker confirmed")))
        self._room.wake_all()
        self._flushed.wake_all()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:
            self.abandon()

    # ------------------------------------------------------------------ small things

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceUnavailable("the producer is closed: make a new one with queue.producer()")
