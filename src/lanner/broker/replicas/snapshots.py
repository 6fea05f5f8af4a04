"""Snapshots, the sending side: a replica's state for a peer that is too far behind for the log, in bounded pieces.

A snapshot stands at the index that the table has saved. It is the membership there, the machine's rows, and every
entry up to there that the machine still wants. Three rules keep it whole while everything goes on:

- *Rows are of one moment.* Until the last of them is read, saves leave this set out. That is legal at any time (a save
  need not take in every set) and short, because rows are read ahead of the network by one piece only.
- *Entries are read as they are now.* One that was released since the snapshot's index is a hole: an entry of the log
  behind that index released it, and will release it at the peer, too. Of one that is wanted in part, that part goes.
- *The log behind the index stays* until the peer has the snapshot (`pin`), within a bound: beyond it the snapshot is
  given up and a newer one is begun.

One piece is under way to a peer at a time; the next one goes when the peer has answered. The shell reads pieces
(`UnreadPiece.load`, in any thread), sends what comes of it as fast as it sees fit, and hands back what it hears.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final

import msgspec

from lanner import limits
from lanner.broker.replicas.replica import MEMBERSHIP_KEY, Replica
from lanner.errors import RemoteProtocolError, StorageDamaged
from lanner.ledger import Files, Ledger, Rows, Wanted, read_entries
from lanner.raft import Role

PIECE_BYTES: Final = 1 * limits.MIB
PIECE_ROWS_BYTES: Final = 1 * limits.MIB
PIECE_ENTRIES: Final = 1_024
PIECE_CHUNKS: Final = 64  # so many rows of the ledger's index are looked at for one piece
SCAN_ROWS: Final = 1_000  # a table reads about so many at once
OUTGOING_MAX: Final = 2
RESEND_TICKS: Final = 100
SILENT_TICKS_MAX: Final = 400
_ROWS_END: Final = b"\xff"  # behind every key of a machine

Transform = Callable[[int, bytes, bytes], bytes]


class Status(IntEnum):
    TAKEN = 0  # everything up to this piece is stored, or will be before the flip
    INSTALLED = 1
    REFUSED = 2  # this snapshot is not wanted, or not known here: begin again


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One piece of a snapshot on its way. The first says what the snapshot is, the last that it is complete."""

    set_id: int
    sender: int
    receiver: int
    term: int  # of the leader that sends it
    stream: int  # which of this leader's: a broker counts anew when it starts, but then the term is another
    number: int
    index: int  # where the snapshot ends
    index_term: int
    members: bytes = b""
    rows: list[tuple[bytes, bytes]] = []
    entries: list[tuple[int, int, int, bytes]] = []
    last: bool = False


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What became of a piece."""

    set_id: int
    sender: int
    receiver: int
    term: int
    stream: int
    number: int
    status: int


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Piece | Reply]] = msgspec.msgpack.Decoder(Piece | Reply)


def encode(value: Piece | Reply) -> bytes:
    return _encoder.encode(value)


def decode(data: bytes | memoryview) -> Piece | Reply:
    """Refuses what is too long before it is looked at."""
    if len(data) > limits.FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a piece of a snapshot has {len(data)} bytes, more than {limits.FRAME_BYTES_MAX}")
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"a piece of a snapshot does not decode: {error}") from None


@dataclass(slots=True)
class UnreadPiece:
    """A piece to be sent, whose rows or entries have yet to be read."""

    head: Piece
    wanted: list[Wanted]
    transform: Transform
    read_rows: Callable[[], list[tuple[bytes, bytes]]] | None = None
    piece: Piece | None = None

    def load(self, files: Files) -> Piece:
        """Read what belongs to it, in any thread, but not in two. FileMissing: tell `retry`. Else: tell `failed`."""
        if self.piece is None and self.read_rows is not None:
            self.piece = msgspec.structs.replace(self.head, rows=self.read_rows())
        elif self.piece is None:
            payloads = read_entries(files, [stored.location for stored, _ in self.wanted])
            entries = []
            for (stored, part), payload in zip(self.wanted, payloads, strict=True):
                kept = payload if part is None else self.transform(self.head.set_id, payload, part.kept)
                entries.append((stored.index, stored.term, stored.kind, kept))
            self.piece = msgspec.structs.replace(self.head, entries=entries)
        return self.piece

    def damaged(self, error: StorageDamaged) -> list[int]:
        """Which of its entries an error of `load` is about."""
        where = error.details.get("file"), error.details.get("offset")
        return [stored.index for stored, _ in self.wanted if stored.location[:2] == where]


class Outgoing:
    """One snapshot on its way to one peer."""

    def __init__(self, replica: Replica, peer: int, stream: int, ledger: Ledger, transform: Transform) -> None:
        self.replica = replica
        self.peer = peer
        self.stream = stream
        self.term = replica.node.term
        self.index = ledger.state(replica.set_id).saved_index
        self.unread: UnreadPiece | None = None  # planned, and not answered yet
        self.due = True  # the unread, or the next one, is to be sent
        self.waiting_ticks = 0
        self.silent_ticks = 0
        announced = replica.node.snapshot_message(peer, self.index)
        self._members = announced.entries[0].payload
        self._head = Piece(
            replica.set_id, replica.node.node_id, peer, self.term, stream, 0, self.index, announced.log_term
        )
        self._ledger = ledger
        self._transform = transform
        self._rows: Rows | None = ledger.rows(replica.set_id)
        self._scan: Iterator[tuple[bytes, bytes]] | None = None
        self._scanned = 0
        self._next_key = b""
        self._next_index = 1
        self._number = 0

    @property
    def holds_rows(self) -> bool:
        """Whether rows have yet to be read, so that no save may change them."""
        return self._rows is not None

    @property
    def number(self) -> int:
        """Of the piece that is on its way: it rises as long as the snapshot gets on."""
        return self._number

    @property
    def valid(self) -> bool:
        """Whether this replica still leads in the term that the snapshot was begun in, and the peer belongs to it."""
        return _may_send(self.replica, self.peer) and self.replica.node.term == self.term

    def take(self) -> UnreadPiece:
        """The unread to send: the one that was not answered, or the next."""
        self.due = False
        self.waiting_ticks = 0
        if self.unread is None:
            self.unread = self._plan()
        return self.unread

    def retry(self) -> None:
        """What was planned has moved on disk before it was read: look it up again."""
        assert self.unread is not None and self.unread.piece is None
        self._next_index = self.unread.wanted[0].stored.index
        self.unread = None
        self.due = True

    def answered(self, number: int) -> None:
        self.silent_ticks = 0
        if self.unread is not None and number == self._number and not self.unread.head.last:
            self.unread = None
            self._number += 1
            self.due = True

    def _plan(self) -> UnreadPiece:
        head, number = self._head, self._number
        if number == 0:
            head = msgspec.structs.replace(head, members=self._members)
            return UnreadPiece(head, [], self._transform)
        if self._rows is not None:
            return UnreadPiece(msgspec.structs.replace(head, number=number), [], self._transform, self._read_rows)
        wanted = self._look_up()
        head = msgspec.structs.replace(head, number=number, last=self._next_index > self.index)
        return UnreadPiece(head, wanted, self._transform)

    def _read_rows(self) -> list[tuple[bytes, bytes]]:
        """The next rows. Runs where the unread is loaded; nothing else looks at the scan."""
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        while self._rows is not None and size < PIECE_ROWS_BYTES:
            if self._scan is None:
                self._scan = islice(self._rows.scan(self._next_key, _ROWS_END), SCAN_ROWS)
                self._scanned = 0
            row = next(self._scan, None)
            if row is None:
                self._scan = None
                if self._scanned < SCAN_ROWS:
                    self._rows = None
                continue
            self._scanned += 1
            self._next_key = row[0] + b"\x00"
            size += len(row[0]) + len(row[1])
            if row[0] != MEMBERSHIP_KEY:  # said in the first piece
                rows.append(row)
        return rows

    def _look_up(self) -> list[Wanted]:
        """The next entries that the machine wants, as far as they fit one piece; at least one, if there is any."""
        found: list[Wanted] = []
        size = 0
        for _ in range(PIECE_CHUNKS):
            part, following = self._ledger.wanted(self.replica.set_id, self._next_index, self.index, 1)
            for wanted in part:
                size += wanted.stored.location.length
                if found and (size > PIECE_BYTES or len(found) >= PIECE_ENTRIES):
                    self._next_index = wanted.stored.index
                    return found
                found.append(wanted)
            self._next_index = following
            if following > self.index:
                break
        return found


def _may_send(replica: Replica, peer: int) -> bool:
    node = replica.node
    return not replica.closed and node.role is Role.LEADER and (peer in node.voters or peer in node.learners)


@dataclass(slots=True)
class SnapshotSender:
    """Every snapshot that this broker sends, a few at a time."""

    ledger: Ledger
    transform: Transform
    outgoing: dict[tuple[int, int], Outgoing] = field(default_factory=dict)
    waiting: dict[tuple[int, int], Replica] = field(default_factory=dict)
    completed: int = 0
    _streams: int = 0

    def ask(self, replica: Replica, peer: int) -> None:
        """The peer needs a snapshot; one that was on its way to it is out of date."""
        self.outgoing.pop((replica.set_id, peer), None)
        self.waiting[replica.set_id, peer] = replica

    def holds(self, set_id: int) -> bool:
        """Whether saves must leave the set out for a moment."""
        return any(one.replica.set_id == set_id and one.holds_rows for one in self.outgoing.values())

    def pin(self, set_id: int) -> int | None:
        """The log behind this index must stay: a snapshot that ends there is on its way."""
        return min((one.index for one in self.outgoing.values() if one.replica.set_id == set_id), default=None)

    def take(self, saving: Container[int]) -> list[UnreadPiece]:
        """What is to be sent now. `saving`: sets whose rows are on their way into the table."""
        for key, replica in list(self.waiting.items()):
            if len(self.outgoing) >= OUTGOING_MAX:
                break
            if not _may_send(replica, key[1]):
                del self.waiting[key]
            elif key[0] not in saving:
                del self.waiting[key]
                self._streams += 1
                self.outgoing[key] = Outgoing(replica, key[1], self._streams, self.ledger, self.transform)
        parcels = []
        for key, one in list(self.outgoing.items()):
            if not one.valid:
                del self.outgoing[key]
            elif one.due:
                parcels.append(one.take())
        return parcels

    def step(self, reply: Reply) -> None:
        one = self.outgoing.get((reply.set_id, reply.sender))
        if one is None or (one.term, one.stream) != (reply.term, reply.stream) or not one.valid:
            return
        if reply.status == Status.TAKEN:
            one.answered(reply.number)
        else:
            self.completed += reply.status == Status.INSTALLED
            self._end(one, installed=reply.status == Status.INSTALLED)

    def retry(self, unread: UnreadPiece) -> None:
        one = self._owner(unread)
        if one is not None:
            one.retry()

    def failed(self, unread: UnreadPiece) -> None:
        one = self._owner(unread)
        if one is not None:
            self._end(one, installed=False)

    def tick(self) -> None:
        for one in list(self.outgoing.values()):
            one.waiting_ticks += 1
            one.silent_ticks += 1
            if one.silent_ticks >= SILENT_TICKS_MAX or not one.valid:
                self._end(one, installed=False)
            elif one.waiting_ticks >= RESEND_TICKS and one.unread is not None and one.unread.piece is not None:
                one.due = True  # it was read, sent and perhaps lost

    def give_up(self, set_id: int) -> None:
        """Snapshots of the set pin too much, or the set is gone."""
        for one in [one for one in self.outgoing.values() if one.replica.set_id == set_id]:
            self._end(one, installed=False)
        for key in [key for key in self.waiting if key[0] == set_id]:
            del self.waiting[key]

    def _owner(self, unread: UnreadPiece) -> Outgoing | None:
        one = self.outgoing.get((unread.head.set_id, unread.head.receiver))
        return one if one is not None and one.unread is unread else None

    def _end(self, one: Outgoing, *, installed: bool) -> None:
        del self.outgoing[one.replica.set_id, one.peer]
        if one.valid:
            one.replica.node.report_snapshot(one.peer, installed, one.index)
