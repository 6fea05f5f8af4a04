"""The contract of all doors: what a call does is the same over each. A case is written once."""

from __future__ import annotations

import time

import pytest

from lanner.batch import partition_for_key
from lanner.errors import ConflictError
from tests.contract.doors.door import Door, Leased, New, Seen, Settled, Stored
from tests.contract.doors.parity import shows

SETTLED = [Settled(1)]


def values(found: list[Leased] | list[Seen]) -> list[bytes]:
    return [(one.message if isinstance(one, Leased) else one).value for one in found]


# ------------------------------------------------------------------ publish


@shows("publish", "poll")
def test_a_message_comes_back_as_it_was_published(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    sent = New(b"\x00\xff bytes", b"k\xfe", {"trace": b"\x80", "kind": b"refund"}, priority=7)
    assert door.publish(topic, sent) == [Stored(0, 0)]
    (leased,) = door.poll(topic, "g")
    assert leased.message == Seen(0, 0, sent.value, sent.key, dict(sent.headers), 7)
    assert leased.attempt == 1


@shows("publish", "poll")
def test_a_batch_is_stored_in_its_order_and_each_message_has_its_own_place(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    stored = door.publish(topic, *(New(b"%d" % number) for number in range(50)))
    assert stored == [Stored(0, number) for number in range(50)]
    assert values(door.poll(topic, "g", max_messages=100)) == [b"%d" % number for number in range(50)]


@shows("publish")
def test_an_empty_value_and_an_empty_key_are_messages_too(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"", b""), New(b""))
    found = sorted(door.fetch(topic, 0, 0).messages)
    assert [(one.value, one.key) for one in found] == [(b"", b""), (b"", None)]


@shows("publish")
def test_a_key_chooses_the_same_partition_over_every_door(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=7)
    keys = [b"customer-%d" % number for number in range(20)]
    stored = door.publish(topic, *(New(b"v", key) for key in keys))
    assert [one.partition for one in stored] == [partition_for_key(key, 7) for key in keys]


@shows("publish")
def test_an_explicit_partition_wins_over_a_key(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=3)
    assert [one.partition for one in door.publish(topic, *(New(b"v", b"k", partition=n) for n in range(3)))] == [
        0,
        1,
        2,
    ]


@shows("publish", "poll")
def test_priorities_have_numbers_and_names_and_the_most_urgent_comes_first(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    given: list[int | str | None] = ["low", 9, None, "high", 3, "normal", 0]
    door.publish(topic, *(New(b"%d" % place, priority=priority) for place, priority in enumerate(given)))
    found = door.poll(topic, "g")
    assert [one.message.priority for one in found] == [9, 9, 4, 4, 3, 0, 0]
    assert values(found) == [b"1", b"3", b"2", b"5", b"4", b"0", b"6"]


@shows("publish", "poll", "fetch")
def test_a_delayed_message_waits_and_streams_see_it_at_once(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"later", delay_ms=300), New(b"much later", delay_ms=3_600_000), New(b"now"))
    assert values(door.poll(topic, "g")) == [b"now"]
    assert set(values(door.fetch(topic, 0, 0).messages)) == {b"later", b"much later", b"now"}
    assert values(door.poll(topic, "g", wait_ms=20_000)) == [b"later"]


@shows("publish", "poll")
def test_an_expired_message_is_not_delivered(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"short", ttl_ms=1), New(b"long", ttl_ms=3_600_000), New(b"due", delay_ms=50, priority=9))
    seen: list[bytes] = []
    while b"due" not in seen:  # by then the time of the short one is over
        found = door.poll(topic, "clock", wait_ms=20_000)
        assert found
        seen += values(found)
    assert values(door.poll(topic, "g")) == [b"due", b"long"]


@shows("publish")
def test_a_request_that_is_repeated_under_its_key_is_stored_once(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    sent = [New(b"a", partition=0), New(b"b", partition=1, priority=9)]
    first = door.publish(topic, *sent, idempotency_key="order-7")
    again = door.publish(topic, *sent, idempotency_key="order-7")
    assert [one.duplicate for one in first] == [False, False]
    assert again == [one._replace(duplicate=True) for one in first]
    assert [one.end_offset for one in door.describe_topic(topic).partitions] == [1, 1]


# ------------------------------------------------------------------ poll and settle


@shows("poll", "ack")
def test_what_is_acked_is_settled_for_its_group_only(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"one"), New(b"two"))
    first = door.poll(topic, "a", max_messages=1)
    assert door.settle("ack", topic, "a", first) == SETTLED
    assert values(door.poll(topic, "a")) == [b"two"]
    assert values(door.poll(topic, "b")) == [b"one", b"two"]


