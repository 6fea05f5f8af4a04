"""The most urgent first over several places, against a plain model of places that hold messages."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.calls.urgency import MANY, NOTHING, Ask, Urgency

ASKS_MAX = 64
LANES = st.lists(st.integers(0, 9), max_size=12)
PLACES = st.lists(LANES, min_size=1, max_size=5)
MB = 1 << 20


class Place:
    """Messages by lane, each of one byte; gives the most urgent first, as a broker does."""

    def __init__(self, lanes: list[int]) -> None:
        self.lanes = sorted(lanes, reverse=True)

    @property
    def best(self) -> int:
        return self.lanes[0] if self.lanes else NOTHING

    def poll(self, ask: Ask[int]) -> list[int]:
        found = [lane for lane in self.lanes if lane >= ask.min_priority][: min(ask.max_messages, ask.max_bytes)]
        del self.lanes[: len(found)]
        return found

    @property
    def count(self) -> int:
        return self.lanes.count(self.best)


def seen(places: list[Place], urgency: Urgency[int]) -> None:
    for number, place in enumerate(places):
        urgency.see(number, place.best, number)


def take(places: list[Place], urgency: Urgency[int]) -> tuple[list[int], int]:
    """One place after the other; what came, and how many asks it took."""
    taken: list[int] = []
    asks = 0
    while (ask := urgency.next()) is not None:
        found = places[ask.place].poll(ask)
        urgency.took(ask, len(found), len(found), places[ask.place].best)
        taken += found
        asks += 1
    return taken, asks


@given(PLACES, st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_a_poll_gets_the_most_urgent_of_all_places_in_order(
    lanes: list[list[int]], max_messages: int, max_bytes: int, min_priority: int
) -> None:
    places = [Place(one) for one in lanes]
    urgency: Urgency[int] = Urgency(max_messages, max_bytes, 1_000, min_priority)
    seen(places, urgency)
    taken, asks = take(places, urgency)
    everything = sorted((lane for one in lanes for lane in one if lane >= min_priority), reverse=True)
    assert taken == everything[: min(max_messages, max_bytes)]
    assert asks <= 10 * len(places)


@given(PLACES, st.integers(1, 40), st.integers(0, 2**32))
def test_places_asked_together_never_give_more_than_the_poll_wants_nor_the_less_urgent_first(
    lanes: list[list[int]], max_messages: int, seed: int
) -> None:
    chance = random.Random(seed)
    places = [Place(one) for one in lanes]
    urgency: Urgency[int] = Urgency(max_messages, MB, 1_000)
    exact = True
    for number, place in enumerate(places):
        said = chance.choice((MANY, place.count, place.count + chance.randrange(3)))
        exact = exact and said in (MANY, place.count)
        urgency.see(number, place.best, number, said)
    asked: list[Ask[int]] = []
    taken: list[int] = []
    asks = 0
    while True:
        while (ask := urgency.next()) is not None:
            asked.append(ask)
            asks += 1
            assert len(taken) + sum(one.max_messages for one in asked) <= max_messages
        if not asked:
            break
        answering = asked.pop(chance.randrange(len(asked)))
        found = places[answering.place].poll(answering)
        place = places[answering.place]
        urgency.took(answering, len(found), len(found), place.best, chance.choice((MANY, place.count)))
        taken += found
    wanted = min(max_messages, sum(map(len, lanes)))
    # Room that was kept for messages of which a place had fewer than it said is filled by the next poll.
    assert len(taken) == wanted if exact else min(1, wanted) <= len(taken) <= wanted
    assert asks <= 10 * len(places)
    assert taken == sorted(taken, reverse=True)
    left = [lane for place in places for lane in place.lanes]
    assert not taken or not left or min(taken) >= max(left)


@given(PLACES, st.integers(1, 40))
def test_a_place_that_fails_takes_nothing_from_what_the_others_give(lanes: list[list[int]], max_messages: int) -> None:
    places = [Place(one) for one in lanes]
    urgency: Urgency[int] = Urgency(max_messages, MB, 1_000)
    seen(places, urgency)
    taken: list[int] = []
    while (ask := urgency.next()) is not None:
        found = places[ask.place].poll(ask) if ask.place else []
        urgency.took(ask, len(found), len(found), places[ask.place].best if ask.place else NOTHING)
        taken += found
    others = sorted((lane for one in lanes[1:] for lane in one), reverse=True)
    assert taken == others[:max_messages]


def test_a_poll_ends_although_messages_keep_coming() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    urgency.see("a", 4)
    urgency.see("b", 4)
    asked = []
    while (ask := urgency.next()) is not None:
        asked.append(ask.place)
        urgency.took(ask, 1, 1, 4)
    assert sorted(asked) == ["a", "b"]


def test_nothing_less_urgent_is_taken_than_a_place_that_is_not_asked_again_has() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    urgency.see("a", 9)
    urgency.see("b", 4)
    ask = urgency.next()
    assert ask == ("a", 4, 100, MB)
    urgency.took(ask, 1, 1, 9)
    assert urgency.next() is None and urgency.left == 9


def test_a_place_at_its_bound_does_not_keep_the_others_from_being_asked() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    urgency.see("bound", 9)
    urgency.see("b", 4)
    first = urgency.next()
    assert first is not None and first.place == "bound"
    urgency.took(first, 0, 0, 9)
    second = urgency.next()
    assert second is not None and (second.place, second.min_priority) == ("b", 0)


def test_the_less_urgent_waits_for_the_answers_of_equals_that_are_asked_together_for_what_they_have() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    for place, lane, rank, count in (("a", 7, 1, 5), ("b", 7, 2, 20), ("c", 3, 3, 1)):
        urgency.see(place, lane, rank, count)
    first, second, third = urgency.next(), urgency.next(), urgency.next()
    assert first == ("b", 7, 20, MB // 2) and second == ("a", 7, 80, MB // 2) and third is None
    urgency.took(second, 5, 10)
    assert urgency.next() is None
    urgency.took(first, 20, 20)
    assert urgency.next() == ("c", 0, 75, MB - 30)


def test_a_place_that_has_enough_fills_the_poll_alone() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    urgency.see("a", 7, 2, 100)
    urgency.see("b", 7, 1, 3)
    assert urgency.next() == ("a", 7, 100, MB)
    assert urgency.next() is None


def test_a_poll_of_many_steps_ends_at_its_bound() -> None:
    urgency: Urgency[int] = Urgency(100, MB, 3)
    for place in range(5):
        urgency.see(place, 4)
    for _ in range(3):
        ask = urgency.next()
        assert ask is not None
        urgency.took(ask, 1, 1)
    assert urgency.next() is None


def test_a_place_that_can_be_asked_once_only_is_not_asked_again_and_holds_the_others_back() -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX)
    for place, lane in (("a", 9), ("b", 7), ("c", 3)):
        urgency.see(place, lane)
    for place, floor, left in (("a", 7, 5), ("b", 5, NOTHING)):
        ask = urgency.next()
        assert ask is not None and (ask.place, ask.min_priority) == (place, floor)
        urgency.took(ask, 1, 1, left, again=False)
    assert urgency.next() is None and urgency.left == 5


@pytest.mark.parametrize("lane", [NOTHING, 3])
def test_a_place_that_has_nothing_urgent_enough_any_more_is_not_asked(lane: int) -> None:
    urgency: Urgency[str] = Urgency(100, MB, ASKS_MAX, min_priority=4)
    urgency.see("a", 9)
    urgency.see("a", lane)
    assert urgency.next() is None
