"""What the next step of an archive reads, what its files are called, and which small files are merged.

Pure: a manifest and what the topics hold in, a plan out. A step is bounded in messages and, by what a message of the
partition weighs on average, in bytes; so no file grows beyond what one task of Spark takes into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, NamedTuple

from lanner import limits
from lanner.errors import StaleIncarnation
from lanner.spark.archive.manifest import ArchivedFile, Manifest, PartitionProgress, Planned

_HOUR_MS: Final = 3_600_000


class Held(NamedTuple):
    """What a partition holds now: its offsets, and how many bytes they are."""

    first_offset: int
    end_offset: int
    bytes: int = 0


class HeldTopic(NamedTuple):
    incarnation: int
    partitions: Mapping[int, Held]


def plan_step(
    manifest: Manifest,
    held: Mapping[str, HeldTopic],
    ends: Mapping[tuple[str, int], int],
    messages_max: int = limits.ARCHIVE_STEP_MESSAGES,
) -> list[Planned]:
    """The next offsets of each partition, up to its end; nothing when all are there.

    A partition is begun at what it holds first. Later on a step begins where the last one ended, also when retention
    was faster: what it took becomes a hole.
    """
    plan = []
    for topic, found in held.items():
        check_incarnation(manifest, topic, found.incarnation)
        for partition, one in sorted(found.partitions.items()):
            progress = progress_of(manifest, topic, partition)
            start = one.first_offset if progress is None else progress.next
            end = min(ends.get((topic, partition), 0), start + _messages(one, messages_max))
            end = max(end, min(one.first_offset, ends.get((topic, partition), 0)))  # a hole weighs nothing
            if start < end:
                plan.append(Planned(topic, partition, start, end, found.incarnation))
    return plan


def _messages(held: Held, messages_max: int) -> int:
    """How many messages of a partition weigh as much as a step may, at least one."""
    if not held.bytes:
        return messages_max
    average = held.bytes / max(1, held.end_offset - held.first_offset)
    return max(1, min(messages_max, int(limits.ARCHIVE_STEP_BYTES / average)))


def progress_of(manifest: Manifest, topic: str, partition: int) -> PartitionProgress | None:
    known = manifest.topics.get(topic)
    return None if known is None else known.partitions.get(partition)


def check_incarnation(manifest: Manifest, topic: str, incarnation: int) -> None:
    known = manifest.topics.get(topic)
    if known is not None and known.incarnation != incarnation:
        raise StaleIncarnation(
            f"topic {topic!r} was deleted and made again since it was archived here (incarnation {known.incarnation}, "
            f"now {incarnation}): archive the new one under another path",
            topic=topic,
        )


def file_path(topic: str, partition: int, hours: int, first_offset: int, last_offset: int) -> str:
    """Where a file goes, below the archive's path: the same offsets of the same hour always go to the same place."""
    hour = datetime.fromtimestamp(hours * _HOUR_MS / 1000, UTC)
    return (
        f"topic={topic}/date={hour:%Y-%m-%d}/hour={hour:%H}/"
        f"{partition:05d}-{first_offset:020d}-{last_offset:020d}.parquet"
    )


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


# ------------------------------------------------------------------ merging


def plan_merges(files: Iterable[ArchivedFile]) -> list[list[ArchivedFile]]:
    """Small files of one partition and one hour, in offset order, as many together as make a file of the right size.

    Files with the producers' times are not merged with those without: nobody could tell these apart any more.
    """
    small = [one for one in files if one.size < limits.ARCHIVE_SMALL_BYTES]
    small.sort(key=_place)
    groups: list[list[ArchivedFile]] = []
    for _, found in groupby(small, key=lambda one: _place(one)[:3]):
        groups.extend(group for group in _filled(list(found)) if len(group) > 1)
    return groups


def _place(one: ArchivedFile) -> tuple[str, int, bool, int]:
    return folder_of(one.path), one.partition, one.times, one.offsets[0][0]


def _filled(files: Sequence[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    group: list[ArchivedFile] = []
    size = 0
    for one in files:
        if group and size + one.size > limits.ARCHIVE_FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += one.size
    if group:
        yield group
