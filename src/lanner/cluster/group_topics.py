"""Topics come, grow and go: what that does to the groups that want them."""

from __future__ import annotations

from lanner import limits
from lanner.cluster.grouped import NOBODY, Group, GroupTable
from lanner.cluster.ownership import advance, end_rebalance, give, unowned
from lanner.cluster.state import State, Topic
from lanner.errors import Overloaded


def check_growth(state: State, name: str, incarnation: int, count: int) -> None:
    """Refuse partitions that would put groups over their bound; incarnation 0: of a topic that is to be made."""
    table = state.groups
    groups = len(table.subscribed.get(incarnation, ())) if incarnation else len(_wanting(table, name))
    if table.partition_count + groups * count > limits.SUBSCRIBED_PARTITIONS_MAX:
        raise Overloaded(
            f"{groups} groups want topic {name!r}, and with {count} more partitions they would be over "
            f"{limits.SUBSCRIBED_PARTITIONS_MAX} subscribed partitions in all; use fewer, or stop some groups"
        )


def add_topic(state: State, topic: Topic) -> None:
    """A topic was made: groups that want it get its partitions, from the first message on."""
    for group in _wanting(state.groups, topic.name):
        advance(state, group, f"topic {topic.name} was created")
        state.groups.put_owners(group, topic.incarnation, topic.name, unowned(len(topic.set_ids), 0))
        for number, one in group.row.subscriptions.items():
            if one.wants(topic.name):
                group.wanted[number] |= {topic.incarnation}


def grow_topic(state: State, topic: Topic) -> None:
    for group in _subscribed(state.groups, topic.incarnation):
        if topic.incarnation in group.topics():
            advance(state, group, f"topic {topic.name} has {len(topic.set_ids)} partitions now")
        state.groups.grow_owners(group, topic.incarnation, len(topic.set_ids))


def drop_topic(state: State, topic: Topic) -> None:
    for group in _subscribed(state.groups, topic.incarnation):
        if topic.incarnation in group.topics():
            advance(state, group, f"topic {topic.name} was deleted")
        for partition, owner in enumerate(list(group.owners[topic.incarnation].owners)):
            if owner != NOBODY:
                give(state.groups, group, (topic.incarnation, partition), NOBODY, 0, NOBODY)
        state.groups.drop_owners(group, topic.incarnation)
        group.wanted = {number: topics - {topic.incarnation} for number, topics in group.wanted.items()}
        end_rebalance(state, group)


def _wanting(table: GroupTable, name: str) -> list[Group]:
    numbers = sorted(table.named.get(name, set()) | table.patterned)
    groups = (table.groups[number] for number in numbers)
    return [group for group in groups if any(one.wants(name) for one in group.row.subscriptions.values())]


def _subscribed(table: GroupTable, incarnation: int) -> list[Group]:
    return [table.groups[number] for number in sorted(table.subscribed.get(incarnation, ()))]
