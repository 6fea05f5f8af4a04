"""The conductor: proposes outcomes, on the broker that leads the metadata.

Attendants report which partitions are prepared, refuse, or are done. When every participant of a try is prepared the
conductor proposes that it is committed; when one refuses, or the deadline passes first, that it is aborted; when all
are done, that its row may go. One such entry is in flight at a time, and all that waits goes into the next one.

Votes are counted by token, so that none of an earlier try is taken for one of a later. They are kept in memory only:
the next conductor begins with the tries of its own copy, and hears the votes again. The metadata machine has the
last word: of two outcomes the first that is recorded counts.

A deadline decides when an abort is proposed, never what an entry does, so a wrong clock costs a retry and nothing
else. Where the machine's time is far ahead, because a clock once was, a try gets its timeout from when it was first
seen here.

It knows no clock: the time comes in with every call. It speaks to nobody: commands are handed to a port.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from lanner import limits
from lanner.broker.ports import Applied
from lanner.cluster import AbortReason, Cluster, Try, encode_end_tries, encode_forget_transactions
from lanner.errors import LannerError
from lanner.wire.staging import ReportItem, ReportKind

FORGET_MS: Final = 1_000  # so often it looks for what should be forgotten
_EARLY_MAX: Final = 10_000


class Metadata(Protocol):
    """The metadata's log, on the broker that leads it."""

    def propose(self, command: bytes, told: Callable[[Applied], None]) -> None:
        """`told` hears once what the command came to, or the error that stopped it; LannerError: nothing happened."""


class _Conducted:
    """A try, and what was heard of it."""

    __slots__ = ("done", "one", "prepared", "sets")

    def __init__(self, one: Try) -> None:
        self.one = one
        self.sets = frozenset(one.set_ids)
        self.prepared: set[int] = set()
        self.done: set[int] = set()


