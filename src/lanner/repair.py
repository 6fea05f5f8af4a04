"""`lanner broker repair`: what to do with a data directory whose broker refuses to start because it is damaged.

It works on the directory of a broker that does not run, and holds its lock meanwhile.

- *There are other brokers.* They have what this one confirmed. So journal and table are set aside (renamed, never
  deleted), and the broker comes back as one whose disk was replaced: a new node id under the old name, its replicas
  rebuilt from the others. It never goes on with a journal of which the end is missing: it could vote twice, or count
  as a holder of what it no longer has.
- *It stands alone*, or it has the only copy of something. Nothing can bring back what is damaged, so it refuses, and
  says what would be lost. Told to accept that, it cuts the journal where the damage is; the bytes that it cuts go into
  files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb

from lanner import batch
from lanner.broker.links.founding import Founding, decode_record
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import BrokerState, Cluster, ReplicaSet
from lanner.errors import ConflictError, LannerError, StorageDamaged
from lanner.ledger import Ledger, read_entry
from lanner.ledger.ports import Files, Table
from lanner.ledger.records import (
    HEADER_BYTES,
    FileKind,
    Location,
    RecordHead,
    RecordReader,
    file_of,
    offset_of,
    position_at,
    show_position,
)
from lanner.ledger.replay import read_header
from lanner.partition import STAGE_KIND, batch_start
from lanner.partition.records import APPEND_KIND
from lanner.raft import EntryKind
from lanner.storage import DiskFiles, LmdbTable
from lanner.storage.aside import LockedDirectory, read_rejoin

_CUTS_MAX: Final = 1_000
_BLOCK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Loss:
    """What is lost of one replica set: entries of its log, and the messages in those that could still be read."""

    set_id: int
    topic: str = ""  # empty: the cluster's metadata, or a set that the metadata does not name any more
    partition: int = 0
    entries: int = 0
    first_index: int = 0
    last_index: int = 0
    messages: int = 0
    unreadable: int = 0  # entries of which nobody can tell how many messages they held


@dataclass(slots=True)
class Repair:
    """What was found, and what was done about it."""

    data: str
    damage: str
    name: str = ""
    action: str = ""  # "set aside" or "cut"
    aside: str = ""
    peers: list[str] = field(default_factory=list)
    sole_copies: list[str] = field(default_factory=list)  # partitions that no other broker has
    position: str = ""
    cut_bytes: int = 0
    lost: list[Loss] = field(default_factory=list)
    lost_unknown_bytes: int = 0  # of records that say nothing any more


def repair(data: str, *, accept_loss: bool = False) -> Repair:
    """Repair a damaged data directory, or raise and say why not. ConflictError: it needs `accept_loss`."""
    with LockedDirectory(data) as directory:
        resumed = _resume(directory)
        if resumed is not None:
            return resumed
        files, table = DiskFiles(directory.path / "journal"), _open_table(directory.path)
        try:
            found = _examine(directory, files, table)
            if found.founding is not None and found.peers and not _holds_alone(directory.node_id, found.metadata):
                return _set_aside(directory, found, accept_loss)
            return _cut(directory, files, found, accept_loss)
        finally:
            files.close()
            if table is not None:
                table.close()


def _open_table(path: Path) -> LmdbTable | None:
    """The table; None when it does not even open."""
    try:
        return LmdbTable(path / "table")
    except (StorageDamaged, lmdb.Error):
        return None


def _resume(directory: LockedDirectory) -> Repair | None:
    """Finish what an earlier call began; None when there was none."""
    rejoin = read_rejoin(directory.path)
    if rejoin is None:
        return None
    folder = directory.path / rejoin.aside
    if rejoin.aside and folder.exists() and directory.left_to_move(folder):
        directory.go_on(folder)
    elif directory.read_founding() is not None:
        return None  # the broker is back in its cluster, and forgets the file at its next start
    else:
        raise ConflictError(
            f"{directory.path} was set aside already, in {rejoin.aside}: start the broker, and it joins anew"
        )
    return Repair(
        str(directory.path),
        "an earlier repair was interrupted",
        rejoin.name,
        "set aside",
        rejoin.aside,
        list(rejoin.addresses),
    )


# ---------------------------------------------------------------------- what is there


@dataclass(slots=True)
class _Found:
    """What is left of a damaged directory."""

    damage: StorageDamaged
    position: int | None  # where the journal would be cut; None: cutting does not help
    founding: Founding | None
    view: Files | None = None  # the files as they are up to there
    metadata: Cluster | None = None
    peers: list[str] = field(default_factory=list)


def _examine(directory: LockedDirectory, files: DiskFiles, table: LmdbTable | None) -> _Found:
    recorded = directory.read_founding()
    founding = None if recorded is None else decode_record(recorded, directory.node_id)
    if table is None:
        found = _Found(StorageDamaged("the table does not open"), None, founding)
    else:
        found = _find_damage(files, table, founding)
    found.peers = _peers(directory.node_id, found)
    return found


def _find_damage(files: Files, table: Table, founding: Founding | None) -> _Found:
    """Where the journal is damaged: the first place up to which it can be replayed."""
    damage: StorageDamaged | None = None
    position: int | None = None
    view: Files = files
    for _ in range(_CUTS_MAX):
        try:
            ledger = Ledger.recover(view, table, random_bytes=os.urandom, read_only=True)
        except StorageDamaged as error:
            if error.details.get("newer"):
                raise
            damage = damage or error
            file, offset = error.details.get("file"), error.details.get("offset", 0)
            if not isinstance(file, int) or offset < HEADER_BYTES:
                return _Found(damage, None, founding)
            if position is not None and position_at(file, offset) >= position:
                return _Found(damage, None, founding)
            position = position_at(file, offset)
            view = _CutFiles(files, position)
            continue
        try:
            metadata = _load_metadata(ledger, view)
        except StorageDamaged as error:
            return _Found(damage or error, None, founding)
        if damage is None:
            raise ConflictError("nothing is damaged here: start the broker. If it does not start, its message says why")
        return _Found(damage, position, founding, view, metadata)
    return _Found(damage or StorageDamaged(), None, founding)


def _load_metadata(ledger: Ledger, files: Files) -> Cluster | None:
    """The metadata as far as its log is here."""
    state = ledger.sets().get(CLUSTER_SET)
    if state is None:
        return None
    metadata = Cluster(ledger.rows(CLUSTER_SET))
    for index in range(metadata.applied_index + 1, state.last_index + 1):
        stored = ledger.entry(CLUSTER_SET, index)
        payload = read_entry(files, stored.location) if stored.kind == EntryKind.NORMAL else None
        metadata.apply(index, payload or None)
    return metadata


def _peers(node_id: str, found: _Found) -> list[str]:
    """Where the other brokers of the cluster are reached; what the metadata says counts more than the founding."""
    if found.metadata is not None and found.metadata.brokers:
        others = [
            broker
            for broker in found.metadata.brokers.values()
            if broker.node_id != node_id and broker.state is not BrokerState.REMOVED and not broker.lost
        ]
        return [address for broker in others if (address := broker.addresses.get("native"))]
    founders = () if found.founding is None else found.founding.told
    return [
        address for founder in founders if founder.node_id != node_id and (address := founder.addresses.get("native"))
    ]


class _CutFiles:
    """Files as they would be if the journal were cut at a position. Only for reading."""

    def __init__(self, files: Files, position: int) -> None:
        self._files = files
        self._file, self._offset = file_of(position), offset_of(position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _end(self, file_id: int) -> int | None:
        if file_id < self._file:
            return None
        return self._offset if file_id == self._file else HEADER_BYTES

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        data = self._files.read(file_id, offset, length)
        end = self._end(file_id)
        if end is None or offset + len(data) <= end or self._is_kept(file_id):
            return data
        return data[: max(0, end - offset)].ljust(len(data), b"\x00")

    def next_data(self, file_id: int, offset: int) -> int | None:
        end = self._end(file_id)
        if end is not None and offset >= end and not self._is_kept(file_id):
            return None
        return self._files.next_data(file_id, offset)

    def _is_kept(self, file_id: int) -> bool:
        return not _is_journal(self._files, file_id)


def _is_journal(files: Files, file_id: int) -> bool:
    header = read_header(files, file_id)
    return header is not None and header.kind is FileKind.JOURNAL


# ---------------------------------------------------------------------- with others


def _set_aside(directory: LockedDirectory, found: _Found, accept_loss: bool) -> Repair:
    assert found.founding is not None
    result = Repair(str(directory.path), found.damage.message, found.founding.name, "set aside", peers=found.peers)
    result.sole_copies = _sole_copies(directory.node_id, found.metadata)
    if result.sole_copies and not accept_loss:
        raise ConflictError(
            f"{found.damage.message}. No other broker has a copy of {', '.join(result.sole_copies)}: with "
            "--accept-loss they are set aside with the rest, and are gone from the cluster",
            sole_copies=result.sole_copies,
        )
    result.aside = directory.set_aside(found.founding.cluster_id, found.founding.name, found.peers).name
    return result


def _sole_copies(node_id: str, metadata: Cluster | None) -> list[str]:
    """The partitions that only this broker has whole."""
    sets = () if metadata is None else metadata.sets.values()
    return [f"{one.topic}/{one.partition}" for one in sets if one.topic and _voters(one) == {node_id}]


def _holds_alone(node_id: str, metadata: Cluster | None) -> bool:
    """Whether the cluster's metadata is nowhere else: without it there would be no cluster to come back to."""
    return metadata is not None and CLUSTER_SET in metadata.sets and _voters(metadata.sets[CLUSTER_SET]) == {node_id}


