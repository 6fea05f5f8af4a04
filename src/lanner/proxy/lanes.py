"""Batches on their way to the leaders: many at a time, and of one partition always in the order they came.

PUBLISH and STAGE are futures without a task. A batch passes as the bytes that it is, under its producer's own id and
sequence (or its attempt's number), which is what makes it safe to send again: a leader that has it already says so.

Rules, for each partition by itself:
- What came first is sent first, and while something is unanswered, more goes to the same broker.
- When one is not taken (its broker went, or does not lead any more), nothing more is sent until everything that is
  under way has an outcome. Then what was not taken is sent again, in its first order, before anything newer. A leader
  that missed one refuses those behind it (SequenceGap): they wait for it as well.
- A batch is sent again until its deadline. Its error then says that it surely was not taken only if that is so for
  every time that it was sent.
- All batches in hand have one budget of bytes, as on a broker; beyond it they are refused, surely without effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from lanner import limits
from lanner.api.ports import Appended
from lanner.api.ports import Staged as StagedFacts
from lanner.client.session import Outcome, Session
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    Overloaded,
    SequenceGap,
    ServiceUnavailable,
    StorageFull,
    TopicFull,
)
from lanner.net.backoff import Backoff
from lanner.proxy.topology import nobody_leads, without_hint
from lanner.proxy.upstream import OUTDATED
from lanner.wire.messages import Command, Control, Publish, Published
from lanner.wire.staging import Stage, Staged

Facts = TypeVar("Facts")
Taken = Callable[[Control], None]

DEADLINE_MS: Final = 10_000
HELD_BYTES_MAX: Final = limits.UNCOMMITTED_BYTES_MAX_PER_BROKER
_RETRY_MS: Final = 100
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.3
_FULL: Final = (Overloaded, StorageFull, TopicFull)
_SURELY_REFUSED: Final = (*_FULL, SequenceGap)  # retryable, and surely without effect
_NOT_TAKEN: Final = (NotLeader, BadGateway, ServiceUnavailable, ConnectionLost, DeadlineExceeded)


class Places(Protocol):
    """Where batches go: the proxy's map."""

    def knows(self, name: str) -> bool: ...

    async def hear_of(self, topics: Iterable[str]) -> None:
        """Look topics up that are not known."""

    def find_topic(self, name: str) -> object:
        """TopicNotFound when it is not known."""

    def leads(self, topic: str, partition: int) -> Session | None:
        """The connection to the leader of a partition; None: who that is, is being looked for."""

    def failed(self, topic: str, partition: int, asked: Session | None, error: LannerError) -> bool:
        """Learn from an error. True: it says where to ask next."""

    def doubt(self, name: str) -> object:
        """What is known of a topic proved wrong."""


class _Awaited(Protocol):
    """What a client waits for."""

    def done(self) -> bool: ...
    def set_exception(self, exception: LannerError, /) -> None: ...


class _Sending:
    """One batch until its outcome is known."""

    __slots__ = ("call", "data", "deadline", "error", "future", "number", "taken", "uncertain")

    def __init__(
        self, number: int, call: Publish | Stage, data: bytes, deadline: float, future: _Awaited, taken: Taken
    ) -> None:
        self.number = number
        self.call = call
        self.data = data
        self.deadline = deadline
        self.future = future
        self.taken = taken
        self.uncertain = False  # some sending of it may have taken effect
        self.error: LannerError | None = None  # of the last sending

    def fail(self, error: LannerError) -> None:
        if not self.future.done():
            self.future.set_exception(self._told(error))

    def _told(self, error: LannerError) -> LannerError:
        """The error as its client may read it. It says `refused` only where nothing can have taken effect."""
        if self.uncertain and isinstance(error, _SURELY_REFUSED):
            return DeadlineExceeded(f"it is not known whether a broker took the batch: {error.message}")
        if isinstance(error, NotLeader):
            error = without_hint(error)
        details = {name: value for name, value in error.details.items() if name not in ("sent", "refused")}
        if not self.uncertain and _was_refused(error):
            details["refused"] = True
        if isinstance(error, ConnectionLost):  # the client's own connection is fine
            return BadGateway(f"the broker did not answer: {error.message}", **details)
        return type(error)(error.message, **details)


class _Lane:
    """The batches of one partition."""

    __slots__ = ("backoff", "failed", "flight", "hurried", "resting", "session", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Sending] = deque()
        self.flight = 0
        self.failed: list[_Sending] = []  # not taken, to be sent again
        self.session: Session | None = None  # where what is under way went
        self.resting = False  # nothing is sent for the moment
        self.hurried = False  # it was sent again without a pause the last time
        self.backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)


