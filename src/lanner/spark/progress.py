"""How far a streaming query is: what Spark keeps in its checkpoint, and what comes next.

Pure: progress and what topics hold now in, progress and findings out.

    {"version": 1, "topics": {"orders": {"incarnation": 7, "offsets": {"0": 23, "1": 5}}}, "group": "dashboard"}

The incarnation is the topic's: one that was deleted and created again under the same name has another, and its offsets
mean other messages. A partition that is not in the progress yet enters it at its first offset, and its messages are
read from the next batch on; so a batch is the difference of two progresses and nothing else, and is read again the
same after a restart.

A checkpoint must be readable for as long as there are queries that go on from it: fields are added, never changed, and
a version that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from lanner.errors import NotSupported, ValidationError
from lanner.spark.offsets import Held, Span, Topics

VERSION: Final = 1
_DELETED: Final = "the topic was deleted, with what the query had not read of it"
_LEFT_OUT: Final = "the options do not name it any more, and this checkpoint's query read it"


class TopicProgress(NamedTuple):
    """The next offset of each partition of one incarnation of a topic."""

    incarnation: int
    offsets: Mapping[int, int]
    groups: Mapping[int, int] = {}  # of dead letters: which group of this name it is, by partition


Progress: TypeAlias = Mapping[str, TopicProgress]


class Loss(NamedTuple):
    """Messages that were to be read and are not there any more."""

    topic: str
    partition: int | None  # None: the whole topic
    why: str

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}/{self.partition}"
        return f"{where}: {self.why}"


class _WrittenTopic(msgspec.Struct):
    incarnation: int
    offsets: dict[int, int]
    groups: dict[int, int] = {}


class _Written(msgspec.Struct):
    version: int
    topics: dict[str, _WrittenTopic]
    group: str = ""
    dead_letters_of: str = msgspec.field(default="", name="deadLettersOf")


def to_json(progress: Progress, group: str = "", dead_letters_of: str = "") -> dict[str, Any]:
    """As Spark keeps it. The order is fixed: Spark compares the text. The group is the one that progress went to."""
    topics = {
        topic: {"incarnation": one.incarnation, "offsets": _by_partition(one.offsets)}
        | ({"groups": _by_partition(one.groups)} if one.groups else {})
        for topic, one in sorted(progress.items())
    }
    written: dict[str, Any] = {"version": VERSION, "topics": topics}
    if group:
        written["group"] = group
    if dead_letters_of:
        written["deadLettersOf"] = dead_letters_of
    return written


def _by_partition(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): number for partition, number in sorted(numbers.items())}


def group_of(given: Any) -> str:
    """The group that kept progress had gone to; empty: none."""
    return str(given.get("group", "")) if isinstance(given, dict) else ""


def from_json(given: Any, dead_letters_of: str = "") -> dict[str, TopicProgress]:
    """What Spark kept. Raises when it is not ours, of a later release, or of another kind of read."""
    if isinstance(given, dict) and type(given.get("version")) is int and given["version"] > VERSION:
        raise NotSupported(
            f"the checkpoint was written by a later release (its offsets have version {given['version']}, this release "
            f"knows {VERSION}): run the query with that release, or begin a new checkpoint",
        )
    try:
        written = msgspec.convert(given, _Written, strict=False)
    except msgspec.ValidationError as error:
        raise ValidationError(f"the checkpoint's offsets are not those of format lanner: {error}") from None
    if written.dead_letters_of != dead_letters_of:
        raise ValidationError(
            f"the checkpoint belongs to a read with deadLettersOf={written.dead_letters_of!r}, and this one has "
            f"{dead_letters_of!r}: these are different streams, use a checkpoint for each",
            field="deadLettersOf",
        )
    return {topic: TopicProgress(one.incarnation, one.offsets, one.groups) for topic, one in written.topics.items()}


def beginning(topics: Topics, offsets: Mapping[tuple[str, int], int]) -> dict[str, TopicProgress]:
    """The progress of a query that begins at these offsets."""
    return {
        topic: TopicProgress(
            _incarnation(partitions),
            {partition: offsets[topic, partition] for partition in partitions},
            _groups(partitions),
        )
        for topic, partitions in topics.items()
    }


def reachable(
    start: Progress,
    topics: Topics,
    *,
    holes_are_losses: bool = True,
    names: Callable[[str], bool] = lambda _: True,
) -> tuple[dict[str, TopicProgress], list[Loss]]:
    """How far a query could go now that is at `start`, and what it can no longer read.

    A topic that is gone, or that the options do not name any more, leaves the progress; one that was created again
    enters it anew, and so do the dead letters of a group that was dropped and made again.
    """
    losses = [Loss(topic, None, _DELETED if names(topic) else _LEFT_OUT) for topic in start if topic not in topics]
    found: dict[str, TopicProgress] = {}
    for topic, partitions in topics.items():
        incarnation = _incarnation(partitions)
        known = start.get(topic)
        if known is not None and known.incarnation != incarnation:
            losses.append(
                Loss(topic, None, "it was deleted and created again under the same name; its offsets begin anew")
            )
            known = None
        ends: dict[int, int] = {}
        for partition, held in partitions.items():
            at = None if known is None else known.offsets.get(partition)
            if known is not None and _is_another(known.groups.get(partition, 0), held.group_id):
                losses.append(Loss(topic, partition, "the group was dropped and made again; its deaths count anew"))
                at = None
            ends[partition] = held.first_offset if at is None else held.end_offset
            if at is not None and (loss := _lost(topic, partition, at, held, holes_are_losses)) is not None:
                losses.append(loss)
        found[topic] = TopicProgress(incarnation, ends, _groups(partitions))
    return found, losses


def _is_another(known_id: int, group_id: int) -> bool:
    """A group that is not on a partition yet has no id there."""
    return known_id != 0 and known_id != group_id


def _groups(partitions: Mapping[int, Held]) -> dict[int, int]:
    return {partition: held.group_id for partition, held in partitions.items() if held.group_id}


def _lost(topic: str, partition: int, at: int, held: Held, holes_are_losses: bool) -> Loss | None:
    if at < held.first_offset and holes_are_losses:
        return Loss(
            topic, partition, f"retention took offsets {at} to {held.first_offset - 1} before the query had read them"
        )
    if at > held.end_offset:
        return Loss(topic, partition, f"the query is at offset {at}, and the partition ends at {held.end_offset}")
    return None


def _incarnation(partitions: Mapping[int, Held]) -> int:
    return next((held.incarnation for held in partitions.values()), 0)


def spans_between(start: Progress, end: Progress) -> list[Span]:
    """What a batch reads: of each partition that is in both, the offsets between."""
    spans = []
    for topic, to in sorted(end.items()):
        since = start.get(topic)
        if since is None or since.incarnation != to.incarnation:
            continue
        for partition, end_offset in sorted(to.offsets.items()):
            start_offset = since.offsets.get(partition, end_offset)
            group_id = to.groups.get(partition, 0)
            if start_offset < end_offset and not _is_another(since.groups.get(partition, 0), group_id):
                spans.append(Span(topic, partition, start_offset, end_offset, to.incarnation, group_id))
    return spans


def with_ends(start: Progress, end: Progress, spans: Iterable[Span]) -> dict[str, TopicProgress]:
    """`end`, but going only as far as these spans in the partitions that `start` has too."""
    chosen = {(span.topic, span.partition): span.end_offset for span in spans}
    found = {}
    for topic, to in end.items():
        since = start.get(topic)
        known = {}
        if since is not None and since.incarnation == to.incarnation:
            known = {
                partition: offset
                for partition, offset in since.offsets.items()
                if not _is_another(since.groups.get(partition, 0), to.groups.get(partition, 0))
            }
        offsets = {
            partition: chosen.get((topic, partition), min(known[partition], offset)) if partition in known else offset
            for partition, offset in to.offsets.items()
        }
        found[topic] = TopicProgress(to.incarnation, offsets, to.groups)
    return found
