"""Clients of a simulated broker: producers, consumers, readers and an operator, who write down what they are told.

Each call goes straight to the engine and is answered by a callback. What had no answer when the broker lost its memory
is written down as unknown. Producers send such batches again under the same identity, as the real client does;
consumers keep their leases, settle some of them too late, and sometimes repeat the very poll whose answer was lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from lanner import batch
from lanner.broker.desks import fitting
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Topic
from lanner.errors import LannerError, LeaseLost, NotLeader, StorageDamaged
from lanner.model import TopicSettings
from lanner.partition import (
    Appended,
    BatchRef,
    CommitOffset,
    Lease,
    Partition,
    Poll,
    PollAnswer,
    Release,
    Settle,
    encode_append,
)
from lanner.testing import replies
from lanner.testing.clock import SimClock
from lanner.testing.history import (
    Crashed,
    DeadSeen,
    Event,
    FloorSeen,
    Handed,
    History,
    Polled,
    Published,
    ReadBack,
    Settled,
    Status,
    Stored,
)
from lanner.testing.parties import LOST, Consumer, Held, Producer, Sent, SentToLane
from lanner.testing.sim_broker import SimBroker

_ACTIONS: Final = {"ack": 1, "nack": 2, "extend": 3, "reject": 4, "release": 0}
QUEUE_GROUPS: Final = ("workers", "audit")
AUTO_GROUP: Final = "taken"  # acknowledges by itself
STREAM_GROUP: Final = "reader"


class Traffic:
    """All clients of one simulation."""

    pipelined = True  # a batch may be sent before the one before it in its lane was heard of

    def __init__(self, rng: Random, broker: SimBroker, clock: SimClock, history: History) -> None:
        self.rng = rng
        self.broker = broker
        self.clock = clock
        self.history = history
        self.counts: Counter[str] = Counter()
        self.settings: dict[int, TopicSettings] = {}
        self.names: dict[int, str] = {}
        self.consumers: list[Consumer] = []
        self.producers: list[Producer] = []
        self.point = 0
        self._open: dict[int, Event] = {}  # operation → how it is written down if its answer never comes
        self._named = 0
        self._read_to: dict[int, int] = {}
        self._commits: dict[int, deque[CommitOffset]] = {}  # the latest, heard of or not

    def now(self) -> int:
        self.point += 1
        return self.point

    def serve(self, set_id: int, topic: str, settings: TopicSettings) -> None:
        """Begin to use a partition."""
        self.settings[set_id] = settings
        self.names[set_id] = topic
        for group in QUEUE_GROUPS:
            for number in range(2):
                self.consumers.append(Consumer(group, set_id, f"{group}-{number}"))
        self.consumers.append(Consumer(AUTO_GROUP, set_id, AUTO_GROUP))

    def open_producers(self, count: int) -> None:
        self.producers = [Producer(0), Producer(0, dedup=True), *(Producer(number) for number in range(1, count))]
        self._named = count

    # ------------------------------------------------------------------ the broker

    def partition(self, set_id: int) -> Partition:
        return self.broker.engine.replica(set_id).partition

    def _ask(self, set_id: int, request: Any, on_answer: Callable[[Any, int], None]) -> None:
        self.broker.engine.ask(set_id, request, on_answer)

    def _append(self, set_id: int, data: bytes, on_applied: Callable[[Any], None]) -> None:
        self.broker.engine.propose(set_id, encode_append(self.broker.now_ms(), data), on_applied)

    def _read(self, set_id: int, ref: BatchRef) -> Mapping[int, bytes]:
        return self.broker.read(set_id, ref)

    def _topics(self) -> Mapping[str, Topic]:
        return self.broker.engine.cluster.topics

    def _change(self, command: bytes, on_result: Callable[[Any], None] | None = None) -> None:
        def applied(result: Any) -> None:
            self.broker.reconcile()
            if on_result is not None:
                on_result(result)

        self.broker.engine.propose(CLUSTER_SET, command, applied)

    # ------------------------------------------------------------------ operations and how they end

    def _begin(self, unknown: Event) -> int:
        operation = unknown.called
        assert isinstance(operation, int)
        self._open[operation] = unknown
        return operation

    def _end(self, operation: int, event: Event) -> None:
        del self._open[operation]
        self.history.add(event)

    def _lose(self, operation: int) -> None:
        """No answer will come to this one."""
        self.history.add(self._open.pop(operation))
        self.counts["unknown"] += 1

    def give_up(self) -> None:
        """Callers that wait will never hear."""
        for event in self._open.values():
            self.history.add(event)
        self.counts["unknown"] += len(self._open)
        self._open.clear()

    def crashed(self) -> None:
        """The broker has lost its memory."""
        self.give_up()
        self.history.add(Crashed(self.now()))
        for producer in self.producers:
            for lane in producer.lanes.values():
                lane.under_way = 0
                if not producer.producer_id and not producer.dedup:
                    lane.unheard.clear()
        for consumer in self.consumers:
            if consumer.polling:
                consumer.polling = False
                consumer.sequence -= self.rng.random() < 0.5  # ask again for what it did not hear
        self._read_to.clear()

    @property
    def waiting(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------ publishing

    def publish(self) -> bool:
        rng = self.rng
        producer = rng.choice(self.producers)
        set_id = rng.choice(list(self.settings))
        priority = rng.choice((9, 9, 7, 4, 4, 4, 1, 0))
        if producer.producer_id and rng.random() < 0.002:
            self._named += 1
            self.producers[self.producers.index(producer)] = producer = Producer(self._named)
        lane = producer.lanes.setdefault((set_id, priority), SentToLane())
        if lane.under_way and not self.pipelined:
            return False
        if lane.under_way < len(lane.unheard):
            sent = lane.unheard[lane.under_way]
            sent = sent._replace(event=replace(sent.event, called=self.now()))
        else:
            sent = self._write_batch(producer, lane, set_id, priority)
            lane.unheard.append(sent)
        self._send(lane, sent)
        return True

    def _write_batch(self, producer: Producer, lane: SentToLane, set_id: int, priority: int) -> Sent:
        rng, now_ms = self.rng, self.clock.now_ms()
        count = rng.choice((1, 1, 2, 3, 5, 12))
        names = tuple(f"{self.point}.{number}" for number in range(count))
        length = rng.choice((10, 40, 100, 100, 600))
        deliver_at_ms = now_ms + rng.randrange(20, 1_500) if rng.random() < 0.07 else 0
        expires_at_ms = max(now_ms, deliver_at_ms) + rng.randrange(50, 2_500) if rng.random() < 0.07 else 0
        data = batch.encode(
            [f"{name}|".encode().ljust(length, b".") for name in names],
            priority=priority,
            producer_id=producer.producer_id,
            sequence=lane.sequence if producer.producer_id else -1,
            dedup_id=names[0].encode() if producer.dedup else b"",
            deliver_at_ms=deliver_at_ms,
            expires_at_ms=expires_at_ms,
            codec=rng.choice((batch.Codec.NONE, batch.Codec.NONE, batch.Codec.NONE, batch.Codec.LZ4)),
        )
        lane.sequence += 1
        event = Published(
            self.now(), None, Status.UNKNOWN, set_id, -1, names, priority, deliver_at_ms, expires_at_ms, 0, len(data)
        )
        return Sent(event, data, bool(producer.producer_id or producer.dedup))

    def _send(self, lane: SentToLane, sent: Sent) -> None:
        event = sent.event
        operation = self._begin(event)

        def applied(result: Any) -> None:
            if isinstance(result, Appended):
                self._end(
                    operation,
                    replace(
                        event,
                        returned=self.now(),
                        status=Status.OK,
                        base_offset=result.base_offset,
                        append_ms=result.append_ms,
                    ),
                )
                self.counts["published"] += 1
                self.counts["duplicates"] += result.duplicate
            elif result is LOST or isinstance(result, NotLeader):
                if result is LOST:
                    self._lose(operation)
                else:
                    self._end(operation, replace(event, returned=self.now(), status=Status.FAILED))
                if sent.again:
                    lane.under_way = max(0, lane.under_way - 1)
                    return
            else:
                self._end(operation, replace(event, returned=self.now(), status=Status.FAILED))
                self.counts["refused"] += 1
            if lane.unheard and lane.unheard[0].data is sent.data:
                lane.unheard.popleft()
                lane.under_way = max(0, lane.under_way - 1)

        lane.under_way += 1
        try:
            self._append(event.partition, sent.data, applied)
        except LannerError:
            lane.under_way -= 1
            self._end(operation, replace(event, returned=self.now(), status=Status.FAILED))

    # ------------------------------------------------------------------ consuming

    def poll(self, consumer: Consumer, max_messages: int | None = None) -> bool:
        """Ask for messages, unless the answer to the last poll is still missing."""
        if consumer.polling:
            return False
        rng = self.rng
        consumer.polling = True
        consumer.sequence += 1
        auto_ack = consumer.group == AUTO_GROUP
        request = Poll(
            consumer.group,
            consumer.member,
            consumer.sequence,
            max_messages or rng.choice((1, 2, 5, 10, 30)),
            rng.choice((200, 2_000, 1 << 20)),
            rng.choice((None, None, 100, 2_000)),
            auto_ack,
        )
        event = Polled(self.now(), None, Status.UNKNOWN, consumer.group, consumer.set_id, auto_ack=auto_ack)
        operation = self._begin(event)

        def answered(answer: Any, index: int) -> None:
            self._polled(consumer, operation, event, answer, index)

        self._ask(consumer.set_id, request, answered)
        return True

    def _polled(self, consumer: Consumer, operation: int, event: Polled, answer: Any, index: int) -> None:
        consumer.polling = False
        if answer is LOST:
            self._lose(operation)
            consumer.sequence -= self.rng.random() < 0.5  # ask again for what it did not hear
            return
        if isinstance(answer, LannerError):
            self._end(operation, replace(event, returned=self.now(), status=Status.FAILED))
            return
        decided_ms = self._decided_ms(consumer.set_id, index)
        if not isinstance(answer, PollAnswer):
            self._end(operation, replace(event, returned=self.now(), status=Status.OK, decided_ms=decided_ms))
            return
        token = index if answer.token is None else answer.token
        messages, values, gone = self._read_leases(consumer.set_id, answer.leases)
        # What a poll takes for good is decided so that it fits.
        there = [lease for lease in answer.leases if lease not in gone]
        kept, left_out = (there, []) if event.auto_ack else self._cut(there, values)
        self._end(
            operation,
            replace(
                event,
                returned=self.now(),
                status=Status.OK,
                messages=tuple(messages),
                token=token,
                decided_ms=decided_ms,
                deadline_ms=answer.deadline_ms,
                limited=answer.limited,
                repeated=answer.token is not None,
                unseen=tuple(lease.first_offset + at for lease in (*left_out, *gone) for at in range(lease.count)),
            ),
        )
        self.counts["handed"] += len(messages)
        self.counts["retries"] += sum(1 for message in messages if message.attempt > 1)
        if consumer.group != AUTO_GROUP:
            consumer.held += [Held(token, lease.first_offset, lease.count, lease.attempt) for lease in kept]
        if left_out:
            self.counts["cut_replies"] += 1
            release = fitting.release_of(consumer.group, token, left_out)
            for _, first_offset, count, *_ in () if release is None else release.items:
                self._settle(consumer, Held(token, first_offset, count, 1), "release", seen=False)
        for lease in () if event.auto_ack else gone:  # the broker sees to it that they are dead, as damaged
            self.counts["damaged"] += lease.count
            self._settle(consumer, Held(token, lease.first_offset, lease.count, 1), "reject", seen=False)

    def _read_leases(self, set_id: int, leases: Sequence[Lease]) -> tuple[list[Handed], dict[int, bytes], list[Lease]]:
        """What was leased, value by offset, and the leases that were lost with the only copy of their batch."""
        messages: list[Handed] = []
        values: dict[int, bytes] = {}
        gone: list[Lease] = []
        for lease in leases:
            try:
                values.update(self._read(set_id, lease.ref))
            except StorageDamaged:
                values.update(self.broker.remembered[set_id, lease.ref.index])
                gone.append(lease)
            for offset in range(lease.first_offset, lease.first_offset + lease.count):
                messages.append(Handed(offset, name_of(values[offset]), lease.ref.lane, lease.attempt))
        return messages, values, gone

    def _met_damage(self) -> None:
        """A reader is told of a hole."""
        self.counts["damaged_reads"] += 1

    def _cut(self, leases: Sequence[Lease], values: Mapping[int, bytes]) -> tuple[Sequence[Lease], list[Lease]]:
        """What a reply holds of these, and what nobody hears of."""
        return replies.cut(self.rng, leases, values)

    def _decided_ms(self, set_id: int, index: int) -> int:
        """The time of a decision: the one in its record, or, when none was written, now."""
        if index:
            return self.broker.witness.decided_ms[set_id]
        return max(self.partition(set_id).machine_ms, self.broker.now_ms())

    def settle(self, consumer: Consumer, action: str | None = None) -> None:
        rng = self.rng
        if action is None and consumer.asked and rng.random() < 0.15:
            self.counts["repeated_settles"] += 1
            self._settle(consumer, *rng.choice(consumer.asked))  # as one does who has not heard, or is only told so
            return
        late = bool(consumer.late) and (not consumer.held or rng.random() < 0.1)
        if not late and not consumer.held:
            return
        held = rng.choice(consumer.late) if late else consumer.held.pop(rng.randrange(len(consumer.held)))
        if not late and action is None and rng.random() < 0.08:
            consumer.late.append(held)  # the lease will end before anybody settles it
            return
        first = held.first_offset + (rng.randrange(held.count) if held.count > 1 and rng.random() < 0.3 else 0)
        count = held.first_offset + held.count - first
        if not late and first > held.first_offset:
            consumer.held.append(held._replace(count=first - held.first_offset))
        action = action or rng.choices(tuple(_ACTIONS), weights=(70, 18, 5, 3, 4))[0]
        self._settle(consumer, held._replace(first_offset=first, count=count), action)

    def _settle(self, consumer: Consumer, held: Held, action: str, seen: bool = True) -> None:
        rng = self.rng
        delay_ms = rng.choice((-1, 0, 30, 400)) if action == "nack" else rng.choice((100, 800))
        reason = f"{action} by {consumer.member}"
        item = (held.token, held.first_offset, held.count, _ACTIONS[action], delay_ms, reason)
        request = Release(consumer.group, [item]) if action == "release" else Settle(consumer.group, [item])
        offsets = tuple(range(held.first_offset, held.first_offset + held.count))
        event = Settled(self.now(), None, Status.UNKNOWN, consumer.group, consumer.set_id, held.token, offsets, action)
        operation = self._begin(event)
        consumer.asked.append((held, action))
        nacks = {(held.token, offset) for offset in offsets if action == "nack"}
        timed = not nacks & consumer.nacked  # else it may be an earlier one that counts, with a delay of its own
        consumer.nacked |= nacks

        def answered(answer: Any, index: int) -> None:
            if answer is LOST:
                self._lose(operation)
                return
            returned: int | None = self.now()
            decided_ms = self._decided_ms(consumer.set_id, index)
            until_ms, lost = 0, False
            if isinstance(answer, LannerError) or answer[0][1] == 0:
                status = Status.FAILED
                lost = not isinstance(answer, LannerError) and answer[0][0] == LeaseLost.code
            elif answer[0] == (0, held.count):
                status = Status.OK
                if timed:
                    until_ms = decided_ms + self._wait_ms(consumer.set_id, held.attempt, delay_ms)
                if action == "extend":
                    consumer.held.append(held)
            else:  # some of it: which, the answer does not say
                status, returned = Status.UNKNOWN, None
            self.counts[f"{action}_{status}"] += 1
            told = replace(event, returned=returned, status=status, decided_ms=decided_ms, until_ms=until_ms, lost=lost)
            self._end(operation, told)

        self._ask(consumer.set_id, request, answered)
        if seen:
            consumer.late.append(held)

    def _wait_ms(self, set_id: int, attempt: int, delay_ms: int) -> int:
        if delay_ms >= 0:
            return delay_ms
        settings = self.settings[set_id]
        return min(settings.backoff_ms << (attempt - 1), settings.backoff_max_ms)

    # ------------------------------------------------------------------ reading

    def read(self) -> None:
        """Read on as a stream, and commit now and then."""
        set_id = self.rng.choice(list(self.settings))
        called = self.now()
        partition = self.partition(set_id)
        start = self._read_to.get(set_id, partition.committed(STREAM_GROUP) or 0)
        found: list[Stored] = []
        for ref in partition.batches_from(start, 4_000):
            try:
                values = self._read(set_id, ref)
                found += [Stored(offset, name_of(value), ref.lane) for offset, value in values.items()]
            except StorageDamaged:
                self._met_damage()
            start = ref.base_offset + ref.count
        self.history.add(ReadBack(called, self.now(), set_id, tuple(found)))
        self._read_to[set_id] = start
        if self.rng.random() < 0.5:
            self._commit(set_id, start)

    def _commit(self, set_id: int, offset: int) -> None:
        """Commits rise, and any of the latest may be repeated at any time: the group must never go back."""
        commits = self._commits.setdefault(set_id, deque(maxlen=8))
        if commits and self.rng.random() < 0.3:
            self.counts["repeated_commits"] += 1
            request = self.rng.choice(commits)
        else:
            offset = max(offset, commits[-1].offset if commits else 0)
            request = CommitOffset(STREAM_GROUP, offset, "reader", self.now())
            commits.append(request)
        self._ask(set_id, request, self._committed(set_id))

    def _committed(self, set_id: int) -> Callable[[Any, int], None]:
        def answered(answer: Any, _index: int) -> None:
            if answer is not LOST and not isinstance(answer, LannerError):
                at = self.now()
                floor = self.partition(set_id).committed(STREAM_GROUP) or 0
                self.history.add(FloorSeen(at, at, STREAM_GROUP, set_id, floor))

        return answered

    def inspect(self) -> None:
        """Look at the dead letters, the floors and the invariants of one partition."""
        set_id = self.rng.choice(list(self.settings))
        partition = self.partition(set_id)
        partition.check()
        for group in QUEUE_GROUPS:
            if group not in partition.groups():
                continue
            self.see_dead(set_id, group, limit=10)
            for lane, progress in enumerate(partition._state.groups[group].lanes):
                at = self.now()
                self.history.add(FloorSeen(at, at, group, set_id, progress.floor(), lane))

    def see_dead(self, set_id: int, group: str, limit: int) -> list[Stored]:
        """Dead letters with their values, written down."""
        found: list[Stored] = []
        at = self.now()
        for letter in self.partition(set_id).dead_letters(group, 0, limit):
            try:
                value = name_of(self._read(set_id, letter.ref)[letter.offset])
            except StorageDamaged:
                self._met_damage()
                value = name_of(self.broker.remembered[set_id, letter.ref.index][letter.offset])
            self.history.add(DeadSeen(at, at, group, set_id, letter.offset, letter.attempts, letter.reason, value))
            found.append(Stored(letter.offset, value, letter.lane))
        return found


@lru_cache(maxsize=16_384)
def name_of(value: bytes) -> str:
    """Which message this is: its value up to the bar. Each is asked for at every delivery."""
    return value.split(b"|", 1)[0].decode()
