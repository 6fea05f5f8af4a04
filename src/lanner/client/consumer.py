"""The queue consumer: leases messages, most urgent first, and settles them.

It buffers no more than it asked for, and asks anew when that is used up, so a message that is more urgent overtakes
everything that is not in hand yet. In `async for` it asks for as many as it can handle in a tenth of a second: few
when the work is slow, many when it is fast.

Leaving the block gives everything back at once: what the application never saw is released without counting an
attempt; what it saw and did not settle is returned for a retry without delay, and that attempt counts, so that a
message that breaks its handler does not come back for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lanner import limits
from lanner.batch import never_decodes
from lanner.client.brokers import Brokers
from lanner.client.delivery import Message, MessageBatch, Part, Settling
from lanner.client.polling import ROUND_MS, Poller, Wanted
from lanner.client.routing import Routing
from lanner.client.settling import SettleQueue
from lanner.client.stream import MALFORMED
from lanner.errors import LannerError, ServiceUnavailable, ValidationError
from lanner.model import check_name
from lanner.wire.connection import Reply
from lanner.wire.messages import Polled, PolledBatch, SettleItem, SettleKind

_log: Final = logging.getLogger("lanner.client")

IN_HAND_S: Final = 0.1  # `async for` aims at so much work in hand
LEFT_WITHOUT_SETTLING: Final = "the consumer left without settling it"
_CLOSE_S: Final = 5.0
_NOTHING_YET_S: Final = 0.05


class Consumer:
    """One member of a group. Use it as `async with queue.consumer(...) as consumer`."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        topic: str,
        group: str,
        *,
        max_messages: int = 100,
        max_bytes: int = limits.MIB,
        lease_ms: int | None = None,
        prefetch: int | None = None,
        partitions: Sequence[int] | None = None,
        start: str = "earliest",
        auto_ack: bool = False,
        auto_extend: bool = False,
        member: str | None = None,
    ) -> None:
        self.topic = check_name(topic, "topic")
        self.group = check_name(group, "group")
        self.member = member or secrets.token_hex(8)
        _check_options(max_messages, prefetch, lease_ms, start)
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._max_messages = max_messages
        self._lease_ms = -1 if lease_ms is None else lease_ms
        self._auto_ack = auto_ack
        self._auto_extend = auto_extend
        self.pace = Pace(max_messages, prefetch)
        self._turn = asyncio.Lock()  # one poll at a time: a poll is known to the brokers by its number
        self._settles = SettleQueue(brokers, routing, self.topic, self.group)
        wanted = Wanted(
            self.topic,
            self.group,
            self.member,
            None if partitions is None else list(partitions),
            max_bytes,
            self._lease_ms,
            auto_ack,
            start,
        )
        self._poller = Poller(brokers, routing, self._settles, wanted, self._release_reply, self._check_open)
        self._held: dict[Part, None] = {}  # leased and not settled
        self._iterated: Sequence[Part] = ()  # what `take` handed out last
        self._iterating: Iterator[Message] | None = None
        self._extender: asyncio.Task[None] | None = None
        self._closed = False

    # ------------------------------------------------------------------ polling

    async def poll(self, max_messages: int | None = None, wait_ms: int = 1_000) -> MessageBatch:
        """At most so many messages, as soon as there is one; none when the wait is over."""
        if max_messages is not None:
            _check_count("max_messages", max_messages, limits.POLL_MESSAGES_MAX)
        if not 0 <= wait_ms <= limits.DELAY_MS_MAX:
            raise ValidationError(f"wait_ms is {wait_ms!r}: give milliseconds from 0", field="wait_ms")
        if self._iterated:
            await self._give_back_unseen()
        batch = await self._poll(max_messages or self._max_messages, wait_ms)
        for part in batch.parts:
            part.seen = part.count
        return batch

    async def take(self) -> MessageBatch:
        """What `async for` works through next: waits until there is something. Places count as seen one by one."""
        while True:
            batch = await self._poll(self.pace.size, ROUND_MS)
            if batch:
                self._iterated = batch.parts
                return batch

    async def _give_back_unseen(self) -> None:
        """An iteration was left for a poll: what it had in hand must not hide from that poll."""
        items: list[SettleItem] = []
        for part in self._iterated:
            if not part.closed:
                unseen = range(part.seen, part.count)
                items += part.items(SettleKind.NACK, 0, "", unseen)
                part.give_up(unseen)
        self._iterated, self._iterating = (), None
        if items:
            await self._settles.release(items)

    async def _poll(self, max_messages: int, wait_ms: int) -> MessageBatch:
        async with self._turn:
            deadline = self._loop.time() + wait_ms / 1000
            while True:
                self._check_open()
                left_ms = max(0, round((deadline - self._loop.time()) * 1000))
                replies = await self._poller.poll(max_messages, left_ms)
                if self._closed:  # meanwhile
                    for reply in replies:
                        self._release_reply(reply)
                    raise self._closed_error()
                parts = [part for reply in replies for part in self._read(reply.control.batches, reply.bulk)]
                if parts or self._loop.time() >= deadline:
                    return MessageBatch(parts, any(reply.control.limited for reply in replies))
                await asyncio.sleep(_NOTHING_YET_S)  # what came was not usable

    def _read(self, batches: Sequence[PolledBatch], bulk: memoryview) -> list[Part]:
        parts: list[Part] = []
        position = 0
        for polled in batches:
            data = bulk[position : position + polled.size]
            position += polled.size
            try:
                part = Part(self, polled, data)
            except LannerError as error:
                self._refuse(polled, data, error)
                continue
            parts.append(part)
            if self._auto_ack:
                part.closed = True
            else:
                self._held[part] = None
        if self._auto_extend and self._held and self._extender is None:
            self._extender = self._loop.create_task(self._extend_held())
        return parts

    def _refuse(self, polled: PolledBatch, data: memoryview, error: LannerError) -> None:
        """What does not decode can never be handled: it is dead. Bytes that are not what the producer sent are given
        back, because another copy may be sound; that attempt counts."""
        _log.warning("a batch of %s/%d was not usable: %s", self.topic, polled.partition, error.message)
        if self._auto_ack:
            return
        if never_decodes(data):
            items = _items_of(polled, SettleKind.REJECT, MALFORMED)
        else:
            items = _items_of(polled, SettleKind.NACK, f"not usable: {error.message}"[: limits.REASON_LENGTH_MAX])
        self._settles.add(items)

    # ------------------------------------------------------------------ iterating

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self._iterating is not None:
                for message in self._iterating:
                    message._part.seen = message._place + 1
                    if not message._part.closed or self._auto_ack:
                        return message
                self._iterating = None
                self.pace.finished(self._loop.time())
            self._check_open()
            batch = await self.take()
            self.pace.started(len(batch), self._loop.time())
            self._iterating = iter(batch)

    # ------------------------------------------------------------------ settling

    def ack(self, delivered: Message | MessageBatch) -> Settling:
        """The same as `delivered.ack()`."""
        return delivered.ack()

    def settle(self, items: list[SettleItem]) -> Settling:
        """Queue settle items; they leave with the next poll, or at the end of this turn of the loop."""
        self._check_open()
        for item in items:
            if len(item.reason) > limits.REASON_LENGTH_MAX:
                raise ValidationError(
                    f"reason has {len(item.reason)} characters; at most {limits.REASON_LENGTH_MAX}", field="reason"
                )
        return self._settles.add(items)

    def forget(self, part: Part) -> None:
        self._held.pop(part, None)

    async def _extend_held(self) -> None:
        """Keep the leases of what the application still holds."""
        lease_ms = self._lease_ms
        if lease_ms < 0:
            route = await self._routing.route(self.topic)
            lease_ms = int(route.settings.get("lease_ms", 30_000))
        while True:
            await asyncio.sleep(lease_ms / 3000)
            items = [item for part in self._held for item in part.items(SettleKind.EXTEND, lease_ms, "")]
            for first in range(0, len(items), limits.SETTLE_RANGES_MAX):
                with contextlib.suppress(LannerError):  # a worker that settles what it has lost hears of it
                    await self._settles.add(items[first : first + limits.SETTLE_RANGES_MAX])

    # ------------------------------------------------------------------ leaving

    async def close(self) -> None:
        """Give back what is not settled, and wait until the broker knows."""
        if self._closed:
            return
        self._closed = True
        self._poller.wake()
        if self._extender is not None:
            self._extender.cancel()
        unseen: list[SettleItem] = []
        returned: list[SettleItem] = []
        for part in list(self._held):
            unseen += part.items(SettleKind.NACK, 0, "", range(part.seen, part.count))
            returned += part.items(SettleKind.NACK, 0, LEFT_WITHOUT_SETTLING, range(part.seen))
            part.closed = True
        self._held.clear()
        if returned:
            self._settles.add(returned)
        try:
            async with asyncio.timeout(_CLOSE_S):
                if unseen:
                    await self._settles.release(unseen)
                await self._settles.idle()
        except (LannerError, TimeoutError) as error:
            _log.warning("messages of %s could not be given back; their leases will end: %s", self.topic, error)

    def _release_reply(self, reply: Reply) -> None:
        """Leases came for somebody who has left: others may have the messages at once."""
        polled: Polled = reply.control
        items = [item for one in polled.batches for item in _items_of(one, SettleKind.NACK, "")]
        if items and not self._auto_ack:
            self._settles.release(items)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> LannerError:
        return ServiceUnavailable("the consumer is closed: what it held was given back")


