"""Bugs that a Raft core or its driver could have, each planted by replacing one function, to see that the witness can
tell. A checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lanner.raft import HardState, Message, MessageKind, Restored, Snapshot
from lanner.raft.electing import Election
from lanner.raft.following import Following
from lanner.raft.leading import Leadership
from lanner.raft.log import Tail
from lanner.raft.node import RaftNode
from tests.unit.raft.cluster import Cluster, Disk, Host

Plant = Callable[[pytest.MonkeyPatch], None]


def double_vote(patch: pytest.MonkeyPatch) -> None:
    honest = Election.on_vote

    def on_vote(self: Election, message: Message) -> None:
        self._node.vote = 0
        honest(self, message)

    patch.setattr(Election, "on_vote", on_vote)


def lost_vote_on_restart(patch: pytest.MonkeyPatch) -> None:
    honest = Disk.restored

    def restored(self: Disk) -> Restored:
        found = honest(self)
        kept = {name: getattr(found, name) for name in Restored.__dataclass_fields__}
        return Restored(**{**kept, "hard_state": HardState(found.hard_state.term, 0)})

    patch.setattr(Disk, "restored", restored)


def vote_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    honest = Election.on_vote

    def on_vote(self: Election, message: Message) -> None:
        honest(self, message)
        granted, self._granted = self._granted, []
        for grant in granted:
            self._node.send(MessageKind.VOTE_REPLY, grant.vote, term=grant.term)

    patch.setattr(Election, "on_vote", on_vote)


def vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "_log_is_recent", lambda self, message: True)


def commit_of_an_older_term(patch: pytest.MonkeyPatch) -> None:
    honest = Leadership.maybe_commit

    def maybe_commit(self: Leadership) -> None:
        first, self.first_own_index = self.first_own_index, 1
        try:
            honest(self)
        finally:
            self.first_own_index = first

    patch.setattr(Leadership, "maybe_commit", maybe_commit)
    patch.setattr(Tail, "size", lambda self, first, last: 0)


def truncation_of_committed_entries(patch: pytest.MonkeyPatch) -> None:
    """An append that says nothing new makes the log end where it ends."""
    honest = Following._take

    def take(self: Following, entries: Any) -> None:
        tail = self._node.tail
        if entries[-1].index < tail.last_index and entries[-1].index >= tail.delivered_index:
            tail.truncate(entries[-1].index + 1)
            if self._node.memberships.truncate(entries[-1].index + 1):
                self._node.membership_changed()
        honest(self, entries)

    patch.setattr(Following, "_take", take)


def ack_before_the_followers_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_answerable", lambda self: self._agreed_index)


def ack_of_entries_that_were_replaced(patch: pytest.MonkeyPatch) -> None:
    """A finished write counts in full, although a new leader has taken some of it back meanwhile."""
    honest = RaftNode.advance

    def advance(self: RaftNode, ready: Any) -> None:
        if ready.entries and self.tail._marks:
            self.tail._marks[0] = min(ready.entries[-1].index, self.tail.last_index)
        honest(self, ready)

    patch.setattr(RaftNode, "advance", advance)


def membership_change_before_the_own_term_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "check_change", lambda self: None)


def wiped_voter_that_votes(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk comes back under its old id."""
    honest = Host.start

    def start(self: Host) -> None:
        if self.node_id % 2 and hasattr(self, "writes"):
            self.disk = Disk(self.cluster.bootstrap)
        honest(self)

    patch.setattr(Host, "start", start)


def snapshot_that_forgets_the_membership(patch: pytest.MonkeyPatch) -> None:
    honest = RaftNode.restore

    def restore(self: RaftNode, snapshot: Snapshot) -> None:
        honest(self, snapshot._replace(voters=self.voters, learners=self.learners))

    patch.setattr(RaftNode, "restore", restore)


def restart_that_forgets_a_membership(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.unit.raft.cluster.find_memberships", lambda log, first, last: ())


def candidate_that_asks_before_its_vote_is_durable(patch: pytest.MonkeyPatch) -> None:
    honest = Election._start

    def start(self: Election, *, forced: bool = False) -> None:
        honest(self, forced=forced)
        self._requested = True
        self._votes[self._node.node_id] = True
        self._request_votes(MessageKind.VOTE, self._node.term)

    patch.setattr(Election, "_start", start)


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        double_vote,
        lost_vote_on_restart,
        vote_before_it_is_durable,
        vote_for_a_shorter_log,
        candidate_that_asks_before_its_vote_is_durable,
        commit_of_an_older_term,
        truncation_of_committed_entries,
        ack_before_the_followers_sync,
        ack_of_entries_that_were_replaced,
        membership_change_before_the_own_term_committed,
        wiped_voter_that_votes,
        snapshot_that_forgets_the_membership,
        restart_that_forgets_a_membership,
    )
}


def complaint(seed: int, steps: int = 5_000) -> str:
    """What the witness, or the core's own guards, say about one life; empty when all is well."""
    cluster = Cluster(seed, 3 if seed % 2 == 0 else 5)
    try:
        cluster.run(steps)
        cluster.converge()
    except Exception as found:
        return f"{type(found).__name__}: {found}"
    return ""
