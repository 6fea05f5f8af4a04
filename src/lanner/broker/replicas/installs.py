"""Snapshots, the receiving side: what a leader sends is built beside what is here, and taken in one step.

A replica that installs goes on as it was: it votes by its old log, answers for nothing new, serves what it has. The
build lives under a fresh generation of the ledger (see `ledger.building`):

    offered ──recorded──▶ building ──all entries committed, all rows saved──▶ flipping ──one commit──▶ installed
        └────────────────────┴── new term, newer snapshot, silence, a broken piece: abandoned ─┘

An install is abandoned at any time without a trace, but not while it flips: then the disk decides. Each piece is
answered when it is stored, so the sender never runs ahead of this disk by more than one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lanner import limits
from lanner.broker.replicas.replica import MEMBERSHIP_KEY, Replica
from lanner.broker.replicas.snapshots import Piece, Reply, Status
from lanner.errors import LannerError
from lanner.ledger import BuildItem, Ledger, Save
from lanner.raft import Entry, EntryKind, Membership, Message, MessageKind, Snapshot

SILENT_TICKS_MAX: Final = 600
ROWS_BYTES_MAX: Final = 16 * limits.MIB  # so much may wait for a save before the sender has to
ROW_KEY_BYTES_MAX: Final = 400


@dataclass(slots=True)
class Incoming:
    """One snapshot that is being built."""

    replica: Replica
    snapshot: Snapshot
    offer: Piece
    generation: int
    rows: dict[bytes, bytes | None]  # not in a save yet
    rows_bytes: int = 0
    rows_saving: int = 0  # rows in a save that is on its way
    entries: list[tuple[int, int, int, bytes]] = field(default_factory=list)  # not in a commit yet
    storing: bool = True  # a commit that matters is on its way: at first, the one that records the build
    last_index: int = 0
    expected: int = 1  # the number of the next piece
    owes: bool = True  # the piece before it is not answered yet
    whole: bool = False  # the last piece is here
    flipping: bool = False
    silent_ticks: int = 0

    def is_of(self, piece: Piece) -> bool:
        """Whether the piece belongs to this snapshot, sent by this leader in this go."""
        offer = self.offer
        return (piece.sender, piece.term, piece.stream) == (offer.sender, offer.term, offer.stream)

    @property
    def wanted(self) -> bool:
        """Whether the Raft node still waits for this snapshot."""
        return self.flipping or (not self.replica.closed and self.replica.node.installing == self.snapshot)

    @property
    def complete(self) -> bool:
        """Whether everything is durable, so that the set may flip to it."""
        return self.whole and not (self.storing or self.entries or self.rows or self.rows_saving)

    @property
    def needs_save(self) -> bool:
        """Whether nothing but a save is missing."""
        return bool(self.rows) and (self.whole or self.rows_bytes > ROWS_BYTES_MAX)

    @property
    def answerable(self) -> bool:
        return self.owes and not self.storing and not self.entries and self.rows_bytes <= ROWS_BYTES_MAX

    def take(self, piece: Piece) -> bool:
        """Add a piece; False: it cannot be one of this snapshot."""
        for key, value in piece.rows:
            if not 0 < len(key) <= ROW_KEY_BYTES_MAX or key == MEMBERSHIP_KEY:
                return False
            self.rows[key] = value
            self.rows_bytes += len(key) + len(value)
        for entry in piece.entries:
            index, term, _, payload = entry
            if not self.last_index < index <= self.snapshot.index or not 0 < term <= self.snapshot.term:
                return False
            if len(payload) > limits.RAFT_ENTRY_BYTES_MAX:
                return False
            self.last_index = index
            self.entries.append(entry)
        self.whole = piece.last
        self.expected += 1
        self.owes = True
        return True


class Installs:
    """Every snapshot that is being built on this broker, at most one for a set."""

    def __init__(self, ledger: Ledger, load: Callable[[Replica, Snapshot], None]) -> None:
        self._ledger = ledger
        self._load = load  # gives the replica a machine made of the rows that its set has now
        self._incoming: dict[int, Incoming] = {}
        self.replies: list[Reply] = []
        self.completed = 0
        self.abandoned = 0

    def __contains__(self, set_id: object) -> bool:
        return set_id in self._incoming

    @property
    def active(self) -> bool:
        return bool(self._incoming)

    # ------------------------------------------------------------------ pieces

    def step(self, replica: Replica, piece: Piece) -> None:
        """A piece has arrived."""
        if piece.receiver != replica.node.node_id:
            return
        if piece.number == 0:
            self._offered(replica, piece)
            return
        found = self._incoming.get(piece.set_id)
        if found is None or not found.is_of(piece) or found.flipping:
            if found is None:
                self._reply(piece, Status.REFUSED)
            return
        if not found.wanted:
            self._abandon(found)
        elif piece.number == found.expected and not found.owes:
            found.silent_ticks = 0
            if found.take(piece):
                self._answer(found)
                return
            found.replica.node.abandon_install()
            self._abandon(found)
        elif piece.number < found.expected and not found.owes:
            self._reply(piece, Status.TAKEN)
            return
        else:
            return
        self._reply(piece, Status.REFUSED)

    def _offered(self, replica: Replica, piece: Piece) -> None:
        found = self._incoming.get(piece.set_id)
        if found is not None and found.is_of(piece) and found.wanted:
            if not found.owes:
                self._reply(piece, Status.TAKEN)
            return
        node = replica.node
        entry = Entry(piece.index, piece.index_term, EntryKind.MEMBERSHIP, piece.members)
        message = Message(
            kind=MessageKind.SNAPSHOT,
            sender=piece.sender,
            receiver=piece.receiver,
            term=piece.term,
            log_index=piece.index,
            log_term=piece.index_term,
            entries=(entry,),
        )
        try:
            node.step(message)
        except LannerError:
            self._reply(piece, Status.REFUSED)
            return
        snapshot = node.installing
        fresh = snapshot is not None and (snapshot.index, snapshot.term) == (piece.index, piece.index_term)
        if found is not None and (fresh or not found.wanted) and not found.flipping:
            self._abandon(found)
        if not fresh or snapshot is None or piece.term != node.term or piece.set_id in self._incoming:
            self._reply(piece, Status.REFUSED)
            return
        generation = self._ledger.begin_build(piece.set_id, snapshot.index, snapshot.term)
        self._incoming[piece.set_id] = Incoming(replica, snapshot, piece, generation, _first_rows(snapshot))

    def _answer(self, found: Incoming) -> None:
        """Answer the piece before the expected one, if what came with it is stored, or little enough to wait."""
        if found.answerable:
            found.owes = False
            self._tell(found, Status.TAKEN)

    def _tell(self, found: Incoming, status: Status) -> None:
        self._reply(found.offer, status, found.expected - 1)

    def _reply(self, piece: Piece, status: Status, number: int | None = None) -> None:
        number = piece.number if number is None else number
        self.replies.append(Reply(piece.set_id, piece.receiver, piece.sender, piece.term, piece.stream, number, status))

    # ------------------------------------------------------------------ commits

    def ready(self) -> list[Replica]:
        """The replicas whose installs have something for the next commit."""
        self._drop_unwanted()
        return [one.replica for one in self._incoming.values() if one.entries or (one.complete and not one.flipping)]

    def take_commit(self) -> tuple[Sequence[BuildItem], Sequence[tuple[int, int]]]:
        """Entries to store, and generations to flip to: those that are complete and that the Raft node still wants."""
        built, flips = [], []
        for set_id, one in list(self._incoming.items()):
            if one.flipping:
                continue
            if one.entries:
                built.append(BuildItem(set_id, one.generation, one.entries))
                one.entries = []
                one.storing = True
            elif one.complete:
                if one.replica.node.begin_install(one.snapshot):
                    one.flipping = True
                    flips.append((set_id, one.generation))
                else:
                    self._abandon(one)
        return built, flips

    def storing(self) -> list[Incoming]:
        """The builds that the commit which begins now records, or has entries of."""
        return [one for one in self._incoming.values() if one.storing]

    def stored(self, storing: list[Incoming]) -> None:
        """That commit is durable."""
        for one in storing:
            one.storing = False
            if self._incoming.get(one.replica.set_id) is one:
                self._answer(one)

    def flipped(self, set_id: int) -> None:
        """The flip is durable: the replica goes on from the snapshot, with a machine made of its rows."""
        one = self._incoming.pop(set_id, None)
        if one is None or one.replica.closed:
            return
        one.replica.node.installed(one.snapshot)
        self._load(one.replica, one.snapshot)
        self.completed += 1
        self._tell(one, Status.INSTALLED)

    # ------------------------------------------------------------------ saves

    @property
    def save_needed(self) -> bool:
        return any(one.rows for one in self._incoming.values())

    @property
    def save_wanted(self) -> bool:
        """Whether an install waits for nothing but a save."""
        return any(one.needs_save for one in self._incoming.values())

    def take_save(self, save: Save) -> list[Incoming]:
        """Put the rows that wait into a save. Only those of builds that the journal knows of, or a stop could not
        find them again to throw them away."""
        taken = []
        for set_id, one in self._incoming.items():
            if one.rows and not (one.storing and one.expected == 1):
                save.add_build(set_id, one.generation, one.rows)
                one.rows_saving = len(one.rows)
                one.rows, one.rows_bytes = {}, 0
                taken.append(one)
        return taken

    def saved(self, taken: list[Incoming]) -> None:
        for one in taken:
            one.rows_saving = 0
            if self._incoming.get(one.replica.set_id) is one:
                self._answer(one)

    # ------------------------------------------------------------------ the end of it

    def tick(self) -> None:
        for one in list(self._incoming.values()):
            one.silent_ticks += 1
            if one.silent_ticks >= SILENT_TICKS_MAX and not one.flipping:
                one.replica.node.abandon_install()
        self._drop_unwanted()

    def forget(self, set_id: int) -> None:
        """The set is gone, and its builds with it."""
        self._incoming.pop(set_id, None)

    def _drop_unwanted(self) -> None:
        for one in list(self._incoming.values()):
            if not one.wanted:
                self._abandon(one)

    def _abandon(self, one: Incoming) -> None:
        del self._incoming[one.replica.set_id]
        self._ledger.abandon_build(one.replica.set_id, one.generation)
        self.abandoned += 1


def _first_rows(snapshot: Snapshot) -> dict[bytes, bytes | None]:
    """Who belongs to the set at the snapshot's index is a row beside the machine's."""
    return {MEMBERSHIP_KEY: Membership(snapshot.voters, snapshot.learners).encode()}