def _voters(found: ReplicaSet) -> set[str]:
    return {replica.node_id for replica in found.replicas if replica.voter}


# ---------------------------------------------------------------------- alone


def _cut(directory: LockedDirectory, files: DiskFiles, found: _Found, accept_loss: bool) -> Repair:
    if found.position is None or found.view is None:
        raise ConflictError(
            f"{found.damage.message}. This broker {_standing(found)}, and cutting the journal would not help: restore "
            "the data directory from a backup"
        )
    name = "" if found.founding is None else found.founding.name
    result = Repair(str(directory.path), found.damage.message, name, "cut", position=show_position(found.position))
    parts = list(_parts_behind(files, found.position))
    result.cut_bytes = sum(end - start for _, start, end in parts)
    _list_losses(files, found, parts, result)
    if not accept_loss:
        raise ConflictError(
            f"{found.damage.message}. This broker {_standing(found)}: nobody else has what is lost: "
            f"{losses_text(result)}. --accept-loss cuts the journal there, and keeps what it cuts in files of its own",
            **losses_plain(result),
        )
    folder = directory.make_aside()
    result.aside = folder.name
    for file_id, start, end in parts:
        _keep(files, file_id, start, end, folder / f"{file_id:012d}-{start}.cut")
    for file_id, start, end in reversed(parts):  # from the end: a stop in between leaves damage, never a gap
        _write_zeros(files, file_id, start, end)
    return result


