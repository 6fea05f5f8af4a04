"""The state behind the commands, kept as rows: one for the counters, one for each topic.

`apply` is the only mutator, and it never raises for what an entry holds: a command that cannot be carried out has an
error as its result and leaves everything as it was. Otherwise one bad entry in the log would stop the broker at every
start. What changed since the last save is known by key, so a save writes only that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from lanner import limits
from lanner.cluster.commands import (
    PRODUCERS_PER_COMMAND_MAX,
    AllocateProducers,
    AlterTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    decode,
)
from lanner.errors import LannerError, Overloaded, TopicExists, TopicNotFound, ValidationError
from lanner.model import TopicSettings, check_name

_COUNTERS_KEY: Final = b"c"
_TOPICS_START: Final = b"t"
_TOPICS_STOP: Final = b"u"
FEATURE_LEVEL: Final = 1


class Rows(Protocol):
    """Where the saved state comes from."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]: ...


class Topic(NamedTuple):
    """One topic. Its incarnation tells it from an earlier one of the same name."""

    name: str
    incarnation: int
    settings: TopicSettings
    set_ids: tuple[int, ...]  # by partition
    created_ms: int


class Outcome(NamedTuple):
    """What applying an entry came to. The payloads of this machine need not stay readable."""

    result: Topic | int | LannerError | None
    live: bool = False
    released: tuple[tuple[int, tuple[int, ...] | None], ...] = ()
    deliverable: bool = False


class _Counters(msgspec.Struct, array_like=True):
    applied_index: int = 0
    next_set_id: int = 1  # 0 is this machine's own set
    next_incarnation: int = 1
    next_producer_id: int = 1  # 0 means no producer
    feature_level: int = FEATURE_LEVEL


class _TopicRow(msgspec.Struct, array_like=True, frozen=True):
    incarnation: int
    settings: dict[str, Any]
    set_ids: tuple[int, ...]
    created_ms: int


_decode_counters: Final = msgspec.msgpack.Decoder(_Counters).decode
_decode_topic: Final = msgspec.msgpack.Decoder(_TopicRow).decode


