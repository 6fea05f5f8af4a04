"""A settle that is asked again gets its first answer; what was answered is remembered, bounded, and replicated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lanner import features, limits
from lanner.errors import LeaseLost
from lanner.partition import CommitOffset, Poll, Release, Seek, Settle, memory

ACK, NACK, EXTEND, REJECT = 1, 2, 3, 4
LOST = LeaseLost.code


@pytest.mark.parametrize("kind", [ACK, NACK, REJECT])
def test_a_settle_that_is_repeated_gets_its_first_answer(bench: Any, kind: int) -> None:
    bench.append(count=5)
    token = bench.poll().token
    first = bench.settle((token, 0, 5, kind))
    assert first == [(0, 5)]
    before = bench.partition.all_rows()
    assert bench.settle((token, 0, 5, kind)) == first
    assert bench.settle((token, 2, 2, kind)) == [(0, 2)]
    assert bench.partition.all_rows() == before, "it took effect twice"


def test_a_settle_of_a_part_is_remembered_while_the_rest_is_leased(bench: Any) -> None:
    bench.append(count=5)
    token = bench.poll().token
    assert bench.settle((token, 0, 3, ACK)) == [(0, 3)]
    bench.save()
    bench.restart()
    assert bench.settle((token, 0, 3, ACK)) == [(0, 3)]
    assert bench.settle((token, 0, 5, ACK)) == [(0, 5)]
    assert bench.settle((token, 0, 5, ACK)) == [(0, 5)]
    assert bench.partition.describe_group("g", bench.now_ms).lag == 0


def test_a_settle_that_failed_for_a_part_fails_for_the_same_part_again(bench: Any) -> None:
    bench.append(count=5)
    token = bench.poll().token
    bench.settle((token, 0, 2, NACK, 0))
    first = bench.settle((token, 0, 5, ACK))
    assert first == [(LOST, 3)]
    assert bench.settle((token, 0, 5, ACK)) == first
    assert bench.settle((token, 0, 2, NACK, 0)) == [(0, 2)]


def test_another_kind_of_settle_is_another_settle(bench: Any) -> None:
    bench.append(count=1)
    token = bench.poll().token
    bench.settle((token, 0, 1, ACK))
    assert (
        bench.settle((token, 0, 1, NACK), (token, 0, 1, REJECT), (token, 0, 1, EXTEND), (token, 0, 1, 9))
        == [(LOST, 0)] * 4
    )


def test_a_nack_that_is_repeated_does_not_touch_the_next_lease(bench: Any, offsets_of: Any) -> None:
    bench.append(count=1)
    old = bench.poll().token
    bench.settle((old, 0, 1, NACK, 0))
    new = bench.poll()
    assert offsets_of(new) == [0]
    assert bench.settle((old, 0, 1, NACK, 0)) == [(0, 1)], "it took effect, so it says so again"
    assert bench.settle((old, 0, 1, ACK)) == [(LOST, 0)]
    assert bench.partition.describe_group("g", bench.now_ms).leased == 1
    assert bench.settle((new.token, 0, 1, ACK)) == [(0, 1)]


def test_a_nack_that_killed_a_message_is_a_nack_when_it_is_repeated(make_bench: Any) -> None:
    bench = make_bench(max_deliveries=1)
    bench.append(count=2)
    token = bench.poll().token
    assert bench.settle((token, 0, 2, NACK)) == [(0, 2)]
    assert bench.settle((token, 0, 2, NACK)) == [(0, 2)]
    assert bench.settle((token, 0, 2, REJECT)) == [(LOST, 0)]
    assert bench.partition.dead_count("g") == 2


def test_an_old_token_after_a_new_lease_stays_lost(bench: Any) -> None:
    bench.append(count=1)
    old = bench.poll().token
    bench.wait(bench.settings.lease_ms)
    new = bench.poll().token
    assert bench.settle((old, 0, 1, ACK)) == [(LOST, 0)]
    bench.settle((new, 0, 1, ACK))
    assert bench.settle((old, 0, 1, ACK)) == [(LOST, 0)]
    assert bench.settle((new, 0, 1, ACK)) == [(0, 1)]


def test_what_time_settled_was_settled_by_nobody(make_bench: Any) -> None:
    bench = make_bench(max_deliveries=1)
    bench.append(expires_at_ms=bench.now_ms + 10)
    bench.append()
    token = bench.poll().token
    bench.wait(bench.settings.lease_ms)
    bench.poll()
    assert bench.partition.dead_count("g") == 1
    assert bench.settle((token, 0, 1, ACK), (token, 1, 1, NACK), (token, 1, 1, REJECT)) == [(LOST, 0)] * 3


def test_an_extension_goes_on_from_when_it_is_repeated_as_long_as_the_lease_lives(bench: Any) -> None:
    bench.append(count=1)
    answer = bench.poll()
    token = answer.token
    lease_ms = bench.settings.lease_ms
    for _ in range(3):
        bench.wait(lease_ms - 1)
        assert bench.settle((token, 0, 1, EXTEND)) == [(0, 1)]
        [part] = bench.partition._state.groups["g"].leases[token].parts
        assert part.deadline_ms == bench.now_ms + lease_ms
    bench.settle((token, 0, 1, ACK))
    assert bench.settle((token, 0, 1, EXTEND)) == [(0, 1)], "its holder has settled it since"


def test_an_extension_of_a_lease_that_ran_out_is_lost(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll().token
    bench.settle((token, 0, 2, EXTEND))
    bench.settle((token, 0, 1, ACK))
    assert bench.settle((token, 0, 2, EXTEND)) == [(0, 2)]
    bench.wait(2 * bench.settings.lease_ms)
    bench.ask(Poll("g", "n", 1, 0 + 1, 1 << 20, 60_000))
    assert bench.settle((token, 0, 2, EXTEND)) == [(LOST, 1)], "its answer is a promise, and cannot be kept"
    assert bench.settle((token, 1, 1, EXTEND)) == [(LOST, 0)]


def test_the_same_settle_twice_in_one_pass_takes_effect_once_and_is_answered_twice(bench: Any) -> None:
    bench.append(count=4)
    token = bench.poll().token
    ack, nack = (token, 0, 2, ACK, -1, ""), (token, 2, 2, NACK, 0, "")
    answers = bench.ask(Settle("g", [ack, nack, ack]), Settle("g", [ack]), Settle("g", [nack]))
    assert answers == [[(0, 2)] * 3, [(0, 2)], [(0, 2)]]
    assert bench.partition.describe_group("g", bench.now_ms).lag == 2
    assert offsets_attempts(bench) == [(2, 2), (3, 2)]


def offsets_attempts(bench: Any) -> list[tuple[int, int]]:
    leases = bench.poll().leases
    return [(lease.first_offset + at, lease.attempt) for lease in leases for at in range(lease.count)]


def test_a_release_is_no_settle(bench: Any) -> None:
    bench.append(count=1)
    token = bench.poll().token
    item = (token, 0, 1, ACK, -1, "")
    assert bench.ask(Release("g", [item]), Release("g", [item])) == [[(0, 1)], [(LOST, 0)]]
    assert bench.ask(Release("g", [item])) == [[(LOST, 0)]]
    assert bench.settle((token, 0, 1, ACK)) == [(LOST, 0)]


def test_a_seek_does_not_forget_what_was_answered(bench: Any) -> None:
    bench.append(count=3)
    token = bench.poll().token
    bench.settle((token, 0, 2, ACK))
    bench.ask(Seek("g", "earliest"))
    assert bench.settle((token, 0, 2, ACK)) == [(0, 2)]
    assert bench.settle((token, 2, 1, ACK)) == [(LOST, 0)]


def test_answers_survive_a_restart_and_go_with_their_group(bench: Any) -> None:
    bench.append(count=3)
    token = bench.poll().token
    bench.settle((token, 0, 3, ACK))
    bench.save()
    bench.restart()
    assert bench.settle((token, 0, 3, ACK)) == [(0, 3)]
    bench.append(count=1)
    later = bench.poll().token
    bench.settle((later, 3, 1, NACK))
    bench.restart()
    assert bench.settle((token, 0, 3, ACK), (later, 3, 1, NACK)) == [(0, 3), (0, 1)]
    state = bench.partition._state
    state.forget_group(state.groups["g"])
    bench.partition._state.applied_index += 1
    bench.rows.put(bench.partition.take_dirty())
    assert not [key for key in bench.rows if key[:1] in b"gtps"]


# ------------------------------------------------------------------ bounds


def settle_one(bench: Any) -> int:
    """A message that was published, leased and acked; the token of its lease."""
    offset = bench.append(count=1).base_offset
    token: int = bench.poll().token
    assert bench.settle((token, offset, 1, ACK)) == [(0, 1)]
    return token


def test_answers_are_kept_for_their_time(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RANGES_PER_ROW", 1)
    token = settle_one(bench)
    bench.wait(limits.SETTLES_KEPT_MS)
    settle_one(bench)
    assert bench.settle((token, 0, 1, ACK)) == [(0, 1)]
    bench.wait(1)
    settle_one(bench)
    assert bench.settle((token, 0, 1, ACK)) == [(LOST, 0)]
    bench.save()
    bench.restart()


def test_at_the_bound_the_oldest_answers_are_forgotten(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RANGES_PER_ROW", 2)
    monkeypatch.setattr(memory, "SETTLED_RANGES_KEPT", 6)
    tokens = []
    for number in range(20):
        tokens.append(settle_one(bench))
        if number % 3 == 0:
            bench.save()
            bench.restart()
    kept = [bench.settle((token, offset, 1, ACK)) == [(0, 1)] for offset, token in enumerate(tokens)]
    assert kept == [False] * 14 + [True] * 6
    group = bench.partition._state.groups["g"]
    assert len(group.memory) == 6
    bench.save()
    assert len([key for key in bench.rows if key[:1] == b"s"]) == 3


def test_what_is_remembered_costs_as_much_for_many_messages_as_for_one(bench: Any) -> None:
    for _ in range(50):
        bench.append(count=40)
    token = bench.poll(messages=2_000).token
    bench.settle((token, 0, 2_000, ACK))
    [entry] = bench.partition._state.groups["g"].memory.entries.values()
    assert len(entry) < 20


def test_scattered_answers_are_remembered_exactly(bench: Any) -> None:
    for lane in (4, 9, 4, 1):
        bench.append(count=7, priority=lane)
    token = bench.poll().token
    acked, nacked = list(range(0, 28, 3)), list(range(1, 28, 3))
    assert bench.settle(*((token, offset, 1, ACK) for offset in acked)) == [(0, 1)] * len(acked)
    assert bench.settle(*((token, offset, 1, NACK, 0) for offset in nacked)) == [(0, 1)] * len(nacked)
    bench.ask(Release("g", [(token, 0, 28, 0, -1, "")]))
    assert token not in bench.partition._state.groups["g"].leases
    for offset in range(28):
        assert bench.settle((token, offset, 1, ACK)) == [(0, 1) if offset in acked else (LOST, 0)]
        assert bench.settle((token, offset, 1, NACK, 0)) == [(0, 1) if offset in nacked else (LOST, 0)]
    assert bench.settle((token, 0, 28, ACK)) == [(LOST, len(acked))]


# ------------------------------------------------------------------ feature levels


def test_below_its_level_nothing_is_remembered_and_rows_are_as_they_were(make_bench: Any) -> None:
    bench = make_bench()
    bench.feature_level = features.IDENTITIES - 1
    bench.append(count=5)
    token = bench.poll().token
    assert bench.settle((token, 0, 3, ACK)) == [(0, 3)]
    assert bench.settle((token, 0, 3, ACK)) == [(LOST, 0)]
    assert bench.ask(Settle("g", [(token, 3, 1, ACK, -1, "")] * 2)) == [[(0, 1), (LOST, 0)]]
    rows = bench.partition.all_rows()
    assert not [key for key in rows if key[:1] == b"s"]
    [lease] = [msgspec.msgpack.decode(value) for key, value in rows.items() if key[:1] == b"t"]
    [header] = [msgspec.msgpack.decode(value) for key, value in rows.items() if key[:1] == b"g"]
    assert (len(lease), len(header)) == (3, 6), "a broker of the level before reads exactly so many"


def test_replicas_remember_what_the_leader_wrote_whatever_level_they_know_of(make_bench: Any) -> None:
    bench = make_bench()
    bench.append(count=1)
    token = bench.poll().token
    bench.settle((token, 0, 1, ACK))
    follower = bench.reload()
    assert follower.all_rows() == bench.partition.all_rows()


# ------------------------------------------------------------------ commits


def commit(bench: Any, offset: int, reader: str = "", sequence: int = -1) -> int:
    """Commit; the offset that the group has then."""
    assert bench.ask(CommitOffset("s", offset, reader, sequence)) == [None]
    found: int = bench.partition.committed("s")
    return found


def test_a_commit_that_is_repeated_does_not_undo_later_ones(bench: Any) -> None:
    bench.append(count=10)
    for sequence, offset in enumerate((2, 4, 6, 8)):
        assert commit(bench, offset, "r", sequence) == offset
    before = bench.partition.all_rows()
    assert commit(bench, 2, "r", 0) == 8
    assert commit(bench, 8, "r", 3) == 8
    assert bench.partition.all_rows() == before
    bench.save()
    bench.restart()
    assert commit(bench, 4, "r", 1) == 8
    assert commit(bench, 1, "r", 4) == 1, "a reader may go back, by a commit of its own"


def test_commits_without_identity_and_of_other_readers_count_as_they_come(bench: Any) -> None:
    bench.append(count=10)
    assert commit(bench, 8, "r", 5) == 8
    assert commit(bench, 3) == 3
    assert commit(bench, 4, "other", 0) == 4
    assert commit(bench, 8, "r", 5) == 4, "that one was answered before"


def test_commits_repeated_in_one_pass_count_once(bench: Any) -> None:
    bench.append(count=10)
    first, second = CommitOffset("s", 2, "r", 0), CommitOffset("s", 5, "r", 1)
    assert bench.ask(first, second, first) == [None] * 3
    assert bench.partition.committed("s") == 5


def test_a_seek_back_is_not_undone_by_a_commit_that_is_repeated(bench: Any) -> None:
    bench.append(count=10)
    commit(bench, 8, "r", 5)
    bench.ask(Seek("s", 2))
    assert commit(bench, 8, "r", 5) == 2


def test_only_so_many_readers_are_remembered(bench: Any) -> None:
    bench.append(count=10)
    for number in range(limits.COMMIT_READERS_KEPT + 1):
        commit(bench, number % 10, f"reader-{number}", 0)
    assert commit(bench, 1, "reader-1", 0) == limits.COMMIT_READERS_KEPT % 10
    assert commit(bench, 9, "reader-0", 0) == 9, "it was forgotten"
    bench.save()
    bench.restart()


def test_below_its_level_a_commit_has_no_identity(make_bench: Any) -> None:
    bench = make_bench()
    bench.feature_level = features.IDENTITIES - 1
    bench.append(count=10)
    assert commit(bench, 8, "r", 5) == 8
    assert commit(bench, 2, "r", 0) == 2
    [header] = [msgspec.msgpack.decode(value) for key, value in bench.partition.all_rows().items() if key[:1] == b"g"]
    assert len(header) == 6
