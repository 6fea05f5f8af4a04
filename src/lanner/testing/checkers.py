"""The judges of a history: what was promised, and whether it was kept.

`judge` reads a history once for what lies in each partition, and once for each group through the plain model of a
queue. Every rule has a name; a history that breaks it must exist in the tests, because a checker that cannot fail is
a defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from lanner.testing.history import (
    Administered,
    Crashed,
    DeadSeen,
    Ended,
    Event,
    FloorSeen,
    History,
    Polled,
    Published,
    ReadBack,
    Settled,
    Status,
    Stored,
)
from lanner.testing.queue_model import QueueModel, Violation

_BYTES_MARGIN: Final = 0.9

RULES: Final = (
    "lost write",
    "unexpected message",
    "duplicate offset",
    "offset with two values",
    "acked message redelivered",
    "dead message delivered",
    "leased twice",
    "stale lease accepted",
    "settle forgotten",
    "message vanished",
    "delivery count went back",
    "delivered too often",
    "dead before the limit",
    "died unseen",
    "priority inversion",
    "message withheld",
    "lane out of order",
    "early delivery",
    "early retry",
    "late delivery",
    "floor went back",
)


def judge(history: History) -> list[Violation]:
    """Every broken rule, in no particular order; empty when every promise was kept."""
    parts = _by_partition(history)
    found: list[Violation] = []
    for partition, events in sorted(parts.items()):
        models = _follow_groups(history, partition, events)
        holding = _Holding(partition, events)
        found += holding.violations
        for ended in holding.endings:
            for model in models.values():
                if model.group in ended.drained:
                    dead = frozenset(offset for group, offset in ended.dead if group == model.group)
                    model.check_account((message.offset for message in ended.stored), dead, ended.machine_ms)
            found += _lost(history, holding, ended, models.values())
        for model in models.values():
            found += model.violations
    return found


def _by_partition(history: History) -> dict[int, list[Event]]:
    """The events of each partition; a crash belongs to all."""
    parts: dict[int, list[Event]] = {event.partition: [] for event in history.events if not isinstance(event, Crashed)}
    for event in history.events:
        if isinstance(event, Crashed):
            for events in parts.values():
                events.append(event)
        else:
            parts[event.partition].append(event)
    return parts


# ------------------------------------------------------------------ groups


def _points(events: Iterable[Event]) -> list[tuple[float, bool, Event]]:
    """Calls and returns in order of time; at the same moment calls come first, so that nothing is taken for earlier
    than it was."""
    points: list[tuple[float, bool, Event]] = []
    for event in events:
        points.append((event.called, False, event))
        if event.returned is not None:
            points.append((event.returned, True, event))
    points.sort(key=itemgetter(0, 1))
    return points


_OF_GROUPS: Final = (Polled, Settled, Administered, DeadSeen, FloorSeen)


def _follow_groups(history: History, partition: int, events: list[Event]) -> dict[str, QueueModel]:
    groups = {event.group for event in events if isinstance(event, Polled)}
    rules = history.rules_of(partition)
    delays_ms = sorted(event.deliver_at_ms for event in events if isinstance(event, Published) and event.deliver_at_ms)
    sent = {value: event for event in events if isinstance(event, Published) for value in event.values}
    models = {group: QueueModel(group, partition, rules, sent, delays_ms) for group in sorted(groups)}
    unheard = {event.values for event in events if isinstance(event, Published) and event.status is Status.UNKNOWN}
    streams: dict[str, QueueModel] = {}  # groups that only commit: no more than floors to follow
    for now, is_return, event in _points(events):
        if isinstance(event, Published):
            for model in models.values():
                if not is_return:
                    model.publish_called(event)
                    continue
                model.publish_ended(event, now)
                if event.status is Status.OK:
                    model.published(event, now, repeated=event.values in unheard)
        elif isinstance(event, Crashed):
            if not is_return:
                for model in models.values():
                    model.crashed(now)
        elif isinstance(event, _OF_GROUPS):
            known = models.get(event.group) or streams.get(event.group)
            if known is None:
                known = streams[event.group] = QueueModel(event.group, partition, rules)
            _tell(known, event, now, is_return=is_return)
    return {**models, **streams}


def _tell(
    model: QueueModel, event: Polled | Settled | Administered | DeadSeen | FloorSeen, now: float, *, is_return: bool
) -> None:
    if isinstance(event, Polled):
        if not is_return:
            model.poll_called(event, now)
        elif event.status is Status.OK:
            model.polled(event, now)
        elif event.status is Status.UNKNOWN:
            model.poll_over(event, now)
    elif isinstance(event, Settled):
        if is_return:
            model.settled(event, now)
        else:
            model.settle_called(event)
    elif isinstance(event, Administered):
        if is_return:
            model.administered(event, now)
        else:
            model.administer_called(event, now)
    elif is_return:
        if isinstance(event, DeadSeen):
            model.dead_seen(event)
        else:
            model.floor_seen(event)


# ------------------------------------------------------------------ what lies in a partition


class _Holding:
    """Which message was seen at which offset, by anybody, and which publishes explain it."""

    def __init__(self, partition: int, events: list[Event]) -> None:
        self.partition = partition
        self.violations: list[Violation] = []
        self.publishes = [event for event in events if isinstance(event, Published)]
        self.endings = [event for event in events if isinstance(event, Ended)]
        self._value_at: dict[int, str] = {}
        self._offset_of: dict[str, int] = {}
        self._allowed: set[str] = set()
        for event in self.publishes:
            if event.status is not Status.FAILED:
                self._allowed.update(event.values)
        self._claimed: dict[int, Published] = {}
        for event in self.publishes:
            if event.status is Status.OK and event.base_offset >= 0:
                self._claim(event)
        for offset, value in _sightings(events):
            self._see(offset, value)

    def _claim(self, event: Published) -> None:
        for offset, value in enumerate(event.values, start=event.base_offset):
            other = self._claimed.setdefault(offset, event)
            if other is not event and other.values != event.values:
                self._report("duplicate offset", f"{value!r} and a message of another batch both got offset {offset}")
            self._see(offset, value)

    def _see(self, offset: int, value: str) -> None:
        if value not in self._allowed:
            self._report("unexpected message", f"{value!r} at offset {offset} was never published, or was refused")
        known = self._value_at.setdefault(offset, value)
        if known != value:
            self._report("offset with two values", f"offset {offset} held {known!r} and then {value!r}")
        place = self._offset_of.setdefault(value, offset)
        if place != offset:
            self._report("duplicate offset", f"{value!r} lies at the offsets {place} and {offset}")

    def _report(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, self.partition, text))


def _sightings(events: Iterable[Event]) -> Iterator[tuple[int, str]]:
    for event in events:
        if isinstance(event, Polled | ReadBack):
            for message in event.messages:
                yield message.offset, message.value
        elif isinstance(event, Ended):
            for message in event.stored:
                yield message.offset, message.value
        elif isinstance(event, DeadSeen) and event.value:
            yield event.offset, event.value


def _lost(history: History, holding: _Holding, ended: Ended, models: Iterable[QueueModel]) -> list[Violation]:
    """Acknowledged messages that are not there and that no retention explains."""
    stored: dict[int, Stored] = {message.offset: message for message in ended.stored}
    retention = _Retention(history, holding, ended, list(models))
    found: list[Violation] = []
    for event in holding.publishes:
        if event.status is not Status.OK or event.base_offset < 0:
            continue
        for offset, value in enumerate(event.values, start=event.base_offset):
            held = stored.get(offset)
            if held is not None and held.value == value and held.priority == event.priority:
                continue
            if held is None and retention.may_take(event, offset):
                continue
            found.append(
                Violation("lost write", ended.partition, f"{value!r} was acknowledged at {offset}; there is {held}")
            )
    return found


class _Retention:
    """Whether retention explains that a message is gone."""

    def __init__(self, history: History, holding: _Holding, ended: Ended, models: list[QueueModel]) -> None:
        self._rules = history.rules_of(ended.partition)
        self._ended = ended
        self._models = models
        self._dead = {offset for _, offset in ended.dead}
        self._bytes_behind: dict[int, int] = {}
        self._first_called: dict[tuple[str, ...], float] = {}  # one that was sent again may have come at the first time
        for event in holding.publishes:
            self._first_called[event.values] = min(event.called, self._first_called.get(event.values, event.called))
        slack = 0  # what may be stored at an unknown place, or stays whatever its age
        placed: dict[int, int] = defaultdict(int)
        for event in holding.publishes:
            if event.status is Status.UNKNOWN or event.deliver_at_ms:
                slack += event.size
            if event.status is Status.OK and event.base_offset >= 0:
                placed[event.base_offset] = event.size
        behind = slack
        for base_offset in sorted(placed, reverse=True):
            behind += placed[base_offset]
            self._bytes_behind[base_offset] = behind

    def may_take(self, event: Published, offset: int) -> bool:
        rules, machine_ms = self._rules, self._ended.machine_ms
        if rules.retention == "none" or offset in self._dead:
            return False
        if rules.retention == "acked":
            before = [model for model in self._models if model.first_seen is not None]
            called = self._first_called[event.values]
            owed = [model for model in before if model.first_seen is not None and model.first_seen < called]
            return bool(before) and all(model.may_be_gone(offset, machine_ms) for model in owed)
        aged_from_ms = max(event.append_ms, event.deliver_at_ms)
        if rules.retention_ms and aged_from_ms + rules.retention_ms <= machine_ms:
            return True
        # What lies behind a delayed batch in its lane stays longer than its age says, and takes room from the others.
        return 0 < rules.retention_bytes * _BYTES_MARGIN < self._bytes_behind[event.base_offset]