@shows("poll")
def test_a_poll_waits_for_a_message_and_returns_with_nothing_when_its_time_is_over(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    assert door.poll(topic, "g") == []
    began = time.monotonic()
    assert door.poll(topic, "g", wait_ms=200) == []
    assert time.monotonic() - began >= 0.19
    door.publish(topic, New(b"due", delay_ms=200))
    assert values(door.poll(topic, "g", wait_ms=20_000)) == [b"due"]


@shows("poll")
def test_a_poll_that_acks_by_itself_leaves_no_lease(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"one"))
    assert values(door.poll(topic, "g", auto_ack=True)) == [b"one"]
    group = door.describe_group(topic, "g")
    assert (group.lag, group.leased) == (0, 0)


@shows("poll")
def test_a_new_group_may_begin_at_the_end(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"before"))
    assert door.poll(topic, "g", start="latest") == []
    door.publish(topic, New(b"after"))
    assert values(door.poll(topic, "g", start="latest")) == [b"after"]


@shows("poll")
def test_a_poll_may_choose_partitions(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=3)
    door.publish(topic, *(New(b"%d" % number, partition=number) for number in range(3)))
    assert values(door.poll(topic, "g", partitions=[1])) == [b"1"]
    assert sorted(values(door.poll(topic, "g", partitions=[0, 2]))) == [b"0", b"2"]


@shows("nack", "poll")
def test_a_nacked_message_comes_again_with_its_next_attempt(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, backoff_ms=3_600_000, backoff_max_ms=3_600_000)
    door.publish(topic, New(b"one", priority=9), New(b"two"))
    first = door.poll(topic, "g", max_messages=1)
    assert door.settle("nack", topic, "g", first, delay_ms=0, reason="try again") == SETTLED
    (again,) = door.poll(topic, "g", max_messages=1, wait_ms=20_000)
    assert (again.message.value, again.attempt) == (b"one", 2)
    assert door.settle("nack", topic, "g", [again]) == SETTLED  # the topic's own backoff: an hour
    assert values(door.poll(topic, "g")) == [b"two"]
    assert door.describe_group(topic, "g").waiting == 1


@shows("extend", "ack")
def test_an_extended_lease_lasts_longer(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, backoff_ms=0)
    door.publish(topic, New(b"kept", priority=9), New(b"lost"))
    kept, lost = door.poll(topic, "g", lease_ms=1_000)
    assert door.settle("extend", topic, "g", [kept], lease_ms=600_000) == SETTLED
    (again,) = door.poll(topic, "g", wait_ms=20_000)
    assert (again.message.value, again.attempt) == (b"lost", 2)
    assert door.settle("ack", topic, "g", [kept, lost]) == [Settled(1), Settled(0, "LeaseLost")]


@shows("ack")
def test_acks_in_a_row_are_answered_one_by_one_although_one_of_them_has_lost_its_lease(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, backoff_ms=0)
    door.publish(topic, *(New(b"%d" % number) for number in range(4)))
    leased = door.poll(topic, "g", max_messages=4, lease_ms=600_000)
    assert door.settle("nack", topic, "g", leased[1:2], delay_ms=0) == SETTLED
    (again,) = door.poll(topic, "g", wait_ms=20_000)
    told = door.settle("ack", topic, "g", leased)
    assert told == [Settled(1), Settled(0, "LeaseLost"), Settled(1), Settled(1)]
    assert door.settle("ack", topic, "g", [again]) == SETTLED
    assert door.describe_group(topic, "g").lag == 0