class Conductor:
    """Every try of the cluster, for as long as this broker leads the metadata."""

    def __init__(self, metadata: Metadata) -> None:
        self.counts: Counter[str] = Counter()  # committed, aborted by reason, finished; and milliseconds
        self._metadata = metadata
        self._term = 0  # in which it conducts; 0: it does not
        self._tries: dict[int, _Conducted] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap of (when, token)
        self._commits: dict[int, None] = {}  # what is to be proposed
        self._aborts: dict[int, AbortReason] = {}
        self._finished: dict[int, None] = {}
        self._early: deque[ReportItem] = deque(maxlen=_EARLY_MAX)  # heard while it does not conduct, or of later tries
        self._seen_index = 0  # of the copy, when it was looked at last
        self._in_flight = False
        self._forget_ms = 0

    def vote_of(self, token: int, set_id: int) -> str:
        """Return what a participant has reported: awaited, prepared or confirmed; empty when it is not known here."""
        found = self._tries.get(token)
        if found is None or set_id not in found.sets:
            return ""
        if found.one.committed:
            return "confirmed" if set_id in found.done else "prepared"
        return "prepared" if set_id in found.prepared else "awaited"

    def oldest_ms(self, now_ms: int) -> tuple[int, int]:
        """Return the ages of the oldest undecided and the oldest unconfirmed try; 0 when there is none."""
        undecided = [one.one.begun_ms for one in self._tries.values() if not one.one.committed]
        unconfirmed = [one.one.decided_ms for one in self._tries.values() if one.one.committed]
        return max(0, now_ms - min(undecided, default=now_ms)), max(0, now_ms - min(unconfirmed, default=now_ms))

    # ------------------------------------------------------------------ what it is told

    def follow(self, copy: Cluster, term: int, changed: Sequence[int] | None, now_ms: int) -> None:
        """Look at the tries that have changed, None for all, while the metadata is led here in this term."""
        if term != self._term:
            self.stop()
            self._term = term
            changed = None
        if changed is None:
            for token in self._tries.keys() - copy.tries().keys():
                self._see(copy, token, now_ms)
            changed = list(copy.tries())
        for token in changed:
            self._see(copy, token, now_ms)
        self._seen_index = copy.applied_index
        if self._early:
            early = list(self._early)
            self._early.clear()
            self.hear(early)

    def stop(self) -> None:
        """Forget what was heard: another broker conducts, or none does."""
        if self._term:
            self._term = 0
            self._tries, self._deadlines = {}, []
            self._commits, self._aborts, self._finished = {}, {}, {}
            self._in_flight = False

    def hear(self, items: Iterable[ReportItem]) -> None:
        """Reports of attendants. What is of no try that is open is of one that is over, and means nothing.

        Others hear who was elected before that one may conduct: what they say then is kept. They may also be ahead of
        this broker: an entry that both others have is committed, and applied there, while it is still being written
        here. So a try that this copy has not come to is waited for, and *done* counts before the outcome shows here:
        who says it has read the outcome. What was true of a token once stays true, so it does not matter when it was
        said.
        """
        if not self._term:
            self._early.extend(items)
            return
        for item in items:
            found = self._tries.get(item.token)
            if found is None and item.token > self._seen_index:
                self._early.append(item)
                continue
            if found is None or item.set_id not in found.sets:
                continue
            if item.kind == ReportKind.DONE:
                found.done.add(item.set_id)
            elif found.one.committed:
                continue  # it was said before the outcome was heard there
            elif item.kind == ReportKind.PREPARED:
                found.prepared.add(item.set_id)
            else:
                self._abort(item.token, AbortReason.REFUSED)
            self._weigh(found)

    def _see(self, copy: Cluster, token: int, now_ms: int) -> None:
        one, known = copy.try_of(token), self._tries.get(token)
        if one is None:
            if known is not None:
                self._count_gone(copy, known.one, now_ms)
                del self._tries[token]
            for waiting in (self._commits, self._aborts, self._finished):
                waiting.pop(token, None)
            return
        if known is None:
            known = self._tries[token] = _Conducted(one)
            if not one.committed:
                due_ms = min(one.deadline_ms, now_ms + one.deadline_ms - one.begun_ms)
                heappush(self._deadlines, (due_ms, token))
        elif known.one is not one:
            if one.committed and not known.one.committed:
                self._commits.pop(token, None)
                self._aborts.pop(token, None)
                self.counts["committed"] += 1
                self.counts["to_outcome_ms"] += max(0, one.decided_ms - one.begun_ms)
            known.one, known.sets = one, frozenset(one.set_ids)
        self._weigh(known)

    def _count_gone(self, copy: Cluster, one: Try, now_ms: int) -> None:
        if one.committed:
            self.counts["finished"] += 1
            self.counts["to_visible_ms"] += max(0, now_ms - one.decided_ms)
            return
        row = copy.transaction(one.transaction)
        ended = None if row is None else row.ended_as(one.commit_id)
        if ended is not None:
            self.counts["committed" if ended.reason is None else f"aborted_{ended.reason}"] += 1

    # ------------------------------------------------------------------ what it proposes

    def _weigh(self, found: _Conducted) -> None:
        token = found.one.token
        if found.one.committed:
            if found.sets <= found.done:
                self._finished[token] = None
        elif found.sets <= found.prepared and token not in self._aborts:
            self._commits[token] = None

    def _abort(self, token: int, reason: AbortReason) -> None:
        if token not in self._commits:
            self._aborts.setdefault(token, reason)

    def act(self, copy: Cluster, now_ms: int) -> None:
        """Propose what waits, if nothing is under way."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            token = heappop(self._deadlines)[1]
            found = self._tries.get(token)
            if found is not None and not found.one.committed:
                self._abort(token, AbortReason.DEADLINE)
        if self._in_flight or not self._term:
            return
        if self._commits or self._aborts or self._finished:
            self._end_tries(now_ms)
        elif now_ms >= self._forget_ms:
            self._forget_ms = now_ms + FORGET_MS
            seen = copy.forgettable(now_ms)
            if seen:
                self._propose(encode_forget_transactions(seen), lambda: None)

    def _end_tries(self, now_ms: int) -> None:
        room = limits.TRIES_ENDED_AT_ONCE
        commits = _take(self._commits, room)
        aborts = [(token, self._aborts[token]) for token in _first(self._aborts, room - len(commits))]
        for token, _ in aborts:
            del self._aborts[token]
        finished = _take(self._finished, room - len(commits) - len(aborts))

        def again() -> None:
            """It was not recorded: whatever is still so waits once more."""
            self._aborts.update((token, reason) for token, reason in aborts if token in self._tries)
            for token in (*commits, *finished):
                if token in self._tries:
                    self._weigh(self._tries[token])

        self._propose(encode_end_tries(commits, aborts, finished, now_ms), again)

    def _propose(self, command: bytes, again: Callable[[], None]) -> None:
        term = self._term

        def told(result: Applied) -> None:
            if self._term != term:
                return  # of a time that is over
            self._in_flight = False
            if isinstance(result, LannerError):
                again()

        self._in_flight = True
        try:
            self._metadata.propose(command, told)
        except LannerError as error:
            told(error)


def _first(waiting: Iterable[int], room: int) -> list[int]:
    return [token for token, _ in zip(waiting, range(room), strict=False)]


def _take(waiting: dict[int, None], room: int) -> list[int]:
    tokens = _first(waiting, room)
    for token in tokens:
        del waiting[token]
    return tokens


__all__ = ["Conductor", "Metadata"]
