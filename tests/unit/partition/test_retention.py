from __future__ import annotations

from typing import Any

import pytest

from lanner.model import TopicSettings
from lanner.partition import CommitOffset, Discard, DropGroup, MakeGroup, Poll, Tick, retention
from lanner.partition.retention import byte_limit

ACK, NACK, REJECT = 1, 2, 4


def bases(bench: Any) -> list[int]:
    return [ref.base_offset for ref in bench.partition.batches_from(0, 1 << 30)]


def settle_down(bench: Any) -> None:
    while (due := bench.partition.next_due_ms(bench.settings, bench.now_ms)) is not None and due <= bench.now_ms:
        bench.ask(Tick())


# ------------------------------------------------------------------ by age


def test_batches_go_when_they_are_too_old(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    for _ in range(3):
        bench.append(count=2)
        bench.wait(500)
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == 2_000
    bench.ask(Tick())
    assert bases(bench) == [4] and bench.partition.first_offset == 4
    assert bench.partition.stored_bytes == bench.partition.batches_from(0, 1)[0].size
    assert bench.live.keys() == {3}


def test_what_was_never_polled_goes_too_and_the_group_goes_on_behind_it(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append(count=5)
    bench.poll(messages=2, auto_ack=True)
    bench.wait(900)
    bench.append(count=1)
    bench.wait(100)
    assert offsets_of(bench.poll()) == [5]


def test_a_delay_keeps_a_batch_from_ageing(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append(deliver_at_ms=5_000)
    bench.append()
    bench.wait(3_000)
    settle_down(bench)
    assert bases(bench) == [0]
    bench.wait(1_500)
    settle_down(bench)
    assert offsets_of(bench.poll()) == [0]
    bench.wait(499)
    settle_down(bench)
    assert bases(bench) == [0]
    bench.wait(1)
    settle_down(bench)
    assert bases(bench) == []


def test_without_a_limit_nothing_goes(make_bench: Any) -> None:
    bench = make_bench(retention_ms=0)
    bench.append()
    bench.wait(10**12)
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) is None
    assert bench.decide(Tick()).record is None


def test_a_trim_is_bounded_and_goes_on_at_once(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TRIM_BATCHES_MAX", 2)
    bench = make_bench(retention_ms=1_000)
    for priority in (0, 9, 0, 9, 0):
        bench.append(priority=priority)
    bench.wait(1_000)
    bench.ask(Tick())
    assert len(bases(bench)) == 3
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == bench.now_ms
    settle_down(bench)
    assert bases(bench) == []


def test_trims_come_at_most_once_a_second(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append()
    bench.wait(100)
    bench.append()
    bench.wait(900)
    bench.ask(Tick())
    assert bases(bench) == [1]
    bench.wait(100)
    assert bench.decide(Tick()).record is None
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == 3_000
    bench.wait(900)
    bench.ask(Tick())
    assert bases(bench) == []


# ------------------------------------------------------------------ what is held stays


def test_what_is_leased_waiting_or_dead_is_kept_when_its_batch_goes(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=500_000)
    bench.append(count=10)
    token = bench.poll(messages=6).token
    bench.settle((token, 1, 1, ACK), (token, 2, 1, NACK, 100_000), (token, 3, 1, REJECT))
    bench.wait(1_000)
    bench.ask(Tick())
    assert bases(bench) == []
    assert bench.live == {1: (0, 2, 3, 4, 5)}
    ref = bench.partition.batch_at(3)
    assert ref is not None and ref.kept == (0, 2, 3, 4, 5)
    bench.settle((token, 4, 2, ACK))
    assert bench.live == {1: (0, 2, 3)}
    bench.ask(Discard("g", [3]))
    assert bench.live == {1: (0, 2)}
    bench.settle((token, 0, 1, ACK))
    bench.wait(100_000)
    answer = bench.poll(sequence=99)
    assert offsets_of(answer) == [2]
    bench.settle((answer.token, 2, 1, ACK))
    assert bench.live == {} and bench.partition.pinned_bytes == 0
    assert bench.partition.batch_at(2) is None


def test_a_kept_message_can_be_taken_without_a_lease(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append(count=3, expires_at_ms=50_000)
    bench.settle((bench.poll().token, 0, 3, NACK, 0))
    bench.wait(1_000)
    bench.ask(Tick())
    assert offsets_of(bench.poll(messages=1, auto_ack=True)) == [0]
    assert bench.live == {1: (1, 2)}
    bench.wait(60_000)
    bench.append()
    assert offsets_of(bench.poll()) == [3]
    assert bench.live.keys() == {len(bench.log) - 1}


def test_one_groups_pins_outlive_the_other_group(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=500_000)
    bench.append(count=4)
    bench.poll("a", messages=2)
    bench.poll("b", messages=3)
    bench.wait(1_000)
    bench.ask(Tick())
    assert bench.live == {1: (0, 1, 2)}
    bench.ask(DropGroup("b"))
    assert bench.live == {1: (0, 1)}
    bench.ask(DropGroup("a"))
    assert bench.live == {}


# ------------------------------------------------------------------ by bytes


def test_the_oldest_go_until_the_rest_fits(make_bench: Any) -> None:
    bench = make_bench()
    for priority in (4, 9, 4, 0):
        bench.append(priority=priority, filling=bytes(100))
    size = bench.partition.stored_bytes // 4
    bench.settings = TopicSettings(retention_bytes=2 * size)
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == bench.now_ms
    bench.ask(Tick())
    assert bases(bench) == [2, 3]
    assert bench.decide(Tick()).record is None


def test_dropping_the_oldest_at_the_byte_limit_works_with_any_retention(make_bench: Any) -> None:
    bench = make_bench(retention="acked", max_bytes=250, full_policy="drop_oldest")
    for _ in range(6):
        bench.append(filling=bytes(100))
    bench.ask(Tick())
    assert bases(bench) == [4, 5]


def test_age_and_bytes_work_together(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, retention_bytes=250)
    for _ in range(4):
        bench.append(filling=bytes(100))
        bench.wait(400)
    bench.ask(Tick())
    assert bases(bench) == [2, 3]


def test_age_alone_may_be_enough_for_the_bytes(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, retention_bytes=250)
    bench.append(filling=bytes(200), priority=9)
    bench.wait(900)
    bench.append(filling=bytes(100))
    bench.wait(100)
    bench.ask(Tick())
    assert bases(bench) == [1]


def test_a_delayed_batch_does_not_shield_its_lane_at_the_cost_of_younger_ones(make_bench: Any) -> None:
    bench = make_bench()
    bench.append(priority=4, deliver_at_ms=bench.now_ms + 50, filling=bytes(100))  # offset 0, behind 1 in its lane
    bench.append(priority=4, filling=bytes(100))
    bench.wait(50)
    bench.ask(Tick())
    for priority in (4, 4, 0, 0):
        bench.append(priority=priority, filling=bytes(100))
    size = bench.partition.stored_bytes // 6
    bench.settings = TopicSettings(retention_bytes=3 * size)
    bench.ask(Tick())
    assert bases(bench) == [3, 4, 5]


def test_a_batch_that_waits_for_its_time_stays(make_bench: Any) -> None:
    bench = make_bench(retention_bytes=150)
    bench.append(deliver_at_ms=5_000, filling=bytes(200))
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) != bench.now_ms
    bench.append(filling=bytes(100))
    bench.ask(Tick())
    assert bases(bench) == [0]


def test_the_lower_byte_limit_counts() -> None:
    assert byte_limit(TopicSettings()) == 0
    assert byte_limit(TopicSettings(retention_bytes=5)) == 5
    assert byte_limit(TopicSettings(retention_bytes=5, retention="acked")) == 0
    assert byte_limit(TopicSettings(retention_bytes=5, max_bytes=3)) == 5
    assert byte_limit(TopicSettings(retention_bytes=5, max_bytes=3, full_policy="drop_oldest")) == 3


# ------------------------------------------------------------------ once acked


def test_without_groups_nothing_is_acked(make_bench: Any) -> None:
    bench = make_bench(retention="acked")
    bench.append()
    bench.wait(10**10)
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) is None
    assert bench.decide(Tick()).record is None


def test_a_batch_goes_once_every_group_has_settled_it(make_bench: Any) -> None:
    bench = make_bench(retention="acked", group_idle_ms=10**9)
    for _ in range(3):
        bench.append(count=2)
    bench.ask(CommitOffset("s", 3), MakeGroup("b", "queue"))
    token = bench.poll("a").token
    bench.settle((token, 0, 6, ACK), group="a")
    bench.poll("b", messages=5, auto_ack=True)
    settle_down(bench)
    assert bases(bench) == [2, 4]
    bench.ask(CommitOffset("s", 6))
    bench.wait(1_000)
    settle_down(bench)
    assert bases(bench) == [4]
    bench.poll("b", auto_ack=True)
    bench.wait(1_000)
    settle_down(bench)
    assert bases(bench) == []


def test_a_starving_lane_holds_back_no_other(make_bench: Any) -> None:
    bench = make_bench(retention="acked")
    bench.append(priority=0)
    for _ in range(3):
        bench.append(priority=9)
    bench.poll(messages=3, auto_ack=True)
    settle_down(bench)
    assert bases(bench) == [0]


def test_a_message_never_acked_does_not_hold_the_rest_for_ever(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNSETTLED_BATCHES_LEFT", 3)
    bench = make_bench(retention="acked", lease_ms=10**7)
    bench.append(count=2)
    bench.poll(messages=1)
    for _ in range(10):
        bench.append()
        bench.poll(auto_ack=True)
        bench.wait(1_000)
        settle_down(bench)
    assert len(bases(bench)) == 3
    assert bench.live[1] == (0,)


def test_trimming_what_is_acked_is_bounded(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TRIM_BATCHES_MAX", 2)
    bench = make_bench(retention="acked")
    for priority in (9, 9, 9, 0, 0):
        bench.append(priority=priority)
    bench.ask(Poll("g", "m", 1, auto_ack=True))
    settle_down(bench)
    assert bases(bench) == []


def test_looking_for_dead_that_can_make_room_is_bounded(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append(count=6)
    token = bench.poll().token
    bench.settle(*((token, offset, 1, REJECT) for offset in (0, 2, 4)))
    bench.wait(1_000)
    bench.ask(Tick())
    assert len(list(retention.oldest_kept_dead(bench.partition._state))) == 3
    monkeypatch.setattr(retention, "DEAD_LOOKED_AT_MAX", 2)
    assert [place for _, _, place, _ in retention.oldest_kept_dead(bench.partition._state)] == [0, 2]
