"""Tries on several brokers: everything becomes visible everywhere, or nothing anywhere, also when brokers fall."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lanner import batch
from lanner.broker.tries import Tries
from lanner.cluster import (
    METADATA_SET,
    AbortReason,
    Begun,
    encode_begin_try,
    encode_claim_transaction,
    encode_delete_topic,
)
from lanner.errors import LannerError, ServiceUnavailable, StageExpired, TransactionUnknown, ValidationError
from lanner.partition import Staged, StageNote, encode_stage
from lanner.testing.flock import Broker, Flock
from tests.unit.cluster.commits import Commits

COMMIT = bytes(range(16))


class Writers(Flock):
    """A flock with a topic of three partitions, and somebody who stages there."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.sets = self.create_topic("orders", partitions=3)
        self.until(lambda: all(self.is_home(set_id) for set_id in self.sets))
        self.attempts: dict[int, list[tuple[int, bytes, int]]] = {}

    def led_by(self, set_id: int) -> Broker:
        self.until(lambda: self.leader_of(set_id) is not None)
        leader = self.leader_of(set_id)
        assert leader is not None
        return leader

    def stage(self, stages: int = 2, sequence: int = 1, attempt: int = 1) -> None:
        """Some batches on every partition, under an attempt of its own each."""
        for set_id in self.sets:
            name = (attempt * 1_000 + set_id).to_bytes(16, "big")
            for number in range(stages):
                note = StageNote("t", "me", sequence, 0, name, number, 3_600_000)
                payload = encode_stage(self.now_ms, note, batch.encode([b"%d/%d" % (set_id, number)]))
                told: list[Any] = []
                self.led_by(set_id).engine.propose(set_id, payload, told.append)
                self.settle()
                assert isinstance(told[0], Staged)
            self.attempts[set_id] = [(0, name, stages)]

    def begin(self, sequence: int = 1, commit: bytes = COMMIT, timeout_ms: int = 60_000) -> int:
        topic = self.metadata.topics["orders"]
        participants = [("orders", topic.incarnation, range(3))]
        begun = self.command(
            encode_begin_try("t", "me", sequence, commit, participants, timeout_ms=timeout_ms, now_ms=self.now_ms)
        )
        assert isinstance(begun, Begun)
        return begun.token

    def prepare(self, token: int, *set_ids: int) -> list[Any]:
        told: list[Any] = []
        for set_id in set_ids or self.sets:
            answer = lambda result, _index: told.append(result)  # noqa: E731
            self.led_by(set_id).tries.prepare(set_id, token, self.attempts[set_id], answer)
        return told

    def shown(self) -> list[int]:
        """How many messages each partition's leader has."""
        return [self.count(self.led_by(set_id), set_id) for set_id in self.sets]

    def at_rest(self) -> bool:
        leaders = [self.leader_of(set_id) for set_id in (METADATA_SET, *self.sets)]
        if any(leader is None for leader in leaders) or self.metadata.tries():
            return False
        return not any(self.led_by(set_id).replica(set_id).partition.prepared() for set_id in self.sets)

    def rest(self) -> None:
        self.until(self.at_rest)


def ended(flock: Flock, commit: bytes = COMMIT) -> AbortReason | None:
    row = flock.metadata.transaction("t")
    assert row is not None
    found = row.ended_as(commit)
    assert found is not None, "it has not ended"
    return found.reason


def test_what_is_prepared_everywhere_is_committed_and_shown_everywhere() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    assert flock.shown() == [0, 0, 0], "stages have no offsets"
    assert flock.prepare(token) == []
    flock.settle()
    assert ended(flock) is None
    assert flock.shown() == [2, 2, 2] and flock.at_rest(), "without the passing of time"
    row = flock.metadata.transaction("t")
    assert row is not None and row.latest == 1


def test_what_one_partition_lacks_is_shown_nowhere() -> None:
    flock = Writers()
    flock.stage()
    flock.attempts[flock.sets[1]] = [(0, bytes(16), 2)]
    token = flock.begin()
    told = flock.prepare(token)
    flock.settle()
    assert [type(one) for one in told].count(StageExpired) == 1
    assert ended(flock) is AbortReason.REFUSED
    assert flock.shown() == [0, 0, 0] and flock.at_rest()


