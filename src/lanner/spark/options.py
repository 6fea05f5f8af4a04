"""What a read can be told: the options, their names, and which of them go together.

Pure: text in, checked values out. The names, meanings and defaults are those of Spark's Kafka connector, and a few of
our own. Nothing is guessed and nothing silently left out: an option that is unknown, cannot be meant, or contradicts
another one is an error that names it and says how to write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lanner import limits
from lanner.errors import ValidationError
from lanner.model import LANES, check_name, parse_priority
from lanner.spark.offsets import ENDING, STARTING, Bound, parse_bound, parse_moment, parse_moments
from lanner.spark.option_values import SERVERS, check_known, choice, duration_ms, refuse, required, truth, whole_number

SUBSCRIBE: Final = "subscribe"
PATTERN: Final = "subscribePattern"
ASSIGN: Final = "assign"
STARTING_TIME: Final = "startingTimestamp"
ENDING_TIME: Final = "endingTimestamp"
STARTING_TIMES: Final = "startingOffsetsByTimestamp"
ENDING_TIMES: Final = "endingOffsetsByTimestamp"
STRATEGY: Final = "startingOffsetsByTimestampStrategy"
MAX_OFFSETS: Final = "maxOffsetsPerTrigger"
MAX_BYTES: Final = "maxBytesPerTrigger"
MIN_OFFSETS: Final = "minOffsetsPerTrigger"
MAX_DELAY: Final = "maxTriggerDelay"
MIN_PARTITIONS: Final = "minPartitions"
FAIL: Final = "failOnDataLoss"
HEADERS: Final = "includeHeaders"
METADATA: Final = "includeMetadata"
GROUP: Final = "group"
DEAD: Final = "deadLettersOf"
PRIORITIES: Final = "priorities"
FOLLOWERS: Final = "fromFollowers"

STARTS: Final = (STARTING, STARTING_TIME, STARTING_TIMES)
ENDS: Final = (ENDING, ENDING_TIME, ENDING_TIMES)
STREAM_ONLY: Final = (MAX_OFFSETS, MAX_BYTES, MIN_OFFSETS, MAX_DELAY, GROUP)
NOT_OF_DEAD: Final = (
    STARTING_TIME, ENDING_TIME, STARTING_TIMES, ENDING_TIMES, MAX_BYTES, GROUP, PRIORITIES, FOLLOWERS,
)  # fmt: skip
KNOWN: Final = (
    SERVERS, SUBSCRIBE, PATTERN, ASSIGN, *STARTS, *ENDS, STRATEGY, *STREAM_ONLY, MIN_PARTITIONS, FAIL, HEADERS,
    METADATA, DEAD, PRIORITIES, FOLLOWERS,
)  # fmt: skip

DELAY_MS: Final = 15 * 60_000
TASKS_MAX: Final = 100_000

Mode: TypeAlias = Literal["batch", "stream"]


class Chosen(NamedTuple):
    """Which topics are read: by name, by a pattern of names, or some partitions of some."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] | None = None

    def has(self, topic: str) -> bool:
        return bool(re.fullmatch(self.pattern, topic)) if self.pattern else topic in self.names


class ReadOptions(NamedTuple):
    """The options of a read, checked."""

    servers: str
    chosen: Chosen
    starting: Bound
    ending: Bound
    latest_when_late: bool = False  # a start by time that nothing was appended after: the latest, not an error
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DELAY_MS
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = False
    group: str = ""
    dead_letters_of: str = ""
    lanes: int = 0  # bit n: priority n; 0: all
    from_followers: bool = False


