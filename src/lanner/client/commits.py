"""Committing what was staged: all of it becomes visible, or nothing.

The client drives the first steps: it begins a try, and has every partition promise to publish (prepare). From then on
the brokers decide, and carry the outcome out, whether the client lives or not. Each call goes under names that never
change (a commit id that is a digest of what is committed, a token, the attempts), so whatever is not answered is asked
again, here or by another process, and takes effect once.

A commit returns when every partition shows it, so that a program may read at once what it has committed. One that is
recorded and shows late is no error: it returns when the time is over, with a warning and without `visible`.

Every error says in its details what is known: `outcome` is *aborted* (nothing of it shows, now or later), *unknown*
(ask again with the same values), or *not begun*.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from lanner import limits
from lanner.calls import row_of
from lanner.client.arguments import check_bound
from lanner.client.brokers import Brokers
from lanner.client.routing import Routing
from lanner.client.session import Session
from lanner.client.stages import Staged
from lanner.errors import (
    DeadlineExceeded,
    FenceConflict,
    LannerError,
    NotLeader,
    Overloaded,
    SequencePassed,
    StaleIncarnation,
    TransactionAborted,
    TransactionBusy,
    TransactionUnknown,
    ValidationError,
    from_wire,
)
from lanner.model import check_name
from lanner.net.backoff import Backoff
from lanner.wire import staging
from lanner.wire.messages import Call
from lanner.wire.staging import (
    Begin,
    CommitPhase,
    CommitState,
    Discard,
    DiscardStages,
    End,
    Look,
    Looked,
    Manifest,
    Participant,
    PartitionOutcome,
    PartitionOutcomes,
    Prepare,
)

TIMEOUT_S: Final = limits.COMMIT_TIMEOUT_MS / 1000
WAIT: Final = "visible"  # what a commit waits for, unless told otherwise
_GRACE_S: Final = 5.0  # after the deadline of a try: so long the word of its abort may be on its way
_LOOK_MS: Final = 5_000
_PAUSE_S: Final = 0.05
_LEADER_MS: Final = 5_000  # for one broker to prepare what it leads
_CONNECTING_S: Final = 2.0
_ATTEMPTS_PER_CALL: Final = 16_384  # so that a request fits into a frame
_WAITS: Final = {"decided": CommitPhase.COMMITTED, "visible": CommitPhase.VISIBLE}
_FINAL: Final = (CommitPhase.ABORTED, CommitPhase.REPEATED, CommitPhase.VISIBLE)

_log: Final = logging.getLogger("lanner.client")

TopicPartition = tuple[str, int]  # topic and partition
ItemT = TypeVar("ItemT", Manifest, Discard)


class Committed(NamedTuple):
    """A transaction is committed. `repeated`: it was before, so that nothing happened now."""

    transaction: str
    sequence: int
    repeated: bool
    visible: bool  # every partition is known to show it


class Claimed(NamedTuple):
    """The owner has the transaction."""

    transaction: str
    owner: str
    owner_before: str  # empty: the name was new
    latest: int  # the highest sequence that is known to be committed; -1: none


class Commit(NamedTuple):
    """One call of commit, by its names."""

    transaction: str
    owner: str
    sequence: int
    commit_id: bytes
    manifests: Sequence[Manifest]
    once: bool = False

    @property
    def participants(self) -> list[Participant]:
        found: dict[tuple[str, int], list[int]] = {}
        for manifest in self.manifests:
            found.setdefault((manifest.topic, manifest.incarnation), []).append(manifest.partition)
        return [Participant(topic, incarnation, parts) for (topic, incarnation), parts in found.items()]


def check_names(transaction: str, owner: str, sequence: int) -> None:
    check_name(transaction, "transaction")
    check_name(owner, "owner")
    if not isinstance(sequence, int):
        raise ValidationError(f"sequence is {sequence!r}: give a whole number", field="sequence")
    check_bound("sequence", sequence, 0, limits.OFFSET_MAX)


def check_manner(timeout_s: float, wait: str) -> None:
    """How a commit is carried out."""
    if wait not in _WAITS:
        raise ValidationError(f"wait is {wait!r}: choose decided or visible", field="wait")
    low, high = limits.COMMIT_TIMEOUT_MS_MIN / 1000, limits.COMMIT_TIMEOUT_MS_MAX / 1000
    check_bound("timeout", timeout_s, low, high)


def plan_commit(transaction: str, owner: str, sequence: int, staged: Iterable[Staged], *, once: bool = False) -> Commit:
    """What is to be committed, partition by partition in the order of tasks, and the id that names just that."""
    check_names(transaction, owner, sequence)
    parts = sorted(staged, key=lambda one: one.task)
    tasks: set[int] = set()
    attempts: dict[tuple[str, int, int], list[tuple[int, bytes, int]]] = {}
    for one in parts:
        if (one.transaction, one.owner, one.sequence) != (transaction, owner, sequence):
            raise ValidationError(
                f"what task {one.task} staged is of {one.transaction!r} ({one.owner!r}, {one.sequence}), and cannot be "
                f"committed with {transaction!r} ({owner!r}, {sequence})",
                field="staged",
            )
        if one.task in tasks:
            raise ValidationError(f"task {one.task} is there twice: give each task once", field="staged")
        tasks.add(one.task)
        for part in one.partitions:
            place = (part.topic, part.partition, part.incarnation)
            attempts.setdefault(place, []).append((one.task, one.attempt, part.stages))
    manifests = [Manifest(*place, found) for place, found in sorted(attempts.items())]
    _check_bounds(manifests)
    names = [transaction, owner, sequence, manifests]
    commit_id = hashlib.blake2b(msgspec.msgpack.encode(names), digest_size=16).digest()
    return Commit(transaction, owner, sequence, commit_id, manifests, once)


def _check_bounds(manifests: Sequence[Manifest]) -> None:
    incarnations: dict[str, int] = {}
    for manifest in manifests:
        if incarnations.setdefault(manifest.topic, manifest.incarnation) != manifest.incarnation:
            raise StaleIncarnation(
                f"topic {manifest.topic!r} was deleted and created again while it was staged to: do the work again",
                topic=manifest.topic,
                outcome="not begun",
            )
    for count, bound, what in (
        (len(manifests), limits.PARTICIPANTS_MAX, "partitions"),
        (len(incarnations), limits.TRANSACTION_TOPICS_MAX, "topics"),
        (
            max((len(one.attempts) for one in manifests), default=0),
            limits.MANIFEST_ATTEMPTS_MAX,
            "tasks on a partition",
        ),
        (
            max((sum(stages for *_, stages in one.attempts) for one in manifests), default=0),
            limits.MANIFEST_STAGES_MAX,
            "batches on a partition",
        ),
    ):
        if count > bound:
            raise ValidationError(f"a commit may have {bound} {what}, and this one has {count}", field="staged")


class Commits:
    """The calls about transactions, asked until they are answered or their time is over."""

    def __init__(self, brokers: Brokers, routing: Routing) -> None:
        self._brokers = brokers
        self._routing = routing

    # ------------------------------------------------------------------ commit

    async def commit(self, commit: Commit, *, timeout_s: float = TIMEOUT_S, wait: str = WAIT) -> Committed:
        """Returns only on a recorded commit, now or before. Whatever is raised says whether the outcome is known."""
        check_manner(timeout_s, wait)
        try:
            return await self._carry_out(commit, timeout_s, _WAITS[wait])
        except LannerError as error:
            if error.details.get("outcome") == "aborted":
                await self.discard_items(
                    [
                        Discard(one.topic, one.partition, one.incarnation, [attempt for _, attempt, _ in one.attempts])
                        for one in commit.manifests
                    ]
                )
            raise

    async def _carry_out(self, commit: Commit, timeout_s: float, phase: CommitPhase) -> Committed:
        """Begin, prepare, and wait for the outcome."""
        ends = asyncio.get_running_loop().time() + timeout_s + _GRACE_S
        state = await self._begin(commit, round(timeout_s * 1000))
        if state.phase == CommitPhase.PREPARING:
            await self._prepare(commit, state.token, ends)
        if state.phase == CommitPhase.REPEATED:
            shown = phase == CommitPhase.VISIBLE and state.token > 0 and await self._is_shown(commit, state, ends)
            return Committed(commit.transaction, commit.sequence, True, shown)
        committed = False
        asked = Look(commit.transaction, commit.commit_id, commit.owner, commit.sequence, phase, 0, state.token)
        while state.phase not in _FINAL and state.phase < phase:
            looked = await self._look_until(asked, state, ends)
            if looked is None:
                break
            state, committed = looked.state, looked.committed
            if state.phase == CommitPhase.UNKNOWN:  # so long ago that only the sequence is known
                break
        if state.phase in (CommitPhase.COMMITTED, CommitPhase.VISIBLE):
            if state.phase < phase:
                _warn_that_it_is_late(commit)
            return Committed(commit.transaction, commit.sequence, False, state.phase == CommitPhase.VISIBLE)
        if state.phase == CommitPhase.PREPARING:
            raise _unknown(commit)
        if not committed:
            found = await self._look(Look(commit.transaction, None, commit.owner, commit.sequence), None)
            committed = found.committed and found.owner == commit.owner
        if committed:  # by somebody else, meanwhile
            return Committed(commit.transaction, commit.sequence, True, False)
        if state.phase == CommitPhase.UNKNOWN:
            raise TransactionUnknown(
                f"no broker knows any more how this commit of {commit.transaction!r} ended", outcome="unknown"
            )
        raise _aborted(commit, state.reason)

    async def _is_shown(self, commit: Commit, state: CommitState, ends: float) -> bool:
        """Wait until a try that is committed shows everywhere."""
        names = (commit.transaction, None, commit.owner, commit.sequence)
        asked, state = Look(*names, CommitPhase.VISIBLE, 0, state.token), CommitState(CommitPhase.COMMITTED)
        while (looked := await self._look_until(asked, state, ends)) is not None:
            if looked.state.phase == CommitPhase.VISIBLE:
                return True
        _warn_that_it_is_late(commit)
        return False

    async def _begin(self, commit: Commit, timeout_ms: int) -> CommitState:
        asked = Begin(
            commit.transaction,
            commit.owner,
            commit.sequence,
            commit.commit_id,
            commit.participants,
            timeout_ms,
            commit.once,
        )
        try:
            return await self._brokers.ask(asked, timeout_ms=timeout_ms)
        except LannerError as error:
            raise _with_outcome(error, "unknown" if _may_have_begun(error) else "not begun") from error

    async def _prepare(self, commit: Commit, token: int, ends: float) -> None:
        """Have every partition promise. When one cannot, the commit is given up, and the error says why."""
        waiting = list(commit.manifests)
        loop, backoff = asyncio.get_running_loop(), Backoff()
        while waiting:
            error, waiting = await self._ask_leaders(
                waiting,
                lambda items: Prepare(token, items),
                min(_LEADER_MS / 1000, ends - loop.time()),
            )
            if error is None:
                return
            if isinstance(error, TransactionUnknown):
                return  # the try has ended: its outcome says how
            if not error.retryable:
                state = await self.abort(commit)
                if state.phase == CommitPhase.ABORTED:
                    raise _with_outcome(error, "aborted")
                return
            pause_s = backoff.pause_until(ends, loop.time(), error.retry_after_ms)
            if pause_s is None:
                return  # the deadline of the try has aborted it, or will: that is what is waited for
            await asyncio.sleep(pause_s)

    async def _look_until(self, asked: Look, known: CommitState, ends: float) -> Looked | None:
        """How far it is, waited for; None when the time is over. What is recorded is so, whatever a look meets."""
        loop = asyncio.get_running_loop()
        left_ms = round((ends - loop.time()) * 1000)
        if left_ms <= 0:
            return None
        try:
            looked = await self._look(replace(asked, wait_ms=min(left_ms, _LOOK_MS)), left_ms)
        except LannerError as error:
            if not error.retryable and known.phase != CommitPhase.COMMITTED:
                raise
            return None
        if looked.state.phase not in _FINAL and looked.state.phase < asked.phase:
            await asyncio.sleep(_PAUSE_S)  # a broker that is about to stop answers at once
        return looked

    # ------------------------------------------------------------------ looking, giving up

    async def look(self, transaction: str, owner: str, sequence: int) -> Looked:
        """Is this sequence committed, and who has the transaction?"""
        check_names(transaction, owner, sequence)
        return await self._look(Look(transaction, None, owner, sequence), None)

    async def committed_before(self, transaction: str, owner: str, sequence: int) -> bool:
        """Whether this sequence is committed, so that the work need not be done; raises when it cannot be."""
        found = await self.look(transaction, owner, sequence)
        if found.owner and found.owner != owner:
            raise FenceConflict(
                f"{found.owner!r} has transaction {transaction!r} (its latest committed sequence: {found.latest}); "
                "stop, or claim it for this owner",
                owner=found.owner,
                latest=found.latest,
                outcome="not begun",
            )
        if not found.committed and found.latest > sequence:
            raise SequencePassed(
                f"sequence {found.latest} of {transaction!r} was committed, and {sequence} was not: its data is not "
                "published",
                latest=found.latest,
                outcome="not begun",
            )
        return found.committed

    async def _look(self, asked: Look, timeout_ms: float | None) -> Looked:
        return await self._brokers.ask(asked, timeout_ms=timeout_ms)

    async def abort(self, commit: Commit) -> CommitState:
        """Give a commit up, whether it has begun or not; it may turn out to be committed."""
        return await self.end(commit.transaction, commit.owner, commit.commit_id)

    async def discard(self, staged: Iterable[Staged]) -> None:
        """Drop stages that nobody will commit. What cannot be reached now expires by itself."""
        found: dict[tuple[str, int, int], list[bytes]] = {}
        for one in staged:
            for part in one.partitions:
                found.setdefault((part.topic, part.partition, part.incarnation), []).append(one.attempt)
        await self.discard_items([Discard(*place, attempts) for place, attempts in sorted(found.items())])

    async def discard_items(self, items: list[Discard]) -> None:
        if items:
            with contextlib.suppress(LannerError):
                await self._ask_leaders(items, DiscardStages, _LEADER_MS / 1000)

    # ------------------------------------------------------------------ the transactions themselves

    async def claim(self, transaction: str, owner: str, *, restart: bool = False) -> Claimed:
        check_names(transaction, owner, 0)
        asked = staging.Claim(transaction, owner, restart)
        found = await self._brokers.ask(asked)
        return Claimed(transaction, owner, found.owner_before, found.latest)

    async def end(self, transaction: str, owner: str, commit_id: bytes) -> CommitState:
        """Abort a commit by its id alone, as an operator does."""
        return await self._brokers.ask(End(transaction, owner, commit_id))

    # ------------------------------------------------------------------ at the leaders

    async def _ask_leaders(
        self, items: Sequence[ItemT], asked: Callable[[list[ItemT]], Call[PartitionOutcomes]], timeout_s: float
    ) -> tuple[LannerError | None, list[ItemT]]:
        """Each item at the leader of its partition, those led together in one call; an error, and what is left.

        An error that asking again does not mend comes before one that it does.
        """
        by_leader: dict[Session, list[ItemT]] = {}
        left: list[ItemT] = []
        errors: list[LannerError] = []
        for item in items:
            try:
                await self._routing.route(item.topic)
            except LannerError as error:
                errors.append(error)
                left.append(item)
                continue
            session = self._routing.leader(item.topic, item.partition)
            if session is None:
                errors.append(NotLeader(f"nobody leads {item.topic}/{item.partition} at present", sent=False))
                left.append(item)
            else:
                by_leader.setdefault(session, []).append(item)
        calls = [(session, part) for session, mine in by_leader.items() for part in _parted(mine)]
        answers = await asyncio.gather(*(self._ask(session, asked(part), timeout_s) for session, part in calls))
        for (session, part), answer in zip(calls, answers, strict=True):
            for item in part:
                failed = answer.get((item.topic, item.partition)) if isinstance(answer, dict) else answer
                if failed is not None:
                    self._routing.failed(item.topic, item.partition, session, failed)
                    errors.append(failed)
                    left.append(item)
        final = next((error for error in errors if not error.retryable), None)
        return final or next(iter(errors), None), left

    async def _ask(
        self, session: Session, call: Call[PartitionOutcomes], timeout_s: float
    ) -> dict[TopicPartition, LannerError] | LannerError:
        """What went wrong on which partition, or with the call as a whole."""
        loop = asyncio.get_running_loop()
        await session.wait_until_tried(loop.time() + min(timeout_s, _CONNECTING_S))
        outcome = await session.ask(row_of(call).command, call, max(timeout_s, 0.1) * 1000)
        if isinstance(outcome, LannerError):
            return outcome
        return {(one.topic, one.partition): _error_of(one) for one in outcome.control.items if one.code}


def _parted(items: Sequence[ItemT]) -> Iterable[list[ItemT]]:
    """Cut into calls that fit into a frame."""
    part: list[ItemT] = []
    size = 0
    for item in items:
        if part and (size + len(item.attempts) > _ATTEMPTS_PER_CALL or len(part) >= limits.PARTICIPANTS_MAX):
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.attempts)
    if part:
        yield part


def _error_of(outcome: PartitionOutcome) -> LannerError:
    details: Mapping[str, object] = {"topic": outcome.topic, "partition": outcome.partition}
    if outcome.attempts:
        details = {**details, "attempts": [attempt.hex() for attempt in outcome.attempts]}
    return from_wire(outcome.code, outcome.message, dict(details))


def _may_have_begun(error: LannerError) -> bool:
    """Whether a BEGIN that failed may have taken effect all the same; these two say that nothing has begun."""
    return (
        error.retryable
        and error.details.get("sent") is not False
        and not isinstance(error, TransactionBusy | Overloaded)
    )


def _with_outcome(error: LannerError, outcome: str) -> LannerError:
    return type(error)(error.message, **{**error.details, "outcome": outcome})


def _warn_that_it_is_late(commit: Commit) -> None:
    _log.warning("%s: the transaction is committed, and not every partition shows it yet", commit.transaction)


def _unknown(commit: Commit) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the outcome of the commit is not known: commit again with the same values, or look",
        outcome="unknown",
        transaction=commit.transaction,
        commit_id=commit.commit_id.hex(),
    )


def _aborted(commit: Commit, reason: str) -> TransactionAborted:
    return TransactionAborted(
        f"the commit of {commit.transaction!r} ({commit.sequence}) was aborted ({reason}), and nothing of it shows: do "
        "the work again, or stop",
        reason=reason,
        outcome="aborted",
        transaction=commit.transaction,
    )