def test_a_try_that_is_not_prepared_in_time_is_aborted_by_the_leaders_clock() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin(timeout_ms=1_000)
    flock.prepare(token, *flock.sets[:2])
    deadline_ms = flock.metadata.tries()[token].deadline_ms
    flock.until(lambda: token not in flock.metadata.tries())
    assert deadline_ms <= flock.now_ms <= deadline_ms + 100
    flock.rest()
    assert ended(flock) is AbortReason.DEADLINE and flock.at_rest()
    assert flock.shown() == [0, 0, 0]


def test_a_conductor_that_falls_is_followed_by_one_that_hears_the_votes_again() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    flock.prepare(token, *flock.sets[:2])
    flock.settle()
    conductor = flock.led_by(METADATA_SET)
    conductor.stop()
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    flock.prepare(token, *flock.sets[2:])
    flock.rest()
    assert ended(flock) is None and flock.shown() == [2, 2, 2]


def test_a_leader_that_falls_after_it_prepared_is_followed_by_one_that_publishes() -> None:
    flock = Writers(names="abcd")
    flock.stage()
    token = flock.begin()
    victim = next(flock.led_by(one) for one in flock.sets if flock.led_by(one) is not flock.led_by(METADATA_SET))
    flock.prepare(token, *(one for one in flock.sets if flock.led_by(one) is victim))
    flock.settle()
    victim.stop()
    flock.until(lambda: all(flock.leader_of(one) is not None for one in (METADATA_SET, *flock.sets)))
    flock.prepare(token)  # once more, of all: a repeat is the same
    flock.rest()
    assert ended(flock) is None and flock.shown() == [2, 2, 2]


def test_a_leader_that_falls_after_the_outcome_leaves_the_rest_to_the_next_one() -> None:
    flock = Writers(names="abcd")
    flock.stage()
    token = flock.begin()
    victim = next(flock.led_by(one) for one in flock.sets if flock.led_by(one) is not flock.led_by(METADATA_SET))
    theirs = {one for one in flock.sets if flock.led_by(one) is victim}
    flock.prepare(token, *(one for one in flock.sets if one in theirs))
    flock.settle()
    flock.cut.add(victim.node_id)  # it has voted, and hears no outcome
    flock.prepare(token, *(one for one in flock.sets if one not in theirs))
    flock.until(lambda: bool(flock.metadata.tries()) and flock.metadata.tries()[token].committed)
    victim.stop()
    flock.cut.clear()
    flock.rest()
    assert ended(flock) is None and flock.shown() == [2, 2, 2]


def test_a_topic_deleted_during_a_try_aborts_it() -> None:
    flock = Writers()
    other = flock.create_topic("audit")
    flock.stage()
    topics = flock.metadata.topics
    participants = [("orders", topics["orders"].incarnation, range(3)), ("audit", topics["audit"].incarnation, [0])]
    begun = flock.command(encode_begin_try("t", "me", 1, COMMIT, participants, timeout_ms=60_000, now_ms=flock.now_ms))
    flock.prepare(begun.token)
    flock.settle()
    assert begun.token in flock.metadata.tries(), f"set {other[0]} has not voted"
    flock.command(encode_delete_topic("audit"))
    flock.rest()
    assert ended(flock) is AbortReason.DELETED and flock.shown() == [0, 0, 0]


def test_a_fenced_owner_commits_nothing_however_many_have_prepared() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    flock.prepare(token, *flock.sets[:2])
    flock.settle()
    flock.command(encode_claim_transaction("t", "other", restart=False, now_ms=flock.now_ms))
    with pytest.raises(TransactionUnknown):
        flock.prepare(token, flock.sets[2])
    flock.rest()
    assert ended(flock) is AbortReason.FENCED and flock.shown() == [0, 0, 0]


def test_more_stages_than_one_decision_publishes_appear_without_the_passing_of_time() -> None:
    flock = Writers()
    flock.stage(stages=300)
    flock.prepare(flock.begin())
    flock.settle()
    assert flock.shown() == [300, 300, 300] and flock.at_rest()


