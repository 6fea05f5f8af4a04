from __future__ import annotations

import struct

import pytest

from lanner import limits
from lanner.errors import ProtocolError, ValidationError
from lanner.raft import Change, Entry, EntryKind, Membership, find_memberships
from lanner.raft.membership import Memberships
from tests.unit.raft.storage import StoredLog


def of(voters: set[int], learners: set[int] | None = None) -> Membership:
    return Membership(frozenset(voters), frozenset(learners or ()))


THREE = of({1, 2, 3}, {8})


@pytest.mark.parametrize(
    ("change", "node_id", "after"),
    [
        (Change.ADD_LEARNER, 4, of({1, 2, 3}, {4, 8})),
        (Change.ADD_VOTER, 4, of({1, 2, 3, 4}, {8})),
        (Change.PROMOTE, 8, of({1, 2, 3, 8})),
        (Change.DEMOTE, 2, of({1, 3}, {2, 8})),
        (Change.REMOVE, 2, of({1, 3}, {8})),
        (Change.REMOVE, 8, of({1, 2, 3})),
    ],
)
def test_a_step_changes_one_node(change: Change, node_id: int, after: Membership) -> None:
    assert THREE.changed(change, node_id) == after


@pytest.mark.parametrize(
    ("before", "change", "node_id", "complaint"),
    [
        (THREE, Change.ADD_LEARNER, 0, "at least 1"),
        (THREE, Change.ADD_LEARNER, 3, "member already"),
        (THREE, Change.ADD_VOTER, 8, "member already"),
        (THREE, Change.PROMOTE, 3, "no learner"),
        (THREE, Change.DEMOTE, 8, "no member that could go"),
        (THREE, Change.REMOVE, 9, "no member that could go"),
        (of({1}, {2}), Change.REMOVE, 1, "last voter"),
        (of({1}, {2}), Change.DEMOTE, 1, "last voter"),
        (of(set(range(1, limits.RAFT_MEMBERS_MAX + 1))), Change.ADD_LEARNER, 5_000, "at most"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(
    before: Membership, change: Change, node_id: int, complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        before.changed(change, node_id)


def test_a_membership_comes_back_from_bytes_as_it_was() -> None:
    for membership in (THREE, of({7}), of({1}, set(range(2, 500)))):
        assert Membership.decode(membership.encode()) == membership


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"\x01\x01", "cut short"),
        (struct.pack("<BHHQ", 2, 1, 0, 1), "version 2"),
        (struct.pack("<BHHQ", 1, 0, 1, 1), "0 voters"),
        (struct.pack("<BHHQ", 1, 2, 0, 1), "2 voters"),
        (struct.pack("<BHHQ", 1, 60_000, 60_000, 1), "60000 voters"),
        (struct.pack("<BHHQQ", 1, 1, 1, 5, 5), "twice"),
        (struct.pack("<BHHQ", 1, 1, 0, 0), "nobody"),
    ],
)
def test_bytes_that_are_no_membership_are_refused(payload: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        Membership.decode(payload)


def test_the_last_membership_in_the_log_is_in_force_and_goes_with_its_entry() -> None:
    history = Memberships(0, THREE)
    history.append(5, of({1, 2}))
    history.append(9, of({1}))
    assert (history.current_index, history.current) == (9, of({1}))
    assert not history.truncate(10)
    assert history.truncate(6)
    assert (history.current_index, history.current) == (5, of({1, 2}))
    assert history.at(4) == THREE
    assert history.at(5) == of({1, 2})


def test_compaction_keeps_the_membership_that_was_in_force_there() -> None:
    history = Memberships(0, THREE)
    history.append(5, of({1, 2}))
    history.append(9, of({1}))
    history.compact(7)
    assert history.at(7) == of({1, 2})
    assert history.at(2) == of({1, 2}), "older ones are not asked for; the oldest known answers"
    history.compact(100)
    assert history.current == of({1})


def test_membership_entries_are_found_in_a_log_piece_by_piece() -> None:
    log = StoredLog()
    kinds = {3: EntryKind.MEMBERSHIP, 7: EntryKind.MEMBERSHIP}
    log.stored = {at: Entry(at, 1, kinds.get(at, EntryKind.NORMAL), THREE.encode()) for at in range(1, 10)}
    assert [entry.index for entry in find_memberships(log, 1, 9, bytes_max=60)] == [3, 7]
    assert find_memberships(log, 4, 6) == ()
    assert find_memberships(log, 10, 9) == ()
