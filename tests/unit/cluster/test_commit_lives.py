"""Random lives of transactions: writers that repeat, give up, restart and are fenced, in any order.

The clerk (`commits`) judges every answer. Each mistake that could be planted in the metadata machine is planted once,
and must be found by the same lives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lanner.cluster import CommitEnded, Transaction, Try, encode_delete_topic, machine, topics, transactions
from lanner.cluster.commands import EndTries
from lanner.cluster.state import State
from tests.unit.cluster.commits import Commits

NAMES = ("t", "u")
OWNERS = ("a", "b")
TOPICS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"orders": (0,)},
    {"orders": (0, 1)},
    {"audit": (1,)},
    {"orders": (1,), "audit": (0, 1)},
    {},
)


class Life(Commits):
    """Understands small numbers as calls."""

    def live(self, kind: int, a: int, b: int) -> None:
        self.now_ms += a % 3
        getattr(self, ACTS[kind % len(ACTS)])(a, b)

    def token(self, number: int) -> int:
        tokens = sorted(self.known)
        return tokens[-1 - number % min(len(tokens), 4)] if tokens else 1

    def begin_some(self, a: int, b: int) -> None:
        name, owner, sequence = NAMES[a % 2], OWNERS[b % 5 == 0], a // 2 % 4
        self.begin(sequence, name=name, owner=owner, commit=100 * sequence + b % 2, topics=TOPICS[b % len(TOPICS)])

    def commit_some(self, a: int, b: int) -> None:
        self.end(commits=(self.token(a),), aborts=(self.token(b),) if b % 4 == 0 else ())

    def abort_some(self, a: int, b: int) -> None:
        self.end(aborts=(self.token(a),))

    def finish_some(self, a: int, b: int) -> None:
        self.end(finished=(self.token(a), self.token(b)))

    def give_up(self, a: int, b: int) -> None:
        sequence = a // 2 % 4
        self.abort(100 * sequence + b % 2, name=NAMES[a % 2], owner=OWNERS[b % 5 == 0])

    def claim_some(self, a: int, b: int) -> None:
        self.claim(OWNERS[b % 2], name=NAMES[a % 2], restart=b % 3 == 0)

    def forget_some(self, a: int, b: int) -> None:
        self.forget(NAMES[a % 2])

    def delete_and_make(self, a: int, b: int) -> None:
        topic = ("orders", "audit")[a % 2]
        self._apply_and_compare(encode_delete_topic(topic))
        self.create(topic, partitions=2, replication=3)

    def save_and_restart(self, a: int, b: int) -> None:
        if a % 2:
            self.save()
        self.restart()


ACTS = (
    *("begin_some",) * 6,
    *("commit_some",) * 3,
    "abort_some",
    *("finish_some",) * 3,
    "give_up",
    "claim_some",
    "forget_some",
    "delete_and_make",
    "save_and_restart",
)

lives = st.lists(st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 60), st.integers(0, 60)), max_size=60)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives)
def test_whatever_writers_do_no_answer_contradicts_another(acts: list[tuple[int, int, int]]) -> None:
    life = Life()
    for act in acts:
        life.live(*act)
    life.restart()


def live_long(seed: int) -> Life:
    rng = random.Random(seed)
    life = Life()
    for _ in range(150):
        life.live(rng.randrange(len(ACTS)), rng.randrange(60), rng.randrange(60))
    life.restart()
    return life


def test_long_lives_contradict_nothing_either() -> None:
    outcomes = [outcome for seed in range(20) for outcome in live_long(seed).outcomes.values()]
    assert min(outcomes.count("committed"), outcomes.count("aborted")) > 20, "both happen"


# ------------------------------------------------------------------ planted mistakes

Patch = Callable[[str, Any], None]


def ignore_the_fence(patch: Patch) -> None:
    patch("_check_owner", lambda _row, _owner: None)


def leave_the_old_try_open_at_a_claim(patch: Patch) -> None:
    claim, abort = transactions.claim_transaction, transactions._abort

    def claimed(state: State, command: Any) -> Any:
        patch("_abort", lambda state, one, _reason: state.transactions[one.transaction])
        try:
            return claim(state, command)
        finally:
            patch("_abort", abort)

    patch("claim_transaction", claimed)


def begin_a_replay_again(patch: Patch) -> None:
    answer = transactions._answer_again

    def answered(row: Transaction, open_try: Try | None, command: Any) -> Any:
        return answer(replace(row, done=()), open_try, command)

    patch("_answer_again", answered)


def open_two_tries_at_once(patch: Patch) -> None:
    find = transactions._find_or_new
    patch("_find_or_new", lambda *given, **how: replace(find(*given, **how), open_token=0))


def call_a_passed_sequence_committed(patch: Patch) -> None:
    answer = transactions._answer_again

    def answered(row: Transaction, open_try: Try | None, command: Any) -> Any:
        return answer(replace(row, done=((0, row.latest),) if row.done else ()), open_try, command)

    patch("_answer_again", answered)


def drop_the_row_at_commit(patch: Patch) -> None:
    commit, close = transactions._commit, transactions._close

    def committed(state: State, one: Try) -> None:
        commit(state, one)
        if one.token in state.tries:
            close(state, one)

    patch("_commit", committed)


def abort_a_committed_try_at_its_deadline(patch: Patch) -> None:
    end = transactions.end_tries

    def ended(state: State, command: EndTries) -> int:
        for token, reason in command.aborts:
            if token in state.tries:
                transactions._abort(state, state.tries[token], reason)
        return end(state, replace(command, aborts=()))

    patch("end_tries", ended)


def take_a_forgotten_name_for_a_new_one(patch: Patch) -> None:
    begin, find = transactions.begin_try, transactions._find_or_new

    def begun(state: State, command: Any) -> Any:
        patch(
            "_find_or_new", lambda state, name, owner, once: state.transactions.get(name) or _fresh(state, name, owner)
        )
        try:
            return begin(state, command)
        finally:
            patch("_find_or_new", find)

    patch("begin_try", begun)


def let_an_ended_commit_begin_again(patch: Patch) -> None:
    answer = transactions._answer_again

    def answered(row: Transaction, open_try: Try | None, command: Any) -> Any:
        return answer(replace(row, ended=()), open_try, command)

    patch("_answer_again", answered)


def revive_a_forgotten_name_by_an_abort(patch: Patch) -> None:
    abort, find = transactions.abort_commit, transactions._find_or_new

    def aborted(state: State, command: Any) -> Any:
        patch(
            "_find_or_new", lambda state, name, owner, once: state.transactions.get(name) or _fresh(state, name, owner)
        )
        try:
            return abort(state, command)
        finally:
            patch("_find_or_new", find)

    patch("abort_commit", aborted)


def forget_to_note_an_abort_that_comes_first(patch: Patch) -> None:
    abort = transactions.abort_commit

    def aborted(state: State, command: Any) -> Any:
        before = state.transactions.get(command.transaction)
        ended = abort(state, command)
        if isinstance(ended, CommitEnded) and ended.token == 0 and before is not None:
            state.put_transaction(before)
        return ended

    patch("abort_commit", aborted)


def _fresh(state: State, name: str, owner: str) -> Transaction:
    return transactions._new(state, name, owner, once=False)


PLANTS = (
    ignore_the_fence,
    leave_the_old_try_open_at_a_claim,
    begin_a_replay_again,
    open_two_tries_at_once,
    call_a_passed_sequence_committed,
    drop_the_row_at_commit,
    abort_a_committed_try_at_its_deadline,
    take_a_forgotten_name_for_a_new_one,
    let_an_ended_commit_begin_again,
    revive_a_forgotten_name_by_an_abort,
    forget_to_note_an_abort_that_comes_first,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_every_planted_mistake_is_found_by_what_callers_are_told(
    plant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "check_state", lambda _state: None)  # the rows themselves would often give it away
    plant(lambda name, planted: monkeypatch.setattr(transactions, name, planted))
    with pytest.raises(AssertionError):
        for seed in range(60):
            live_long(seed)


def test_a_deleted_topic_that_leaves_its_tries_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "end_tries_of", lambda _state, _set_ids: None)
    with pytest.raises(AssertionError):
        for seed in range(60):
            live_long(seed)