def parse_options(given: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """Spark does not keep the case of option names, so neither does this. Without a mode, either could be meant."""
    options = {name.lower(): value for name, value in given.items()}
    check_known(options, KNOWN)
    _check_together(options, mode)
    minimum, maximum = whole_number(options, MIN_OFFSETS), whole_number(options, MAX_OFFSETS)
    if minimum is not None and maximum is not None and minimum > maximum:
        refuse(MIN_OFFSETS, f"it is {minimum}, more than {MAX_OFFSETS} ({maximum})")
    return ReadOptions(
        required(options, SERVERS, "localhost:7400"),
        _chosen(options),
        _bound(options, STARTS, "latest" if mode == "stream" else "earliest", mode),
        _bound(options, ENDS, "latest", mode),
        choice(options, STRATEGY, ("error", "latest")) == "latest",
        maximum,
        whole_number(options, MAX_BYTES),
        minimum,
        duration_ms(options, MAX_DELAY, DELAY_MS),
        whole_number(options, MIN_PARTITIONS, TASKS_MAX) or 0,
        truth(options, FAIL, default=True),
        truth(options, HEADERS),
        truth(options, METADATA),
        _name(options, GROUP),
        _name(options, DEAD),
        _lanes(options),
        truth(options, FOLLOWERS),
    )


# ------------------------------------------------------------------ which options


def _check_together(options: Mapping[str, str], mode: Mode | None) -> None:
    for rivals in ((SUBSCRIBE, PATTERN, ASSIGN), STARTS, ENDS):
        present = _present(options, rivals)
        if len(present) > 1:
            refuse(present[0], f"it contradicts {' and '.join(present[1:])}: give one of them")
    if mode == "stream" and (ends := _present(options, ENDS)):
        refuse(ends[0], "a streaming read has no end: leave it away, or use the trigger availableNow")
    if mode == "batch" and (limited := _present(options, STREAM_ONLY)):
        refuse(limited[0], "it is for streaming reads: leave it away in a batch read")
    if DEAD.lower() in options and (others := _present(options, NOT_OF_DEAD)):
        refuse(DEAD, f"it contradicts {others[0]}: dead letters are read by number, all of them, from their leaders")
    for name, needed in (
        (MAX_DELAY, (MIN_OFFSETS,)),
        (STRATEGY, (STARTING_TIME, STARTING_TIMES)),
        (DEAD, (SUBSCRIBE,)),
    ):
        if name.lower() in options and not _present(options, needed):
            refuse(name, f"it means nothing without {' or '.join(needed)}")


def _present(options: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name.lower() in options]


# ------------------------------------------------------------------ what they say


def _chosen(options: Mapping[str, str]) -> Chosen:
    if pattern := options.get(PATTERN.lower(), "").strip():
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            refuse(PATTERN, f"{pattern[:80]!r} is not a regular expression: {error}")
        return Chosen(pattern=pattern)
    if text := options.get(ASSIGN.lower(), "").strip():
        assigned = _assigned(text)
        return Chosen(tuple(assigned), partitions=assigned)
    names = dict.fromkeys(name.strip() for name in required(options, SUBSCRIBE, "orders").split(","))
    return Chosen(tuple(check_name(name, "topic") for name in names))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"orders": [0, 2]}'
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        refuse(ASSIGN, f"{text[:80]!r} is not JSON: give partitions by topic, like {example}")
    if not isinstance(given, dict) or not given or not all(_is_partitions(one) for one in given.values()):
        refuse(ASSIGN, f"{text[:80]!r} does not map topics to lists of partitions, like {example}")
    return {check_name(topic, "topic"): tuple(sorted(set(one))) for topic, one in given.items()}


def _is_partitions(given: Any) -> bool:
    return (
        isinstance(given, list)
        and bool(given)
        and all(type(one) is int and 0 <= one < limits.PARTITIONS_MAX for one in given)
    )


def _bound(options: Mapping[str, str], names: tuple[str, str, str], default: str, mode: Mode | None) -> Bound:
    offsets, time, times = names
    if time.lower() in options:
        return parse_moment(time, options[time.lower()])
    if times.lower() in options:
        return parse_moments(times, options[times.lower()])
    may_be_empty = mode != "batch" and offsets == STARTING
    return parse_bound(offsets, options.get(offsets.lower(), default), may_be_empty=may_be_empty)


def _lanes(options: Mapping[str, str]) -> int:
    """Numbers, names and ranges of priorities, as bits."""
    text = options.get(PRIORITIES.lower())
    if text is None:
        return 0
    lanes = 0
    for part in text.split(","):
        low, _, high = (word.strip() for word in part.partition("-"))
        try:
            first, last = parse_priority(low), parse_priority(high or low)
        except ValidationError as error:
            refuse(PRIORITIES, f"{error.message}; give numbers, names or ranges, like 7-9,high")
        if first > last:
            refuse(PRIORITIES, f"{part.strip()!r} goes backwards")
        for lane in range(first, last + 1):
            lanes |= 1 << lane
    return 0 if lanes == (1 << LANES) - 1 else lanes


def _name(options: Mapping[str, str], name: str) -> str:
    given = options.get(name.lower())
    return "" if given is None else check_name(given.strip(), "group")