@shows("reject", "list_dead")
def test_a_rejected_message_is_a_dead_letter_with_its_reason(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"\xffbad"), New(b"good"))
    bad, good = door.poll(topic, "g")
    assert door.settle("reject", topic, "g", [bad], reason="cannot be read") == SETTLED
    assert door.settle("ack", topic, "g", [good]) == SETTLED
    (letter,), total = door.list_dead(topic, "g")
    assert (letter.offset, letter.value, letter.reason, total) == (0, b"\xffbad", "cannot be read", 1)
    assert door.list_dead(topic, "g", partition=0, limit=1)[1] == 1


@shows("poll", "nack", "list_dead")
def test_too_many_deliveries_make_a_dead_letter(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, max_deliveries=2, backoff_ms=0)
    door.publish(topic, New(b"poison"))
    for _ in range(2):
        door.settle("nack", topic, "g", door.poll(topic, "g", wait_ms=20_000))
    (letter,), _ = door.list_dead(topic, "g")
    assert (letter.value, letter.attempts) == (b"poison", 2)
    assert door.describe_group(topic, "g").dead == 1


@shows("redrive", "discard", "list_dead")
def test_dead_letters_are_redriven_and_discarded(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, *(New(b"%d" % number) for number in range(4)))
    door.settle("reject", topic, "g", door.poll(topic, "g"))
    assert door.redrive(topic, "g", partition=0, offsets=[1, 2]) == 2
    assert values(door.poll(topic, "g")) == [b"1", b"2"]
    assert door.discard(topic, "g", partition=0, offsets=[0]) == 1
    assert door.redrive(topic, "g") == 1
    assert door.discard(topic, "g") == 0
    assert door.list_dead(topic, "g") == ([], 0)


# ------------------------------------------------------------------ streams


