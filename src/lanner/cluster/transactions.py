"""Staged publish: what becomes of a commit is decided here, once, for all its partitions.

Five commands. `begin_try` records that a commit is on its way, `end_tries` how tries ended and which are confirmed
everywhere, `abort_commit` that somebody gave a commit up, `claim_transaction` that another owner goes on, and
`forget_transactions` that a name has not been used for long. Each checks everything before it changes anything.

The rules that keep a transaction whole:
- The first outcome that is recorded wins. A committed try is never aborted, an ended commit never begins again.
- A sequence is committed at most once. One that was passed over is never taken for one that was committed.
- One try of a transaction is open at a time. A sequence is visible everywhere before the next one begins.
- Another owner fences the one before it: what is undecided of that one is aborted in the same entry.
- A name that was forgotten is not taken for a new one: it leaves a hash, and is refused until it is claimed.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from lanner import features, limits
from lanner.cluster.commands import AbortCommit, BeginTry, ClaimTransaction, EndTries, ForgetTransactions
from lanner.cluster.staged import (
    AbortReason,
    Begun,
    Claimed,
    CommitEnded,
    Ended,
    Repeated,
    Transaction,
    Try,
    TryState,
    added,
    check_commit,
    check_commit_id,
    check_parties,
)
from lanner.cluster.state import State
from lanner.errors import (
    FenceConflict,
    NotSupported,
    Overloaded,
    PartitionNotFound,
    SequencePassed,
    StaleIncarnation,
    TopicNotFound,
    TransactionBusy,
    TransactionUnknown,
    ValidationError,
)


def check_level(state: State) -> None:
    if state.counters.feature_level < features.STAGES:
        raise NotSupported(
            f"staged publish needs feature level {features.STAGES}, and the cluster is at "
            f"{state.counters.feature_level}: upgrade every broker, then run `lanner cluster upgrade`"
        )


# ------------------------------------------------------------------ a commit begins


def begin_try(state: State, command: BeginTry) -> Begun | Repeated | CommitEnded:
    check_level(state)
    check_parties(command.transaction, command.owner)
    check_commit_id(command.commit_id)
    check_commit(command.sequence, command.participants, command.timeout_ms)
    row = _find_or_new(state, command.transaction, command.owner, once=command.once)
    _check_owner(row, command.owner)
    open_try = state.tries.get(row.open_token)
    answer = _answer_again(row, open_try, command)
    if answer is not None:
        return answer
    if open_try is not None and (open_try.committed or open_try.sequence != command.sequence):
        raise TransactionBusy(
            f"sequence {open_try.sequence} of transaction {row.name!r} is {open_try.state}, and not yet "
            f"{'published everywhere' if open_try.committed else 'decided'}; try again soon",
            transaction=row.name,
            sequence=open_try.sequence,
        )
    set_ids = _find_sets(state, command)
    _check_open(state, open_try, len(set_ids))
    _check_room(state, row)
    if open_try is not None:
        row = _abort(state, open_try, AbortReason.SUPERSEDED)
    return _begin(state, row, command, set_ids)


def _answer_again(row: Transaction, open_try: Try | None, command: BeginTry) -> Begun | Repeated | CommitEnded | None:
    """What was said, or would have been said, to the caller who asked for this commit before."""
    if row.has_done(command.sequence):
        rolling = open_try is not None and open_try.committed and open_try.sequence == command.sequence
        return Repeated(row.open_token if rolling else 0)
    if command.sequence < row.latest:
        raise SequencePassed(
            f"sequence {row.latest} of transaction {row.name!r} is committed and {command.sequence} was not: what "
            "belongs to it is not published",
            transaction=row.name,
            sequence=command.sequence,
            latest=row.latest,
        )
    if open_try is not None and open_try.commit_id == command.commit_id:
        if open_try.sequence != command.sequence:
            raise ValidationError("this commit id belongs to another sequence", field="commit_id")
        return Begun(open_try.token)
    ended = row.ended_as(command.commit_id)
    return None if ended is None else CommitEnded(ended.token, ended.reason)


def _find_sets(state: State, command: BeginTry) -> tuple[int, ...]:
    found: set[int] = set()
    for name, incarnation, partitions in command.participants:
        topic = state.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name[: limits.NAME_LENGTH_MAX]!r} does not exist", topic=name)
        if topic.incarnation != incarnation:
            raise StaleIncarnation(f"topic {name!r} was deleted and created again since it was staged to", topic=name)
        for partition in partitions:
            if not 0 <= partition < len(topic.set_ids):
                raise PartitionNotFound(f"topic {name!r} has no partition {partition}", topic=name, partition=partition)
            found.add(topic.set_ids[partition])
    if sum(len(partitions) for _, _, partitions in command.participants) != len(found):
        raise ValidationError("the commit names a partition twice", field="participants")
    return tuple(sorted(found))


def _check_open(state: State, replaced: Try | None, participants: int) -> None:
    tries, total = len(state.tries), state.participant_count + participants
    if replaced is not None:
        tries, total = tries - 1, total - len(replaced.set_ids)
    if tries >= limits.OPEN_TRIES_MAX:
        raise Overloaded(f"{tries} commits are under way, as many as there may be; try again soon")
    if total > limits.OPEN_PARTICIPANTS_MAX:
        raise Overloaded(
            f"{total} partitions would be named by commits under way, and {limits.OPEN_PARTICIPANTS_MAX} may be; "
            "try again soon"
        )


def _begin(state: State, row: Transaction, command: BeginTry, set_ids: tuple[int, ...]) -> Begun | CommitEnded:
    token, now_ms = state.counters.applied_index, state.counters.machine_ms
    row = replace(row, open_token=token, once=row.once and command.once, used_ms=now_ms)
    state.put_transaction(row)
    one = Try(
        token,
        row.name,
        row.owner,
        row.era,
        command.sequence,
        command.commit_id,
        set_ids,
        TryState.PREPARING,
        now_ms,
        now_ms + command.timeout_ms,
    )
    state.put_try(one)
    if set_ids:
        return Begun(token)
    _commit(state, one)
    return CommitEnded(token, None)


# ------------------------------------------------------------------ a commit ends


def end_tries(state: State, command: EndTries) -> int:
    """Record outcomes, the first of each; how many tries that changed."""
    check_level(state)
    changed = 0
    for token in command.commits:
        one = state.tries.get(token)
        if one is not None and not one.committed:
            _commit(state, one)
            changed += 1
    for token, reason in command.aborts:
        one = state.tries.get(token)
        if one is not None and not one.committed:
            _abort(state, one, reason)
            changed += 1
    for token in command.finished:
        one = state.tries.get(token)
        if one is not None and one.committed:
            _close(state, one)
            changed += 1
    return changed


def abort_commit(state: State, command: AbortCommit) -> CommitEnded:
    """Give a commit up. One that has not begun is noted, so that it cannot begin behind the back of the caller."""
    check_level(state)
    check_parties(command.transaction, command.owner)
    check_commit_id(command.commit_id)
    row = _find_or_new(state, command.transaction, command.owner, once=False)
    open_try = state.tries.get(row.open_token)
    if open_try is not None and open_try.commit_id == command.commit_id:
        if open_try.committed:
            return CommitEnded(open_try.token, None)
        _check_owner(row, command.owner)
        _abort(state, open_try, AbortReason.OPERATOR)
        return CommitEnded(open_try.token, AbortReason.OPERATOR)
    ended = row.ended_as(command.commit_id)
    if ended is None:
        _check_owner(row, command.owner)
        _check_room(state, row)
        ended = Ended(command.commit_id, 0, AbortReason.OPERATOR)
        state.put_transaction(_with_ended(state, row, ended))
    return CommitEnded(ended.token, ended.reason)


def end_tries_of(state: State, set_ids: Collection[int]) -> None:
    """A topic is deleted: what is undecided there is aborted, what is committed no longer waits for it."""
    gone = set(set_ids)
    for token in sorted({token for set_id in gone for token in state.tries_on(set_id)}):
        one = state.tries[token]
        if not one.committed:
            _abort(state, one, AbortReason.DELETED)
            continue
        left = tuple(set_id for set_id in one.set_ids if set_id not in gone)
        if left:
            state.put_try(replace(one, set_ids=left))
        else:
            _close(state, one)


def _commit(state: State, one: Try) -> None:
    row = state.transactions[one.transaction]
    done = added(row.done, one.sequence, limits.COMMITTED_RANGES_KEPT)
    row = replace(_with_ended(state, row, Ended(one.commit_id, one.token, None)), done=done)
    state.put_transaction(row)
    if one.set_ids:
        now_ms, index = state.counters.machine_ms, state.counters.applied_index
        state.put_try(replace(one, state=TryState.COMMITTED, decided_ms=now_ms, decided_index=index))
    else:
        _close(state, one)


def _abort(state: State, one: Try, reason: AbortReason) -> Transaction:
    row = _with_ended(state, state.transactions[one.transaction], Ended(one.commit_id, one.token, reason))
    row = replace(row, open_token=0)
    state.put_transaction(row)
    state.drop_try(one.token)
    return row


def _close(state: State, one: Try) -> None:
    """Every participant shows it: the transaction may go on."""
    state.put_transaction(replace(state.transactions[one.transaction], open_token=0))
    state.drop_try(one.token)


def _with_ended(state: State, row: Transaction, ended: Ended) -> Transaction:
    kept = (*row.ended, ended)[-limits.ENDED_COMMITS_KEPT :]
    return replace(row, ended=kept, used_ms=state.counters.machine_ms)


# ------------------------------------------------------------------ who may use a name


def claim_transaction(state: State, command: ClaimTransaction) -> Claimed:
    """Another owner takes a transaction over: it goes on where that is, or, with `restart`, starts over."""
    check_level(state)
    check_parties(command.transaction, command.owner)
    known = state.transactions.get(command.transaction)
    if known is not None and known.owner == command.owner:
        return Claimed(known.owner, known.latest)
    if known is None:
        if command.transaction in state.forgotten and not command.restart:
            raise _unknown(command.transaction)
        row = _new(state, command.transaction, command.owner, once=False)
        _check_room(state, row)
        state.drop_forgotten(command.transaction)
        state.put_transaction(row)
        return Claimed("", -1)
    open_try = state.tries.get(known.open_token)
    row = known if open_try is None or open_try.committed else _abort(state, open_try, AbortReason.FENCED)
    row = replace(row, owner=command.owner, once=False, used_ms=state.counters.machine_ms)
    if command.restart:
        row = replace(row, era=state.counters.applied_index, done=())
    state.put_transaction(row)
    return Claimed(known.owner, row.latest)


def forget_transactions(state: State, command: ForgetTransactions) -> int:
    """Those that were not used since they were looked at; how many that were, with the hashes of earlier ones."""
    check_level(state)
    count = 0
    if command.hashes_too:
        count = len(state.forgotten)
        state.clear_forgotten()
    for name, used_ms in command.seen:
        row = state.transactions.get(name)
        if row is None or row.used_ms != used_ms or row.open_token:
            continue
        if not row.once:
            if state.forgotten.full:
                continue
            state.note_forgotten(name)
        state.drop_transaction(name)
        count += 1
    return count


def _find_or_new(state: State, name: str, owner: str, *, once: bool) -> Transaction:
    """The row, or one for this owner that is not put anywhere yet."""
    row = state.transactions.get(name)
    if row is not None:
        return row
    if name in state.forgotten:
        raise _unknown(name)
    return _new(state, name, owner, once=once)


def _new(state: State, name: str, owner: str, *, once: bool) -> Transaction:
    return Transaction(name, owner, state.counters.applied_index, (), (), 0, once, state.counters.machine_ms)


def _check_owner(row: Transaction, owner: str) -> None:
    if row.owner != owner:
        raise FenceConflict(
            f"transaction {row.name!r} belongs to {row.owner!r}, which has committed sequence {row.latest}"
            if row.done
            else f"transaction {row.name!r} belongs to {row.owner!r}, which has committed nothing yet",
            transaction=row.name,
            owner=row.owner,
            latest=row.latest,
        )


def _check_room(state: State, row: Transaction) -> None:
    """Whether a name that is new may be remembered."""
    if row.name in state.transactions:
        return
    if len(state.transactions) >= limits.TRANSACTIONS_MAX:
        raise Overloaded(f"{len(state.transactions)} transactions are remembered, as many as there may be; try again")
    if state.forgotten.full and not row.once:
        raise Overloaded(
            f"{len(state.forgotten)} transactions were forgotten, as many as there may be: an operator has to clear "
            "them (`lanner transaction clear`) before new names can be used"
        )


def _unknown(name: str) -> TransactionUnknown:
    return TransactionUnknown(
        f"transaction {name!r} was used before and forgotten since, so that nobody knows what it has committed; look "
        "at what was published, then claim it with restart",
        transaction=name,
    )
