"""A small plain model of a queue: one group on one partition, as its clients must be able to explain it.

It follows a history and keeps, for each message, what has certainly happened to it. It is written to be obviously
right, not fast or complete: no lanes of places, no masks, no rows. Where a lost answer leaves two possibilities the
message is *unsure*, nothing is demanded of it, and it becomes sure again when it is next seen. What contradicts the
model is reported as a violation of a named rule.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lanner.testing.history import Administered, DeadSeen, FloorSeen, Handed, Polled, Published, Rules, Settled, Status
from lanner.testing.queue_entry import Entry, State


class Violation(NamedTuple):
    """One broken rule, and what shows it."""

    rule: str
    partition: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}, partition {self.partition}: {self.text}"


_OPEN = (State.FRESH, State.LEASED, State.WAITING)  # a tuple finds by identity; a set would hash, in Python
_LOOKED_BACK = 20
_LONG_AGO = -1  # the token of a lease that nobody heard of
_REMEMBERED = ("ack", "nack", "reject")  # an extension is a promise that time may break; a release is no settle


@dataclass(slots=True)
class QueueModel:
    """Fed with the points of a history in order: calls and returns of one group on one partition."""

    group: str
    partition: int
    rules: Rules
    publishes: Mapping[str, Published] = field(default_factory=dict)  # by value, whatever became of them
    delays_ms: Sequence[int] = ()  # when batches of the partition enter their lanes, in order
    entries: dict[int, Entry] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    first_seen: float | None = None
    _decided: list[tuple[float, float, int]] = field(default_factory=list)  # polls: returned, called, decided_ms
    _delayed: float = -1.0  # when a delayed batch was last heard of, or may have come without being heard of
    _open: defaultdict[int, dict[int, Entry]] = field(default_factory=lambda: defaultdict(dict))  # lane → offset → …
    _tokens: set[int] = field(default_factory=set)
    _last_fresh: dict[int, int] = field(default_factory=dict)  # lane → offset
    _floors: dict[int, int] = field(default_factory=dict)
    _unheard: list[Administered] = field(default_factory=list)  # redrives and discards whose outcome is not known
    _discards: list[tuple[int, ...]] = field(default_factory=list)  # the offsets of each; none: every dead letter
    _hidden: int = 0  # polls and seeks whose outcome is not known
    _seeks: int = 0  # that were called, and may take effect at any moment
    _hidden_takes: int = 0  # of these, polls that settle what they get by themselves
    _delays_under_way: int = 0  # delayed batches that were sent and may come in at any moment
    _handing: bool = (
        False  # a poll that was not heard of, and a redrive, may have had some before their publish is known
    )
    _skipping: bool = False  # a seek, or a poll that settles by itself and was not heard of, may have passed over some

    # ------------------------------------------------------------------ publishes

    def publish_called(self, event: Published) -> None:
        self._delays_under_way += event.deliver_at_ms > 0

    def publish_ended(self, event: Published, now: float) -> None:
        """It was answered, or can no longer come in."""
        if event.deliver_at_ms:
            self._delays_under_way = max(0, self._delays_under_way - 1)
            self._delayed = now

    def published(self, event: Published, returned: float, *, repeated: bool = False) -> None:
        """An acknowledged batch: from here on its messages must be deliverable. A repeated one was perhaps stored, and
        seen by polls and seeks that nobody heard of, when it was first sent. It may even have died and been discarded.
        """
        if event.deliver_at_ms:
            self._delayed = returned
        if event.base_offset < 0:
            return
        for offset in range(event.base_offset, event.base_offset + len(event.values)):
            if offset not in self.entries:
                self._add(event, offset, returned)
                if repeated:
                    entry = self.entries[offset]
                    entry.delayed = entry.delayed or self._handing  # it may come again, behind what came after it
                    self._move(entry, State.UNSURE, returned)
                    if self._skipping or any(not chosen or offset in chosen for chosen in self._discards):
                        entry.maybe_done = entry.ever_done = True

    def _add(self, event: Published, offset: int, since: float) -> None:
        entry = self._describe(event, offset, since)
        if self.first_seen is None and self.rules.retention != "none":
            entry.maybe_done = True  # it may be gone before the group comes into being
            entry.state = State.UNSURE
        else:
            self._move(entry, State.UNSURE if self._hidden else State.FRESH, since)
            if self._hidden_takes:
                entry.maybe_done = entry.ever_done = True

    def _describe(self, event: Published, offset: int, since: float) -> Entry:
        entry = self.entries[offset] = Entry(offset, event.priority, since, State.UNSURE)
        entry.expires_ms = event.expires_at_ms
        entry.delayed = event.deliver_at_ms > 0
        entry.ready_ms = entry.deliver_at_ms = event.deliver_at_ms
        if self.rules.retention_bytes or not event.append_ms:
            entry.gone_ms = self.rules.retention_bytes + self.rules.retention_ms and 1  # at any time
        elif self.rules.retention_ms:
            entry.gone_ms = max(event.append_ms, event.deliver_at_ms) + self.rules.retention_ms
        return entry

    def _move(self, entry: Entry, state: State, since: float) -> None:
        entry.state = state
        entry.since = since
        lane = self._open[entry.lane]
        if state in _OPEN:
            lane[entry.offset] = entry
        else:
            lane.pop(entry.offset, None)
        if state is State.DONE:
            entry.maybe_done = entry.ever_done = True

    def _forget_certainty(self, since: float) -> None:
        for lane in self._open.values():
            for entry in list(lane.values()):
                if entry.state is State.LEASED:
                    entry.vague = True
                else:
                    self._move(entry, State.UNSURE, since)

    # ------------------------------------------------------------------ polls

    def poll_called(self, event: Polled, now: float) -> None:
        if event.status is Status.UNKNOWN:
            self._forget_certainty(now)
            self._handing = True
            if event.auto_ack:
                self._skipping = True
                for entry in self.entries.values():
                    entry.maybe_done = entry.ever_done = True
                self._hidden_takes += 1
            self._hidden += 1

    def poll_over(self, event: Polled, now: float) -> None:
        """Nobody heard the answer, but by now it has had its effect, or never will."""
        self._forget_certainty(now)
        self._hidden = max(0, self._hidden - 1)
        self._hidden_takes = max(0, self._hidden_takes - event.auto_ack)

    def crashed(self, now: float) -> None:
        """Whatever was hidden has happened, or never will."""
        if self._seeks:
            self._begin_again(0, now, certain=False)
        self._hidden = self._seeks = self._hidden_takes = self._delays_under_way = 0
        self._delayed = now
        for event in self._unheard:
            self._maybe_revived(event, now)
        self._unheard.clear()

    def polled(self, event: Polled, returned: float) -> None:
        if self.first_seen is None:
            self.first_seen = returned
        repeated = event.repeated or (event.token in self._tokens and not event.auto_ack)
        if not repeated:
            self._check_order(event)
            self._decided.append((returned, event.called, event.decided_ms))
        for message in event.messages:
            self._handed(event, message, returned)
        if event.messages and not event.auto_ack:
            self._tokens.add(event.token)

    def _handed(self, event: Polled, message: Handed, returned: float) -> None:
        entry = self.entries.get(message.offset)
        if entry is None:  # its publish has not been answered, or never will be
            sent = self.publishes.get(message.value)
            if sent is None:
                return  # nobody sent it: reported elsewhere
            entry = self._describe(sent, message.offset, event.called)
            entry.delayed = True  # perhaps: it is not known when it came
        if entry.token != event.token or event.auto_ack:
            if self._seeks:  # one may have taken effect since the entry was last heard of
                self._start_over(entry, event.called)
            self._check_handed(event, message, entry)
            entry.pending = 0  # a settle of an older lease can do nothing any more
            if not self._skipping:  # an ack that was not heard of had no effect, else it would not be handed out
                entry.unheard = {each for each in entry.unheard if each[1] not in ("ack", "reject")}
            entry.released = False
            entry.vague = self._hidden > 0
        if message.offset in event.unseen:
            entry.unseen.add(event.token)
        else:
            entry.unseen.discard(event.token)  # the same poll again, and this time its reply held it
        entry.attempt = message.attempt
        entry.token = event.token
        entry.deadline_ms = event.deadline_ms
        self._move(entry, State.DONE if event.auto_ack else State.LEASED, returned)

    def _check_handed(self, event: Polled, message: Handed, entry: Entry) -> None:
        now_ms = event.decided_ms
        shown = f"{self.group!r} got offset {message.offset} (attempt {message.attempt}, token {event.token})"
        if entry.state is State.DONE and entry.since < event.called:
            self._report("acked message redelivered", f"{shown} after it was settled")
        if entry.state is State.DEAD and entry.since < event.called:
            self._report("dead message delivered", f"{shown} after it had died, without a redrive")
        if entry.state is State.LEASED and not entry.pending and 0 < now_ms < entry.deadline_ms:
            self._report(
                "leased twice", f"{shown} at {now_ms} while token {entry.token} held it until {entry.deadline_ms}"
            )
        if message.attempt < entry.attempt or (message.attempt == entry.attempt and not entry.released):
            self._report("delivery count went back", f"{shown}; attempt {entry.attempt} had been handed out before")
        if message.attempt > self.rules.max_deliveries:
            self._report("delivered too often", f"{shown}; {self.rules.max_deliveries} deliveries are the limit")
        if 0 < now_ms < entry.deliver_at_ms:
            self._report("early delivery", f"{shown} at {now_ms}, before {entry.deliver_at_ms}")
        if now_ms and 0 < entry.expires_ms <= now_ms and not event.repeated:
            self._report("late delivery", f"{shown} at {now_ms}, expired at {entry.expires_ms}")
        if entry.state is State.WAITING and now_ms and entry.ready_ms > now_ms:
            self._report("early retry", f"{shown} at {now_ms}, before {entry.ready_ms}")
        if entry.token == 0 and message.attempt == 1 and not entry.delayed and not event.repeated:
            last = self._last_fresh.get(message.priority, -1)
            # What a poll got that nobody heard of is given back uncounted, and comes after what others got since.
            if message.offset < last and not self._hidden:
                self._report("lane out of order", f"{shown} after offset {last} of the same lane")
            self._last_fresh[message.priority] = max(last, message.offset)

    def _check_order(self, event: Polled) -> None:
        """Strict priority: nothing less urgent while something more urgent was certainly deliverable, and nothing
        withheld from a poll that came back empty."""
        if not self.rules.strict:
            return
        if event.messages:
            lowest = min(message.priority for message in event.messages)
            handed = {message.offset for message in event.messages}
            for entry in self._certain(event, range(lowest + 1, 10)):
                if entry.offset not in handed:
                    self._report(
                        "priority inversion",
                        f"{self.group!r} was handed lane {lowest} at {event.decided_ms} (token {event.token}) while "
                        f"offset {entry.offset} of lane {entry.lane}, {entry.state.value}, was deliverable",
                    )
                    return
        elif not event.limited and not event.auto_ack:
            self._check_withheld(event)

    def _check_withheld(self, event: Polled) -> None:
        # A delayed batch enters its lane with the decision that finds it due; that decision serves nothing below it.
        before = self._decided[: bisect_left(self._decided, (event.called, 0.0, 0))][-_LOOKED_BACK:]
        looked = max((called for _, called, _ in before), default=-1.0)
        looked_ms = max((decided_ms for _, _, decided_ms in before), default=0)
        if (
            self._delays_under_way
            or looked <= self._delayed
            or bisect_right(self.delays_ms, looked_ms) < bisect_right(self.delays_ms, event.decided_ms)
        ):
            return
        for entry in self._certain(event, range(10)):
            self._report(
                "message withheld",
                f"{self.group!r} polled in vain at {event.decided_ms} while offset {entry.offset} of lane "
                f"{entry.lane}, {entry.state.value}, was deliverable",
            )
            return

    def _certain(self, event: Polled, lanes: Iterable[int]) -> Iterator[Entry]:
        for lane in lanes:
            for entry in self._open.get(lane, {}).values():
                if entry.since >= event.called or (event.limited and entry.state is State.FRESH):
                    continue
                if entry.deliverable_at(event.decided_ms, self.rules.max_deliveries):
                    yield entry

    # ------------------------------------------------------------------ settles

    def settle_called(self, event: Settled) -> None:
        for offset in event.offsets:
            entry = self.entries.get(offset)
            if entry is not None and event.action == "release":
                entry.unseen.discard(event.token)
            if entry is None:
                continue
            if event.status is Status.UNKNOWN and (entry.token == event.token or self._seeks):
                # A seek that is under way has made the model forget the token; the settle may come before it.
                entry.unheard.add((event.token, event.action))
            if entry.token == event.token:
                entry.pending += 1
                if event.status is Status.UNKNOWN and event.action in ("ack", "reject"):
                    entry.maybe_done = True
                entry.released = entry.released or event.action == "release"

    def settled(self, event: Settled, returned: float) -> None:
        for offset in event.offsets:
            entry = self.entries.get(offset)
            if entry is None:
                continue
            if entry.token == event.token:
                entry.pending = max(0, entry.pending - 1)
            key = (event.token, event.action)
            if event.status is Status.OK:
                if key not in entry.answered and key not in entry.unheard and key not in entry.undone:
                    self._check_settled(event, entry)
                if entry.token == event.token and (key not in entry.answered or event.action == "extend"):
                    self._take_effect(event, entry, returned)  # else it was handed out again, or the same was asked
                entry.answered.setdefault(key, returned)
            elif event.lost and event.action in _REMEMBERED and entry.answered.get(key, event.called) < event.called:
                self._report(
                    "settle forgotten",
                    f"{self.group!r} was told that the lease of offset {entry.offset} is lost ({event.action}, token "
                    f"{event.token}) although the same settle had taken effect",
                )

    def _check_settled(self, event: Settled, entry: Entry) -> None:
        shown = f"{self.group!r} settled offset {entry.offset} ({event.action}, token {event.token})"
        if entry.state is State.LEASED and entry.token > event.token and entry.since < event.called:
            self._report("stale lease accepted", f"{shown} although token {entry.token} has it now")
        if entry.state in (State.DONE, State.DEAD) and entry.since < event.called:
            self._report("stale lease accepted", f"{shown} although it was {entry.state.value} already")

    def _take_effect(self, event: Settled, entry: Entry, returned: float) -> None:
        if event.action == "ack":
            self._move(entry, State.DONE, returned)
        elif event.action == "reject":
            if entry.state is State.UNSURE and (event.token, event.action) in entry.unheard:
                return  # the first of two equal rejects may have made it dead, and a discard may have come between
            self._move(entry, State.DEAD, returned)
        elif event.action == "extend":
            entry.deadline_ms = event.until_ms
        elif event.action == "release":
            entry.attempt -= 1
            entry.ready_ms = event.decided_ms
            self._move(entry, State.UNSURE if self._hidden else State.WAITING, returned)
        elif entry.attempt >= self.rules.max_deliveries:
            self._move(entry, State.DEAD, returned)
        else:
            entry.ready_ms = event.until_ms
            certain = event.until_ms and not self._hidden and entry.state is not State.UNSURE
            self._move(entry, State.WAITING if certain else State.UNSURE, returned)

    # ------------------------------------------------------------------ administration

    def administer_called(self, event: Administered, now: float) -> None:
        if event.action in ("redrive", "discard"):
            self._maybe_revived(event, now)
            if event.action == "discard":
                self._discards.append(tuple(event.offsets))
            else:
                self._handing = True
            if event.status is Status.UNKNOWN:
                self._unheard.append(event)
            return
        self._forget_certainty(now)
        self._hidden += 1
        self._seeks += 1
        self._begin_again(0, now, certain=False)

    def administered(self, event: Administered, returned: float) -> None:
        if event.action in ("redrive", "discard"):
            self._maybe_revived(event, returned)
            if event in self._unheard:
                self._unheard.remove(event)
            return
        self._hidden = max(0, self._hidden - 1)
        self._seeks = max(0, self._seeks - 1)
        if event.status is Status.OK:
            self._begin_again(event.offsets[0] if event.offsets else 0, returned, certain=True)
        elif event.status is Status.UNKNOWN:
            self._begin_again(0, returned, certain=False)

    def _maybe_revived(self, event: Administered, now: float) -> None:
        """Whatever may have died without anybody noticing may now be counted from the beginning, or be gone."""
        self._floors.pop(-1, None)
        for entry in self._chosen(event):
            sure = not entry.vague and not entry.pending and entry.attempt < self.rules.max_deliveries
            alive = entry.state is State.LEASED and sure
            if alive or entry.state in (State.FRESH, State.WAITING, State.DONE):
                continue
            self._move(entry, State.UNSURE, now)
            entry.undone |= {each for each in entry.unheard if each[1] == "reject"}
            entry.attempt = 0
            entry.unseen.clear()
            entry.token = entry.token or _LONG_AGO
            if event.action == "discard":
                entry.maybe_done = entry.ever_done = True

    def _begin_again(self, offset: int, since: float, *, certain: bool) -> None:
        """A seek: what lies before the offset is done with, what lies behind it may come again, or be gone."""
        self._skipping = True
        self._floors.clear()
        self._last_fresh.clear()
        for entry in self.entries.values():
            self._start_over(entry, since)
            entry.maybe_done = not certain or entry.offset < offset

    def _start_over(self, entry: Entry, since: float) -> None:
        self._move(entry, State.UNSURE, since)
        entry.attempt = entry.pending = 0
        entry.unseen.clear()
        entry.token = _LONG_AGO
        entry.maybe_done = entry.ever_done = True

    def _chosen(self, event: Administered) -> list[Entry]:
        if event.offsets:
            return [self.entries[offset] for offset in event.offsets if offset in self.entries]
        return list(self.entries.values())

    # ------------------------------------------------------------------ what is looked at

    def dead_seen(self, event: DeadSeen) -> None:
        by_limit = not event.reason.startswith(("reject", "malformed"))
        if by_limit and event.attempts < self.rules.max_deliveries:
            self._report(
                "dead before the limit",
                f"offset {event.offset} of {self.group!r} died after {event.attempts} deliveries ({event.reason}); "
                f"{self.rules.max_deliveries} are the limit",
            )

        entry = self.entries.get(event.offset)
        if by_limit and entry is not None and entry.unseen:
            self._report(
                "died unseen",
                f"offset {event.offset} of {self.group!r} died after {event.attempts} deliveries ({event.reason}), of "
                f"which {len(entry.unseen)} were in no reply and were never given back (tokens {sorted(entry.unseen)})",
            )

    def floor_seen(self, event: FloorSeen) -> None:
        last = self._floors.get(event.lane, -1)
        if event.floor < last and not self._hidden:
            self._report(
                "floor went back", f"{self.group!r} stood at {last} and now at {event.floor} (lane {event.lane})"
            )
        self._floors[event.lane] = event.floor

    def check_account(self, stored: Iterable[int], dead: frozenset[int], machine_ms: int) -> None:
        """After the group was drained each message is settled, dead or expired."""
        for offset in stored:
            entry = self.entries.get(offset)
            if entry is None or entry.maybe_done or offset in dead:
                continue
            if entry.gone_ms and entry.gone_ms <= machine_ms:
                continue  # held for another group only
            if not 0 < entry.expires_ms <= machine_ms:
                self._report(
                    "message vanished",
                    f"offset {offset} is neither ready nor leased nor settled nor dead for {self.group!r}; "
                    f"it was last known as {entry.state.value}",
                )
        for entry in self.entries.values():
            if entry.state is State.DEAD and entry.offset not in dead:
                self._report("message vanished", f"the dead letter {entry.offset} of {self.group!r} is gone")

    def may_be_gone(self, offset: int, machine_ms: int) -> bool:
        """Whether this group no longer stands in the way of retention by acks."""
        entry = self.entries.get(offset)
        if entry is None or entry.ever_done or entry.maybe_done:
            return True
        return 0 < entry.expires_ms <= machine_ms

    def _report(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, self.partition, text))
