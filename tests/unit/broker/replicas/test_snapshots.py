"""Engines whose logs are too short for a peer that was away: it comes back by a snapshot, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.replicas import installs, snapshots
from lanner.broker.replicas.engine import CLUSTER_SET, Seat
from lanner.broker.replicas.installs import Incoming
from lanner.broker.replicas.snapshots import Piece, Reply, Status, decode, encode
from lanner.cluster import encode_create_topic
from lanner.errors import ProtocolError
from lanner.ledger import FileMissing, read_entry
from lanner.model import TopicSettings
from lanner.partition import Appended, Poll, Settle, batch_start, encode_append
from lanner.raft import Change, Role
from lanner.testing.disk import PowerLost, SimDisk
from lanner.testing.lockstep import EnginePeer, Engines

EVERYBODY = frozenset({1, 2, 3})
SET = 1


class Broker(EnginePeer):
    """One engine on a disk that can fail."""

    def __init__(self, number: int, **bounds: int) -> None:
        self.disk = SimDisk()
        bounds = {"cache_bytes": 1, "tail_entries": 5, **bounds}
        super().__init__(number, EVERYBODY, (SET,), self.disk.files, self.disk.table, **bounds)

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.replica(SET).partition.all_rows())

    def values(self) -> list[bytes]:
        """Every batch that a stream could read, from the disk."""
        found = []
        for ref in self.replica(SET).partition.batches_from(0, 1 << 40):
            payload = read_entry(self.disk.files, self.engine.ledger.locate(SET, ref.index))
            found += batch.decode(payload[batch_start(payload) :]).values()
        return found


class Brokers(Engines[Broker]):
    """Some of them; pieces of snapshots can be lost, and anything may happen after each."""

    def __init__(self, count: int = 3, **bounds: int) -> None:
        super().__init__(Broker(number, **bounds) for number in range(1, count + 1))
        self.down = set(range(4, count + 1))
        self.lost: Callable[[Piece | Reply], bool] = lambda _: False
        self.seen: list[Piece | Reply] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def carry_snapshot(self, sender: Broker, value: Piece | Reply) -> None:
        self.seen.append(value)
        if value.receiver not in self.down and not self.lost(value):
            super().carry_snapshot(sender, value)
            self.meanwhile()

    def publish(self, leader: Broker, count: int, prefix: bytes = b"") -> None:
        told = [leader.publish(SET, prefix + b"%d" % number) for number in range(count)]
        self.settle()
        assert all(isinstance(fate[0], Appended) for fate in told)

    def ask(self, leader: Broker, request: Any) -> Any:
        answers = leader.ask(SET, request)
        self.settle()
        return answers[0]

    def save(self) -> None:
        for broker in self.up():
            broker.save()

    def assert_equal(self) -> None:
        self.pass_time(10)
        first, *others = self.up()
        for other in others:
            assert other.rows() == first.rows()
            assert other.values() == first.values()
        for broker in self.up():
            broker.replica(SET).partition.check()
            broker.engine.ledger.check()


def away(brokers: Brokers) -> tuple[Broker, Broker]:
    """A leader whose log no longer reaches back to where the follower is."""
    leader = brokers.elect(SET)
    brokers.publish(leader, 10, b"before ")
    brokers.save()
    follower = next(broker for broker in brokers.up() if broker is not leader)
    brokers.down.add(follower.number)
    leader.replica(SET).node.report_unreachable(follower.number)
    for turn in range(4):
        brokers.publish(leader, 20, b"%d away " % turn)
        brokers.save()
    assert leader.replica(SET).node.compacted_index > follower.replica(SET).node.last_index
    return leader, follower


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 600)
    monkeypatch.setattr(snapshots, "PIECE_ROWS_BYTES", 200)
    monkeypatch.setattr(snapshots, "SCAN_ROWS", 2)


# ---------------------------------------------------------------------- coming back


def test_a_follower_that_was_away_too_long_comes_back_by_a_snapshot_while_publishing_goes_on(
    brokers: Brokers, small_pieces: None
) -> None:
    leader, follower = away(brokers)
    told: list[list[Any]] = []

    def publish_and_save() -> None:
        told.append(leader.publish(SET, b"meanwhile %d" % len(told)))
        if len(told) % 3 == 0:
            leader.save()

    brokers.meanwhile = lambda: publish_and_save() if len(told) < 60 else None
    brokers.down.clear()
    brokers.pass_time(20)
    assert len(told) > 10 and all(isinstance(fate[0], Appended) for fate in told)
    assert follower.engine.installs.completed == 1 == leader.engine.sending.completed
    assert leader.engine.sending.outgoing == {}
    brokers.assert_equal()
    assert len(follower.values()) == 90 + len(told)


def test_what_came_by_a_snapshot_can_lead_and_survives_a_restart(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = away(brokers)
    brokers.down.clear()
    brokers.pass_time(10)
    assert follower.engine.installs.completed == 1
    follower.start()
    brokers.pass_time(10)
    leader.replica(SET).node.transfer(follower.number)
    leader.engine.wake(SET)
    brokers.pass_time(5)
    assert follower.leads(SET)
    answer, _ = brokers.ask(follower, Poll("g", "m", 1, max_messages=200))
    assert sum(lease.count for lease in answer.leases) == 90
    brokers.publish(follower, 5)
    brokers.assert_equal()


def test_entries_released_and_kept_in_part_arrive_as_holes_and_parts(brokers: Brokers, small_pieces: None) -> None:
    leader = brokers.elect(SET)
    for broker in brokers.up():
        broker.engine.settings[SET] = TopicSettings(retention_ms=60_000)
    told: list[Any] = []
    payload = encode_append(leader.now_ms, batch.encode([b"one of three", b"two of three" * 20, b"three of three"]))
    leader.engine.propose(SET, payload, told.append)
    brokers.publish(leader, 5, b"first ")
    (answer, token) = brokers.ask(leader, Poll("g", "m", 1, max_messages=6, lease_ms=3_600_000))
    lease = answer.leases
    assert sum(one.count for one in lease) == 6
    brokers.ask(leader, Settle("g", [(token, 0, 1, 1, 0, ""), (token, 2, 3, 1, 0, "")]))  # 1 and 5 stay leased
    follower = next(broker for broker in brokers.up() if broker is not leader)
    brokers.down.add(follower.number)
    leader.replica(SET).node.report_unreachable(follower.number)
    for turn in range(4):
        brokers.publish(leader, 20, b"%d " % turn)
        leader.now_ms += 60_000
        brokers.pass_time(2)
        brokers.save()
    kept = leader.replica(SET).partition.batch_at(1)
    assert kept.kept == (1,)
    brokers.ask(leader, Settle("g", [(token, 5, 1, 1, 0, "")]))  # released, and not saved: a hole
    brokers.down.clear()
    brokers.pass_time(20)
    assert follower.engine.installs.completed == 1
    brokers.assert_equal()
    stored = read_entry(follower.disk.files, follower.engine.ledger.locate(SET, kept.index))
    assert batch.decode(stored[batch_start(stored) :]).values() == [b"two of three" * 20]


def test_a_learner_that_has_nothing_starts_by_a_snapshot_is_promoted_and_the_old_leader_goes(
    small_pieces: None,
) -> None:
    brokers = Brokers(4)
    leader = brokers.elect(SET)
    for turn in range(4):
        brokers.publish(leader, 20, b"%d " % turn)
        brokers.save()
    assert leader.replica(SET).node.compacted_index > 0
    brokers.down.clear()
    newcomer = brokers.all[4]
    change(brokers, leader, Change.ADD_LEARNER, 4)
    assert newcomer.engine.installs.completed == 1
    assert newcomer.replica(SET).node.role is Role.LEARNER
    change(brokers, leader, Change.PROMOTE, 4)
    change(brokers, leader, Change.REMOVE, leader.number)
    brokers.down = {leader.number}
    brokers.pass_time(100)
    second = brokers.elect(SET)
    assert second.replica(SET).node.voters == {1, 2, 3, 4} - {leader.number}
    brokers.publish(second, 20)
    brokers.assert_equal()
    newcomer.save()
    newcomer.start()
    assert newcomer.replica(SET).node.voters == {1, 2, 3, 4} - {leader.number}


def test_a_receiver_that_stops_right_after_the_flip_knows_who_belongs_to_the_set() -> None:
    brokers = Brokers(4)
    leader = brokers.elect(SET)
    change(brokers, leader, Change.ADD_LEARNER, 4)
    for turn in range(4):
        brokers.publish(leader, 20, b"%d " % turn)
        brokers.save()
    newcomer = brokers.all[4]
    brokers.down.clear()
    brokers.pass_time(20)
    assert newcomer.engine.installs.completed == 1
    newcomer.start()
    assert newcomer.replica(SET).node.learners == {4} and newcomer.replica(SET).node.role is Role.LEARNER
    brokers.assert_equal()


def change(brokers: Brokers, leader: Broker, step: Change, peer: int) -> None:
    leader.replica(SET).node.change_membership(step, peer)
    leader.engine.wake(SET)
    brokers.pass_time(20)


def test_the_metadata_comes_by_a_snapshot_too(brokers: Brokers) -> None:
    for broker in brokers.up():
        broker.engine.open_set(CLUSTER_SET, Seat(broker.number, EVERYBODY))
    brokers.pass_time(60)
    leader = next(broker for broker in brokers.up() if broker.leads(CLUSTER_SET))
    follower = next(broker for broker in brokers.up() if broker is not leader)
    brokers.down.add(follower.number)
    leader.replica(CLUSTER_SET).node.report_unreachable(follower.number)
    for number in range(20):
        command = encode_create_topic(f"topic-{number}", TopicSettings(), leader.now_ms)
        leader.engine.propose(CLUSTER_SET, command, lambda _: None)
        brokers.settle()
        brokers.save()
    brokers.down.clear()
    brokers.pass_time(60)
    assert follower.engine.installs.completed
    assert len(follower.engine.cluster.topics) == 20
    assert follower.engine.cluster.all_rows() == leader.engine.cluster.all_rows()
    follower.engine.cluster.check()


def test_a_waiting_consumer_looks_again_when_a_snapshot_has_come(brokers: Brokers) -> None:
    _, follower = away(brokers)
    woken: list[bool] = []
    follower.replica(SET).watchers.add(lambda: woken.append(True))
    brokers.down.clear()
    brokers.pass_time(10)
    assert woken == [True]


# ---------------------------------------------------------------------- what may go wrong


def test_wherever_the_receiver_loses_its_power_it_has_the_old_state_or_the_new_one(small_pieces: None) -> None:
    """The plug is pulled inside every operation of its disk while it installs; it always comes back and catches up."""
    installed = interrupted = operation = 0
    while True:
        brokers = Brokers()
        leader, follower = away(brokers)
        before = follower.replica(SET).node.commit_index
        operation += 1
        follower.disk.crash_in(operation)
        brokers.down.clear()
        try:
            brokers.pass_time(8)
            break
        except PowerLost:
            follower.disk.crash(Random(operation))
        follower.start()
        follower.engine.ledger.check()
        state = follower.engine.ledger.state(SET)
        if state.compacted_index > before:
            installed += 1
            assert follower.engine.ledger.state(SET).saved_index >= state.compacted_index
        else:
            interrupted += 1
            assert follower.replica(SET).node.last_index >= before
        follower.replica(SET).partition.check()
        brokers.pass_time(snapshots.RESEND_TICKS + 30)
        assert leader.leads(SET) or brokers.elect(SET)
        brokers.assert_equal()
    follower.disk.crash_in(None)
    assert interrupted > 10 and installed > 3


def test_what_is_lost_on_the_way_is_sent_again(brokers: Brokers, small_pieces: None) -> None:
    rng = Random(4)
    _, follower = away(brokers)
    brokers.lost = lambda _: rng.random() < 0.2
    brokers.down.clear()
    brokers.pass_time(3_000)
    brokers.lost = lambda _: False
    brokers.pass_time(600)
    assert follower.engine.installs.completed >= 1
    brokers.assert_equal()


def test_pieces_that_come_twice_are_taken_once(brokers: Brokers, small_pieces: None) -> None:
    _, follower = away(brokers)
    brokers.lost = lambda value: bool(
        isinstance(value, Piece) and brokers.all[value.receiver].engine.step_snapshot(value)
    )
    brokers.down.clear()
    brokers.pass_time(10)
    assert follower.engine.installs.completed == 1
    for piece in [value for value in brokers.seen if isinstance(value, Piece)]:
        follower.engine.step_snapshot(piece)
    brokers.assert_equal()


def halfway(brokers: Brokers) -> tuple[Broker, Broker]:
    """An install that has begun, and whose next pieces are lost."""
    leader, follower = away(brokers)
    brokers.lost = lambda value: isinstance(value, Piece) and value.number > 2
    brokers.down.clear()
    brokers.pass_time(5)
    assert SET in follower.engine.installs
    return leader, follower


def test_a_new_term_ends_an_install_and_the_next_leader_begins_another(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = halfway(brokers)
    held = follower.engine.ledger.live_bytes
    brokers.down = {leader.number}
    third = next(broker for broker in brokers.up() if broker is not follower)
    for _ in range(100):
        brokers.pass_time()
        if third.replica(SET).node.role is Role.LEADER:
            break
    assert follower.engine.installs.abandoned >= 1
    assert follower.engine.ledger.live_bytes <= held
    brokers.lost = lambda _: False
    brokers.pass_time(snapshots.RESEND_TICKS + 20)
    assert follower.engine.installs.completed == 1
    brokers.down.clear()
    brokers.assert_equal()


def test_a_newer_snapshot_takes_the_place_of_one_that_is_being_built(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = halfway(brokers)
    leader.engine.sending.give_up(SET)
    brokers.publish(leader, 30)
    leader.save()
    brokers.lost = lambda _: False
    brokers.pass_time(20)
    assert (follower.engine.installs.abandoned, follower.engine.installs.completed) == (1, 1)
    brokers.assert_equal()


def test_a_sender_that_falls_silent_is_not_waited_for(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = halfway(brokers)
    brokers.lost = lambda value: isinstance(value, Piece)
    leader.engine.sending.give_up(SET)
    brokers.pass_time(installs.SILENT_TICKS_MAX)
    assert SET not in follower.engine.installs and follower.replica(SET).node.installing is None
    brokers.lost = lambda _: False
    brokers.pass_time(snapshots.SILENT_TICKS_MAX + snapshots.RESEND_TICKS)
    assert follower.engine.installs.completed == 1
    brokers.assert_equal()


def test_a_receiver_that_falls_silent_frees_the_sender(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = halfway(brokers)
    assert leader.engine.sending.pin(SET) is not None
    brokers.down = {follower.number}
    brokers.pass_time(snapshots.SILENT_TICKS_MAX)
    assert leader.engine.sending.outgoing == {} and leader.engine.sending.pin(SET) is None


def test_a_receiver_that_forgot_what_it_was_building_refuses_and_gets_it_from_the_start(
    brokers: Brokers, small_pieces: None
) -> None:
    _, follower = halfway(brokers)
    follower.start()
    brokers.lost = lambda _: False
    brokers.pass_time(snapshots.RESEND_TICKS + 20)
    assert Status.REFUSED in [value.status for value in brokers.seen if isinstance(value, Reply)]
    assert follower.engine.installs.completed == 1
    brokers.assert_equal()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": [(b"", b"")]},
        {"rows": [(b"k" * 500, b"")]},
        {"rows": [(b"\x00members", b"")]},
        {"entries": [(0, 1, 1, b"")]},
        {"entries": [(10**9, 1, 1, b"")]},
        {"entries": [(1, 0, 1, b"")]},
        {"entries": [(1, 1, 1, b"x" * (limits.RAFT_ENTRY_BYTES_MAX + 1))]},
    ],
)
def test_a_piece_that_cannot_belong_to_the_snapshot_ends_the_install(
    brokers: Brokers, small_pieces: None, wrong: dict[str, Any]
) -> None:
    leader, follower = halfway(brokers)
    offer = next(value for value in brokers.seen if isinstance(value, Piece) and value.number == 0)
    piece = Piece(
        SET, offer.sender, offer.receiver, offer.term, offer.stream, 3, offer.index, offer.index_term, **wrong
    )
    follower.engine.step_snapshot(piece)
    assert SET not in follower.engine.installs
    assert follower.engine.take_replies()[-1].status == Status.REFUSED
    brokers.lost = lambda _: False
    brokers.pass_time(snapshots.RESEND_TICKS + 20)
    brokers.assert_equal()
    assert leader.leads(SET)


def test_an_offer_that_nobody_wants_or_that_is_broken_is_refused(brokers: Brokers) -> None:
    leader = brokers.elect(SET)
    brokers.publish(leader, 3)
    brokers.pass_time(5)
    follower = next(broker for broker in brokers.up() if broker is not leader)
    term = follower.replica(SET).node.term
    members = leader.replica(SET).node.membership_at(2).encode()
    for stale in (
        Piece(SET, leader.number, follower.number, term, 1, 0, 2, 1, members),  # it has that
        Piece(SET, leader.number, follower.number, term - 1, 1, 0, 99, 1, members),  # of an old leader
        Piece(SET, leader.number, follower.number, term, 1, 0, 99, 1, b"nobody"),
        Piece(SET, leader.number, follower.number, term, 1, 4, 99, 1),  # of a snapshot that was never offered
    ):
        follower.engine.step_snapshot(stale)
        assert follower.engine.take_replies()[-1].status == Status.REFUSED
    follower.engine.step_snapshot(Piece(SET, leader.number, 77, term, 1, 0, 99, 1, members))
    follower.engine.step_snapshot(Piece(55, leader.number, follower.number, term, 1, 0, 99, 1, members))
    assert follower.engine.take_replies() == [] and SET not in follower.engine.installs


def test_a_set_that_is_deleted_while_it_installs_leaves_nothing(brokers: Brokers, small_pieces: None) -> None:
    leader, follower = halfway(brokers)
    for broker in (leader, follower):
        broker.engine.close_set(SET, ProtocolError("gone"))
        broker.work()
        broker.save()
        broker.save()
        assert broker.engine.ledger.live_bytes == 0 and broker.engine.sending.outgoing == {}
        assert SET not in broker.engine.installs
        assert list(broker.disk.table.scan(b"n", b"o")) == []


def test_an_entry_that_moved_on_disk_is_looked_up_again_and_a_damaged_one_ends_the_snapshot(
    brokers: Brokers, small_pieces: None
) -> None:
    leader, _ = halfway(brokers)
    sending = leader.engine.sending
    (one,) = sending.outgoing.values()
    unread = one.take()
    while not unread.wanted:
        one.answered(unread.head.number)
        unread = one.take()
    unread.piece = None
    sending.retry(unread)
    again = one.take()
    assert [wanted.stored for wanted in again.wanted] == [wanted.stored for wanted in unread.wanted]
    sending.retry(unread)  # it is another one's turn
    sending.failed(unread)
    assert sending.outgoing
    sending.failed(again)
    assert sending.outgoing == {}
    with pytest.raises(FileMissing):
        leader.disk.files.remove(again.wanted[0].stored.location.file)
        again.load(leader.disk.files)


def test_bytes_that_are_no_piece_are_refused() -> None:
    for wrong in (b"", b"\xc1", encode(Reply(1, 2, 3, 4, 5, 6, 0))[:-1], bytes(limits.FRAME_BYTES_MAX + 1)):
        with pytest.raises(ProtocolError):
            decode(wrong)


# ---------------------------------------------------------------------- what is kept for peers


def test_what_answering_peers_still_need_is_kept_and_no_more_than_the_budget() -> None:
    brokers = Brokers(tail_bytes_max=10_000)
    leader = brokers.elect(SET)
    follower = next(broker for broker in brokers.up() if broker is not leader)
    brokers.publish(leader, 10)
    brokers.down.add(follower.number)
    match = leader.replica(SET).node.leadership.progress[follower.number].match_index
    for _ in range(3):
        brokers.publish(leader, 20)
        brokers.save()
    assert leader.replica(SET).node.compacted_index <= match
    brokers.publish(leader, 1, b"x" * 10_000)
    brokers.save()
    assert leader.replica(SET).node.compacted_index > match
    assert leader.engine.tails.size <= 10_000
    brokers.down.clear()
    brokers.pass_time(20)
    assert follower.engine.installs.completed == 1
    brokers.assert_equal()


def test_a_snapshot_that_pins_too_much_is_given_up(small_pieces: None) -> None:
    brokers = Brokers(pinned_bytes_max=10_000)
    leader, _ = halfway(brokers)
    pinned = leader.engine.sending.pin(SET)
    (one,) = leader.engine.sending.outgoing.values()
    one._rows = None  # those are all sent
    brokers.publish(leader, 20)
    leader.save()
    assert leader.replica(SET).node.compacted_index <= pinned
    brokers.publish(leader, 1, b"x" * 10_000)
    leader.save()
    assert leader.engine.sending.outgoing == {}


# ---------------------------------------------------------------------- planted bugs


def test_a_snapshot_that_forgets_the_membership_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installs, "_first_rows", lambda _snapshot: {})
    with pytest.raises(AssertionError):
        test_a_receiver_that_stops_right_after_the_flip_knows_who_belongs_to_the_set()


@pytest.mark.parametrize("missing", ["rows", "entries"])
def test_an_install_that_flips_half_built_is_noticed(
    monkeypatch: pytest.MonkeyPatch, small_pieces: None, missing: str
) -> None:
    def complete(self: Incoming) -> bool:
        stored = not self.storing and not self.entries
        return stored and (self.whole if missing == "rows" else self.last_index > 0)

    monkeypatch.setattr(Incoming, "complete", property(complete))
    with pytest.raises((AssertionError, KeyError)):
        test_wherever_the_receiver_loses_its_power_it_has_the_old_state_or_the_new_one(None)