class Pace:
    """How many messages `async for` takes at a time: about IN_HAND_S worth of work, unless the caller fixed it."""

    def __init__(self, size_max: int, fixed: int | None) -> None:
        self.size = 1 if fixed is None else fixed
        self._size_max = size_max
        self._fixed = fixed is not None
        self._count = 0
        self._began = 0.0

    def started(self, count: int, now: float) -> None:
        self._count = count
        self._began = now

    def finished(self, now: float) -> None:
        if self._fixed or not self._count:
            return
        each_s = (now - self._began) / self._count
        fitting = self._size_max if each_s <= 0 else int(IN_HAND_S / each_s)
        self.size = max(1, min(self._size_max, fitting, self.size * 4))
        self._count = 0


def _items_of(polled: PolledBatch, kind: int, reason: str) -> list[SettleItem]:
    return [
        SettleItem(polled.partition, polled.token, one.first_offset, one.count, kind, 0, reason)
        for one in polled.ranges
    ]


def _check_options(max_messages: int, prefetch: int | None, lease_ms: int | None, start: str) -> None:
    _check_count("max_messages", max_messages, limits.POLL_MESSAGES_MAX)
    if prefetch is not None:
        _check_count("prefetch", prefetch, limits.POLL_MESSAGES_MAX)
    if lease_ms is not None:
        _check_count("lease_ms", lease_ms, limits.LEASE_MS_MAX, limits.LEASE_MS_MIN)
    if start not in ("earliest", "latest"):
        raise ValidationError(f"start is {start!r}: choose earliest or latest", field="start")


def _check_count(name: str, value: int, high: int, low: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValidationError(f"{name} is {value!r}: give a whole number from {low} to {high}", field=name)
