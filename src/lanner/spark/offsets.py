"""Which messages a read covers: the options of Spark's Kafka connector, and what they mean for a topic as it is now.

Pure: text and known ranges in, ranges out. An option that cannot be meant is refused with an error that shows how to
write it; nothing is guessed and nothing is silently left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from lanner import limits
from lanner.errors import OffsetOutOfRange, ValidationError

EARLIEST: Final = -2
LATEST: Final = -1
STARTING: Final = "startingOffsets"
ENDING: Final = "endingOffsets"
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EXAMPLE: Final = '{"orders": {"0": 23, "1": -2}}'
_TEXT_LENGTH_MAX: Final = 1 * limits.MIB


class Held(NamedTuple):
    """What a partition holds: offsets first_offset up to, not including, end_offset."""

    first_offset: int
    end_offset: int
    incarnation: int = 0  # of the topic; 0: whichever there is
    group_id: int = 0  # of the group whose dead letters these are


Topics: TypeAlias = Mapping[str, Mapping[int, Held]]
Moments: TypeAlias = Mapping[tuple[str, int, int], int]  # topic, partition and moment → offset


class Span(NamedTuple):
    """What is read of a partition: [start_offset, end_offset)."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    incarnation: int = 0
    group_id: int = 0  # of the group whose dead letters are read: then the offsets are numbers


class Bound(NamedTuple):
    """One end of a read, as the option gives it: the same for every partition, or each by its own number.

    By time the numbers are moments in ms: `located` makes a bound by offsets of it.
    """

    which: str
    everywhere: int | None  # EARLIEST or LATEST; or a moment
    by_partition: Mapping[str, Mapping[int, int]]
    by_time: bool = False

    @property
    def starts(self) -> bool:
        return self.which.startswith("starting")

    def times(self, topic: str) -> set[int]:
        """The moments whose offsets in this topic must be known."""
        if not self.by_time:
            return set()
        return set(self.by_partition.get(topic, {}).values()) if self.everywhere is None else {self.everywhere}


def parse_bound(which: str, text: str, *, may_be_empty: bool = False) -> Bound:
    """An option's text. A read that could only be empty (from the latest, to the earliest) is refused."""
    senseless = None if may_be_empty else LATEST if which == STARTING else EARLIEST
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        if word == senseless:
            _refuse(
                which, f"a batch read cannot {'start at the latest' if which == STARTING else 'end at the earliest'}"
            )
        return Bound(which, word, {})
    return Bound(which, None, _parse_json(which, text, senseless))