class Lanes:
    """All batches that are on their way."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.held_bytes = 0
        self.sent = 0
        self.repeated = 0

    def publish(self, call: Publish, data: bytes | memoryview) -> asyncio.Future[Appended]:
        """Take a batch; the future gives the leader's answer."""
        return self._send(call, data, _appended)

    def stage(self, call: Stage, data: bytes | memoryview) -> asyncio.Future[StagedFacts]:
        """Take a batch of a transaction."""
        return self._send(call, data, _staged)

    def _send(
        self, call: Publish | Stage, data: bytes | memoryview, facts_of: Callable[[Control], Facts]
    ) -> asyncio.Future[Facts]:
        size = len(data)
        if self.held_bytes and self.held_bytes + size > HELD_BYTES_MAX:
            raise Overloaded(
                f"the proxy holds {self.held_bytes} bytes of batches that brokers have not taken yet: try again a "
                "little later",
                retry_after_ms=_RETRY_MS,
            )
        future: asyncio.Future[Facts] = self._loop.create_future()
        self.held_bytes += size
        future.add_done_callback(partial(self._let_go, size))
        self._numbers += 1
        deadline = self._loop.time() + DEADLINE_MS / 1_000
        sending = _Sending(
            self._numbers, call, bytes(data), deadline, future, lambda answer: future.set_result(facts_of(answer))
        )
        place = call.topic, call.partition
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane()
        lane.waiting.append(sending)
        if not lane.resting:
            self._pump(place, lane)
        return future

    def _let_go(self, size: int, _: object) -> None:
        self.held_bytes -= size

    # ------------------------------------------------------------------ sending

    def _pump(self, place: tuple[str, int], lane: _Lane) -> None:
        """Send what waits, as far as it is known where."""
        topic, partition = place
        while lane.waiting and not lane.resting:
            session = lane.session if lane.flight else None
            if session is None:
                if not self._places.knows(topic):
                    lane.resting = True
                    self._spawn(self._look_up(place, lane))
                    return
                session = lane.session = self._places.leads(topic, partition)
            sending = lane.waiting.popleft()
            if session is None:
                self._not_taken(place, lane, sending, nobody_leads(topic, partition))
            elif not session.is_up and not session.is_failing:
                lane.waiting.appendleft(sending)
                lane.resting = True
                self._spawn(self._connect(place, lane, session))
                return
            else:
                lane.flight += 1
                self.sent += 1
                left_ms = max(1.0, (sending.deadline - self._loop.time()) * 1_000)
                answered = partial(self._answered, place, lane, session, sending)
                command = Command.STAGE if isinstance(sending.call, Stage) else Command.PUBLISH
                session.call(command, sending.call, (sending.data,), answered, left_ms)
        self._forget_idle(place, lane)

    async def _look_up(self, place: tuple[str, int], lane: _Lane) -> None:
        """A topic that is not known is looked up once for all that wait for it."""
        topic, _ = place
        try:
            await self._places.hear_of([topic])
            self._places.find_topic(topic)
        except LannerError as error:
            waiting, lane.waiting = lane.waiting, deque()
            for sending in waiting:
                sending.fail(error)
        self._go_on(place, lane)

    async def _connect(self, place: tuple[str, int], lane: _Lane, session: Session) -> None:
        await session.wait_until_tried(self._loop.time() + DEADLINE_MS / 1_000)
        self._go_on(place, lane)

    def _go_on(self, place: tuple[str, int], lane: _Lane) -> None:
        lane.resting = False
        now = self._loop.time()
        while lane.waiting and lane.waiting[0].deadline <= now:
            late = lane.waiting.popleft()
            late.fail(late.error or DeadlineExceeded("no broker took the batch in time", refused=True))
        self._pump(place, lane)

    def _forget_idle(self, place: tuple[str, int], lane: _Lane) -> None:
        if not (lane.waiting or lane.flight or lane.failed or lane.resting):
            self._lanes.pop(place, None)

    # ------------------------------------------------------------------ outcomes

    def _answered(
        self, place: tuple[str, int], lane: _Lane, session: Session, sending: _Sending, outcome: Outcome[Control]
    ) -> None:
        lane.flight -= 1
        if not isinstance(outcome, LannerError):
            lane.hurried = False
            lane.backoff.reset()
            if not sending.future.done():
                sending.taken(outcome.control)
        elif self._goes_again(lane, sending, outcome):
            hinted = self._places.failed(*place, session, outcome)
            self._not_taken(place, lane, sending, outcome, hinted=hinted)
            return
        else:
            if isinstance(outcome, OUTDATED):
                self._places.doubt(place[0])
            sending.fail(outcome)
        self._settle(place, lane)

    def _goes_again(self, lane: _Lane, sending: _Sending, error: LannerError) -> bool:
        if isinstance(error, SequenceGap):
            return bool(lane.failed)  # one before it goes again, and this one behind it
        return isinstance(error, _NOT_TAKEN) or (sending.uncertain and isinstance(error, _FULL))

    def _not_taken(
        self, place: tuple[str, int], lane: _Lane, sending: _Sending, error: LannerError, *, hinted: bool = False
    ) -> None:
        sending.error = error
        sending.uncertain = sending.uncertain or not _had_no_effect(error)
        lane.failed.append(sending)
        lane.resting = True
        self._settle(place, lane, hinted=hinted)

    def _settle(self, place: tuple[str, int], lane: _Lane, *, hinted: bool = False) -> None:
        """Once nothing is under way, what was not taken goes again, before anything newer."""
        if lane.flight:
            return
        if not lane.failed:
            if lane.waiting and not lane.resting:
                self._pump(place, lane)
            else:
                self._forget_idle(place, lane)
            return
        failed, lane.failed = sorted(lane.failed, key=lambda one: one.number), []
        lane.waiting.extendleft(reversed(failed))
        self.repeated += len(failed)
        lane.session = None
        pause_s = 0.0 if hinted and not lane.hurried else lane.backoff.pause_s()
        lane.hurried = pause_s == 0.0
        self._loop.call_later(pause_s, self._go_on, place, lane)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _staged(answer: Control) -> StagedFacts:
    """What a broker's own service gives."""
    assert isinstance(answer, Staged)
    return answer.number, 0, answer.duplicate


def _appended(answer: Control) -> Appended:
    assert isinstance(answer, Published)
    return answer.base_offset, answer.count, answer.append_ms, answer.duplicate


def _was_refused(error: LannerError) -> bool:
    return error.details.get("refused") is True or error.details.get("sent") is False


def _had_no_effect(error: LannerError) -> bool:
    """Whether this attempt surely changed nothing."""
    return isinstance(error, _SURELY_REFUSED) or _was_refused(error)


__all__ = ["Lanes"]
