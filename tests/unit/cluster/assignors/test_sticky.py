"""The sticky assignor against a minimum that is found by trying every assignment, and mistakes that must be seen."""

from __future__ import annotations

from collections import Counter

import pytest

from lanner.cluster.assignors import Answer, Assignor, Question, Subscriber, sticky
from tests.unit.cluster.assignors.judge import History, check_answer, check_even, check_moves, check_order, loads_of

STEPS = 12
BOTH = frozenset({1, 2})


def judge(seed: int, *, equal: bool, racks: bool = False, assign: Assignor = sticky.assign) -> None:
    history = History(seed, equal=equal, racks=racks)
    for _ in range(STEPS):
        question = history.next_question()
        answer = assign(question)
        check_answer(question, answer)
        check_order(question, assign, answer)
        check_even(question, answer)
        check_moves(question, answer)
        history.present = answer


@pytest.mark.parametrize("first_seed", range(0, 120, 20))
def test_no_partition_moves_that_could_have_stayed_and_the_spread_is_at_most_one(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        judge(seed, equal=True)


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_with_unequal_subscriptions_no_move_helps_and_none_was_needless(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        judge(seed, equal=False)


@pytest.mark.parametrize("equal", [True, False])
def test_racks_decide_only_where_free_partitions_go(equal: bool) -> None:
    for seed in range(30 if equal else 100):
        judge(seed, equal=equal, racks=True)


# ------------------------------------------------------------------ mistakes, each seen by the judge


def start_afresh(question: Question) -> Answer:
    return sticky.assign(question._replace(present={}))


def give_extras_to_the_first(question: Question) -> Answer:
    """The members that have one more are not asked whether they have it already."""
    members, partition_ids = question.ranked(), question.partition_ids()
    low, extra = divmod(len(partition_ids), len(members))
    room = {one.number: low + (rank < extra) for rank, one in enumerate(members)}
    answer: Answer = {}
    for partition_id in partition_ids:
        number = question.present.get(partition_id, 0)
        if room.get(number, 0) > 0:
            answer[partition_id] = number
            room[number] -= 1
    for partition_id in partition_ids:
        if partition_id not in answer:
            number = next(number for number, left in room.items() if left > 0)
            answer[partition_id] = number
            room[number] -= 1
    return answer


def follow_the_order_of_the_list(question: Question) -> Answer:
    ranks = {one.number: rank for rank, one in enumerate(question.subscribers, 1)}
    numbers = {rank: number for number, rank in ranks.items()}
    members = tuple(one._replace(number=ranks[one.number]) for one in question.subscribers)
    present = {partition_id: ranks.get(number, 0) for partition_id, number in question.present.items()}
    found = sticky.assign(question._replace(subscribers=members, present=present))
    return {partition_id: numbers[rank] for partition_id, rank in found.items()}


def take_nothing_away(question: Question) -> Answer:
    topics = {one.number: one.topics for one in question.subscribers}
    kept = {
        partition_id: owner
        for partition_id, owner in question.present.items()
        if partition_id[0] in topics.get(owner, ())
    }
    return sticky.assign(question) | kept


def keep_what_nobody_wants_there(question: Question) -> Answer:
    numbers = {one.number for one in question.subscribers}
    found = sticky.assign(question)
    return found | {
        partition_id: number
        for partition_id, number in question.present.items()
        if number in numbers and partition_id in found
    }


def trade_for_nothing(question: Question) -> Answer:
    """Two members trade a partition for nothing."""
    answer = sticky.assign(question)
    for partition_id, number in answer.items():
        for other, owner in answer.items():
            topics = {one.number: one.topics for one in question.subscribers}
            if owner != number and partition_id[0] in topics[owner] and other[0] in topics[number]:
                return answer | {partition_id: owner, other: number}
    return answer


def bring_near_what_may_stay(question: Question) -> Answer:
    """What is far from its owner counts as free."""
    racks = {one.number: one.rack for one in question.subscribers}
    near = {
        partition_id: number
        for partition_id, number in question.present.items()
        if racks.get(number, "") in question.racks.get(partition_id, ())
    }
    return sticky.assign(question._replace(present=near))


def test_moves_towards_a_rack_are_seen() -> None:
    with pytest.raises(AssertionError, match="partitions stayed"):
        for seed in range(40):
            judge(seed, equal=True, racks=True, assign=bring_near_what_may_stay)


@pytest.mark.parametrize(
    ("wrong", "equal"),
    [
        (start_afresh, True),
        (give_extras_to_the_first, True),
        (follow_the_order_of_the_list, True),
        (take_nothing_away, True),
        (trade_for_nothing, True),
        (start_afresh, False),
        (take_nothing_away, False),
        (keep_what_nobody_wants_there, False),
    ],
)
def test_a_planted_mistake_is_seen(wrong: Assignor, equal: bool) -> None:
    with pytest.raises(AssertionError):
        for seed in range(40):
            judge(seed, equal=equal, assign=wrong)


# ------------------------------------------------------------------ by hand


def ask(count: int, *numbers: int, present: Answer | None = None) -> Question:
    return Question(tuple(Subscriber(number, frozenset({1})) for number in numbers), {1: count}, present or {})


def test_nobody_gets_anything_where_there_are_no_members() -> None:
    assert sticky.assign(Question((), {1: 4}, {(1, 0): 7})) == {}


def test_more_members_than_partitions_leave_the_last_to_join_without_any() -> None:
    assert sticky.assign(ask(2, 1, 2, 3)) == {(1, 0): 1, (1, 1): 2}


def test_a_member_that_comes_back_gets_its_share_and_nothing_else_moves() -> None:
    before = sticky.assign(ask(6, 1, 2, 3))
    without = sticky.assign(ask(6, 1, 3, present=before))
    assert all(without[partition_id] == number for partition_id, number in before.items() if number != 2)
    again = sticky.assign(ask(6, 1, 3, 4, present=without))
    assert sum(again[partition_id] != number for partition_id, number in without.items()) == 2


def test_a_thousand_members_that_double_move_half_of_the_partitions() -> None:
    half = sticky.assign(ask(10_000, *range(1, 501)))
    question = ask(10_000, *range(1, 1_001), present=half)
    whole = sticky.assign(question)
    assert set(loads_of(question, whole).values()) == {10}
    assert sum(whole[partition_id] != number for partition_id, number in half.items()) == 5_000


def test_a_free_partition_goes_to_a_member_in_a_rack_that_holds_a_copy() -> None:
    racks = {(1, at): frozenset({f"r{at % 3}"}) for at in range(9)}
    members = tuple(Subscriber(number, frozenset({1}), f"r{number}") for number in range(3))
    answer = sticky.assign(Question(tuple(one._replace(number=one.number + 1) for one in members), {1: 9}, {}, racks))
    assert answer == {(1, at): at % 3 + 1 for at in range(9)}


def test_where_its_racks_are_full_or_unknown_a_partition_goes_to_any_member() -> None:
    racks = {(1, at): frozenset({"r1"}) for at in range(3)}
    members = (Subscriber(1, frozenset({1}), "r1"), Subscriber(2, frozenset({1})), Subscriber(3, frozenset({1}), "r9"))
    answer = sticky.assign(Question(members, {1: 4}, {}, racks))
    assert Counter(answer.values()) == {1: 2, 2: 1, 3: 1}
    assert answer[1, 0] == answer[1, 1] == 1


def test_what_is_far_from_its_member_is_given_up_first() -> None:
    racks = {(1, at): frozenset({"near" if at else "far"}) for at in range(4)}
    members = (Subscriber(1, frozenset({1}), "near"), Subscriber(2, frozenset({1}), "near"))
    present = {(1, 0): 1, (1, 1): 1, (1, 2): 1, (1, 3): 2}
    assert sticky.assign(Question(members, {1: 4}, present, racks)) == present | {(1, 0): 2}


def test_a_member_gives_up_of_the_topic_that_it_has_most_of() -> None:
    members = (Subscriber(1, BOTH), Subscriber(2, BOTH))
    present = {(1, 0): 1, (1, 1): 1, (1, 2): 1, (2, 0): 1}
    answer = sticky.assign(Question(members, {1: 3, 2: 1}, present))
    assert answer == present | {(1, 1): 2, (1, 2): 2}
