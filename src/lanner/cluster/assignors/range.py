"""Each topic by itself, in consecutive ranges: the same partition of topics of one size goes to the same member."""

from __future__ import annotations

from builtins import range as numbers

from lanner.cluster.assignors.question import Answer, Question


def assign(question: Question) -> Answer:
    found: Answer = {}
    for topic, count in sorted(question.topics.items()):
        takers = [one.number for one in question.ranked() if topic in one.topics]
        if not takers:
            continue
        low, extra = divmod(count, len(takers))
        first = 0
        for rank, number in enumerate(takers):
            end = first + low + (rank < extra)
            found |= {(topic, at): number for at in numbers(first, end)}
            first = end
    return found
