"""What an audit concludes: which offsets of a partition are missing, doubled or different, and which rightly absent.

Pure. The manifest says what the archive claims; the check of its files says which of that still stands; the comparison
of messages says what differs from the topic. Put together, every offset that the archive claims is judged once:

- its file is gone, or the topic has it and no file does: missing;
- its file does not have its checksum any more, or its bytes are not the topic's: different;
- it is there more than once: doubled;
- the archive found it gone when it came for it, or the topic has lost it since: a hole, which is no fault;
- anything else is in order: equal to the topic's, or, where retention has taken the topic's, as it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from lanner import limits
from lanner.spark.archive import ranges
from lanner.spark.archive.manifest import ArchivedFile, Manifest, PartitionProgress
from lanner.spark.archive.planning import Held
from lanner.spark.archive.ranges import Range

MISSING, DOUBLED, DIFFERENT, UNMATCHED = "missing", "doubled", "different", "unmatched"


class Files(NamedTuple):
    """What became of a topic's files, by path."""

    checked: int
    removed: frozenset[str]
    damaged: frozenset[str]


class Compared(NamedTuple):
    """What the comparison of messages found in a partition: ranges by kind."""

    found: Mapping[str, list[Range]]
    cut: frozenset[str] = frozenset()  # kinds of which there is more than was listed


class PartitionVerdict(NamedTuple):
    """One partition, judged."""

    partition: int
    start: int  # the archive claims offsets from here
    next: int  # up to, not including, this one
    messages: int  # that it has, whole
    compared: int  # of these: held against the topic's
    missing: list[Range]
    doubled: list[Range]
    different: list[Range]
    beyond: list[Range]  # the topic never came so far
    holes: dict[str, list[Range]]  # by reason
    behind: int  # messages that the topic has and the archive does not claim
    cut: bool = False  # lists end early: there is more

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.doubled or self.different or self.beyond or self.cut)

    def as_json(self) -> dict[str, Any]:
        kinds = {"missing": self.missing, "doubled": self.doubled, "different": self.different, "beyond": self.beyond}
        return {
            "partition": self.partition,
            "start": self.start,
            "next": self.next,
            "messages": self.messages,
            "compared": self.compared,
            "behind": self.behind,
            **{name: _listed(found) for name, found in kinds.items()},
            "holes": {reason: _listed(found) for reason, found in self.holes.items()},
            "lists_are_cut": self.cut,
        }


def _listed(found: list[Range]) -> dict[str, Any]:
    """Ranges as programs read them: first and last offset of each."""
    return {
        "count": ranges.count(found),
        "ranges": [[start, end - 1] for start, end in found[: limits.AUDIT_RANGES_MAX]],
    }


def overlap(progress: PartitionProgress, held: Held) -> Range:
    """The offsets that both the archive claims and the topic holds."""
    start = max(progress.start, held.first_offset)
    return start, max(start, min(progress.next, held.end_offset))


def judge(
    partition: int,
    progress: PartitionProgress,
    held: Held,
    files: Collection[ArchivedFile],
    state: Files,
    compared: Compared,
    *,
    to_end: bool = False,
) -> PartitionVerdict:
    """One partition of the archive against the topic's."""
    claimed = [(progress.start, progress.next)]
    removed = _offsets(one for one in files if one.path in state.removed)
    damaged = _offsets(one for one in files if one.path in state.damaged)
    whole = [span for one in files if one.path not in state.removed | state.damaged for span in one.offsets]
    away = [(hole.start, hole.end) for hole in progress.holes]
    absent = ranges.without(ranges.without(claimed, whole), [*away, *damaged])
    topic_only = ranges.without(compared.found.get(MISSING, []), damaged)
    unmatched = compared.found.get(UNMATCHED, [])
    both = overlap(progress, held)
    behind = [(max(progress.next, held.first_offset), held.end_offset)]
    missing = ranges.joined([*removed, *absent, *topic_only, *(behind if to_end else [])])
    holes: dict[str, list[Range]] = {}
    for hole in progress.holes:
        holes.setdefault(hole.reason, []).append((hole.start, hole.end))
    if unmatched:
        holes["gone from the topic since"] = unmatched
    return PartitionVerdict(
        partition,
        progress.start,
        progress.next,
        ranges.count(ranges.joined(whole)),
        ranges.count(ranges.without(ranges.within(whole, *both), unmatched)),
        missing,
        ranges.joined([*ranges.doubled(whole), *compared.found.get(DOUBLED, [])]),
        ranges.joined([*damaged, *compared.found.get(DIFFERENT, [])]),
        ranges.within(claimed, max(progress.start, held.end_offset), progress.next),
        {reason: ranges.without(found, missing) for reason, found in holes.items()},
        ranges.count(ranges.joined(behind)),
        bool(compared.cut & {MISSING, DOUBLED, DIFFERENT}),
    )


def _offsets(files: Iterable[ArchivedFile]) -> list[Range]:
    return ranges.joined(span for one in files for span in one.offsets)


def never_archived(partition: int, held: Held, *, to_end: bool) -> PartitionVerdict:
    """A partition that the topic has and the archive does not know yet."""
    rest = ranges.joined([(held.first_offset, held.end_offset)])
    first = held.first_offset
    return PartitionVerdict(partition, first, first, 0, 0, rest if to_end else [], [], [], [], {}, ranges.count(rest))


class ArchiveVerdict(NamedTuple):
    """One topic of an archive, judged."""

    topic: str
    files: Files
    partitions: list[PartitionVerdict]

    @property
    def is_clean(self) -> bool:
        return all(one.is_clean for one in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "complete": self.is_clean,
            "files": self.files.checked,
            "removed_files": sorted(self.files.removed),
            "damaged_files": sorted(self.files.damaged),
            "partitions": [one.as_json() for one in self.partitions],
        }


def topics_of(manifest: Manifest) -> list[str]:
    return sorted(manifest.topics)


# ------------------------------------------------------------------ topic against topic


class PartitionLikeness(NamedTuple):
    """One partition of two topics: whether it has the same messages, and whether in the same order."""

    partition: int | None  # None: the whole topics, because they have different numbers of partitions
    messages: int
    other_messages: int
    only_here: int
    only_there: int
    samples: list[tuple[str, int]]  # where some of those are: topic/partition and offset
    first_disorder: tuple[int, int] | None  # the offsets, here and there, from which on a priority's order differs
    order_compared: bool
    priorities_moved: bool = False  # messages of different priorities lie among each other in another way

    @property
    def is_clean(self) -> bool:
        return not self.only_here and not self.only_there and self.first_disorder is None

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "messages": self.messages,
            "other_messages": self.other_messages,
            "only_here": self.only_here,
            "only_there": self.only_there,
            "samples": [{"partition": where, "offset": offset} for where, offset in self.samples],
            "order": self.order if self.first_disorder is None else {"differs_at": list(self.first_disorder)},
        }

    @property
    def order(self) -> str:
        """For people. Messages of one priority must have kept theirs: that is what Lanner promises."""
        if not self.order_compared:
            return "not compared"
        if self.first_disorder is not None:
            return f"differs from offset {self.first_disorder[0]} and {self.first_disorder[1]} on"
        return "the same in each priority" if self.priorities_moved else "the same"
