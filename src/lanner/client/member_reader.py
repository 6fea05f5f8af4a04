"""A stream reader that is a member of its group: it reads the partitions that it is given, and hands them over.

What the application was handed counts as done when it comes for more, or leaves the block without an error (or is
stopped while it waits for more): that is committed when a partition is given up, after `on_revoked`. So what works
beside the application's own loop must be finished in `on_revoked`.

Rules, beside those of `client/membership`:
- A partition is read from where its claim says. Nothing of an earlier grant is carried on: neither the position, nor
  what was read ahead, nor a batch in hand.
- A partition that is revoked is not handed out from that moment on; if the move is called off, it goes on where it was.
- Nothing is handed out while no broker has answered this member for a whole session.
- `commit` raises MemberFenced for what is another member's by now; everything else it was asked for is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lanner.client.arguments import check_wait_ms
from lanner.client.assignments import Granted
from lanner.client.brokers import Brokers
from lanner.client.homes import BrokerHome
from lanner.client.leaders import Leaders
from lanner.client.member_ports import Standing
from lanner.client.member_settings import MemberSettings
from lanner.client.membership import Membership
from lanner.client.options import Start
from lanner.client.read_ahead import Caller, Cursor
from lanner.client.reader import Reader
from lanner.client.routing import Routing
from lanner.client.stream import ReadBatch
from lanner.client.subscriptions import subscription_of
from lanner.errors import LannerError, MemberFenced, ValidationError
from lanner.model import GroupKind, Message, TopicPartition, check_name

_CUT_OFF_S: Final = 0.5  # so often a member that no broker answers looks whether one does

Offsets = Mapping[Any, int]  # by partition, or by TopicPartition


class MemberReader(Reader):
    """Use it as `async with queue.reader(..., group=..., assignor="sticky") as reader`."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        topics: str | Sequence[str],
        settings: MemberSettings,
        *,
        group: str | None = None,
        start: Start = "earliest",
        **options: Any,
    ) -> None:
        subscription = subscription_of(topics)
        if group is None:
            raise ValidationError("an assignor is given and no group: give queue.reader(..., group=...)", field="group")
        for name in ("partitions", "until_end"):
            if options.get(name):
                raise ValidationError(
                    f"{name} and an assignor are given: members get their partitions from the group, and read on",
                    field=name,
                )
        super().__init__(brokers, routing, str(subscription), group=group, start=start, **options)
        joining = settings.check(GroupKind.STREAM).joining(
            check_name(group, "group"), GroupKind.STREAM, subscription, start, brokers.client_name
        )
        self._has_one_topic = subscription.is_one_topic
        self._granted: dict[Granted, Cursor] = {}
        self._leaders = Leaders(brokers, routing)
        self._membership = Membership(
            BrokerHome(brokers, routing, joining),
            _Worker(self),
            GroupKind.STREAM,
            callbacks=settings.callbacks,
            stall_ms=settings.stall_ms,
        )
        self._opening = asyncio.Lock()
        self._is_waiting = False  # for more to read, or was when it was stopped
        self._ahead.caller = self._caller
        self._ahead.refused = self._refused

    async def open(self) -> None:
        """Join the group. Done by `async with`, or by the first read."""
        async with self._opening:
            self._check_open()
            if not self._opened:
                await self._membership.open()
                self._opened = True
                self._routing.on_change.append(self._changed)

    def _caller(self) -> Caller:
        standing = self._membership.standing()
        return self.group or "", standing.member_id, standing.number, standing.generation

    def _changed(self, topic: str) -> None:
        self._ahead.hurry(topic)

    def _refused(self, cursor: Cursor, error: LannerError) -> bool:
        """A fetch was refused."""
        one = next((one for one, its in self._granted.items() if its is cursor), None)
        return self._membership.refused(self._membership.standing(), one, error)

    # ------------------------------------------------------------------ reading

    @property
    def needs_attention(self) -> bool:
        return self._opened and (self._membership.has_news or self._membership.is_cut_off)

    async def attend(self, deadline: float | None = None) -> None:
        """Call the callbacks and hand over what is to be handed over; wait while no broker answers this member, but not
        beyond the deadline."""
        with self._membership.presence.visit():
            while True:
                await self._membership.attend()
                if not self.needs_attention:
                    return
                if self._membership.is_cut_off:
                    left_s = _CUT_OFF_S if deadline is None else min(_CUT_OFF_S, deadline - self._loop.time())
                    if left_s <= 0:
                        return
                    await self._ahead.news.wait(left_s)
                    self._check_open()

    async def read_batch(self, wait_ms: float | None = None) -> ReadBatch | None:
        """The next batch. None: the wait is over."""
        if wait_ms is not None:
            check_wait_ms(wait_ms)
        self._membership.check_outside_callbacks()
        if not self._opened:
            await self.open()
        deadline = None if wait_ms is None else self._loop.time() + wait_ms / 1000
        self._is_waiting = True
        batch = await self._read_until(deadline)
        self._is_waiting = False
        return batch

    async def _read_until(self, deadline: float | None) -> ReadBatch | None:
        with self._membership.presence.visit():
            while True:
                self._check_open()
                if self.needs_attention:
                    await self.attend(deadline)
                left_ms = None if deadline is None else max(0.0, (deadline - self._loop.time()) * 1000)
                batch = await super().read_batch(left_ms)
                if batch is not None or (deadline is not None and self._loop.time() >= deadline):
                    return batch

    async def take_next_in_hand(self) -> bool:
        self._membership.check_outside_callbacks()
        return await super().take_next_in_hand()

    def message_in_hand(self) -> Message | None:
        message = super().message_in_hand()
        if message is not None:
            self._membership.presence.note_progress()
        return message

    # ------------------------------------------------------------------ positions

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._membership.assignment

    @property
    def generation(self) -> int:
        return self._membership.generation

    def positions(self) -> dict[Any, int]:
        """The next offset of each partition that is held; by TopicPartition where there may be several topics."""
        return {self._key(place): cursor.position for place, cursor in self._ahead.cursors.items()}

    def _key(self, place: TopicPartition) -> int | TopicPartition:
        return place.partition if self._has_one_topic else place

    def _place(self, partition: Any) -> TopicPartition:
        if self._has_one_topic and isinstance(partition, int):
            return TopicPartition(self.topic, partition)
        if isinstance(partition, tuple) and len(partition) == 2:
            return TopicPartition(*partition)
        raise ValidationError(
            f"{partition!r} is no partition of several topics: give lanner.TopicPartition(topic, partition)",
            field="offsets",
        )

    async def seek(self, start: Start) -> None:
        self._check_one_topic("seek")
        await super().seek(start)

    async def lag(self) -> dict[int, int]:
        self._check_one_topic("lag")
        return await super().lag()

    def _check_one_topic(self, what: str) -> None:
        if not self._has_one_topic:
            raise ValidationError(f"{what} is for readers of one topic: use queue.admin with several", field="topic")

    # ------------------------------------------------------------------ committing

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Remember, under the group's name, how far the application came (by default: all it was handed).

        Raises MemberFenced when a partition of it is another member's by now.
        """
        lost = self._membership.lost
        if offsets is None:
            chosen = {one: cursor.position for one, cursor in self._granted.items()}
        else:
            held = {TopicPartition(one.topic, one.partition): one for one in self._granted}
            asked = {self._place(one): offset for one, offset in offsets.items()}
            chosen = {held[place]: offset for place, offset in asked.items() if place in held}
            lost = [place for place in asked if place not in held]
        standing = self._membership.standing()
        for one, error in (await self._commit(chosen, always=offsets is not None)).items():
            if not self._membership.refused(standing, one, error):
                raise error
            lost.append(TopicPartition(one.topic, one.partition))
        if lost:
            raise MemberFenced(
                f"{', '.join(map(str, lost))} went to another member before this commit, which reads again what was "
                "not committed there: go on reading, on_lost is told next",
                group=self.group,
                partition=lost[0].partition,
            )

    async def _commit(self, offsets: Mapping[Granted, int], *, always: bool = False) -> dict[Granted, LannerError]:
        """Commit what has moved, and wait for the answers; what was refused, and why.

        What is committed is held under the very grant that it was read under, and the call says what was seen then: so
        nothing of an earlier grant can be taken for the progress of a later one.
        """
        standing = self._membership.standing()
        number = next(self._commits)
        refused: dict[Granted, LannerError] = {}
        together: dict[tuple[str, int], dict[Granted, int]] = {}
        for one, offset in offsets.items():
            cursor = self._granted.get(one)
            if cursor is None or not self._membership.holds(one):
                refused[one] = MemberFenced(f"{one.topic}/{one.partition} is another member's by now")
            elif always or offset != cursor.committed:
                together.setdefault((one.topic, one.incarnation), {})[one] = offset
        for some in together.values():
            error = await self._commit_some(some, standing, number)
            if error is not None and len(some) > 1 and not error.retryable:
                # One partition of them was refused: the others are said again, each for itself.
                for one, offset in some.items():
                    error = await self._commit_some({one: offset}, standing, number)
                    if error is not None:
                        refused[one] = error
            elif error is not None:
                refused |= dict.fromkeys(some, error)
        return refused

    async def _commit_some(self, offsets: Mapping[Granted, int], standing: Standing, number: int) -> LannerError | None:
        """Commit partitions of one topic."""
        topic, incarnation, _, _ = next(iter(offsets))
        assert self.group is not None
        try:
            await self._leaders.commit(
                topic,
                self.group,
                {one.partition: offset for one, offset in offsets.items()},
                standing.member_id,
                number,
                standing=standing._replace(incarnation=incarnation),
            )
        except LannerError as error:
            return error
        for one, offset in offsets.items():
            if one in self._granted:
                self._granted[one].committed = offset
        return None

    # ------------------------------------------------------------------ the partitions of this member

    def begin_partition(self, one: Granted, offset: int) -> None:
        place = TopicPartition(one.topic, one.partition)
        for other in [other for other, cursor in self._granted.items() if cursor.place == place]:
            self.drop_partition(other)
        self._granted[one] = self._ahead.read(place, one.incarnation, offset)
        self._ahead.share_buffer()

    def pause_partition(self, one: Granted, *, paused: bool) -> None:
        cursor = self._granted.get(one)
        if cursor is not None:
            cursor.paused = paused

    def drop_partition(self, one: Granted) -> None:
        """Nothing of it is handed out any more: neither what was read ahead, nor what is left of a batch in hand."""
        cursor = self._granted.pop(one, None)
        if cursor is not None:
            self._ahead.drop(cursor.place)
            self._batches = deque(batch for batch in self._batches if (batch.topic, batch.partition) != cursor.place)
            if self._in_hand is not None and self._in_hand[0] is cursor:
                self._in_hand = None

    async def commit_partitions(self, given_up: Sequence[Granted]) -> dict[Granted, LannerError]:
        return await self._commit({one: self._granted[one].position for one in given_up if one in self._granted})

    def wake(self) -> None:
        self._ahead.news.wake_all()

    # ------------------------------------------------------------------ leaving

    async def close(self, *, keep: bool = False, finished: bool = True) -> None:
        """Commit what was handed out, and leave the group; with `keep` its instance keeps its partitions.

        Without `finished` nothing is committed: another member begins where this one committed last.
        """
        if self._closed:
            return
        try:
            await self._membership.close(keep=keep, finished=finished)  # also while it joins
        finally:
            await super().close()

    async def leave(self) -> None:
        """Close, because the connection is about to be closed; nothing says that the application has finished."""
        await self.close(finished=False)

    def abandon(self) -> None:
        """The connection is closed: nothing can be said any more."""
        self._membership.abandon()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        # Stopped while it waited for more, it had finished what it was handed.
        stopped = kind is not None and issubclass(kind, asyncio.CancelledError | KeyboardInterrupt)
        await self.close(finished=kind is None or (stopped and self._is_waiting))


class _Worker:
    """A reader as its membership knows it."""

    def __init__(self, reader: MemberReader) -> None:
        self._reader = reader

    def begin(self, one: Granted, offset: int) -> None:
        self._reader.begin_partition(one, offset)

    def pause(self, one: Granted) -> None:
        self._reader.pause_partition(one, paused=True)

    def resume(self, one: Granted) -> None:
        self._reader.pause_partition(one, paused=False)

    def drop(self, one: Granted) -> None:
        self._reader.drop_partition(one)

    async def commit(self, given_up: Sequence[Granted]) -> Mapping[Granted, LannerError]:
        return await self._reader.commit_partitions(given_up)

    def interrupt(self) -> None:
        self._reader.wake()
