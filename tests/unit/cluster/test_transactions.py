"""The five commands of staged publish, rule by rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lanner import features, limits
from lanner.cluster import (
    AbortReason,
    Begun,
    Claimed,
    CommitEnded,
    Repeated,
    encode_abort_commit,
    encode_alter_topic,
    encode_begin_try,
    encode_claim_transaction,
    encode_end_tries,
    encode_forget_transactions,
    state,
)
from lanner.cluster.commands import Kind
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
from tests.unit.cluster.commits import Commits, commit_id
from tests.unit.cluster.world import World


@pytest.fixture
def world() -> Any:
    made = Commits()
    yield made
    made.save()
    made.restart()
    made.save()
    assert made.stored.rows == made.machine.all_rows()


def commit(world: Commits, sequence: int, number: int, **how: Any) -> int:
    """One commit from its beginning to where everybody shows it; its token."""
    begun = world.begin(sequence, commit=number, **how)
    assert isinstance(begun, Begun)
    assert world.end(commits=(begun.token,)) == 1
    assert world.end(finished=(begun.token,)) == 1
    return begun.token


# ------------------------------------------------------------------ beginning


def test_a_try_begins_under_the_index_of_its_entry_and_names_its_sets(world: Commits) -> None:
    begun = world.begin(7, topics={"orders": (1,), "audit": (0, 1)})
    assert begun == Begun(world.index)
    one = world.machine.try_of(begun.token)
    assert one is not None and (one.transaction, one.owner, one.sequence) == ("t", "me", 7)
    assert (one.set_ids, one.committed, one.decided_index) == ((2, 3, 4), False, 0)
    assert (one.begun_ms, one.deadline_ms) == (10_000, 130_000)
    assert [sorted(world.machine.tries_on(set_id)) for set_id in (1, 2, 3)] == [[], [begun.token], [begun.token]]
    row = world.machine.transaction("t")
    assert row is not None and (row.owner, row.open_token, row.done) == ("me", begun.token, ())


def test_the_deadline_counts_from_the_machines_time_when_that_is_later(world: Commits) -> None:
    world.begin(0)
    world.now_ms = 5_000
    begun = world.begin(0, name="u", timeout_ms=1_000)
    assert world.machine.tries()[begun.token].deadline_ms == 11_000


def test_the_same_commit_asked_for_again_finds_its_try_or_how_it_ended(world: Commits) -> None:
    begun = world.begin(0)
    assert world.begin(0) == begun
    world.end(aborts=(begun.token,))
    assert world.begin(0) == CommitEnded(begun.token, AbortReason.DEADLINE)
    assert world.machine.tries() == {}


def test_a_committed_sequence_is_repeated_and_nothing_else_happens(world: Commits) -> None:
    begun = world.begin(0)
    world.end(commits=(begun.token,))
    assert world.begin(0, commit=2) == Repeated(begun.token), "some have yet to publish it"
    world.end(finished=(begun.token,))
    rows = world.machine.all_rows()
    assert world.begin(0, commit=3) == Repeated(0)
    changed = {key for key, value in world.machine.all_rows().items() if rows.get(key) != value}
    assert changed == {b"c"}, "only the applied index"


def test_a_sequence_that_was_passed_over_is_never_taken_for_a_committed_one(world: Commits) -> None:
    commit(world, 5, 1)
    passed = world.begin(4, commit=2)
    assert isinstance(passed, SequencePassed) and passed.details["latest"] == 5
    commit(world, 9, 3)
    assert isinstance(world.begin(7, commit=4), SequencePassed)
    assert world.begin(5, commit=5) == Repeated(0)


def test_another_owner_is_refused_and_told_whose_it_is(world: Commits) -> None:
    assert isinstance(world.begin(0), Begun)
    refused = world.begin(0, owner="other", commit=2)
    assert isinstance(refused, FenceConflict)
    assert (refused.details["owner"], refused.details["latest"]) == ("me", -1)
    world.end(commits=(world.index - 1,))
    later = world.begin(3, owner="other", commit=3)
    assert isinstance(later, FenceConflict) and "has committed sequence 0" in later.message


def test_the_next_sequence_waits_until_the_last_one_is_shown_everywhere(world: Commits) -> None:
    begun = world.begin(0)
    busy = world.begin(1, commit=2)
    assert isinstance(busy, TransactionBusy) and busy.retryable and "decided" in busy.message
    world.end(commits=(begun.token,))
    busy = world.begin(1, commit=2)
    assert isinstance(busy, TransactionBusy) and "published everywhere" in busy.message
    world.end(finished=(begun.token,))
    assert isinstance(world.begin(1, commit=2), Begun)


def test_the_same_work_tried_anew_supersedes_what_is_undecided(world: Commits) -> None:
    first = world.begin(0, commit=1)
    second = world.begin(0, commit=2)
    assert isinstance(second, Begun) and list(world.machine.tries()) == [second.token]
    assert world.begin(0, commit=1) == CommitEnded(first.token, AbortReason.SUPERSEDED)
    assert world.end(commits=(first.token,)) == 0, "its votes come too late"


def test_a_commit_without_partitions_is_committed_at_once(world: Commits) -> None:
    ended = world.begin(0, topics={})
    assert ended == CommitEnded(world.index, None) and world.machine.tries() == {}
    assert world.begin(0, topics={}) == Repeated(0)
    assert isinstance(world.begin(1, commit=2), Begun)


def test_what_is_not_there_is_refused_and_leaves_nothing_behind(world: Commits) -> None:
    incarnation = world.machine.topics["orders"].incarnation
    cases: list[tuple[type[Exception], tuple[str, int, tuple[int, ...]]]] = [
        (TopicNotFound, ("gone", 1, (0,))),
        (StaleIncarnation, ("orders", incarnation + 1, (0,))),
        (PartitionNotFound, ("orders", incarnation, (2,))),
        (PartitionNotFound, ("orders", incarnation, (-1,))),
    ]
    for error, participant in cases:
        command = encode_begin_try("t", "me", 0, commit_id(1), [participant], timeout_ms=1_000, now_ms=1)
        assert isinstance(world.apply(command), error)
    assert world.machine.transactions() == {}


def test_an_undecided_try_stays_when_what_would_supersede_it_is_refused(world: Commits) -> None:
    begun = world.begin(0)
    command = encode_begin_try("t", "me", 0, commit_id(2), [("gone", 1, (0,))], timeout_ms=1_000, now_ms=1)
    assert isinstance(world.apply(command), TopicNotFound)
    assert list(world.machine.tries()) == [begun.token]


def test_a_commit_id_of_another_sequence_is_refused(world: Commits) -> None:
    world.begin(0)
    assert isinstance(world.begin(1, commit=1), ValidationError)


def test_below_its_feature_level_nothing_of_it_is_supported() -> None:
    world = World("a", level=features.STAGES - 1)
    world.create("orders", partitions=1)
    for command in (
        encode_begin_try("t", "me", 0, commit_id(1), [("orders", 1, (0,))], timeout_ms=1_000, now_ms=1),
        encode_end_tries([1], [], [], 1),
        encode_abort_commit("t", "me", commit_id(1), 1),
        encode_claim_transaction("t", "me", restart=False, now_ms=1),
        encode_forget_transactions([]),
    ):
        refused = world.apply(command)
        assert isinstance(refused, NotSupported) and "lanner cluster upgrade" in refused.message
    assert not world.machine.knows_stages


# ------------------------------------------------------------------ ending


def test_the_first_outcome_wins(world: Commits) -> None:
    begun = world.begin(0)
    assert world.end(commits=(begun.token,), aborts=(begun.token,)) == 1
    one = world.machine.try_of(begun.token)
    assert one is not None and one.committed and (one.decided_ms, one.decided_index) == (10_000, world.index)
    assert world.end(aborts=(begun.token,)) == 0
    other = world.begin(0, name="u")
    world.end(aborts=(other.token,))
    assert world.end(commits=(other.token,)) == 0
    assert world.end(finished=(other.token, 99)) == 0


def test_only_what_is_committed_can_be_finished(world: Commits) -> None:
    begun = world.begin(0)
    assert world.end(finished=(begun.token,)) == 0
    assert begun.token in world.machine.tries()


def test_one_entry_ends_many_tries(world: Commits) -> None:
    tokens = [world.begin(0, name=f"t{number}").token for number in range(6)]
    assert world.end(commits=(tokens[0],)) == 1
    assert world.end(commits=tuple(tokens[1:3]), aborts=tuple(tokens[3:5]), finished=(tokens[0],)) == 5
    assert [one.token for one in world.machine.tries().values()] == [*tokens[1:3], tokens[5]]


def test_a_commit_that_is_given_up_never_commits(world: Commits) -> None:
    begun = world.begin(0)
    assert world.abort(1) == CommitEnded(begun.token, AbortReason.OPERATOR)
    assert world.abort(1) == CommitEnded(begun.token, AbortReason.OPERATOR)
    assert world.end(commits=(begun.token,)) == 0


def test_a_commit_that_is_given_up_before_it_begins_never_begins(world: Commits) -> None:
    assert world.abort(1) == CommitEnded(0, AbortReason.OPERATOR)
    assert world.begin(0, commit=1) == CommitEnded(0, AbortReason.OPERATOR)
    assert isinstance(world.begin(0, commit=2), Begun)


def test_a_committed_commit_cannot_be_given_up(world: Commits) -> None:
    begun = world.begin(0)
    world.end(commits=(begun.token,))
    assert world.abort(1) == CommitEnded(begun.token, None)
    for number in range(100, 100 + limits.ENDED_COMMITS_KEPT):
        world.abort(number)  # so many that the row no longer says how the open one ended
    assert world.abort(1) == CommitEnded(begun.token, None)
    world.end(finished=(begun.token,))


def test_only_the_owner_gives_a_commit_up(world: Commits) -> None:
    world.begin(0)
    assert isinstance(world.abort(1, owner="other"), FenceConflict)
    assert isinstance(world.abort(2, owner="other"), FenceConflict)


def test_a_deleted_topic_aborts_what_is_undecided_and_confirms_what_is_committed(world: Commits) -> None:
    both = {"orders": (0, 1), "audit": (0, 1)}
    undecided = world.begin(0, name="u", topics=both)
    decided = world.begin(0, name="d", topics=both)
    only_there = world.begin(0, name="o", topics={"orders": (0,)})
    elsewhere = world.begin(0, name="e", topics={"audit": (0,)})
    world.end(commits=(decided.token, only_there.token))
    world.delete("orders")
    assert {token: one.set_ids for token, one in world.machine.tries().items()} == {
        decided.token: (3, 4),
        elsewhere.token: (3,),
    }
    assert world.begin(0, name="u", topics={"audit": (0,)}) == CommitEnded(undecided.token, AbortReason.DELETED)
    assert world.begin(0, name="o", topics={}, commit=2) == Repeated(0)
    assert world.begin(0, name="d", topics={}, commit=2) == Repeated(decided.token)


def test_a_topic_that_grows_touches_no_try(world: Commits) -> None:
    begun = world.begin(0)
    before = world.machine.try_of(begun.token)
    world.apply(encode_alter_topic("orders", {"partitions": 4, "max_bytes": 1}))
    assert world.machine.try_of(begun.token) is before


# ------------------------------------------------------------------ owners


def test_a_claim_fences_the_owner_before_and_goes_on(world: Commits) -> None:
    commit(world, 3, 1)
    begun = world.begin(4, commit=2)
    assert world.claim("next") == Claimed("me", 3)
    assert world.machine.tries() == {}
    assert isinstance(world.begin(4, commit=2), FenceConflict)
    assert world.begin(4, commit=2, owner="next") == CommitEnded(begun.token, AbortReason.FENCED)
    assert world.begin(3, commit=3, owner="next") == Repeated(0)
    assert isinstance(world.begin(4, commit=4, owner="next"), Begun)


def test_a_claim_with_restart_starts_over_under_a_new_era(world: Commits) -> None:
    commit(world, 3, 1)
    assert world.claim("next", restart=True) == Claimed("me", -1)
    row = world.machine.transaction("t")
    assert row is not None and (row.era, row.done) == (world.index, ())
    assert isinstance(world.begin(0, commit=2, owner="next"), Begun)


def test_who_has_it_already_claims_without_effect(world: Commits) -> None:
    commit(world, 3, 1)
    begun = world.begin(4, commit=2)
    assert world.claim("me", restart=True) == Claimed("me", 3)
    assert list(world.machine.tries()) == [begun.token]


def test_a_committed_try_rolls_on_under_another_owner(world: Commits) -> None:
    begun = world.begin(0)
    world.end(commits=(begun.token,))
    world.claim("next", restart=True)
    assert isinstance(world.begin(0, commit=2, owner="next"), TransactionBusy)
    assert world.end(finished=(begun.token,)) == 1
    assert isinstance(world.begin(0, commit=2, owner="next"), Begun)


def test_a_name_that_nobody_has_can_be_claimed(world: Commits) -> None:
    assert world.claim("me") == Claimed("", -1)
    assert isinstance(world.begin(0, owner="other"), FenceConflict)


# ------------------------------------------------------------------ remembering


def test_a_forgotten_name_is_refused_until_it_is_claimed_with_restart(world: Commits) -> None:
    commit(world, 3, 1)
    assert world.forget() == 1
    assert world.machine.was_forgotten("t") and world.machine.forgotten_count == 1
    for sequence in (0, 3, 4):
        assert isinstance(world.begin(sequence, commit=2), TransactionUnknown)
    assert isinstance(world.abort(2), TransactionUnknown)
    assert isinstance(world.claim("me"), TransactionUnknown), "nobody knows where to go on"
    assert world.claim("me", restart=True) == Claimed("", -1)
    assert world.machine.forgotten_count == 0 and not world.machine.was_forgotten("t")
    assert isinstance(world.begin(0, commit=2), Begun)


def test_a_name_that_is_used_once_leaves_nothing(world: Commits) -> None:
    commit(world, 0, 1, name="job", once=True)
    assert world.forget("job") == 1
    assert world.machine.forgotten_count == 0
    assert isinstance(world.begin(0, name="job", commit=2), Begun)
    world.claim("other", name="job")
    row = world.machine.transaction("job")
    assert row is not None and not row.once, "it is used again, so it is remembered"


def test_what_is_open_or_was_used_since_is_not_forgotten(world: Commits) -> None:
    begun = world.begin(0)
    assert world.forget() == 0
    world.end(aborts=(begun.token,))
    assert world.forget(used_ms=9_999) == 0
    assert world.forget("unknown", used_ms=0) == 0


def test_old_names_are_named_for_forgetting_the_longest_unused_first(
    world: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_KEPT", 3)
    for number in range(5):
        world.now_ms += 1
        commit(world, 0, 1, name=f"t{number}")
    world.begin(1, name="t0", commit=2)  # used again, and open
    assert [name for name, _ in world.machine.forgettable(world.now_ms)] == ["t1", "t2"]
    world.save()
    world.restart()
    assert [name for name, _ in world.machine.forgettable(world.now_ms)] == ["t1", "t2"]
    assert world.apply(encode_forget_transactions(world.machine.forgettable(world.now_ms))) == 2
    assert world.machine.forgettable(world.now_ms) == []


def test_names_that_are_used_once_are_named_after_a_day(world: Commits) -> None:
    commit(world, 0, 1, name="job", once=True)
    world.begin(0, name="open", once=True)
    commit(world, 0, 1, name="kept")
    day_after = world.now_ms + limits.ONCE_KEPT_MS
    assert world.machine.forgettable(day_after - 1) == []
    assert world.machine.forgettable(day_after) == [("job", world.now_ms)]


def test_with_too_many_hashes_new_names_are_refused_until_they_are_cleared(
    world: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_FORGOTTEN_MAX", 1)
    monkeypatch.setattr(limits, "TRANSACTIONS_KEPT", 0)
    commit(world, 0, 1, name="a")
    commit(world, 0, 1, name="b")
    assert world.forget("a") == 1
    assert world.forget("b") == 0, "its hash has no room"
    assert world.machine.forgettable(world.now_ms) == []
    for refused in (world.begin(0, name="c"), world.abort(1, name="c"), world.claim("me", name="c")):
        assert isinstance(refused, Overloaded) and "operator" in refused.message
    assert isinstance(world.begin(1, name="b", commit=2), Begun), "known names go on"
    assert isinstance(world.begin(0, name="job", once=True), Begun), "it will leave no hash"
    assert world.apply(encode_forget_transactions([], hashes_too=True)) == 1
    assert isinstance(world.begin(0, name="c"), Begun)
    world.gone.discard("a")
    assert isinstance(world.begin(0, name="a", commit=9), Begun), "nothing is left of it"


def test_bounds_on_open_tries_and_on_names_are_kept(world: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_TRIES_MAX", 1)
    first = world.begin(0)
    assert isinstance(world.begin(0, name="u"), Overloaded)
    second = world.begin(0, commit=2)
    assert isinstance(second, Begun) and second != first, "it takes the place of the one before"
    monkeypatch.setattr(limits, "OPEN_TRIES_MAX", 10)
    monkeypatch.setattr(limits, "OPEN_PARTICIPANTS_MAX", 3)
    assert isinstance(world.begin(0, name="u"), Overloaded)
    assert isinstance(world.begin(0, commit=3), Begun), "it takes the places of the one before"
    monkeypatch.setattr(limits, "OPEN_PARTICIPANTS_MAX", 10)
    monkeypatch.setattr(limits, "TRANSACTIONS_MAX", 1)
    assert isinstance(world.begin(0, name="u"), Overloaded)


def test_the_lowest_ranges_and_the_oldest_ends_are_dropped(world: Commits) -> None:
    count = limits.COMMITTED_RANGES_KEPT + 1
    for number in range(count):
        commit(world, 2 * number, number)
    row = world.machine.transaction("t")
    assert row is not None and len(row.done) == count - 1 and row.done[0] == (2, 2)
    assert len(row.ended) == limits.ENDED_COMMITS_KEPT
    world.committed.pop(("t", 0, 0))  # the clerk remembers more than is promised
    assert isinstance(world.begin(0, commit=1_000), SequencePassed)


# ------------------------------------------------------------------ whom it concerns


def test_what_changed_of_tries_is_told_once_and_everything_at_first(world: Commits) -> None:
    assert world.machine.take_changed_tries() is None
    assert world.machine.take_changed_tries() == []
    begun = world.begin(0)
    other = world.begin(0, name="u")
    world.begin(0)
    assert world.machine.take_changed_tries() == [begun.token, other.token]
    world.end(commits=(other.token,), aborts=(begun.token,))
    assert world.machine.take_changed_tries() == [other.token, begun.token]
    world.delete("orders")
    assert world.machine.take_changed_tries() == [other.token]


def test_who_never_asks_what_changed_is_told_to_look_at_everything(
    world: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_CHANGED_TRIES_MAX", 2)
    world.machine.take_changed_tries()
    for number in range(3):
        world.begin(0, name=f"t{number}")
    assert world.machine.take_changed_tries() is None
    world.begin(0, name="last")
    assert world.machine.take_changed_tries() == [world.index]


# ------------------------------------------------------------------ what no caller should send

FORGED: list[tuple[Kind, list[Any]]] = [
    (Kind.BEGIN_TRY, ["a/b", "me", 0, commit_id(1), [], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "", 0, commit_id(1), [], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", -1, commit_id(1), [], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, b"short", [], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [], 999, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [], 900_001, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [], 1_000, False, -1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [["orders", 1, [0, 0]]], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [["orders", 1, [0]], ["orders", 1, [0]]], 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [["orders", 1, []]] * 101, 1_000, False, 1]),
    (Kind.BEGIN_TRY, ["t", "me", 0, commit_id(1), [["orders", 1, list(range(1_001))]], 1_000, False, 1]),
    (Kind.ABORT_COMMIT, ["t", "me", b"", 1]),
    (Kind.ABORT_COMMIT, ["", "me", commit_id(1), 1]),
    (Kind.CLAIM_TRANSACTION, ["t", "..", False, 1]),
    (Kind.END_TRIES, [[1], [[2, "because"]], [], 1]),
]


@pytest.mark.parametrize(("kind", "values"), FORGED)
def test_whatever_lies_in_the_log_is_judged_again(world: Commits, kind: Kind, values: list[Any]) -> None:
    assert isinstance(world.apply(bytes((kind, 1)) + msgspec.msgpack.encode(values)), ValidationError)
    assert world.machine.transactions() == {}


def test_what_would_be_refused_there_is_refused_before_it_is_proposed() -> None:
    good: dict[str, Any] = {"timeout_ms": 1_000, "now_ms": 1}
    with pytest.raises(ValidationError, match="topics in one commit"):
        encode_begin_try("t", "me", 0, commit_id(1), [(f"t{one}", 1, [0]) for one in range(101)], **good)
    with pytest.raises(ValidationError, match="1001 partitions in one commit"):
        encode_begin_try("t", "me", 0, commit_id(1), [("t", 1, range(1_001))], **good)
    with pytest.raises(ValidationError, match="16 bytes"):
        encode_abort_commit("t", "me", b"", 1)


def test_the_largest_commands_fit_into_an_entry() -> None:
    longest = "n" * limits.NAME_LENGTH_MAX
    topics = [
        (longest[:-3] + f"{number:03}", 2**53, list(range(990, 1_000)))
        for number in range(limits.TRANSACTION_TOPICS_MAX)
    ]
    encode_begin_try(longest, longest, 2**53 - 1, commit_id(1), topics, timeout_ms=900_000, now_ms=2**53 - 1)
    tokens = range(2**53 - limits.TRIES_ENDED_AT_ONCE, 2**53)
    encode_end_tries([], [(token, AbortReason.SUPERSEDED) for token in tokens], [], 2**53 - 1)
    encode_forget_transactions([(longest, 2**53 - 1)] * limits.TRANSACTIONS_FORGOTTEN_AT_ONCE)
