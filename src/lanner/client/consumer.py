"""The queue consumer: leases messages, most urgent first, and settles them.

It buffers no more than it asked for, and asks anew when that is used up, so a message that is more urgent overtakes
everything that is not in hand yet. In `async for` it asks for as many as it can handle in a tenth of a second: few
when the work is slow, many when it is fast.

Leaving the block gives everything back at once: what the application never saw is released without counting an
attempt; what it saw and did not settle is returned for a retry without delay, and that attempt counts, so that a
message that breaks its handler does not come back for ever.

By default a consumer shares every partition with the others of its group, and joins nothing. With an assignor it is a
member that polls what it holds (`client/queue_member`); so it becomes when it is told that its group has members now.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lanner import limits
from lanner.batch import never_decodes
from lanner.client.arguments import check_wait_ms, partition_list
from lanner.client.brokers import Brokers
from lanner.client.delivery import Message, MessageBatch, Part, Settling
from lanner.client.extending import LEASE_MS, extend_while_there
from lanner.client.member_settings import NO_MEMBERSHIP, MemberSettings
from lanner.client.polling import ROUND_MS, Wanted
from lanner.client.queue_member import QueueMember, Share
from lanner.client.routing import Routing
from lanner.client.several_topics import SeveralTopics
from lanner.client.stream import MALFORMED
from lanner.client.subscriptions import subscription_of
from lanner.client.topic_queue import TopicQueue
from lanner.errors import LannerError, MembershipRequired, ServiceUnavailable, ValidationError
from lanner.model import GroupKind, TopicPartition, check_name
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
        topics: str | Sequence[str],
        group: str,
        settings: MemberSettings = NO_MEMBERSHIP,
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
        self._subscription = subscription_of(topics)
        self._settings = settings.check(GroupKind.QUEUE)
        self.topic = str(self._subscription)  # or several, with commas between
        self.group = check_name(group, "group")
        self.member = _check_member(member) or secrets.token_hex(8)
        _check_options(max_messages, prefetch, lease_ms, start)
        _check_count("max_bytes", max_bytes, limits.POLL_BYTES_MAX)
        chosen = partition_list(partitions)
        self._check_sharing(chosen)
        self._brokers = brokers
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._max_messages = max_messages
        self._auto_extend = auto_extend
        self.pace = Pace(max_messages, prefetch)
        self._turn = asyncio.Lock()  # one poll at a time: a poll is known to the brokers by its number
        self._taking = asyncio.Lock()  # one task fills what all of them iterate
        lease_ms = -1 if lease_ms is None else lease_ms
        self._wanted = Wanted("", self.group, self.member, chosen, max_bytes, lease_ms, auto_ack, start)
        self._queues = {topic: self._make_queue(topic) for topic in self._subscription.topics}
        self._several = SeveralTopics(routing)
        self._member: QueueMember | None = None
        self._held: dict[Part, None] = {}  # leased and not settled
        self._iterated: Sequence[Part] = ()  # what `take` handed out last
        self._iterating: Iterator[Message] | None = None
        self._extenders: dict[str, asyncio.Task[None]] = {}  # by topic: each has its own lease
        self._extending: dict[str, dict[int, Settling]] = {}  # the latest, by topic and partition
        self._closing = False
        self._closed = False

    def _check_sharing(self, partitions: Sequence[int] | None) -> None:
        if self._settings.joins:
            if partitions is not None:
                raise ValidationError(
                    "both partitions and an assignor are given: members get theirs from the group", field="partitions"
                )
        elif self._subscription.patterns:
            raise ValidationError(
                f"{self._subscription.patterns[0]!r} is a pattern, and a consumer that has not joined cannot follow "
                'those: name the topics, or give assignor="sticky", or register=True',
                field="topics",
            )

    def _make_queue(self, topic: str) -> TopicQueue:
        return TopicQueue(
            self._brokers,
            self._routing,
            self._wanted._replace(topic=topic),
            check_open=self._check_open,
            check_settles=self._check_not_closed,
            forget=self.forget,
        )

    # ------------------------------------------------------------------ membership

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member holds; empty for one that has not joined, and in a group that is shared."""
        return [] if self._member is None else self._member.membership.assignment

    @property
    def generation(self) -> int:
        """Of the group, as this member last saw it; 0: it has not joined."""
        return 0 if self._member is None else self._member.membership.generation

    async def open(self) -> None:
        """Join the group, where that is wanted. Done by `async with`, or by the first poll."""
        self._check_open()
        if self._settings.joins and (self._member is None or not self._member.membership.is_open):
            async with self._turn:
                await self._join()

    async def _join(self) -> QueueMember:
        self._check_open()
        member = self._member
        if member is None:
            settings, start = self._settings, self._wanted.start
            joining = settings.joining(
                self.group, GroupKind.QUEUE, self._subscription, start, self._brokers.client_name
            )
            member = QueueMember(self._brokers, self._routing, joining, self._subscription, settings.callbacks)
            self._member = member  # before it has joined: who is cancelled, or closed, meanwhile must not leave a ghost
            member.live_with(self)
        try:
            await member.membership.open()
        except LannerError as error:
            if not error.retryable:
                self._member = None
            raise
        return member

    # ------------------------------------------------------------------ polling

    async def poll(self, max_messages: int | None = None, wait_ms: int = 1_000) -> MessageBatch:
        """At most so many messages, as soon as there is one; none when the wait is over."""
        if max_messages is not None:
            _check_count("max_messages", max_messages, limits.POLL_MESSAGES_MAX)
        check_wait_ms(wait_ms)
        self._check_outside_callbacks()
        if self._iterated:
            await self._give_back_unseen()
        batch = await self._poll(max_messages or self._max_messages, wait_ms)
        for part in batch.parts:
            part.seen = part.count
        return batch

    async def take(self) -> MessageBatch:
        """What `async for` works through next: waits until there is something. Places count as seen one by one."""
        self._check_outside_callbacks()
        while True:
            batch = await self._poll(self.pace.size, ROUND_MS)
            if batch:
                self._iterated = batch.parts
                return batch

    def _check_outside_callbacks(self) -> None:
        if self._member is not None:
            self._member.membership.check_outside_callbacks()

    async def _give_back_unseen(self) -> None:
        """An iteration was left for a poll: what it had in hand must not hide from that poll."""
        items: list[SettleItem] = []
        iterated = self._iterated
        for part in iterated:
            if not part.closed:
                unseen = range(part.seen, part.count)
                items += part.items(SettleKind.NACK, 0, "", unseen)
                part.give_up(unseen)
        self._iterated, self._iterating = (), None
        if items:
            await self._queues[iterated[0].settler.topic].settles.release(items)

    async def _poll(self, max_messages: int, wait_ms: int) -> MessageBatch:
        async with self._turn:
            deadline = self._loop.time() + wait_ms / 1000
            while True:
                self._check_open()
                left_ms = max(0, round((deadline - self._loop.time()) * 1000))
                found = await self._replies(max_messages, left_ms)
                if found is None:
                    if self._loop.time() >= deadline:
                        return MessageBatch([])
                    continue
                queue, replies = found
                if self._closing:  # meanwhile
                    _give_back(found)
                    raise self._closed_error()
                parts = [part for reply in replies for part in self._read(queue, reply.control.batches, reply.bulk)]
                if parts or self._loop.time() >= deadline:
                    return MessageBatch(parts, any(reply.control.limited for reply in replies))
                await asyncio.sleep(_NOTHING_YET_S)  # what came was not usable

    async def _replies(self, max_messages: int, wait_ms: int) -> tuple[TopicQueue, list[Reply[Polled]]] | None:
        """What brokers have for this consumer; None: the wait is over, or what it may poll has changed."""
        if self._member is None and not self._settings.joins:
            try:
                return await self._ask(list(self._queues.values()), max_messages, wait_ms)
            except MembershipRequired:  # the group's operator wants members from now on
                if self._wanted.partitions is not None:
                    raise
        member = await self._join()
        await member.membership.attend()
        shares = await member.shares()
        if not shares:
            await member.unless_interrupted(asyncio.sleep(wait_ms / 1000))
            return None
        queues = [self._queue_for(topic, share) for topic, share in shares.items()]
        try:
            return await member.unless_interrupted(self._ask(queues, max_messages, wait_ms), _give_back)
        except LannerError as error:
            await member.refused(shares, error)
            return None

    def _queue_for(self, topic: str, share: Share) -> TopicQueue:
        queue = self._queues.get(topic)
        if queue is None:
            queue = self._queues[topic] = self._make_queue(topic)
        queue.poller.want(*share)
        return queue

    async def _ask(
        self, queues: Sequence[TopicQueue], max_messages: int, wait_ms: int
    ) -> tuple[TopicQueue, list[Reply[Polled]]] | None:
        if len(queues) > 1:
            return await self._several.poll(queues, max_messages, wait_ms)
        (queue,) = queues
        return queue, await queue.poller.poll(max_messages, wait_ms)

    def _read(self, queue: TopicQueue, batches: Sequence[PolledBatch], bulk: memoryview) -> list[Part]:
        parts: list[Part] = []
        position = 0
        for polled in batches:
            data = bulk[position : position + polled.size]
            position += polled.size
            try:
                part = Part(queue, polled, data)
            except LannerError as error:
                self._refuse(queue, polled, data, error)
                continue
            parts.append(part)
            if self._wanted.auto_ack:
                part.closed = True
            else:
                self._held[part] = None
        extender = self._extenders.get(queue.topic)
        if self._auto_extend and parts and (extender is None or extender.done()):
            self._extenders[queue.topic] = self._loop.create_task(extend_while_there(weakref.ref(self), queue.topic))
        return parts

    def _refuse(self, queue: TopicQueue, polled: PolledBatch, data: memoryview, error: LannerError) -> None:
        """What does not decode can never be handled: it is dead. Bytes that are not what the producer sent are given
        back, because another copy may be sound; that attempt counts."""
        _log.warning("a batch of %s/%d was not usable: %s", queue.topic, polled.partition, error.message)
        if self._wanted.auto_ack:
            return
        if never_decodes(data):
            items = _items_of(polled, SettleKind.REJECT, MALFORMED)
        else:
            items = _items_of(polled, SettleKind.NACK, f"not usable: {error.message}"[: limits.REASON_LENGTH_MAX])
        queue.settles.add(items)

    # ------------------------------------------------------------------ iterating

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self._iterating is not None:
                for message in self._iterating:
                    message._part.seen = message._place + 1
                    if not message._part.closed or self._wanted.auto_ack:
                        return message
                self._iterating = None
                self.pace.finished(self._loop.time())
            self._check_outside_callbacks()
            async with self._taking:
                if self._iterating is None:  # else another task took something while this one waited
                    self._check_open()
                    batch = await self.take()
                    self.pace.started(len(batch), self._loop.time())
                    self._iterating = iter(batch)

    # ------------------------------------------------------------------ settling

    def ack(self, delivered: Message | MessageBatch) -> Settling:
        """The same as `delivered.ack()`."""
        return delivered.ack()

    def forget(self, part: Part) -> None:
        self._held.pop(part, None)

    def extend_held(self, topic: str, lease_ms: int) -> bool:
        """Extend the leases of what the application still holds of a topic; whether there was any. One partition that
        cannot be reached is asked for until it can be, and costs no lease of the others."""
        held: dict[int, list[SettleItem]] = {}
        for part in self._held:
            if part.settler.topic == topic:
                held.setdefault(part.partition, []).extend(part.items(SettleKind.EXTEND, lease_ms, ""))
        under_way = self._extending.setdefault(topic, {})
        for partition, items in held.items():
            if partition not in under_way or under_way[partition].done:
                for first in range(0, len(items), limits.SETTLE_RANGES_MAX):
                    some = items[first : first + limits.SETTLE_RANGES_MAX]
                    under_way[partition] = self._queues[topic].settles.add(some)
        if not held:
            del self._extenders[topic], self._extending[topic]
        return bool(held)

    async def lease_of(self, topic: str, before_ms: int) -> int:
        if self._wanted.lease_ms >= 0:
            return self._wanted.lease_ms
        try:
            route = await self._routing.route(topic)
        except LannerError:  # the topic is not there, or nobody answers, at present
            return before_ms
        return int(route.settings.get("lease_ms", LEASE_MS))

    # ------------------------------------------------------------------ leaving

    async def close(self, *, keep: bool = False) -> None:
        """Give back what is not settled, and wait until the broker knows; then leave the group.

        `keep`: the group keeps the place of this instance for as long as its session lasts.
        """
        if self._closing:
            return
        self._closing = True
        for queue in self._queues.values():
            queue.poller.wake()
        member = self._member
        try:
            if member is not None:
                member.interrupt()
                await member.membership.give_everything_up()
        finally:
            try:
                await self._give_back_everything()
            finally:  # also when that is cancelled: a member that goes on living would keep its partitions for ever
                if member is not None:
                    await member.membership.close(keep=keep)

    async def leave(self) -> None:
        """Close what has joined a group, because its connection is about to be closed."""
        if self._member is not None:
            await self.close()

    def abandon(self) -> None:
        """The connection is closed: nothing can be said any more."""
        if self._member is not None:
            self._member.membership.abandon()

    async def _give_back_everything(self) -> None:
        self._closed = True
        for extender in self._extenders.values():
            extender.cancel()
        unseen: dict[str, list[SettleItem]] = {}
        returned: dict[str, list[SettleItem]] = {}
        for part in list(self._held):
            topic = part.settler.topic
            unseen.setdefault(topic, []).extend(part.items(SettleKind.NACK, 0, "", range(part.seen, part.count)))
            returned.setdefault(topic, []).extend(
                part.items(SettleKind.NACK, 0, LEFT_WITHOUT_SETTLING, range(part.seen))
            )
            part.closed = True
        self._held.clear()
        for topic, items in returned.items():
            if items:
                self._queues[topic].settles.add(items)
        try:
            async with asyncio.timeout(_CLOSE_S):
                for topic, items in unseen.items():
                    if items:
                        await self._queues[topic].settles.release(items)
                for queue in self._queues.values():
                    await queue.settles.idle()
        except (LannerError, TimeoutError) as error:
            why = error.message if isinstance(error, LannerError) else f"no answer came within {_CLOSE_S:g} s"
            _log.warning(
                "messages of %s could not be given back, and come again when their leases end: %s", self.topic, why
            )

    async def __aenter__(self) -> Consumer:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closing:
            raise self._closed_error()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> LannerError:
        return ServiceUnavailable("the consumer is closed, and what it held was given back: make a new one")


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


def _give_back(found: tuple[TopicQueue, list[Reply[Polled]]] | None) -> None:
    """Leases came that nobody waits for any more."""
    if found is not None:
        queue, replies = found
        for reply in replies:
            queue.give_back(reply)


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


def _check_member(member: str | None) -> str:
    if member is not None and (not isinstance(member, str) or len(member) > limits.MEMBER_LENGTH_MAX):
        raise ValidationError(
            f"member is {member!r}: give a text of at most {limits.MEMBER_LENGTH_MAX} characters", field="member"
        )
    return member or ""


def _check_count(name: str, value: int, high: int, low: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValidationError(f"{name} is {value!r}: give a whole number from {low} to {high}", field=name)
