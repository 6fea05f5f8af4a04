"""The assignors that do not look at who has what."""

from __future__ import annotations

import pytest

from lanner.cluster.assignors import ASSIGNORS, Question, Subscriber
from tests.unit.cluster.assignors.judge import History, check_answer, check_order

A, B, BOTH = frozenset({1}), frozenset({2}), frozenset({1, 2})


def test_range_deals_each_topic_in_consecutive_parts() -> None:
    question = Question((Subscriber(1, BOTH), Subscriber(2, BOTH), Subscriber(3, A)), {1: 4, 2: 3, 3: 9}, {})
    assert ASSIGNORS["range"](question) == {
        (1, 0): 1,
        (1, 1): 1,
        (1, 2): 2,
        (1, 3): 3,
        (2, 0): 1,
        (2, 1): 1,
        (2, 2): 2,
    }


def test_round_robin_goes_on_where_it_stopped_and_passes_over_members_that_do_not_want_a_topic() -> None:
    question = Question((Subscriber(2, BOTH), Subscriber(1, A), Subscriber(3, BOTH)), {1: 4, 2: 2}, {})
    assert ASSIGNORS["round_robin"](question) == {(1, 0): 1, (1, 1): 2, (1, 2): 3, (1, 3): 1, (2, 0): 2, (2, 1): 3}


def test_shared_gives_nobody_a_partition() -> None:
    assert ASSIGNORS["shared"](Question((Subscriber(1, A),), {1: 4}, {(1, 0): 1})) == {}


@pytest.mark.parametrize("name", ["sticky", "range", "round_robin"])
def test_every_wanted_partition_has_one_owner_who_wants_it_in_whatever_order_members_are_listed(name: str) -> None:
    assign = ASSIGNORS[name]
    for seed in range(60):
        history = History(seed, equal=False)
        for _ in range(12):
            question = history.next_question()
            answer = assign(question)
            check_answer(question, answer)
            check_order(question, assign, answer)
            history.present = answer


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_without_members_nobody_owns_anything(name: str) -> None:
    assert ASSIGNORS[name](Question((), {1: 4}, {})) == {}
