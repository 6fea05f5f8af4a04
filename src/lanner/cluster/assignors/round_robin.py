"""All partitions dealt out in order, one to each member in turn. A member that does not want a topic is passed over."""

from __future__ import annotations

from lanner.cluster.assignors.question import Answer, Question


def assign(question: Question) -> Answer:
    ring = question.ranked()
    found: Answer = {}
    turn = 0
    for partition_id in question.partition_ids():
        while partition_id[0] not in ring[turn % len(ring)].topics:
            turn += 1
        found[partition_id] = ring[turn % len(ring)].number
        turn += 1
    return found
