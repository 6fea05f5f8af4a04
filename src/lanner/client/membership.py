"""A member of a group: joins it, tells that it lives, and does what the views ask of it.

The rules about views are in `client/assignments`; this is the shell around them. It knows two others: the *home*, which
is any broker that takes its heartbeats, and the *worker*, the consumer or reader whose partitions these are. It refuses
to know sockets and messages.

Two tasks share the work. A task of its own sends heartbeats, takes views, claims partitions and joins again. The
application's task, whenever it comes for messages, *attends*: it calls the callbacks, has the worker commit, and
releases. So a callback never runs beside the application's own work, and what the application holds when a partition is
revoked is finished when it comes back.

Rules:
- Stream: a partition is claimed before it is read. Revoked, it is paused at once; when the application comes back,
  `on_revoked` is called, what was handed out is committed, and only after the commit's answer it is released.
- Queue: a partition is polled at once and given up at once. What is leased stays leased.
- Evicted (MemberUnknown): everything is lost, nothing is committed, and the member joins under a new id.
- A newer process of the same instance (InstanceFenced) ends the member for good.
- A home that the leader of the metadata has not confirmed for half a session is left for another.
- No answer from any home for a whole session: a stream hands out nothing until one comes.
- A stream's application that does not come back for `stall_ms` leaves the group; it joins again when it comes back.
- A join whose outcome is not known is repeated, or left, under its id: else nobody's member would hold partitions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from lanner.client.assignments import Assignments, Granted, Phase, Seen, View
from lanner.client.claiming import GONE, REFUSALS, Claimed, claim_all
from lanner.client.member_ports import NO_CALLBACKS, Callback, Callbacks, Home, Standing, Told, Worker
from lanner.client.presence import Presence
from lanner.errors import (
    InstanceFenced,
    LannerError,
    MemberFenced,
    MemberUnknown,
    ServerError,
    ServiceUnavailable,
    ValidationError,
)
from lanner.model import GroupKind, TopicPartition
from lanner.net.backoff import Backoff

_log: Final = logging.getLogger("lanner.client")

STALLED: Final = "stalled"
_WAIT_SHARE: Final = 0.25  # of the session: so long a heartbeat waits for news
_NOTHING_NEW_S: Final = 0.05
_CLOSE_S: Final = 5.0  # at most so long a leave is waited for


class Membership:
    """One member, under one id after the other."""

    def __init__(
        self,
        home: Home,
        worker: Worker,
        kind: GroupKind,
        *,
        callbacks: Callbacks = NO_CALLBACKS,
        stall_ms: int = 300_000,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.member_id = ""
        self.shared = False
        self.rejoins = 0
        self._joining_id = ""  # under which it may have joined, and has not heard so
        self._closed = False
        self._home = home
        self._worker = worker
        self._is_stream = kind is GroupKind.STREAM
        self._callbacks = callbacks
        self._stall_s = stall_ms / 1000
        self._new_id = new_id
        self._loop = asyncio.get_running_loop()
        self._assignments = Assignments()
        self._session_s = 10.0
        self._heard_at = self._confirmed_at = 0.0
        self._begun: dict[Granted, None] = {}  # the application was told that it has them
        self._assigned: dict[Granted, int] = {}  # claimed, with where to begin; the application is told next
        self._revoked: dict[Granted, None] = {}
        self._lost: dict[Granted, None] = {}
        self._failure: LannerError | None = None
        self._beating: asyncio.Task[Told] | None = None
        self._claims: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._attendance: asyncio.Task[None] | None = None
        self.presence = Presence()

    # ------------------------------------------------------------------ what there is

    @property
    def is_open(self) -> bool:
        return self._task is not None

    @property
    def seen(self) -> Seen:
        return self._assignments.seen

    @property
    def generation(self) -> int:
        return self._assignments.seen[1]

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the application has been told of, and has."""
        return sorted(_places(self._begun))

    @property
    def is_cut_off(self) -> bool:
        """No home has answered for a session: others may have these partitions by now."""
        return self._loop.time() - self._heard_at > self._session_s

    @property
    def has_news(self) -> bool:
        return bool(self._failure or self._assigned or self._revoked or self._lost)

    @property
    def lost(self) -> list[TopicPartition]:
        """What is another's, and the application has not been told so."""
        return _places(self._lost)

    def holds(self, one: Granted) -> bool:
        """Whether the newest view still shows this grant as this member's, and it was not given up."""
        return one in self._assignments.phases

    def standing(self, incarnation: int = 0) -> Standing:
        """As whom a call speaks, and what it has seen."""
        return Standing(self.member_id, *self.seen, incarnation)

    def check_outside_callbacks(self) -> None:
        if self._attendance is not None and self._attendance is asyncio.current_task():
            raise ValidationError("a callback must not ask for messages: return from it first")

    # ------------------------------------------------------------------ the member's own task

    async def open(self) -> None:
        """Join; raises why that is refused. Cancelled, the next call goes on with the same join."""
        if self._task is not None:
            return
        await self._join()
        if self._closed:
            await self._leave(self.member_id)
            raise ServiceUnavailable("it was closed while it joined its group")
        self._task = self._loop.create_task(self._live())

    async def _join(self) -> None:
        member_id = self._joining_id = self._joining_id or self._new_id()
        try:
            told = await self._home.join(member_id)
        except LannerError as error:
            if not error.retryable:  # it has surely not joined
                self._joining_id = ""
            raise
        self.member_id, self._joining_id, self._assignments = member_id, "", Assignments()
        self._confirmed_at = self._loop.time()
        self._hear(told)

    async def _live(self) -> None:
        """Send heartbeats for as long as there is a member, and join again when there is none."""
        backoff = Backoff()
        while self._failure is None:
            try:
                if not self.member_id:
                    await self._join()
                    self.rejoins += 1
                await self._beat(elsewhere=not backoff.is_fresh)
                backoff.reset()
                if self._has_stalled():
                    await self._leave_until_back()
            except MemberUnknown:
                self.evicted()
            except LannerError as error:
                if error.retryable and not self._home.is_closed:
                    await asyncio.sleep(backoff.pause_s(error.retry_after_ms))
                else:
                    self._fail(error)
            except Exception as error:  # a bug must not leave a member that looks alive
                _log.exception("the member of a group ended")
                self._fail(ServerError(f"the member of the group ended: {error!r}"))

    async def _beat(self, elsewhere: bool) -> None:
        """One heartbeat, which waits at its home for news; cut short when there is something to say."""
        began = self._loop.time()
        elsewhere = elsewhere or began - self._confirmed_at > self._session_s / 2
        if elsewhere:
            self._confirmed_at = began  # the next home has half a session, too
        wait_ms = 0 if self.is_cut_off else int(self._session_s * 1000 * _WAIT_SHARE)  # a reader waits for the answer
        beat = self._beating = self._loop.create_task(
            self._home.heartbeat(self.member_id, self.seen, self._assignments.releases, wait_ms, elsewhere)
        )
        try:
            await asyncio.wait((beat,))
        finally:
            self._beating = None
            beat.cancel()
        if beat.cancelled():
            return
        told = beat.result()
        self._hear(told)
        if told.view is None and self._loop.time() - began < _NOTHING_NEW_S:
            await asyncio.sleep(_NOTHING_NEW_S)  # the home did not wait

    def _say_now(self) -> None:
        """Have the next heartbeat leave at once."""
        if self._beating is not None:
            self._beating.cancel()

    def _hear(self, told: Told) -> None:
        now = self._loop.time()
        if self.is_cut_off:
            self._worker.interrupt()
        self._heard_at = now
        self._session_s = told.session_ms / 1000
        if told.confirmed_ms >= 0:
            self._confirmed_at = max(self._confirmed_at, now - told.confirmed_ms / 1000)
        if told.view is not None and told.view.seen >= self.seen:
            if told.shared != self.shared:
                self.shared = told.shared
                self._worker.interrupt()
            self._take(told.view)

    def _take(self, view: View) -> None:
        turn = self._assignments.take(view)
        for one in turn.lost:
            self._lose(one)
        for one in turn.revoke:
            if one in self._begun:
                self._revoked[one] = None
                self._worker.pause(one)
            else:
                self._assigned.pop(one, None)
                self._assignments.release(one)
        for one in [one for one in self._revoked if self._assignments.phases.get(one) is Phase.WORKING]:
            del self._revoked[one]
            self._worker.resume(one)
        if self._assignments.releases:
            self._say_now()
        if turn.claim:
            self._claim(turn.claim)
        self._wake()

    def _claim(self, granted: Sequence[Granted]) -> None:
        if self._is_stream:
            who = self.member_id
            claim = partial(self._may_claim, who), partial(self._claimed, who)
            task = self._loop.create_task(
                claim_all(lambda some: self._home.claim(who, self.seen, some), granted, *claim)
            )
            self._claims.add(task)
            task.add_done_callback(self._claims.discard)
            return
        for one in granted:
            self._assignments.claimed(one)
            self._assigned[one] = 0

    def _claimed(self, member_id: str, found: Claimed) -> None:
        """What came of a claim that this member, or an earlier one of this process, has made."""
        if member_id != self.member_id:
            return
        for one, outcome in found.items():
            if isinstance(outcome, int):
                if self._assignments.claimed(one):
                    self._assigned[one] = outcome
            elif isinstance(outcome, GONE):
                self._assignments.fenced(one)
                self._say_now()
            elif isinstance(outcome, REFUSALS):
                self._say_now()  # the heartbeat hears the same, and draws the consequences
        self._wake()

    def _may_claim(self, member_id: str, one: Granted) -> bool:
        return member_id == self.member_id and self._assignments.phases.get(one) is Phase.CLAIMING

    def _lose(self, one: Granted) -> None:
        """The partition is another's. A queue's member may still settle what it has leased: that is no loss."""
        self._assigned.pop(one, None)
        self._revoked.pop(one, None)
        if one in self._begun:
            del self._begun[one]
            (self._lost if self._is_stream else self._revoked)[one] = None
            self._worker.drop(one)

    def evicted(self) -> None:
        """The group does not know this member any more: everything is lost, and it joins under a new id."""
        for one in [*self._begun, *self._revoked]:
            self._lost[one] = None
            self._worker.drop(one)
        self._begun.clear()
        self._revoked.clear()
        self._assigned.clear()
        self.member_id, self._assignments = "", Assignments()
        self._say_now()
        self._wake()

    def refused(self, standing: Standing, one: Granted | None, error: LannerError) -> bool:
        """Draw the consequences of a call that was refused; False: that has nothing to do with membership."""
        if standing.member_id != self.member_id:
            return isinstance(error, REFUSALS)  # it was said of an earlier id
        if isinstance(error, MemberUnknown):
            self.evicted()
        elif isinstance(error, InstanceFenced):
            self._fail(error)
        elif isinstance(error, GONE) and one is not None:
            self.fenced(one)
        else:
            return isinstance(error, REFUSALS)
        return True

    def fenced(self, one: Granted) -> None:
        """A call was refused: this grant is over, whatever the views say. A newer one of the partition is not."""
        if one in self._assignments.phases:
            self._assignments.fenced(one)
            self._lose(one)
            self._say_now()
        self._wake()

    def _fail(self, error: LannerError) -> None:
        self._failure = error
        self.evicted()

    def _wake(self) -> None:
        if self.has_news:
            self._worker.interrupt()

    # ------------------------------------------------------------------ an application that does not come back

    def _has_stalled(self) -> bool:
        return self._is_stream and self.presence.away_s > self._stall_s

    async def _leave_until_back(self) -> None:
        member_id = self.member_id
        _log.warning("the application has not asked for messages for %d s: its member leaves", self._stall_s)
        self.evicted()
        await self._leave(member_id, STALLED)
        await self.presence.come_back()

    # ------------------------------------------------------------------ the application's task

    async def attend(self) -> None:
        """Do what the views asked for since the application was here last. Raises once the member has ended.

        A call that is cancelled meanwhile cuts no hand-over short: the next one waits for its end.
        """
        if self._attendance is None and (self._lost or self._revoked or self._assigned):
            self._attendance = self._loop.create_task(self._attend())
        if self._attendance is not None:
            self.check_outside_callbacks()
            attendance = self._attendance
            try:
                await asyncio.shield(attendance)
            finally:
                if attendance.done():
                    self._attendance = None
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.details)

    async def _attend(self) -> None:
        while self._lost or self._revoked or self._assigned:
            if self._lost:
                lost, self._lost = list(self._lost), {}
                await self._call(self._callbacks.on_lost, lost)
            elif self._revoked:
                revoked, self._revoked = list(self._revoked), {}
                await self._give_up(revoked)
            else:
                await self._begin()

    async def _begin(self) -> None:
        assigned, self._assigned = self._assigned, {}
        self._begun.update(dict.fromkeys(assigned))
        try:
            await self._call(self._callbacks.on_assigned, assigned)
        finally:
            for one, offset in assigned.items():
                if one in self._begun:  # still
                    self._worker.begin(one, offset)
                    if one in self._revoked:
                        self._worker.pause(one)

    async def _give_up(self, revoked: Sequence[Granted]) -> None:
        """Finish, commit, and only then release. What the application could not finish is not committed."""
        member_id = self.member_id
        for one in revoked:
            self._begun.pop(one, None)
        try:
            await self._call(self._callbacks.on_revoked, revoked)
            if self._is_stream:
                await self._commit(member_id, revoked)
        finally:
            for one in revoked:
                self._worker.drop(one)
                if self._is_stream and member_id == self.member_id:
                    self._assignments.release(one)
            self._say_now()

    async def _commit(self, member_id: str, revoked: Sequence[Granted]) -> None:
        """Commit until it is answered: a partition that is released before would be read twice."""
        backoff = Backoff()
        left: Sequence[Granted] = revoked
        while left := await self._still_had(member_id, left):
            failed = await self._worker.commit(left)
            left = [one for one, error in failed.items() if error.retryable]
            for one, error in failed.items():
                if isinstance(error, MemberFenced | MemberUnknown | InstanceFenced):
                    await self._call(self._callbacks.on_lost, [one])
                elif not error.retryable:
                    _log.warning("%s/%d could not be committed: %s", one.topic, one.partition, error.message)
            if left:
                await asyncio.sleep(backoff.pause_s())

    async def _still_had(self, member_id: str, granted: Sequence[Granted]) -> list[Granted]:
        had = [one for one in granted if member_id == self.member_id and one in self._assignments.phases]
        await self._call(self._callbacks.on_lost, [one for one in granted if one not in had])
        return had

    async def _call(self, callback: Callback | None, granted: Iterable[Granted]) -> None:
        if callback is not None and (places := _places(granted)):
            outcome = callback(places)
            if inspect.isawaitable(outcome):
                await outcome

    # ------------------------------------------------------------------ leaving

    def abandon(self) -> None:
        """Stop without a word: there is no broker to say it to."""
        self.member_id = ""
        for task in (self._task, *self._claims):
            if task is not None:
                task.cancel()

    async def close(self, *, keep: bool = False, finished: bool = True) -> None:
        """Leave the group, so that others have the partitions at once; with `keep` only stop.

        `finished`: the application has done its work on what it was handed, so that may be committed.
        """
        self._closed = True
        try:
            await self._end_attendance()
            if finished:
                await self.give_everything_up()
        finally:
            tasks = [task for task in (self._task, *self._claims) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            member_id, self.member_id, self._joining_id = self.member_id or self._joining_id, "", ""
            if not keep:
                await self._leave(member_id)

    async def _leave(self, member_id: str, reason: str = "") -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                if member_id:
                    await self._home.leave(member_id, reason)
        except (LannerError, TimeoutError) as error:
            why = error.message if isinstance(error, LannerError) else f"no answer came within {_CLOSE_S:g} s"
            _log.warning("the member could not leave; it is missed when its session ends: %s", why)

    async def _end_attendance(self) -> None:
        """A hand-over that goes on is not cut short, and no callback runs beside another."""
        attendance = self._attendance
        if attendance is not None and attendance is not asyncio.current_task():
            await asyncio.wait((attendance,), timeout=_CLOSE_S)
            if attendance.done() and not attendance.cancelled() and attendance.exception() is not None:
                _log.error("a callback failed while its consumer was closed", exc_info=attendance.exception())

    async def give_everything_up(self) -> None:
        """The last revocation: of everything. It is released by leaving. What was lost is told first."""
        await self._end_attendance()
        lost, self._lost = list(self._lost), {}
        begun = list(dict.fromkeys([*self._begun, *self._revoked])) if self.member_id else []
        self._begun.clear()
        self._revoked.clear()
        self._assigned.clear()
        for one in begun:
            self._worker.pause(one)
        try:
            await self._call(self._callbacks.on_lost, lost)
        finally:
            await self._call(self._callbacks.on_revoked, begun)
        if self._is_stream and begun:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    for one, refused in (await self._worker.commit(begun)).items():
                        _log.warning("%s/%d could not be committed: %s", one.topic, one.partition, refused.message)
            except TimeoutError:
                _log.warning("what was read could not be committed in %g s, and is read again by others", _CLOSE_S)


def _places(granted: Iterable[Granted]) -> list[TopicPartition]:
    return sorted(TopicPartition(one.topic, one.partition) for one in granted)
