"""Bugs on purpose in staged publish: in the metadata machine, the conductor, the attendant, and the partition."""

from __future__ import annotations

from typing import Any, Final

from lanner.broker.attendant import Attendant
from lanner.broker.conductor import Conductor
from lanner.cluster import Repeated, transactions
from lanner.partition import records, stage_decisions
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.staging import Stages
from lanner.testing.plants import Patch, Plant
from lanner.wire.staging import ReportKind


def _ignore_fence(patch: Patch) -> None:
    patch(transactions, "_check_owner", lambda row, owner: None)


def _leave_open(patch: Patch) -> None:
    """A claim leaves what the owner before it has begun."""
    claim = transactions.claim_transaction

    def claim_only(state: Any, command: Any) -> Any:
        known = state.transactions.get(command.transaction)
        token = 0 if known is None else known.open_token
        one = state.tries.get(token)
        if one is None or one.committed:
            return claim(state, command)
        abort = transactions._abort
        transactions._abort = lambda state, one, reason: state.transactions[one.transaction]
        try:
            return claim(state, command)
        finally:
            transactions._abort = abort

    patch(transactions, "claim_transaction", claim_only)


def _replay(patch: Patch) -> None:
    answer = transactions._answer_again

    def begin_anew(row: Any, open_try: Any, command: Any) -> Any:
        return None if row.has_done(command.sequence) else answer(row, open_try, command)

    patch(transactions, "_answer_again", begin_anew)


def _call_passed_committed(patch: Patch) -> None:
    answer = transactions._answer_again

    def answer_for_all_below(row: Any, open_try: Any, command: Any) -> Any:
        if command.sequence <= row.latest:
            return Repeated(0)
        return answer(row, open_try, command)

    patch(transactions, "_answer_again", answer_for_all_below)


def _drop_at_commit(patch: Patch) -> None:
    commit = transactions._commit

    def commit_and_close(state: Any, one: Any) -> None:
        commit(state, one)
        if one.token in state.tries:
            transactions._close(state, one)

    patch(transactions, "_commit", commit_and_close)


def _one_vote_short(patch: Patch) -> None:
    weigh = Conductor._weigh

    def weigh_lightly(conductor: Conductor, found: Any) -> None:
        if not found.one.committed and len(found.prepared) == len(found.sets) - 1 and found.prepared:
            conductor._commits[found.one.token] = None
        weigh(conductor, found)

    patch(Conductor, "_weigh", weigh_lightly)


def _count_other_votes(patch: Patch) -> None:
    hear = Conductor.hear

    def hear_for_the_sequence(conductor: Conductor, items: Any) -> None:
        heard = conductor.__dict__.setdefault("planted_votes", {})
        hear(conductor, items)
        for item in items:
            known = conductor._tries.get(item.token)
            if known is not None and item.kind == ReportKind.PREPARED:
                heard.setdefault((known.one.transaction, known.one.sequence), set()).add(item.set_id)
        for found in list(conductor._tries.values()):
            votes = heard.get((found.one.transaction, found.one.sequence))
            if votes and not found.one.committed:
                found.prepared |= votes & found.sets
                conductor._weigh(found)

    patch(Conductor, "hear", hear_for_the_sequence)


def _expire_prepared(patch: Patch) -> None:
    expire = stage_decisions.expire

    def expire_all(decision: DecisionBuilder) -> None:
        stages = decision.state.stages
        held = [one for one in stages.attempts.values() if one.token]
        due = [one for one in held if one.active_ms + one.hold_ms <= decision.now_ms]
        tokens = {one.token for one in due}
        for token in tokens & stages.prepared.keys():
            prepared = stages.prepared[token]
            count = prepared.stages - prepared.dealt
            decision.facts.append(records.StagesWithdrawn(token, prepared.dealt, count, stages.metadata_index))
        expire(decision)

    patch(stage_decisions, "expire", expire_all)


def _act_on_older(patch: Patch) -> None:
    """Neither the partition minds, nor the attendant waits."""
    attend = Attendant._attend

    def attend_at_once(attendant: Attendant, copy: Any, set_id: int) -> None:
        found = attendant._partitions.partition(set_id)
        if found is None or copy.applied_index >= found.metadata_index:
            attend(attendant, copy, set_id)
            return
        stages = found._state.stages  # type: ignore[attr-defined]
        seen, stages.metadata_index = stages.metadata_index, copy.applied_index
        try:
            attend(attendant, copy, set_id)
        finally:
            stages.metadata_index = seen

    patch(stage_decisions, "_see", lambda decision, token, metadata_index: None)
    patch(Attendant, "_attend", attend_at_once)


def _never_withdraw(patch: Patch) -> None:
    settle = Attendant._settle

    def publish_only(attendant: Attendant, copy: Any, set_id: int, token: int, *, publish: bool) -> None:
        if publish:
            settle(attendant, copy, set_id, token, publish=True)

    patch(Attendant, "_settle", publish_only)


def _save_no_stages(patch: Patch) -> None:
    take_dirty = Stages.take_dirty

    def take_and_lose(stages: Stages, into: dict[bytes, bytes | None]) -> None:
        taken: dict[bytes, bytes | None] = {}
        take_dirty(stages, taken)

    patch(Stages, "take_dirty", take_and_lose)


def _show_at_once(patch: Patch) -> None:
    """A partition publishes as soon as it has prepared: it takes the outcome for granted."""
    attend = Attendant._attend

    def attend_and_publish(attendant: Attendant, copy: Any, set_id: int) -> None:
        found = attendant._partitions.partition(set_id)
        if found is not None:
            for token in found.prepared():
                attendant._settle(copy, set_id, token, publish=True)
        attend(attendant, copy, set_id)

    patch(Attendant, "_attend", attend_and_publish)


STAGED_PLANTS: Final[dict[str, Plant]] = {
    "fence-ignored": Plant("any owner may begin and abort", ("fence ignored",), _ignore_fence),
    "claim-leaves-open": Plant(
        "a claim leaves what is undecided of the owner before it",
        ("fence ignored", "invariant broken"),
        _leave_open,
    ),
    "replay-published-again": Plant(
        "a sequence that is committed begins again", ("sequence committed twice",), _replay
    ),
    "passed-called-committed": Plant(
        "every sequence below the latest is taken for committed", ("told otherwise",), _call_passed_committed
    ),
    "outcome-lost": Plant(
        "a try's row goes as soon as it is committed", ("acted otherwise", "half a transaction"), _drop_at_commit
    ),
    "one-vote-short": Plant(
        "a try is committed when all but one have prepared it", ("commit without every vote",), _one_vote_short
    ),
    "votes-of-another-try": Plant(
        "votes are counted by sequence and not by try", ("commit without every vote",), _count_other_votes
    ),
    "prepared-stages-expire": Plant("stages expire although a try holds them", ("acted otherwise",), _expire_prepared),
    "aborts-not-withdrawn": Plant("what is aborted stays prepared", ("try never ends",), _never_withdraw),
    "published-before-outcome": Plant(
        "a partition publishes what it has prepared at once", ("acted otherwise",), _show_at_once
    ),
    "stages-not-saved": Plant(
        "a save leaves the stages out", ("state differs after a restart", "machines differ"), _save_no_stages
    ),
}

STAGED_CLUSTER_PLANTS: Final[dict[str, Plant]] = {
    "older-metadata-acted-on": Plant(
        "a leader acts on metadata that is older than what its partition has acted on",
        ("acted otherwise", "half a transaction"),
        _act_on_older,
    ),
}
