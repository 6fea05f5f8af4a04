"""How a group's generation goes on and its partitions change hands, and what is remembered of rebalances.

The steps that the rules of `grouping` and `group_topics` are made of. None of them checks anything.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lanner import limits
from lanner.cluster.grouped import NOBODY, Group, GroupTable, OwnersRow, Rebalance
from lanner.cluster.state import State
from lanner.model import TopicPartitionId


def advance(state: State, group: Group, reason: str = "", **changes: Any) -> int:
    """Begin another generation; with a reason, also another version of the question that assignors answer."""
    row, now_ms = group.row, state.counters.machine_ms
    changes |= {"generation": row.generation + 1, "generation_ms": now_ms}
    if reason:
        changes |= {"version": row.version + 1, "changed_ms": now_ms, "reason": reason}
    state.groups.put_group(group, replace(row, **changes))
    return row.generation + 1


def give(table: GroupTable, group: Group, partition_id: TopicPartitionId, owner: int, grant: int, heir: int) -> None:
    group.note_seen(group.owner_of(partition_id)[0])
    group.set_owner(partition_id, owner, grant, heir)
    group.note_seen(owner)
    table.touch_owners(group, partition_id[0])


def pass_on(table: GroupTable, group: Group, partition_id: TopicPartitionId) -> None:
    """The owner is out: the heir gets a grant of the present generation, else nobody owns the partition."""
    _, _, heir = group.owner_of(partition_id)
    give(table, group, partition_id, heir, group.row.generation if heir else 0, NOBODY)


def note_rebalance(state: State, group: Group, moved: int) -> None:
    row, now_ms = group.row, state.counters.machine_ms
    total = sum(len(group.owners[topic].owners) for topic in group.topics())
    kept = row.rebalances
    if kept and (kept[-1].begun_ms, kept[-1].reason) == (row.changed_ms, row.reason):
        moved, kept = moved + kept[-1].moved, kept[:-1]  # an assignment that took more than one change
    one = Rebalance(row.changed_ms, row.reason, moved, total, 0 if group.handing_over else now_ms)
    state.groups.put_group(group, replace(row, rebalances=(*kept, one)[-limits.REBALANCES_KEPT :]))


def end_rebalance(state: State, group: Group) -> None:
    """Note when the last partition of a rebalance has changed hands."""
    row = group.row
    if row.rebalances and row.rebalances[-1].ended_ms == 0 and not group.handing_over:
        last = replace(row.rebalances[-1], ended_ms=state.counters.machine_ms)
        state.groups.put_group(group, replace(row, rebalances=(*row.rebalances[:-1], last)))


def unowned(count: int, first: int) -> OwnersRow:
    return OwnersRow([NOBODY] * count, [0] * count, [NOBODY] * count, first)