@shows("fetch")
def test_a_fetch_reads_in_the_order_of_offsets_and_takes_nothing(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    for number in range(6):
        door.publish(topic, New(b"%d" % number, priority=number))
    page = door.fetch(topic, 0, 2, max_messages=3)
    assert values(page.messages) == [b"2", b"3", b"4"]
    assert (page.first_offset, page.end_offset, page.next_offset) == (0, 6, 5)
    assert values(door.fetch(topic, 0, 0, priorities=[1, 5]).messages) == [b"1", b"5"]
    assert door.fetch(topic, 0, 6).messages == []


@shows("fetch", "publish")
def test_a_fetch_at_the_end_waits(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    began = time.monotonic()
    assert door.fetch(topic, 0, 0, wait_ms=200).messages == []
    assert time.monotonic() - began >= 0.19
    door.publish(topic, New(b"one"))
    assert values(door.fetch(topic, 0, 0, wait_ms=20_000).messages) == [b"one"]


@shows("commit", "committed", "describe_group")
def test_a_stream_group_commits_and_its_lag_follows(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    door.publish(topic, *(New(b"v", partition=number % 2) for number in range(10)))
    door.commit(topic, "readers", {0: 3, 1: 5})
    assert door.committed(topic, "readers") == {0: 3, 1: 5}
    group = door.describe_group(topic, "readers")
    assert (group.kind, group.lag) == ("stream", 2)


@shows("commit")
def test_a_commit_that_is_repeated_under_its_sequence_does_nothing(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, *(New(b"v") for _ in range(5)))
    door.commit(topic, "readers", {0: 2}, reader="me", sequence=1)
    door.commit(topic, "readers", {0: 4}, reader="me", sequence=2)
    door.commit(topic, "readers", {0: 2}, reader="me", sequence=1)
    assert door.committed(topic, "readers") == {0: 4}


@shows("seek", "poll")
def test_a_group_is_moved_by_offset_place_and_time(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, *(New(b"%d" % number) for number in range(4)))
    first = door.poll(topic, "g")
    door.seek(topic, "g", offsets={0: 3})
    assert values(door.poll(topic, "g")) == [b"3"]
    assert door.settle("ack", topic, "g", first[:1]) == [Settled(0, "LeaseLost")]  # a seek ends leases
    door.seek(topic, "g", to="latest")
    assert door.poll(topic, "g") == []
    door.seek(topic, "g", to="earliest")
    assert values(door.poll(topic, "g", max_messages=1)) == [b"0"]
    door.seek(topic, "g", time_ms=1)
    assert len(door.poll(topic, "g")) == 4


@shows("peek")
def test_a_look_takes_nothing_and_shows_the_most_urgent_first(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    door.publish(topic, New(b"low", priority=0), New(b"high", priority=9), New(b"normal"))
    for _ in range(2):
        found = door.peek(topic)
        assert [(one.value, one.priority) for one in found] == [(b"high", 9), (b"normal", 4), (b"low", 0)]
    offset = next(one.offset for one in found if one.value == b"normal")
    assert b"normal" in values(door.peek(topic, partition=0, offset=offset, max_messages=5))
    assert len(door.peek(topic, max_messages=1)) == 1


# ------------------------------------------------------------------ topics, groups, the cluster


@shows("create_topic", "describe_topic", "alter_topic", "list_topics", "delete_topic")
def test_a_topic_is_made_described_changed_and_deleted(door: Door, topic: str) -> None:
    made = door.create_topic(topic, partitions=2, lease_ms=5_000, hold_for=["audit", "archive"])
    assert (made.name, len(made.partitions)) == (topic, 2)
    assert {name: made.settings[name] for name in ("lease_ms", "hold_for", "replication")} == {
        "lease_ms": "5000",
        "hold_for": "audit,archive",
        "replication": "1",
    }
    door.publish(topic, New(b"v", priority=9, partition=1), New(b"v", partition=1))
    found = door.describe_topic(topic)
    assert [(one.first_offset, one.end_offset) for one in found.partitions] == [(0, 0), (0, 2)]
    assert dict(found.partitions[1].depth) == {9: 1, 4: 1}
    changed = door.alter_topic(topic, partitions=3, lease_ms=6_000)
    assert (len(changed.partitions), changed.settings["lease_ms"]) == (3, "6000")
    assert topic in door.list_topics()
    door.delete_topic(topic)
    assert topic not in door.list_topics()
    again = door.create_topic(topic, partitions=1)
    assert again.partitions[0].end_offset == 0


@shows("list_groups", "describe_group", "drop_group")
def test_groups_are_listed_described_and_dropped(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1, backoff_ms=3_600_000, backoff_max_ms=3_600_000)
    door.publish(topic, *(New(b"%d" % number) for number in range(6)))
    leased = door.poll(topic, "workers", max_messages=4)
    door.settle("ack", topic, "workers", leased[:1])
    door.settle("nack", topic, "workers", leased[1:2])
    door.settle("reject", topic, "workers", leased[2:3])
    door.commit(topic, "readers", {0: 1})
    assert sorted(door.list_groups(topic)) == ["readers", "workers"]
    group = door.describe_group(topic, "workers")
    assert (group.kind, group.ready, group.leased, group.waiting, group.dead) == ("queue", 2, 1, 1, 1)
    door.drop_group(topic, "workers")
    assert door.list_groups(topic) == ["readers"]
    assert len(door.poll(topic, "workers")) == 6


@shows("offsets")
def test_offsets_are_told_by_partition_and_by_time(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    door.publish(topic, New(b"a", partition=1), New(b"b", partition=1))
    assert [one[:2] for one in door.offsets(topic)] == [(0, 0), (0, 2)]
    assert door.offsets(topic, 1)[1][2] == 0
    assert door.offsets(topic, time.time_ns() // 1_000_000 + 3_600_000)[1][2] == 2


@shows("describe_cluster")
def test_the_cluster_is_described(door: Door, doors: dict[str, Door]) -> None:
    assert door.describe_cluster() == doors["native"].describe_cluster()
    cluster_id, brokers = door.describe_cluster()
    assert cluster_id and len(brokers) == 1


@shows("describe_partitions", "raft_status")
def test_replicas_and_logs_are_described(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    assert door.describe_partitions(topic) == [(0, 1), (1, 1)]
    assert str(door.raft_status(topic, 1)["state"]).lower() == "leader"


@shows("change_cluster")
def test_a_wish_of_the_operator_is_met_or_refused_where_that_cannot_be(door: Door) -> None:
    """The only broker cannot be drained: it would have nowhere to put what it holds."""
    before = _, (broker,) = door.describe_cluster()
    door.change_cluster("upgrade")  # it is at the highest level already
    assert door.describe_cluster() == before
    with pytest.raises(ConflictError, match=broker):
        door.change_cluster("drain", broker=broker)
