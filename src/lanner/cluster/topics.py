"""Topics come, grow and go: the commands about them. A topic's partitions are replica sets, placed when it is made."""

from __future__ import annotations

from dataclasses import replace

from lanner import features, limits
from lanner.cluster.commands import AlterTopic, CreateTopic, DeleteTopic, check_time
from lanner.cluster.group_topics import add_topic, check_growth, drop_topic, grow_topic
from lanner.cluster.moving import drop_move, open_plan
from lanner.cluster.placement import place_sets, resolve_replication
from lanner.cluster.planning import add_missing, drop_surplus
from lanner.cluster.settings import check_settings
from lanner.cluster.state import State, Topic
from lanner.cluster.transactions import end_tries_of
from lanner.cluster.values import PlanKind
from lanner.errors import Overloaded, TopicExists, TopicNotFound, ValidationError
from lanner.model import TopicSettings, check_name


def create_topic(state: State, command: CreateTopic) -> Topic:
    name = check_name(command.name, "topic")
    check_time(command.created_ms, "created_ms")
    existing = state.topics.get(name)
    if existing is not None:
        if command.create_id and existing.create_id == command.create_id:
            return existing  # the same create, asked again
        raise TopicExists(f"topic {name!r} exists already", topic=name)
    if len(state.topics) >= limits.TOPICS_MAX:
        raise Overloaded(f"there are {limits.TOPICS_MAX} topics, as many as there may be; delete one first")
    check_settings(command.settings, state.counters.feature_level)
    given = TopicSettings.from_dict(command.settings)
    settings = replace(given, replication=resolve_replication(state, given.replication))
    check_growth(state, name, 0, settings.partitions)
    made = (command.created_ms, command.create_id, _grows(state, given))
    topic = Topic(name, state.counters.next_incarnation, settings, (), *made)
    topic = _grown(state, topic, settings.partitions)
    state.counters.next_incarnation += 1
    state.put_topic(topic)
    add_topic(state, topic)
    return topic


def alter_topic(state: State, command: AlterTopic) -> Topic:
    topic = _find(state, command.name)
    check_settings(command.settings, state.counters.feature_level)
    settings = topic.settings.changed(command.settings)
    grows = _grows(state, settings) if "replication" in command.settings else topic.grows
    growth = settings.partitions - len(topic.set_ids)
    if growth < 0:
        raise ValidationError(
            f"topic {topic.name!r} has {len(topic.set_ids)} partitions and cannot shrink to {settings.partitions}: "
            "their messages would have nowhere to go",
            field="partitions",
        )
    if growth or settings.replication != topic.settings.replication:
        settings = replace(settings, replication=resolve_replication(state, settings.replication))
    check_growth(state, topic.name, topic.incarnation, growth)
    changed = _grown(state, topic._replace(settings=settings, grows=grows), growth)
    state.put_topic(changed)
    if growth:
        grow_topic(state, changed)
    if state.founded and settings.replication != topic.settings.replication:
        _change_replication(state, topic, settings.replication)
    return changed


def delete_topic(state: State, command: DeleteTopic) -> Topic:
    topic = _find(state, command.name)
    gone = set(topic.set_ids)
    for move in [move for move in state.moves.values() if move.set_id in gone]:
        drop_move(state, move)
    for set_id in topic.set_ids:
        if set_id in state.sets:
            state.drop_set(set_id)
    end_tries_of(state, gone)
    drop_topic(state, topic)
    state.drop_topic(topic.name)
    state.partition_count -= len(topic.set_ids)
    state.unsettled = True
    return topic


def _grows(state: State, given: TopicSettings) -> bool:
    """Whether a topic gets more replicas as brokers come: it asked for as many as there are."""
    return given.replication == 0 and state.counters.feature_level >= features.COPIES


def _find(state: State, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise TopicNotFound(f"topic {name[: limits.NAME_LENGTH_MAX]!r} does not exist", topic=name)
    return topic


def _grown(state: State, topic: Topic, count: int) -> Topic:
    """The topic with more partitions. The last check before a change, because it takes their set ids."""
    if state.partition_count + count > limits.PARTITIONS_TOTAL_MAX:
        raise Overloaded(
            f"{state.partition_count} partitions and {count} more are over {limits.PARTITIONS_TOTAL_MAX}, "
            "as many as there may be; use fewer, or delete a topic first"
        )
    first = state.counters.next_set_id
    set_ids = tuple(range(first, first + count))
    state.counters.next_set_id = first + count
    state.partition_count += count
    if state.founded:
        place_sets(state, topic.name, len(topic.set_ids), set_ids, topic.settings.replication)
    return topic._replace(set_ids=topic.set_ids + set_ids)


def _change_replication(state: State, before: Topic, replication: int) -> None:
    plan_id = open_plan(state, PlanKind.REPLICATION)
    add_missing(state, plan_id, before.set_ids, replication)
    drop_surplus(state, plan_id, before.set_ids, replication)
