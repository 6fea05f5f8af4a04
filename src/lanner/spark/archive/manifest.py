"""The manifest: which files an archive consists of, what is in each, and how far each partition has come.

Pure. A manifest is a value; each change makes the next version, which the shelf stores under a number of its own. So
readers see one version or the next, never half of one, and a document that was cut short is told by its checksum.

A step of the archive is two versions. The first says what is about to be read (`begun`): a run that finds it, after a
crash too, reads exactly these offsets again and so makes the same files anew. The second names the files (`finished`).

Format 2 says of each file whether it has the times that producers gave (`times`). Files of format 1 have none, and stay
as they are; a manifest of format 1 is read, and the next version of it is of format 2.

Rules, checked whenever a version is made: no file is named twice; no offset of a partition is in two files; every
offset from where a partition was begun up to where it has come is in a file or in a hole, and each hole has a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lanner.errors import ConflictError, StorageDamaged
from lanner.spark.archive import ranges
from lanner.spark.archive.ranges import Range

FORMAT: Final = 2
_READABLE: Final = (1, 2)
FOLDER: Final = "_lanner"  # Spark passes over folders that begin like this
_NAME: Final = "manifest-{:010d}.json"

RETENTION: Final = "retention"  # the topic no longer had it
UNREADABLE: Final = "unreadable"  # the topic has it and cannot give it: damaged, or never whole


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file of the archive and what is in it."""

    path: str  # below the archive's own path
    topic: str
    partition: int
    offsets: list[Range]
    rows: int
    size: int
    sha256: str
    times: bool = False  # it has producer_timestamp, deliver_at and expires_at


class Hole(msgspec.Struct, frozen=True):
    """Offsets that no file has, and why."""

    start: int
    end: int
    reason: str


class PartitionProgress(msgspec.Struct, frozen=True):
    """How far a partition is archived: everything from start up to next is in a file or in a hole."""

    start: int
    next: int
    holes: list[Hole] = []


class TopicProgress(msgspec.Struct, frozen=True):
    """A topic of the archive. The incarnation tells it from a later topic of the same name."""

    incarnation: int
    partitions: dict[int, PartitionProgress] = {}


class Planned(msgspec.Struct, frozen=True):
    """What a step is about to archive of a partition: [start, end)."""

    topic: str
    partition: int
    start: int
    end: int
    incarnation: int


class OldFile(msgspec.Struct, frozen=True):
    """A file that a merged one stands for, or a stray; it stays for those who read an older version, until its time is
    over."""

    path: str
    since_ms: int


class Manifest(msgspec.Struct, frozen=True):
    """One version."""

    version: int = 0
    written_ms: int = 0
    topics: dict[str, TopicProgress] = {}
    files: list[ArchivedFile] = []
    pending: list[Planned] = []
    old: list[OldFile] = []

    def files_of(self, topic: str, partition: int | None = None) -> list[ArchivedFile]:
        return [one for one in self.files if one.topic == topic and partition in (None, one.partition)]


class _Document(msgspec.Struct):
    format: int
    sha256: str
    manifest: msgspec.Raw


# ------------------------------------------------------------------ as bytes


def file_name(version: int) -> str:
    return _NAME.format(version)


def version_of(name: str) -> int | None:
    """The version that a file's name stands for; None for any other file."""
    front, back = _NAME.split("{:010d}")
    number = name.removeprefix(front).removesuffix(back)
    return int(number) if name == f"{front}{number}{back}" and number.isascii() and number.isdigit() else None


def encode(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Document(FORMAT, hashlib.sha256(body).hexdigest(), msgspec.Raw(body)))


def decode(data: bytes, where: str) -> Manifest:
    """The manifest in these bytes; StorageDamaged where they are not whole."""
    try:
        document = msgspec.json.decode(data, type=_Document)
        if document.format not in _READABLE:
            raise ConflictError(
                f"{where} has format {document.format}, and this release knows {FORMAT} and older: use a newer release",
                path=where,
            )
        body = bytes(document.manifest)
        if hashlib.sha256(body).hexdigest() != document.sha256:
            raise StorageDamaged(f"{where} is not whole: its checksum does not match", path=where)
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StorageDamaged(f"{where} is not a manifest: {error}", path=where) from error


# ------------------------------------------------------------------ from one version to the next


def begun(manifest: Manifest, plan: Sequence[Planned], now_ms: int) -> Manifest:
    """A step is about to read this."""
    assert plan and not manifest.pending
    for one in plan:
        known = manifest.topics.get(one.topic)
        assert one.start < one.end
        assert (
            known is None or one.partition not in known.partitions or known.partitions[one.partition].next == one.start
        )
    return _next(manifest, now_ms, pending=list(plan))


