"""The broker without its I/O: every replica, the ledger beneath them, and the order in which things happen.

The engine is one synchronous object. It never waits, sleeps or touches a disk by itself; the shell around it (`node`
in a real broker, the simulator in tests) carries out what it asks for and reports back:

    engine.propose(...) / engine.ask(...)            callers' work comes in
    commit = engine.pump()                           decide, gather what every replica must store, as one commit
    perform(commit, files)                           the shell writes and syncs (a thread, or a simulated disk)
    engine.committed(commit)                         now it is durable: advance, apply, answer the callers

    job = engine.begin_save()                        now and then: the table catches up with the journal
    while engine.save_step(job): ...                 replica by replica, in the same turn, as many as it has time for
    while engine.encode_step(job): ...               in this turn, and in as many others as it takes
    table.commit(job.puts)
    engine.saved(job)

    engine.take_messages() / engine.step(...)        with peers: what the Raft nodes say to each other
    engine.take_unread_pieces() / engine.take_replies() / engine.step_snapshot(...)      and snapshots, piece by piece

At most one commit is in flight; what is to be stored gathers meanwhile and goes into the next one (group commit). What
needs no disk does not wait for it: a pump during a commit hands out heartbeats, their answers, and entries for
followers, whose disks may be faster. A caller is answered only for what is durable here and committed, so it
hears of nothing that a power loss could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from lanner import features, limits
from lanner.broker.replicas.closing import Closing
from lanner.broker.replicas.damage import Damages
from lanner.broker.replicas.headers import KnownHeaders
from lanner.broker.replicas.installs import Incoming, Installs
from lanner.broker.replicas.keeping import Keeping, transform
from lanner.broker.replicas.logs import JournalLog, commit_item
from lanner.broker.replicas.owned import Owned
from lanner.broker.replicas.payloads import PayloadCache
from lanner.broker.replicas.quiescence import Quiescence
from lanner.broker.replicas.replica import Load, Machine, OnAnswer, OnApplied, Replica
from lanner.broker.replicas.restoring import is_sole, restore
from lanner.broker.replicas.saves import SaveJob
from lanner.broker.replicas.snapshots import Piece, Reply, SnapshotSender, UnreadPiece
from lanner.broker.replicas.tails import PINNED_BYTES_MAX, TAIL_BYTES_MAX, TAIL_ENTRIES, Tails
from lanner.broker.replicas.timers import Timers
from lanner.cluster import Cluster
from lanner.errors import LannerError, PartitionNotFound, StorageDamaged, UnknownRecord
from lanner.ledger import Commit, CommitItem, Files, Ledger
from lanner.model import TopicSettings
from lanner.partition import Answer, Partition, Request, Tick
from lanner.raft import Config, Message, RaftNode, Ready, Snapshot

CLUSTER_SET: Final = 0
SOLE_VOTER: Final = 1
_UNCOMMITTED_BYTES_MAX: Final = 2 * limits.UNCOMMITTED_BYTES_MAX_PER_PARTITION


class Seat(NamedTuple):
    """Which replica of a set this broker holds, and which replicas the set began with."""

    replica_id: int
    founders: frozenset[int]


SOLE_SEAT: Final = Seat(SOLE_VOTER, frozenset({SOLE_VOTER}))


class Engine:
    """All replicas of one broker over one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        *,
        rng: Random,
        now_ms: Callable[[], int],
        clocks: Callable[[], int] | None = None,
        cache_bytes: int = 64 * limits.MIB,
        tail_entries: int = TAIL_ENTRIES,
        tail_bytes_max: int = TAIL_BYTES_MAX,
        pinned_bytes_max: int = PINNED_BYTES_MAX,
    ) -> None:
        self.ledger = ledger
        self.files = files
        self.replicas: dict[int, Replica] = {}
        self.settings: dict[int, TopicSettings] = {}
        self.stopped: dict[int, UnknownRecord] = {}  # sets whose replica here cannot go on with this release
        self.on_stopped: Callable[[int, UnknownRecord], None] = lambda _set_id, _error: None
        self.cache = PayloadCache(cache_bytes)
        self.headers = KnownHeaders()
        self.commits = 0
        self.entries_committed = 0
        self._rng = rng
        self._now_ms = now_ms
        self._clocks = clocks  # of how many brokers the clocks are behind that; None: its word is enough
        self._dirty: dict[int, Replica] = {}
        self._delayed: dict[int, Replica] = {}  # with something for the next commit, while one is in flight
        self._in_flight: tuple[Commit, list[tuple[Replica, list[Ready]]], list[Incoming]] | None = None
        self._saving: SaveJob | None = None
        self.timers = Timers()
        self._owned = Owned(self.replicas, self._settings_of, now_ms)
        self._unsaved: dict[int, Replica] = {}
        self._load_here = Load()
        self._messages: list[tuple[int, Message]] = []
        self._keeping = Keeping(ledger, self.cache)
        self.sending = SnapshotSender(ledger, transform)
        self.installs = Installs(ledger, self._installed)
        self.tails = Tails(ledger, self.sending, tail_entries, tail_bytes_max, pinned_bytes_max)
        self.damages = Damages(self._damaged)
        self.closing = Closing(self)
        for closed in ledger.damaged.values():
            self.damages.note(closed.set_id, 0, closed.error)
        self._quiescence = Quiescence()

    # ------------------------------------------------------------------ replica sets

    @property
    def cluster(self) -> Cluster:
        machine = self.replicas[CLUSTER_SET].machine
        assert isinstance(machine, Cluster)
        return machine

    @property
    def metadata_index(self) -> int:
        """How far the metadata is applied here."""
        return self.replicas[CLUSTER_SET].node.applied_index

    @property
    def feature_level(self) -> int:
        """What this broker may write for others to read; the lowest until it knows its cluster."""
        return self.cluster.feature_level if CLUSTER_SET in self.replicas else features.LOWEST

    def open_set(self, set_id: int, seat: Seat = SOLE_SEAT) -> Replica:
        """Start the replica of a set, new or as the ledger knows it; one without peers elects itself."""
        try:
            known = self.ledger.state(set_id)
        except KeyError:
            self.ledger.add_set(set_id, seat.replica_id)
            known = self.ledger.state(set_id)
        if known.replica_id != seat.replica_id:  # its votes were given in another name
            raise ValueError(f"the log of set {set_id} is that of replica {known.replica_id}, not {seat.replica_id}")
        log = JournalLog(self.ledger, self.files, set_id, self.damages.note)
        machine = self._load(set_id)
        restored = restore(known, seat.founders, self.ledger.rows(set_id), log)
        config = Config(
            node_id=seat.replica_id,
            uncommitted_bytes_max=_UNCOMMITTED_BYTES_MAX,
            tells_commits=set_id == CLUSTER_SET,  # every broker acts on the metadata; of a partition only its leader
        )
        clocks = None if set_id == CLUSTER_SET else self._clocks
        replica = Replica(set_id, RaftNode(config, restored, log, self._rng), machine, self._load_here, clocks)
        self.replicas[set_id] = replica
        if is_sole(restored, seat.replica_id):
            replica.node.campaign()
        self._dirty[set_id] = replica
        self._quiescence.wake(replica)
        return replica

    def _load(self, set_id: int) -> Machine:
        rows = self.ledger.rows(set_id)
        return Cluster(rows) if set_id == CLUSTER_SET else Partition(rows, self.headers.read)

    def close_set(self, set_id: int, error: LannerError) -> None:
        """Forget a set for good: its topic was deleted."""
        replica = self.drop(set_id)
        self.settings.pop(set_id, None)
        self.stopped.pop(set_id, None)
        self.damages.forget(set_id)
        self.ledger.remove_set(set_id)
        if replica is not None:
            replica.close(error)

    def drop(self, set_id: int, *, save: bool = False) -> Replica | None:
        """Stop driving a set; where it stands may still be saved."""
        for known in (self._dirty, self._delayed) if save else (self._dirty, self._delayed, self._unsaved):
            known.pop(set_id, None)
        for part in (self.timers, self._quiescence, self.tails, self.installs):
            part.forget(set_id)
        self.sending.give_up(set_id)
        return self.replicas.pop(set_id, None)

    def _damaged(self, set_id: int, error: StorageDamaged) -> None:
        """Have another replica lead, if there is one: a saved entry is damaged."""
        replica = self.replicas.get(set_id)
        if replica is not None:
            replica.node.reluctant = True
            self.wake(set_id)

    def change_settings(self, set_id: int, settings: TopicSettings) -> None:
        """Use the topic's settings from the next decision on; what is due may be due at another time now."""
        self.settings[set_id] = settings
        replica = self.replicas.get(set_id)
        if replica is not None:
            self.timers.reschedule(replica)

    def _settings_of(self, set_id: int) -> TopicSettings:
        return self.timers.settings_now(self.settings.get(set_id) or _DEFAULT_SETTINGS)

    def wake(self, set_id: int) -> None:
        """Look at a set in the next pump, and tick it again if it is quiesced: something outside happened to it."""
        replica = self.replicas.get(set_id)
        if replica is not None:
            self._dirty[set_id] = replica
            self._quiescence.wake(replica)

    def quiesced(self) -> list[int]:
        """The sets whose Raft nodes are not ticked now, because nothing happens in them."""
        return [set_id for set_id in self.replicas if set_id in self._quiescence]

    def replica(self, set_id: int) -> Replica:
        replica = self.replicas.get(set_id)
        if replica is None:
            raise PartitionNotFound("the partition is not served by this broker")
        return replica

    # ------------------------------------------------------------------ calls

    def propose(self, set_id: int, payload: bytes, on_applied: OnApplied) -> int:
        """Put a record into a set's log; on_applied is told its result once it is durable and applied."""
        replica = self.replica(set_id)
        index = replica.propose(payload, on_applied)
        self._dirty[set_id] = replica
        return index

    def step(self, set_id: int, message: Message) -> None:
        """Take a message of another replica of the set. One for a set that is not here counts as lost."""
        replica = self.replicas.get(set_id)
        if replica is None:
            return
        try:
            replica.node.step(message)
        except StorageDamaged as error:
            self.closing.contain(replica, error)
            return
        self._quiescence.heard(replica, message)
        if replica.node.has_ready():
            self._dirty[set_id] = replica

    def report_unreachable(self, set_id: int, replica_id: int) -> None:
        """Tell a set's Raft node that a message to another replica is lost."""
        replica = self.replicas.get(set_id)
        if replica is not None:
            replica.node.report_unreachable(replica_id)

    def take_messages(self) -> list[tuple[int, Message]]:
        """Return messages for other replicas, as (set, message), each once. Losing some costs only time."""
        messages, self._messages = self._messages, []
        return messages

    def take_unread_pieces(self) -> list[UnreadPiece]:
        """Return pieces of snapshots to be read (`UnreadPiece.load`) and sent, each once, at the pace of the shell."""
        saving = () if self._saving is None else {replica.set_id for replica, _ in self._saving.taken}
        return self.sending.take(saving)

    def take_replies(self) -> list[Reply]:
        """Return answers to pieces of snapshots, to be sent; each is handed out once."""
        replies, self.installs.replies = self.installs.replies, []
        return replies

    def step_snapshot(self, value: Piece | Reply) -> None:
        """Take a piece of a snapshot, or the answer to one. Losing either costs only time."""
        replica = self.replicas.get(value.set_id)
        if replica is None:
            return
        if isinstance(value, Piece):
            self.installs.step(replica, value)
        else:
            self.sending.step(value)
        self._dirty[value.set_id] = replica

    def ask(self, set_id: int, request: Request, on_answer: OnAnswer) -> None:
        """Ask a partition's leader; the answer is told once the decision behind it is durable and applied."""
        replica = self.replica(set_id)
        replica.ask(request, on_answer)
        self._dirty[set_id] = replica

    # ------------------------------------------------------------------ the commit path

    @property
    def busy(self) -> bool:
        """Whether a commit is in flight."""
        return self._in_flight is not None

    def pump(self) -> Commit | None:
        """Decide what waits, then gather what must be stored into one commit, if none is in flight.

        During a commit it hands out what can leave without the disk. So it is worth a call whenever something happened.
        """
        if self._in_flight is not None:
            self._talk()
            return None
        installs = self.installs
        if self._delayed:
            self._dirty = {**self._delayed, **self._dirty}
            self._delayed = {}
        if installs.active:
            for installing in installs.ready():
                self._dirty[installing.set_id] = installing
        if not (self._dirty or self.ledger.has_changes):
            return None
        now_ms, feature_level = self._now_ms(), self.feature_level
        items: list[CommitItem] = []
        stored: list[tuple[Replica, list[Ready]]] = []
        room = limits.JOURNAL_RECORD_BYTES_MAX
        dirty, self._dirty = self._dirty, {}
        for set_id, replica in dirty.items():
            if replica.deciding:
                self._take_ready(replica)  # what others have stored may end the decision that questions wait for
            if replica.undecided:
                if replica.leads:
                    replica.decide(self._settings_of(set_id), now_ms, feature_level, self._owned.of(set_id))
                else:
                    self._dirty[set_id] = replica  # until it can tell the time
            self._take_ready(replica)
            if replica.unstored and not replica.closed:
                self._quiescence.wake(replica)
                # A snapshot may replace this log with this commit: nothing of the log may come after it.
                readies, room = replica.take_unstored(room, everything=set_id in installs)
                if readies:
                    stored.append((replica, readies))
                    items.append(commit_item(set_id, readies))
                if replica.unstored:
                    self._dirty[set_id] = replica
        # After all that the old logs have to say.
        built, flips = installs.take_commit() if installs.active else ((), ())
        if not items and not built and not flips and not self.ledger.has_changes:
            return None
        commit = self.ledger.begin_commit(items, built, flips)
        self._in_flight = (commit, stored, installs.storing() if installs.active else [])
        self.commits += 1
        return commit

    def _talk(self) -> None:
        """A commit is in flight: hand out what leaves without the disk; what needs it goes into the next commit."""
        dirty, self._dirty = self._dirty, {}
        for set_id, replica in dirty.items():
            self._take_ready(replica)
            if not replica.closed and (replica.unstored or replica.undecided):
                self._quiescence.wake(replica)
                self._delayed[set_id] = replica

    def committed(self, commit: Commit) -> None:
        """Tell the Raft nodes that the commit is durable, apply what that commits, and answer the callers."""
        assert self._in_flight is not None and self._in_flight[0] is commit
        _, stored, building = self._in_flight
        self._in_flight = None
        self.ledger.commit_synced(commit)
        if self.ledger.damaged:
            self.closing.look()
        if building:
            self.installs.stored(building)
        for replica, readies in stored:
            for ready in () if replica.closed else readies:
                self.entries_committed += len(ready.entries)
                replica.node.advance(ready)
        for set_id, _ in commit.flips:
            self.installs.flipped(set_id)
        for replica, _ in stored:
            if not replica.closed:
                self._take_ready(replica)
            if not replica.closed and (replica.unstored or replica.undecided):
                self._dirty[replica.set_id] = replica

    def _installed(self, replica: Replica, snapshot: Snapshot) -> None:
        """The set's rows are those of the snapshot now."""
        replica.install(self._load(replica.set_id))
        self.damages.forget(replica.set_id)
        replica.node.reluctant = False
        self.tails.forget(replica.set_id)
        self._dirty[replica.set_id] = replica

    def _take_ready(self, replica: Replica) -> None:
        try:
            effects = replica.take_ready()
            if effects:
                self._keeping.tell(replica.set_id, effects, leads=replica.node.leadership is not None)
        except StorageDamaged as error:
            self.closing.contain(replica, error)
            return
        if replica.messages:
            self._messages += [(replica.set_id, message) for message in replica.messages]
            replica.messages.clear()
        if replica.snapshot_peers:
            for peer in replica.snapshot_peers:
                self.sending.ask(replica, peer)
            replica.snapshot_peers.clear()
        if replica.applied_news:
            replica.applied_news = False
            self._unsaved[replica.set_id] = replica
            if replica.set_id != CLUSTER_SET:
                self.timers.reschedule(replica)
        if replica.stopped is not None:
            self.closing.stop(replica, replica.stopped)

    # ------------------------------------------------------------------ time

    def tick(self) -> None:
        """Let time pass: Raft nodes that need ticks get one, and machines with something due are asked to act."""
        if self.ledger.unreadable:
            self.closing.look()
        for replica in self._quiescence.tick():
            self._dirty[replica.set_id] = replica
        self.sending.tick()
        self.installs.tick()
        for set_id in self.timers.take(self._now_ms(), self._settings_of, self._owned.of):
            due = self.replicas.get(set_id)
            if due is not None and due.node.own_term_applied:
                self.ask(set_id, Tick(), self._ticked(due))

    def _ticked(self, replica: Replica) -> OnAnswer:
        def reschedule(_answer: Answer, _index: int) -> None:
            if not replica.closed:
                self.timers.reschedule(replica)

        return reschedule

    # ------------------------------------------------------------------ saving

    def begin_save(self) -> SaveJob | None:
        """Start bringing the table up to date, or None when nothing has changed since the last time.

        The steps of one save belong to one turn of the loop: what a machine holds and what the ledger keeps for it
        must be of one moment. A save need not take in every replica; those left over go first the next time.
        """
        if not self._unsaved and not self.ledger.save_needed and not self.installs.save_needed:
            return None
        save = self.ledger.begin_save()
        self._saving = SaveJob(save, built=self.installs.take_save(save))
        return self._saving

    def save_step(self, job: SaveJob) -> bool:
        """Take one more replica into the save; False when none is left."""
        set_id = next((set_id for set_id in self._unsaved if not self.sending.holds(set_id)), None)
        if set_id is None:
            return False
        replica = self._unsaved.pop(set_id)
        applied_index = replica.node.applied_index
        job.save.add_set(set_id, applied_index, replica.take_dirty())
        job.taken.append((replica, applied_index))
        return True

    def encode_step(self, job: SaveJob) -> bool:
        """Turn a part of the save into bytes; False when none is left. This may be done in later turns, too."""
        return job.save.encode_some()

    def saved(self, job: SaveJob) -> None:
        """Take note that the table holds the save: the logs before it are no longer needed to rebuild the machines."""
        self.ledger.saved(job.save)
        self._saving = None
        self.installs.saved(job.built)
        for replica, index in job.taken:
            if replica.closed or index <= replica.node.compacted_index:
                continue  # such as what was saved before a snapshot replaced it
            if replica.has_peers:
                self.tails.saved(replica, index)
            else:
                self.tails.forget(replica.set_id)
                self._compact(replica, index)
        for replica, index in self.tails.choose():
            self._compact(replica, index)

    def _compact(self, replica: Replica, index: int) -> None:
        try:
            term = self.ledger.term(replica.set_id, index)
            self.ledger.compact(replica.set_id, index)
        except StorageDamaged as error:
            self.closing.contain(replica, error)
            return
        replica.node.compacted(index, term)

    # ------------------------------------------------------------------ reading

    def payload_from_memory(self, set_id: int, index: int) -> bytes | None:
        return self.cache.get(set_id, index)

    def status(self, set_id: int) -> dict[str, object]:
        return self.replica(set_id).node.status()

    @property
    def unapplied_bytes(self) -> int:
        """Bytes of proposals that have not applied yet, over all replicas."""
        return self._load_here.unapplied_bytes

    @property
    def led(self) -> bool:
        """Whether every replica here has a leader that may decide."""
        return all(replica.leads for replica in self.replicas.values())


_DEFAULT_SETTINGS: Final = TopicSettings()
