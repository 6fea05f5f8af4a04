"""The engine over a disk in memory: nobody hears of anything before it is durable, and a restart brings it back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.replicas.keeping import transform
from lanner.broker.replicas.logs import commit_item
from lanner.broker.replicas.payloads import PayloadCache
from lanner.errors import LannerError, NotLeader, PartitionNotFound, TopicNotFound, UnknownRecord
from lanner.ledger import perform
from lanner.partition import WAIT, Appended, Poll, Settle, encode_append
from lanner.raft import Entry, HardState, Ready
from lanner.testing.lockstep import EngineBroker

SET = 1


class Broker(EngineBroker):
    """An engine that leads the metadata and one partition, and nobody beside it."""

    def __init__(self) -> None:
        super().__init__("alone")
        self.sequences = itertools.count()
        self.start()

    def start(self) -> None:
        super().start()
        self.engine.open_set(CLUSTER_SET)
        self.engine.open_set(SET)
        self.work()

    def poll(self, count: int = 10) -> Any:
        told = self.ask(SET, Poll("g", "m", next(self.sequences), max_messages=count))
        self.work()
        return told[0]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_publisher_hears_nothing_before_the_sync_and_everything_after(broker: Broker) -> None:
    told = broker.publish(SET, b"a", b"b")
    commit = broker.engine.pump()
    assert commit is not None
    assert told == []
    perform(commit, broker.files)
    assert told == []
    broker.engine.committed(commit)
    assert told == [Appended(0, 2, 1_000_000, False)]


def test_what_gathers_while_a_commit_is_in_flight_goes_into_one_commit(broker: Broker) -> None:
    first = broker.publish(SET, b"a")
    commit = broker.engine.pump()
    assert commit is not None and broker.engine.busy
    others = [broker.publish(SET, b"b"), broker.publish(SET, b"c")]
    assert broker.engine.pump() is None
    perform(commit, broker.files)
    broker.engine.committed(commit)
    assert len(first) == 1 and others == [[], []]
    commits = broker.engine.commits
    broker.work()
    assert broker.engine.commits == commits + 1
    assert [told[0].base_offset for told in others] == [1, 2]


def test_a_set_for_which_a_commit_has_no_room_goes_into_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.engine.open_set(2)
    broker.work()
    monkeypatch.setattr(limits, "JOURNAL_RECORD_BYTES_MAX", 100)
    told = [broker.publish(set_id, bytes(200)) for set_id in (SET, 2)]
    first = broker.engine.pump()
    assert first is not None
    perform(first, broker.files)
    broker.engine.committed(first)
    assert [len(one) for one in told] == [1, 0]
    second = broker.engine.pump()
    assert second is not None, "nobody has to wake it"
    perform(second, broker.files)
    broker.engine.committed(second)
    assert [len(one) for one in told] == [1, 1]


def test_questions_that_wait_are_answered_by_one_decision(broker: Broker) -> None:
    broker.publish(SET, b"a", b"b", b"c")
    broker.work()
    answers = [broker.ask(SET, Poll("g", "m", number, max_messages=1)) for number in range(3)]
    commits = broker.engine.commits
    broker.work()
    assert broker.engine.commits == commits + 1
    assert [told[0][0].leases[0].first_offset for told in answers] == [0, 1, 2]
    assert len({told[0][1] for told in answers}) == 1  # one record, one token


def test_an_empty_poll_of_a_known_group_writes_nothing(broker: Broker) -> None:
    broker.poll()
    commits = broker.engine.commits
    answer, index = broker.poll()
    assert (answer, index) == (WAIT, 0)
    assert broker.engine.commits == commits


@pytest.mark.parametrize("saved", [False, True])
def test_a_restart_brings_back_messages_leases_and_acks(broker: Broker, saved: bool) -> None:
    broker.publish(SET, b"a", b"b", b"c")
    broker.work()
    if saved:
        broker.save()
    _, token = broker.poll(2)
    broker.ask(SET, Settle("g", [(token, 0, 1, 1, -1, "")]))
    broker.work()
    before = broker.replica(SET).partition.all_rows()
    broker.start()
    partition = broker.replica(SET).partition
    after = partition.all_rows()
    assert before.pop(b"h") != after.pop(b"h")  # the new leader's first entry moved the applied index
    assert after == before
    assert partition.describe_group("g", broker.now_ms)[1:6] == (1, 2, 1, 1, 0)
    answer, _ = broker.poll(10)
    assert [lease.first_offset for lease in answer.leases] == [2]


def test_after_a_save_the_log_is_compacted_and_only_live_batches_stay_readable(broker: Broker) -> None:
    broker.publish(SET, b"a")
    broker.work()
    _, token = broker.poll()
    broker.ask(SET, Settle("g", [(token, 0, 1, 1, -1, "")]))
    broker.work()
    replica = broker.replica(SET)
    batch_index = replica.partition.batches_from(0, 1)[0].index
    broker.save()
    assert replica.node.compacted_index == replica.node.applied_index
    assert broker.engine.ledger.locate(1, batch_index).length > 0
    with pytest.raises(KeyError):
        broker.engine.ledger.locate(1, token)  # a decision: nobody needs it once it is saved


def test_time_alone_brings_a_message_back_when_its_lease_ends(broker: Broker) -> None:
    broker.publish(SET, b"a")
    broker.work()
    broker.poll()
    broker.engine.tick()
    broker.work()
    woken: list[bool] = []
    broker.replica(SET).watchers.add(lambda: woken.append(True))
    broker.now_ms += 30_000
    broker.engine.tick()
    broker.work()
    assert woken == [True]
    answer, _ = broker.poll()
    assert [(lease.first_offset, lease.attempt) for lease in answer.leases] == [(0, 2)]


def test_closing_a_set_tells_everybody_who_waits(broker: Broker) -> None:
    published, asked = broker.publish(SET, b"a"), broker.ask(SET, Poll("g", "m", 1))
    woken: list[bool] = []
    broker.replica(SET).watchers.add(lambda: woken.append(True))
    broker.engine.close_set(1, TopicNotFound("deleted"))
    assert isinstance(published[0], TopicNotFound)
    assert isinstance(asked[0][0], TopicNotFound)
    assert woken == [True]
    assert broker.engine.unapplied_bytes == 0
    broker.work()
    with pytest.raises(PartitionNotFound):
        broker.replica(SET)
    assert 1 not in broker.engine.ledger.sets()


def test_a_set_closed_while_its_commit_is_in_flight_does_no_harm(broker: Broker) -> None:
    told = broker.publish(SET, b"a")
    commit = broker.engine.pump()
    assert commit is not None
    broker.engine.close_set(1, TopicNotFound("deleted"))
    perform(commit, broker.files)
    broker.engine.committed(commit)
    broker.work()
    broker.save()
    assert len(told) == 1 and isinstance(told[0], LannerError)


def test_unapplied_bytes_return_to_nothing(broker: Broker) -> None:
    broker.publish(SET, b"a" * 1_000)
    assert broker.engine.unapplied_bytes > 1_000
    assert broker.replica(SET).unapplied_bytes > 1_000
    broker.work()
    assert broker.engine.unapplied_bytes == 0
    assert broker.replica(SET).unapplied_bytes == 0


def test_the_cache_holds_the_newest_within_its_bound() -> None:
    cache = PayloadCache(10)
    cache.put(1, 1, b"12345")
    cache.put(1, 2, b"12345")
    cache.put(1, 3, b"123")
    assert cache.get(1, 1) is None
    assert cache.get(1, 2) == b"12345"
    cache.drop(1, 2)
    cache.drop(1, 99)
    cache.put(1, 4, b"1234567")
    assert cache.get(1, 3) == b"123"


def test_a_rewrite_keeps_only_the_messages_still_wanted() -> None:
    payload = encode_append(5, batch.encode([b"a", b"b", b"c"]))
    kept = b"\x01\x00\x00\x00"
    rewritten = transform(1, payload, kept)
    assert rewritten[:16] == payload[:16]
    decoded = batch.decode(rewritten[16:])
    assert decoded.values() == [b"b"]
    assert transform(1, payload[:16] + b"rubbish", kept) == payload[:16] + b"rubbish"


@pytest.mark.parametrize(("second_first", "left"), [(8, [5, 6, 7, 8, 9]), (6, [5, 6, 7]), (5, [5, 6]), (3, [3, 4])])
def test_what_a_later_ready_discards_is_not_stored(second_first: int, left: list[int]) -> None:
    earlier = Ready(0, HardState(1, 1), [Entry(index, 1, 1, b"old") for index in (5, 6, 7)], (), (), None)
    later_entries = [Entry(index, 2, 1, b"new") for index in (second_first, second_first + 1)]
    later = Ready(1, HardState(2, 0), later_entries, (), (), None)
    item = commit_item(4, [earlier, later])
    assert (item.set_id, item.hard_state) == (4, HardState(2, 0))
    assert [entry[0] for entry in item.entries] == left
    assert [entry[3] for entry in item.entries][-2:] == [b"new", b"new"]


# ---------------------------------------------------------------------- records of a newer release


def test_a_record_that_is_not_known_stops_its_replica_and_no_other_and_again_after_a_restart() -> None:
    broker = Broker()
    broker.engine.open_set(2)
    broker.work()
    broker.publish(SET, b"before")
    broker.work()
    stopped: list[int] = []
    broker.engine.on_stopped = lambda set_id, _error: stopped.append(set_id)
    told: list[Any] = []
    broker.engine.propose(1, b"\x77 of tomorrow", told.append)
    broker.engine.propose(1, encode_append(broker.now_ms, batch.encode([b"after"])), told.append)
    broker.work()
    assert stopped == [1] == list(broker.engine.stopped)
    assert [type(one) for one in told] == [NotLeader, NotLeader], "what became of them is not known here"
    with pytest.raises(PartitionNotFound):
        broker.replica(SET)
    applied: list[Any] = []
    broker.engine.propose(2, encode_append(broker.now_ms, batch.encode([b"other"])), applied.append)
    broker.engine.tick()
    broker.work()
    assert isinstance(applied[0], Appended)
    broker.save()
    broker.start()
    assert list(broker.engine.stopped) == [1], "never skipped"
    kept = broker.engine.ledger.state(1)
    assert kept.saved_index == 2 < 4 <= kept.last_index, "its log waits for a release that knows more"
    broker.engine.close_set(1, TopicNotFound("deleted"))
    assert broker.engine.stopped == {}


def test_a_command_that_is_not_known_stops_the_broker() -> None:
    broker = Broker()
    broker.engine.propose(CLUSTER_SET, b"\x77\x01\x90", lambda _result: None)
    with pytest.raises(UnknownRecord, match="start the broker with the newest release"):
        broker.work()
    with pytest.raises(UnknownRecord):
        broker.start()