def test_only_what_the_copy_calls_open_with_this_partition_in_it_is_prepared() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    leader = flock.led_by(flock.sets[0])
    other = flock.create_topic("audit")[0]
    told: list[Any] = []
    for set_id, given, error in (
        (flock.sets[0], token + 100, ServiceUnavailable),
        (flock.sets[0], token - 1, TransactionUnknown),
        (other, token, ValidationError),
    ):
        with pytest.raises(error):
            leader.tries.prepare(set_id, given, flock.attempts[flock.sets[0]], lambda *one: told.append(one))
    assert told == []


def test_a_prepare_that_comes_after_the_commit_is_answered_and_changes_nothing() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    late = flock.led_by(flock.sets[0])
    flock.prepare(token)
    flock.until(lambda: flock.metadata.tries().get(token) is None or flock.metadata.tries()[token].committed)
    flock.rest()
    with pytest.raises(LannerError):
        late.tries.prepare(flock.sets[0], token, flock.attempts[flock.sets[0]], lambda *_: None)
    assert flock.shown() == [2, 2, 2]


def test_a_deposed_leader_that_does_not_know_it_confirms_nothing_for_its_successor() -> None:
    """It has the metadata, and not what was prepared after its time: that nothing is prepared there says nothing."""
    flock = Writers()
    (mine, *others) = [one for one in flock.sets if flock.led_by(one) is not flock.led_by(METADATA_SET)]
    others = [one for one in flock.sets if one != mine]
    deposed = flock.led_by(mine)
    deposed.up = False  # it stands still, and will go on as if nothing had happened
    flock.until(lambda: flock.leader_of(mine) is not None)
    flock.stage()
    token = flock.begin()
    flock.prepare(token, mine)
    flock.settle()
    successor = flock.led_by(mine)
    assert token in successor.replica(mine).partition.prepared()
    flock.lost = lambda set_id, _message: set_id == mine  # so that nothing can be published, nor heard of who leads
    flock.prepare(token, *others)
    flock.settle()
    assert flock.metadata.tries()[token].committed
    deposed.up = True
    deposed.tries.attendant.touch(mine)
    flock.until(lambda: deposed.cluster.applied_index >= token + 1)
    assert deposed.leads(mine) and successor.leads(mine), "both believe it"
    flock.settle()
    assert token in flock.metadata.tries(), "the successor has not published"
    flock.lost = lambda _set_id, _message: False
    flock.rest()
    assert flock.shown() == [2, 2, 2]


def test_what_there_is_to_tell_is_counted_where_it_happens() -> None:
    flock = Writers()
    flock.stage()
    token = flock.begin()
    figures = [broker.tries.figures(flock.now_ms) for broker in flock.up()]
    assert [one.open for one in figures] == [1, 1, 1]
    assert sum(one.staged_bytes for one in figures) > 0 and sum(one.prepared_bytes for one in figures) == 0
    flock.prepare(token, flock.sets[0])
    flock.settle()
    assert sum(broker.tries.figures(flock.now_ms).prepared_bytes for broker in flock.up()) > 0
    flock.prepare(token, *flock.sets[1:])
    flock.rest()
    conductor = flock.led_by(METADATA_SET)
    found = {broker.name: broker.tries.figures(flock.now_ms) for broker in flock.up()}
    assert found[conductor.name].committed == found[conductor.name].visible == 1
    assert sum(one.committed for one in found.values()) == 1
    assert {(one.open, one.remembered, one.staged_bytes, one.prepared_bytes) for one in found.values()} == {
        (0, 1, 0, 0)
    }


def test_who_was_elected_and_may_not_conduct_yet_keeps_what_it_says_to_itself() -> None:
    """Between the two lies a round trip; what is said then would else wait until it is said again."""
    world = Commits()
    token = world.begin(0, topics={"orders": (0,)}).token
    held = SimpleNamespace(metadata_index=token, prepared=lambda: {token: None})
    metadata = SimpleNamespace(leads=False, node=SimpleNamespace(term=2, leader_id=1, node_id=1))
    proposed: list[bytes] = []
    engine: Any = SimpleNamespace(
        replicas={METADATA_SET: metadata, 1: SimpleNamespace(leads=True, partition=held)},
        cluster=world.machine,
        propose=lambda _set_id, command, _told: proposed.append(command),
    )
    tries = Tries(engine)
    assert not tries.follow(world.now_ms) and tries.take_reports() == []
    metadata.leads = True
    assert tries.follow(world.now_ms) and len(proposed) == 1