class Cluster:
    """Topics by name, and the counters that name new things."""

    def __init__(self, rows: Rows) -> None:
        counters = rows.get(_COUNTERS_KEY)
        self._counters = _Counters() if counters is None else _decode_counters(counters)
        self._topics: dict[str, Topic] = {}
        for key, value in rows.scan(_TOPICS_START, _TOPICS_STOP):
            name = key[len(_TOPICS_START) :].decode()
            row = _decode_topic(value)
            settings = TopicSettings.from_dict(row.settings)
            self._topics[name] = Topic(name, row.incarnation, settings, row.set_ids, row.created_ms)
        self._partition_count = sum(len(topic.set_ids) for topic in self._topics.values())
        self._dirty: set[bytes] = set()

    @property
    def topics(self) -> Mapping[str, Topic]:
        return MappingProxyType(self._topics)

    @property
    def applied_index(self) -> int:
        return self._counters.applied_index

    @property
    def partition_count(self) -> int:
        return self._partition_count

    # ------------------------------------------------------------------ the only mutator

    def apply(self, index: int, payload: bytes | None) -> Outcome:
        """Carry out one committed entry; None is an entry without a command."""
        if index <= self._counters.applied_index:
            raise AssertionError(f"entry {index} was applied before: {self._counters.applied_index} is the latest")
        self._counters.applied_index = index
        self._dirty.add(_COUNTERS_KEY)
        if payload is None:
            return Outcome(None)
        try:
            return Outcome(self._carry_out(decode(payload)))
        except LannerError as error:
            return Outcome(error)

    def _carry_out(self, command: Command) -> Topic | int:
        match command:
            case CreateTopic():
                return self._create(command)
            case AlterTopic():
                return self._alter(command)
            case DeleteTopic():
                return self._delete(command)
            case _:
                return self._allocate_producers(command)

    def _create(self, command: CreateTopic) -> Topic:
        name = check_name(command.name, "topic")
        if not 0 <= command.created_ms <= limits.TIME_MS_MAX:
            raise ValidationError("created_ms is out of bounds", field="created_ms")
        if name in self._topics:
            raise TopicExists(f"topic {name!r} exists already", topic=name)
        if len(self._topics) >= limits.TOPICS_MAX:
            raise Overloaded(f"there are {limits.TOPICS_MAX} topics, as many as there may be; delete one first")
        settings = TopicSettings.from_dict(command.settings)
        set_ids = self._new_sets(settings.partitions)
        topic = Topic(name, self._counters.next_incarnation, settings, set_ids, command.created_ms)
        self._counters.next_incarnation += 1
        self._put(topic)
        return topic

    def _alter(self, command: AlterTopic) -> Topic:
        topic = self._find(command.name)
        settings = topic.settings.changed(command.settings)
        growth = settings.partitions - len(topic.set_ids)
        if growth < 0:
            raise ValidationError(
                f"topic {topic.name!r} has {len(topic.set_ids)} partitions and cannot shrink to {settings.partitions}: "
                "their messages would have nowhere to go",
                field="partitions",
            )
        changed = topic._replace(settings=settings, set_ids=topic.set_ids + self._new_sets(growth))
        self._put(changed)
        return changed

    def _delete(self, command: DeleteTopic) -> Topic:
        topic = self._find(command.name)
        del self._topics[topic.name]
        self._partition_count -= len(topic.set_ids)
        self._dirty.add(_topic_key(topic.name))
        return topic

    def _allocate_producers(self, command: AllocateProducers) -> int:
        first = self._counters.next_producer_id
        if not 1 <= command.count <= PRODUCERS_PER_COMMAND_MAX or first + command.count > limits.OFFSET_MAX:
            raise ValidationError(f"{command.count} producer ids cannot be had", field="count")
        self._counters.next_producer_id = first + command.count
        return first

    # ------------------------------------------------------------------ parts of it

    def _find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name[: limits.NAME_LENGTH_MAX]!r} does not exist", topic=name)
        return topic

    def _new_sets(self, count: int) -> tuple[int, ...]:
        """Set ids for new partitions. The last check before a change, because it takes them."""
        if self._partition_count + count > limits.PARTITIONS_TOTAL_MAX:
            raise Overloaded(
                f"{self._partition_count} partitions and {count} more are over {limits.PARTITIONS_TOTAL_MAX}, "
                "as many as there may be; use fewer, or delete a topic first"
            )
        first = self._counters.next_set_id
        self._counters.next_set_id = first + count
        self._partition_count += count
        return tuple(range(first, first + count))

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._dirty.add(_topic_key(topic.name))

    # ------------------------------------------------------------------ saving

    def take_dirty(self) -> dict[bytes, bytes | None]:
        """The rows that changed since the last call; None: the row is gone."""
        dirty, self._dirty = self._dirty, set()
        return {key: self._encode(key) for key in sorted(dirty)}

    def all_rows(self) -> dict[bytes, bytes]:
        """The whole state, one canonical row for each thing in it."""
        keys = [_COUNTERS_KEY, *sorted(_topic_key(name) for name in self._topics)]
        encoded = {key: self._encode(key) for key in keys}
        return {key: value for key, value in encoded.items() if value is not None}

    def _encode(self, key: bytes) -> bytes | None:
        if key == _COUNTERS_KEY:
            return msgspec.msgpack.encode(self._counters)
        topic = self._topics.get(key[len(_TOPICS_START) :].decode())
        if topic is None:
            return None
        row = _TopicRow(topic.incarnation, topic.settings.to_dict(), topic.set_ids, topic.created_ms)
        return msgspec.msgpack.encode(row)

    def check(self) -> None:
        """Every invariant of the state."""
        counters = self._counters
        set_ids = [set_id for topic in self._topics.values() for set_id in topic.set_ids]
        incarnations = [topic.incarnation for topic in self._topics.values()]
        assert len(set(set_ids)) == len(set_ids) == self._partition_count <= limits.PARTITIONS_TOTAL_MAX
        assert all(0 < set_id < counters.next_set_id for set_id in set_ids)
        assert len(set(incarnations)) == len(incarnations) <= limits.TOPICS_MAX
        assert all(0 < incarnation < counters.next_incarnation for incarnation in incarnations)
        for name, topic in self._topics.items():
            assert name == topic.name == check_name(name)
            assert len(topic.set_ids) == topic.settings.partitions


def _topic_key(name: str) -> bytes:
    return _TOPICS_START + name.encode()