def _standing(found: _Found) -> str:
    return "alone has the cluster's metadata" if found.peers else "stands alone"


def _parts_behind(files: Files, position: int) -> Iterator[tuple[int, int, int]]:
    """(file, start, end) of everything that the journal holds from the position on."""
    for file_id, size in files.list():
        if file_id < file_of(position) or not _is_journal(files, file_id):
            continue
        start = offset_of(position) if file_id == file_of(position) else HEADER_BYTES
        end = RecordReader(files, file_id, size, 0).data_end(start)
        if end > start:
            yield file_id, start, end


def _list_losses(files: Files, found: _Found, parts: Sequence[tuple[int, int, int]], result: Repair) -> None:
    """What the records say that would be cut, as far as they can be read."""
    names = {} if found.metadata is None else _names(found.metadata)
    losses: dict[int, Loss] = {}
    known = 0
    for file_id, start, end in parts:
        header = read_header(files, file_id)
        assert header is not None
        for record in RecordReader(files, file_id, end, header.salt).heads_from(start):
            known += record.end_offset - offset_of(record.position)
            _add_record(files, record, names, losses)
    result.lost = [losses[set_id] for set_id in sorted(losses)]
    result.lost_unknown_bytes = max(0, result.cut_bytes - known)


def _names(metadata: Cluster) -> dict[int, tuple[str, int]]:
    return {
        set_id: (topic.name, number)
        for topic in metadata.topics.values()
        for number, set_id in enumerate(topic.set_ids)
    }


def _add_record(files: Files, record: RecordHead, names: dict[int, tuple[str, int]], losses: dict[int, Loss]) -> None:
    offset = record.payload_offset
    for set_id, index, _, _, length, crc, kind in record.entries:
        loss = losses.get(set_id)
        if loss is None:
            loss = losses[set_id] = Loss(set_id, *names.get(set_id, ("", 0)), first_index=index)
        loss.entries += 1
        loss.last_index = max(loss.last_index, index)
        if kind == EntryKind.NORMAL and set_id != CLUSTER_SET:
            try:
                payload = read_entry(files, Location(file_of(record.position), offset, length, crc))
                if payload and payload[0] in (APPEND_KIND, STAGE_KIND):
                    loss.messages += batch.read_header(payload[batch_start(payload) :]).count
            except LannerError:
                loss.unreadable += 1
        offset += length


def _keep(files: Files, file_id: int, start: int, end: int, path: Path) -> None:
    with open(path, "xb") as copy:
        while start < end:
            block = files.read(file_id, start, min(_BLOCK_BYTES, end - start))
            copy.write(block)
            start += len(block)
        copy.flush()
        os.fsync(copy.fileno())


def _write_zeros(files: Files, file_id: int, start: int, end: int) -> None:
    while start < end:
        length = min(_BLOCK_BYTES, end - start)
        files.write(file_id, start, [bytes(length)])
        start += length
    files.sync(file_id)


# ---------------------------------------------------------------------- words


def losses_text(result: Repair) -> str:
    """What is lost, partition by partition."""
    told = []
    for loss in result.lost:
        where = f"{loss.topic}/{loss.partition}" if loss.topic else f"replica set {loss.set_id}"
        text = f"entries {loss.first_index} to {loss.last_index} of " + (
            "the cluster's metadata" if loss.set_id == CLUSTER_SET else f"{where} ({loss.messages} messages"
        )
        if loss.set_id != CLUSTER_SET:
            text += f"; unreadable entries: {loss.unreadable})" if loss.unreadable else ")"
        told.append(text)
    if result.lost_unknown_bytes:
        told.append(f"{result.lost_unknown_bytes} bytes of records that cannot be read")
    return "; ".join(told) or "nothing that has a name"


def losses_plain(result: Repair) -> dict[str, Any]:
    """The same for programs."""
    fields = Loss.__dataclass_fields__
    return {
        "position": result.position,
        "cut_bytes": result.cut_bytes,
        "lost": [{name: getattr(loss, name) for name in fields} for loss in result.lost],
        "lost_unknown_bytes": result.lost_unknown_bytes,
    }