def finished(
    manifest: Manifest, files: Iterable[ArchivedFile], first_offsets: Mapping[tuple[str, int], int], now_ms: int
) -> Manifest:
    """The pending step is done: these are its files, and this is what each partition held from afterwards."""
    added = list(files)
    topics = dict(manifest.topics)
    for plan in manifest.pending:
        mine = [one for one in added if (one.topic, one.partition) == (plan.topic, plan.partition)]
        covered = [span for one in mine for span in one.offsets]
        gaps = ranges.without([(plan.start, plan.end)], covered)
        assert not ranges.without(covered, [(plan.start, plan.end)]), "a file has offsets that were not planned"
        holes = _holes(gaps, first_offsets.get((plan.topic, plan.partition), 0))
        known = topics.get(plan.topic, TopicProgress(plan.incarnation))
        before = known.partitions.get(plan.partition, PartitionProgress(plan.start, plan.start))
        after = PartitionProgress(before.start, plan.end, [*before.holes, *holes])
        topics[plan.topic] = TopicProgress(known.incarnation, {**known.partitions, plan.partition: after})
    old = _without(manifest.old, (one.path for one in added))  # a stray that is written anew is none any more
    return _checked(_next(manifest, now_ms, topics=topics, files=[*manifest.files, *added], pending=[], old=old))


def abandoned(manifest: Manifest, topics: Iterable[str], now_ms: int) -> Manifest:
    """These topics are gone: what was about to be read of them never will be."""
    gone = set(topics)
    return _next(manifest, now_ms, pending=[one for one in manifest.pending if one.topic not in gone])


def _holes(gaps: Iterable[Range], first_offset: int) -> list[Hole]:
    """What lies below the partition's first offset, retention took; the rest the topic could not give."""
    found = []
    for start, end in gaps:
        kept = min(max(first_offset, start), end)
        if start < kept:
            found.append(Hole(start, kept, RETENTION))
        if kept < end:
            found.append(Hole(kept, end, UNREADABLE))
    return found


def merged(manifest: Manifest, groups: Iterable[tuple[Sequence[ArchivedFile], ArchivedFile]], now_ms: int) -> Manifest:
    """Some files are replaced by one each, which must have the same offsets."""
    gone: set[str] = set()
    added = []
    for parts, whole in groups:
        before = ranges.joined(span for one in parts for span in one.offsets)
        if ranges.joined(whole.offsets) != before or whole.rows != sum(one.rows for one in parts):
            raise StorageDamaged(
                f"{whole.path} was merged from {len(parts)} files and does not have their offsets; nothing changed",
                path=whole.path,
            )
        gone.update(one.path for one in parts)
        added.append(whole)
    files = [one for one in manifest.files if one.path not in gone] + added
    old = [*manifest.old, *(OldFile(path, now_ms) for path in sorted(gone))]
    return _checked(_next(manifest, now_ms, files=files, old=old))


def due(manifest: Manifest, now_ms: int, grace_ms: int) -> list[str]:
    """Old files whose time is over."""
    return [one.path for one in manifest.old if one.since_ms + grace_ms <= now_ms]


def forgotten(manifest: Manifest, paths: Iterable[str], now_ms: int) -> Manifest:
    """These old files are deleted."""
    return _next(manifest, now_ms, old=_without(manifest.old, paths))


def strays(manifest: Manifest, present: Iterable[str]) -> list[str]:
    """Of the files that are there, those that no step will ever name: of one that was cut off, and whose topic was gone
    or another one when it should have been done again."""
    assert not manifest.pending, "a step is under way: its files are not named yet"
    known = {one.path for one in manifest.files} | {one.path for one in manifest.old}
    return sorted(set(present) - known)


def noticed(manifest: Manifest, found: Iterable[str], now_ms: int) -> Manifest:
    """Strays are old files from now on, and go after the same grace time."""
    return _next(manifest, now_ms, old=[*manifest.old, *(OldFile(path, now_ms) for path in found)])


def _without(old: Iterable[OldFile], paths: Iterable[str]) -> list[OldFile]:
    gone = set(paths)
    return [one for one in old if one.path not in gone]


def _next(manifest: Manifest, now_ms: int, **changed: object) -> Manifest:
    return msgspec.structs.replace(manifest, version=manifest.version + 1, written_ms=now_ms, **changed)


def _checked(manifest: Manifest) -> Manifest:
    paths = [one.path for one in manifest.files]
    assert len(set(paths)) == len(paths), "a file is named twice"
    by_partition: dict[tuple[str, int], list[Range]] = {}
    for one in manifest.files:
        by_partition.setdefault((one.topic, one.partition), []).extend(one.offsets)
        assert ranges.count(one.offsets) == one.rows, f"{one.path} has {one.rows} rows and other offsets"
    for topic, known in manifest.topics.items():
        for partition, progress in known.partitions.items():
            covered = by_partition.pop((topic, partition), [])
            assert not ranges.doubled(covered), f"{topic}/{partition} has offsets in two files"
            away = [(hole.start, hole.end) for hole in progress.holes]
            assert ranges.joined([*covered, *away]) == ranges.joined([(progress.start, progress.next)])
    assert not by_partition, "a file belongs to no partition that was archived"
    assert not {one.path for one in manifest.old} & set(paths), "a file is about to be deleted, and named"
    return manifest