def parse_moment(which: str, text: str) -> Bound:
    """One moment for every partition."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= limits.TIME_MS_MAX):
        raise ValidationError(
            f"option {which}: {text[:80]!r} is not a moment: give milliseconds since 1970, like 1800000000000",
            field=which,
        )
    return Bound(which, int(text), {}, True)


def parse_moments(which: str, text: str) -> Bound:
    """A moment for every partition of every topic."""
    times = _parse_json(which, text, None)
    for topic, one in times.items():
        for partition, moment in one.items():
            if not 0 <= moment <= limits.TIME_MS_MAX:
                _refuse(which, f"{moment} is not a moment of {topic}/{partition}")
    return Bound(which, None, times, True)


def located(bound: Bound, topics: Topics, at: Moments, latest_when_late: bool = False) -> Bound:
    """A bound by time as one by offsets, given the first offset at or after each moment (None: there is none yet).

    A start after everything that was appended is an error unless `latest_when_late`; an end there is the latest.
    """
    if not bound.by_time:
        return bound
    check_coverage(bound, topics)
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in topics.items():
        for partition, held in partitions.items():
            moment = bound.everywhere if bound.everywhere is not None else bound.by_partition[topic][partition]
            offset = at.get((topic, partition, moment))
            if offset is None and bound.starts and not latest_when_late:
                raise OffsetOutOfRange(
                    f"option {bound.which}: nothing was appended to {topic}/{partition} at or after {moment}; to begin "
                    'at the latest there, say .option("startingOffsetsByTimestampStrategy", "latest")',
                    field=bound.which,
                )
            within = None if offset is None else min(max(offset, held.first_offset), held.end_offset)
            found.setdefault(topic, {})[partition] = LATEST if within is None else within
    return Bound(bound.which, None, found)


def _parse_json(which: str, text: str, senseless: int | None) -> dict[str, dict[int, int]]:
    if len(text) > _TEXT_LENGTH_MAX:
        _refuse(which, f"it is longer than {_TEXT_LENGTH_MAX} characters")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        _refuse(which, f"{text[:80]!r} is neither a word nor JSON")
    if not isinstance(given, dict) or not all(isinstance(offsets, dict) for offsets in given.values()):
        _refuse(which, f"{text[:80]!r} does not map topics to partitions to offsets")
    return {
        topic: {
            _partition(which, topic, name): _offset(which, topic, name, value, senseless) for name, value in one.items()
        }
        for topic, one in given.items()
    }


def _partition(which: str, topic: str, name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        _refuse(which, f"{name[:80]!r} is not a partition of {topic!r}")
    return int(name)


def _offset(which: str, topic: str, partition: str, value: Any, senseless: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= limits.OFFSET_MAX:
        _refuse(which, f"{str(value)[:80]!r} is not an offset of {topic}/{partition}")
    if value == senseless:
        _refuse(which, f"{topic}/{partition} cannot be {value} there: a batch read of it would be empty")
    return value


def _refuse(which: str, why: str) -> NoReturn:
    if "Timestamp" in which:
        raise ValidationError(
            f"option {which}: {why}. Give a moment in milliseconds for every partition of every topic as JSON, like "
            '{"orders": {"0": 1800000000000}}',
            field=which,
        )
    word = "earliest" if which == STARTING else "latest"
    raise ValidationError(
        f"{which}: {why}. Give {word!r}, or an offset for every partition of every topic as JSON, like {_EXAMPLE}, "
        f"where -2 means earliest and -1 latest",
        field=which,
    )


def resolve(starting: Bound, ending: Bound, topics: Topics) -> list[Span]:
    """What to read of each partition, given what each holds now. Partitions with nothing to read are left out."""
    for bound in (starting, ending):
        check_coverage(bound, topics)
    spans = []
    for topic, partitions in topics.items():
        for partition, held in sorted(partitions.items()):
            start = place(starting, topic, partition, held)
            end = place(ending, topic, partition, held)
            if start > end:
                raise ValidationError(
                    f"{starting.which} of {topic}/{partition} is {start} and {ending.which} {end}: a read goes forward",
                    field=starting.which,
                )
            if start < end:
                spans.append(Span(topic, partition, start, end, held.incarnation, held.group_id))
    return spans


def check_coverage(bound: Bound, topics: Topics) -> None:
    """As in the Kafka connector: exactly the partitions that are read, so that none is forgotten by accident."""
    if bound.everywhere is not None:
        return
    given = {(topic, partition) for topic, offsets in bound.by_partition.items() for partition in offsets}
    wanted = {(topic, partition) for topic, partitions in topics.items() for partition in partitions}
    if missing := sorted(wanted - given):
        _refuse(bound.which, f"it says nothing of {_shown(missing)}")
    if unknown := sorted(given - wanted):
        _refuse(bound.which, f"it names {_shown(unknown)}, which this read does not have")


def _shown(pairs: list[tuple[str, int]]) -> str:
    listed = ", ".join(f"{topic}/{partition}" for topic, partition in pairs[:5])
    return listed if len(pairs) <= 5 else f"{listed} and {len(pairs) - 5} more"


def place(bound: Bound, topic: str, partition: int, held: Held) -> int:
    """The offset that a bound means in a partition that holds this now."""
    offset = bound.by_partition[topic][partition] if bound.everywhere is None else bound.everywhere
    if offset == EARLIEST:
        return held.first_offset
    if offset == LATEST:
        return held.end_offset
    if not held.first_offset <= offset <= held.end_offset:
        raise OffsetOutOfRange(
            f"{bound.which} asks for {topic}/{partition} at {offset}, which holds offsets from {held.first_offset} to "
            f"{held.end_offset}: use -2 for the earliest or -1 for the latest",
            field=bound.which,
        )
    return offset
