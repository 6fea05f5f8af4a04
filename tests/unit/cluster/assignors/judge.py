"""What an answer of an assignor is held against: the promises, and a minimum found by trying every assignment."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping

from lanner.cluster.assignors import Answer, Assignor, Question, Subscriber
from lanner.model import TopicPartitionId

RACKS = ("", "r1", "r2")  # the first: none


def check_answer(question: Question, answer: Answer) -> None:
    """Every wanted partition has one owner, who wants it."""
    topics = {one.number: one.topics for one in question.subscribers}
    wanted = set().union(*topics.values())
    assert set(answer) == {(topic, at) for topic in wanted for at in range(question.topics.get(topic, 0))}
    assert all(partition_id[0] in topics[number] for partition_id, number in answer.items()), (
        "an owner that does not subscribe"
    )


def loads_of(question: Question, answer: Answer) -> dict[int, int]:
    counts = Counter(answer.values())
    return {one.number: counts[one.number] for one in question.subscribers}


def check_even(question: Question, answer: Answer) -> None:
    """No partition could go to a subscriber that has at least two fewer."""
    loads = loads_of(question, answer)
    for partition_id, number in answer.items():
        for one in question.subscribers:
            assert partition_id[0] not in one.topics or loads[number] - loads[one.number] <= 1, f"uneven: {loads}"


def count_kept(answer: Answer, question: Question) -> int:
    return sum(answer.get(partition_id) == number for partition_id, number in question.present.items())


def most_kept(question: Question) -> int:
    """The most partitions that may stay with their members, over every even assignment. For equal subscriptions."""
    numbers = [one.number for one in question.subscribers]
    partition_ids = question.partition_ids()
    best = -1
    for choice in itertools.product(numbers, repeat=len(partition_ids)):
        counts = [choice.count(number) for number in numbers]
        if max(counts) - min(counts) <= 1:
            best = max(best, count_kept(dict(zip(partition_ids, choice, strict=True)), question))
    return best


def check_moves(question: Question, answer: Answer) -> None:
    """With equal subscriptions no assignment keeps more; else no single move could be taken back."""
    members = question.subscribers
    if all(one.topics == members[0].topics for one in members):
        kept, best = count_kept(answer, question), most_kept(question)
        assert kept == best, f"{kept} partitions stayed, {best} could have"
        return
    loads, topics = loads_of(question, answer), {one.number: one.topics for one in members}
    for partition_id, before in question.present.items():
        now = answer.get(partition_id, before)
        if now != before and partition_id[0] in topics.get(before, ()):
            assert loads[before] >= loads[now], f"{partition_id} moved from {before} to {now} for nothing: {loads}"


def check_order(question: Question, assign: Assignor, answer: Answer) -> None:
    """The order in which members, topics and owners are listed decides nothing."""
    shuffled = list(question.subscribers)
    random.Random(1).shuffle(shuffled)
    topics, present = dict(reversed(question.topics.items())), dict(reversed(question.present.items()))
    backwards = Question(tuple(shuffled), topics, present, question.racks)
    assert assign(backwards) == answer, "the order of the members decides"


class History:
    """Members join and leave, topics grow, subscriptions change; the answer before is the present one after.

    With racks members stand somewhere, or nowhere, and copies are here and there: they move with every question.
    """

    def __init__(self, seed: int, *, equal: bool, racks: bool = False) -> None:
        self._rng = random.Random(seed)
        self._equal = equal
        self._racks = racks
        self._topics = {1: self._rng.randint(1, 3), 2: self._rng.randint(0, 2)}
        self._members: list[Subscriber] = []
        self._number = 0
        self.present: Mapping[TopicPartitionId, int] = {}

    def next_question(self) -> Question:
        self._change(self._rng.choice("jjlg" if self._equal else "jjlgs"))
        if self._rng.random() < 0.1:  # any starting point: another assignor was in use before
            numbers = [one.number for one in self._members] or [0]
            self.present = {partition_id: self._rng.choice(numbers) for partition_id in self.present}
        question = Question(tuple(self._members), dict(self._topics), dict(self.present))
        return question._replace(racks=self._choose_racks(question)) if self._racks else question

    def _change(self, kind: str) -> None:
        rng, members = self._rng, self._members
        if (kind == "j" and len(members) < 4) or not members:
            self._number += 1
            rack = rng.choice(RACKS) if self._racks else ""
            members.append(Subscriber(self._number, self._choose_topics(), rack))
        elif kind == "l" and len(members) > 1:
            members.remove(rng.choice(members))
        elif kind == "g" and sum(self._topics.values()) < 6:
            self._topics[rng.choice((1, 2))] += 1
        elif kind == "s":
            place = rng.randrange(len(members))
            members[place] = members[place]._replace(topics=self._choose_topics())

    def _choose_racks(self, question: Question) -> dict[TopicPartitionId, frozenset[str]]:
        rng, known = self._rng, question.partition_ids()
        return {one: frozenset(rng.sample(RACKS, rng.randrange(3))) - {""} for one in known if rng.random() < 0.8}

    def _choose_topics(self) -> frozenset[int]:
        both = frozenset({1, 2})
        return both if self._equal else self._rng.choice((frozenset({1}), frozenset({2}), both))
