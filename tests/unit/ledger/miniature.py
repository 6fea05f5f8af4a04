"""A broker in miniature: a machine whose whole behaviour is written in the entries it applies, over a real ledger.

An entry's payload says what it does to older entries: keep itself, release some, keep only the first bytes of some.
So the expected state after any prefix of a log is a function of that prefix, and a run with any number of crashes can
be compared with a plain model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from lanner.ledger import CommitItem, EntryIn, Ledger, perform, perform_preparation, read_entry
from lanner.testing.disk import SimDisk


def payload_of(
    *, keep: bool = False, release: Sequence[int] = (), part: Sequence[tuple[int, int]] = (), body: bytes
) -> bytes:
    """keep: stay readable; release: these indexes go; part: (index, bytes of its body that stay)."""
    effects = {"keep": keep, "release": list(release), "part": [list(pair) for pair in part]}
    return json.dumps(effects).encode() + b"\n" + body


def shortened(_set_id: int, payload: bytes, kept: bytes) -> bytes:
    """The transform of a rewrite: the effects, and the first bytes of the body."""
    effects, body = payload.split(b"\n", 1)
    return effects + b"\n" + body[: int(kept)]


@dataclass
class Machine:
    """index → how many bytes of the entry's body are wanted (None: all)."""

    applied: int = 0
    wanted: dict[int, int | None] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)

    def apply(self, index: int, payload: bytes, tell: Ledger | None, set_id: int) -> None:
        effects = json.loads(payload.split(b"\n", 1)[0])
        self.applied = index
        if effects["keep"]:
            self.wanted[index] = None
            self.dirty.add(index)
            if tell:
                tell.keep(set_id, index)
        for released in effects["release"]:
            if self.wanted.pop(released, 0) != 0:
                self.dirty.add(released)
                if tell:
                    tell.release(set_id, released)
        for parted, size in effects["part"]:
            before = self.wanted.get(parted, 0)
            if before == 0 or (before is not None and before <= size):
                continue
            self.wanted[parted] = size
            self.dirty.add(parted)
            if tell:
                tell.keep_part(set_id, parted, str(size).encode(), size)

    def take_dirty(self) -> dict[bytes, bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        for index in self.dirty:
            key = b"%020d" % index
            rows[key] = json.dumps(self.wanted[index]).encode() if index in self.wanted else None
        self.dirty.clear()
        return rows


@dataclass
class Replica:
    """What the model knows of a set: every entry that may still be there, and what the machine made of them."""

    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # index → term, payload
    last: int = 0
    vote: tuple[int, int] = (0, 0)
    machine: Machine = field(default_factory=Machine)


class Miniature:
    """Drives a ledger on a simulated disk, and a model beside it."""

    def __init__(self, disk: SimDisk, rng: Random, segment_bytes: int = 8_192) -> None:
        self.disk, self.rng, self.segment_bytes = disk, rng, segment_bytes
        self.replicas: dict[int, Replica] = {}
        self.undecided: Callable[[], None] | None = None  # what a commit in flight would change
        self.rewritten_files = 0
        self.rewrite_wanted: Callable[[], int | None] = lambda: self.ledger.rewrite_candidate()
        self.ledger = self.recover()

    def recover(self) -> Ledger:
        return Ledger.recover(
            self.disk.files, self.disk.table, random_bytes=self.rng.randbytes, segment_bytes=self.segment_bytes
        )

    # ------------------------------------------------------------------ what a broker does

    def commit(self, items: Sequence[CommitItem], *, added: Sequence[int] = (), removed: Sequence[int] = ()) -> None:
        for set_id in added:
            self.ledger.add_set(set_id)
        for set_id in removed:
            self.ledger.remove_set(set_id)
        commit = self.ledger.begin_commit(items)

        def happened() -> None:
            for set_id in added:
                self.replicas[set_id] = Replica()
            for set_id in removed:
                self.replicas.pop(set_id, None)
            for set_id, vote, entries in items:
                replica = self.replicas[set_id]
                replica.vote = vote or replica.vote
                for index, term, _, payload in entries:
                    for gone in range(index, replica.last + 1):
                        replica.entries.pop(gone, None)
                    replica.entries[index] = (term, payload)
                    replica.last = index

        self.undecided = happened
        perform(commit, self.disk.files)
        self.undecided = None
        happened()
        self.ledger.commit_synced(commit)

    def apply(self, set_id: int, count: int) -> None:
        replica = self.replicas[set_id]
        for index in range(replica.machine.applied + 1, min(replica.last, replica.machine.applied + count) + 1):
            payload = read_entry(self.disk.files, self.ledger.locate(set_id, index))
            assert payload == replica.entries[index][1]
            replica.machine.apply(index, payload, self.ledger, set_id)

    def save(self, chosen: Sequence[int] | None = None, *, meanwhile: Callable[[], None] | None = None) -> None:
        save = self.ledger.begin_save()
        taken = list(self.replicas) if chosen is None else [set_id for set_id in chosen if set_id in self.replicas]
        for set_id in taken:
            machine = self.replicas[set_id].machine
            save.add_set(set_id, machine.applied, machine.take_dirty())
        applied = {set_id: self.replicas[set_id].machine.applied for set_id in taken}
        if meanwhile:
            meanwhile()
        self.disk.table.commit(save.puts)
        self.ledger.saved(save)
        for set_id, index in applied.items():
            if set_id in self.replicas:
                self.ledger.compact(set_id, index)
        for file_id in self.ledger.droppable():
            self.disk.files.remove(file_id)
            self.ledger.dropped(file_id)

    def rewrite(self, *, between: Callable[[], None] = lambda: None) -> bool:
        file_id = self.rewrite_wanted()
        if file_id is None:
            return False
        rewrite = self.ledger.plan_rewrite(file_id)
        while not rewrite.done:
            rewrite.read(self.disk.files)
            between()
            rewrite.choose(self.ledger)
            between()
            rewrite.write(self.disk.files, shortened)
            between()
        self.ledger.rewritten(rewrite)
        self.rewritten_files += 1
        return True

    def prepare(self) -> None:
        preparation = self.ledger.prepare()
        if preparation is not None:
            perform_preparation(preparation, self.disk.files)
            self.ledger.prepared(preparation)

    def entry(self, set_id: int, index: int, term: int, payload: bytes) -> EntryIn:
        return EntryIn(index, term, 1, payload)

    # ------------------------------------------------------------------ what must hold

    def restart(self) -> None:
        """Recover, find out whether a commit in flight made it, and bring the machines up to date again."""
        self.ledger = self.recover()
        if self.undecided is not None:
            if not self.agrees():
                self.undecided()
            self.undecided = None
        assert self.agrees(), "the recovered logs are neither those before nor those after the commit in flight"
        for set_id, replica in self.replicas.items():
            state = self.ledger.state(set_id)
            rows = {int(key): json.loads(row) for key, row in self.ledger.rows(set_id).scan(b"", b"\xff")}
            expected = self.expected(replica, state.saved_index)
            assert rows == expected.wanted, f"set {set_id} was saved at {state.saved_index} with other rows"
            replica.machine = Machine(state.saved_index, rows)
            self.apply(set_id, replica.last)
        self.verify()

    def agrees(self) -> bool:
        """Whether the ledger has the sets, votes and log ends of the model."""
        states = self.ledger.sets()
        if set(states) != set(self.replicas):
            return False
        for set_id, replica in self.replicas.items():
            state = states[set_id]
            if (state.term, state.vote) != replica.vote or state.last_index != replica.last:
                return False
            if replica.last and state.last_term != replica.entries[replica.last][0]:
                return False
            for index in range(state.compacted_index + 1, replica.last + 1):
                term, payload = replica.entries[index]
                if self.ledger.term(set_id, index) != term:
                    return False
                if read_entry(self.disk.files, self.ledger.locate(set_id, index)) != payload:
                    return False
        return True

    def expected(self, replica: Replica, applied: int) -> Machine:
        machine = Machine()
        for index in range(1, applied + 1):
            machine.apply(index, replica.entries[index][1], None, 0)
        return machine

    def verify(self) -> None:
        """Everything that was acknowledged is there, everything wanted is readable, every count is right."""
        assert self.agrees()
        self.ledger.check()
        for set_id, replica in self.replicas.items():
            assert replica.machine.wanted == self.expected(replica, replica.machine.applied).wanted
            for index, size in replica.machine.wanted.items():
                payload = read_entry(self.disk.files, self.ledger.locate(set_id, index))
                whole = replica.entries[index][1]
                effects, body = whole.split(b"\n", 1)
                short = effects + b"\n" + body[: size or 0]
                if size is None:
                    assert payload == whole
                else:
                    assert payload.startswith(short) and whole.startswith(payload)
