"""The dead letters of a group as a stream: each death has a number, and numbers rise in the order of the decisions.

From level 3 on a group numbers its deaths from the first one on. Those of a group that had dead letters before get
theirs when somebody first reads the stream, by the time of their death and by offset, at once. So a message that was
redriven and died again has another number, behind those that died meanwhile. A number that is no longer there was
redriven or discarded: a hole for those who had not read it. Numbers are per group and partition, are stored with what
is dead, and begin anew only with a group that was dropped and made again, which has another id.
"""

from __future__ import annotations

from typing import NamedTuple

from lanner.model import GroupKind
from lanner.partition.batches import BatchRef
from lanner.partition.groups import Group
from lanner.partition.state import State


class DeadRun(NamedTuple):
    """Messages of one batch that follow each other and died together; their numbers follow each other too."""

    number: int
    first_offset: int
    count: int  # type: ignore[assignment]
    attempts: int
    reason: str
    died_ms: int
    ref: BatchRef


class DeadStretch(NamedTuple):
    """What a group's dead letters hold from a number on, up to next_number."""

    runs: list[DeadRun]
    holes: list[tuple[int, int]]  # first and next number
    next_number: int
    first_number: int  # of all that are dead
    end_number: int  # which the next message to die gets
    group_id: int  # 0: there is no such group here


def is_numbered(group: Group) -> bool:
    return group.dead_numbers.end >= 0


def dead_stretch(state: State, name: str, number: int, limit: int) -> DeadStretch:
    """At most so many messages, from a number on. The group's dead are numbered, or it is not there."""
    group = state.groups.get(name)
    if group is None or group.kind is not GroupKind.QUEUE or not is_numbered(group):
        return DeadStretch([], [], number, 0, 0, 0 if group is None else group.id)
    numbers = group.dead_numbers
    runs: list[DeadRun] = []
    holes: list[tuple[int, int]] = []
    for entry in group.dead_from_number(number):
        if limit <= 0:
            break
        behind = max(0, number - entry.number)
        if entry.number > number:
            holes.append((number, entry.number))
        part = entry.part(entry.place + behind, min(entry.count - behind, limit))
        limit -= part.count
        number = part.number + part.count
        offset, end = part.first_offset, part.first_offset + part.count
        while offset < end:
            ref = state.batch(offset)
            assert ref is not None
            count = min(end, ref.base_offset + ref.count) - offset
            first = part.number + offset - part.first_offset
            runs.append(DeadRun(first, offset, count, part.attempts, part.reason, part.time_ms, ref))
            offset += count
    else:
        if number < numbers.end:
            holes.append((number, numbers.end))
            number = numbers.end
    return DeadStretch(runs, holes, number, numbers.first(), numbers.end, group.id)
