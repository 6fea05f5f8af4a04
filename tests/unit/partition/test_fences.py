"""What a partition accepts of a group only rises: claims, commits, leases and seeks, also of one pass."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lanner import features, limits
from lanner.errors import GenerationAhead, GroupKindConflict, MemberFenced, NotSupported, ValidationError
from lanner.partition import Claim, Claimed, CommitOffset, DropGroup, MakeGroup, Seek, Tick
from lanner.partition.groups import Group

OLD, NEW, NEWER = (1, 3), (1, 5), (2, 1)


@pytest.fixture
def bench(make_bench: Any) -> Any:
    made = make_bench(lease_ms=1_000)
    for _ in range(4):
        made.append(count=5)
    return made


def claim(bench: Any, fence: tuple[int, int], member: str = "m1", **more: Any) -> Any:
    [answer] = bench.ask(Claim("g", member, fence, **more))
    return answer


def commit(
    bench: Any, offset: int, fence: tuple[int, int] | None, sequence: int, member: str = "m1", **more: Any
) -> Any:
    [answer] = bench.ask(CommitOffset("g", offset, member, sequence, fence=fence, **more))
    return answer


# ------------------------------------------------------------------ claims and commits


def test_a_claim_makes_the_group_raises_the_fence_and_says_where_to_begin(bench: Any) -> None:
    assert claim(bench, OLD) == Claimed(0, False, b"", -1)
    assert bench.partition.fence("g") == OLD
    assert bench.partition.fence("other") == (0, 0)
    assert claim(bench, (1, 4), start="latest") == Claimed(0, False, b"", -1), "the group is there already"


def test_a_group_that_starts_at_the_end_begins_there(bench: Any) -> None:
    assert claim(bench, OLD, start="latest") == Claimed(20, False, b"", -1)


def test_after_a_claim_no_commit_of_an_older_owner_counts(bench: Any) -> None:
    claim(bench, OLD)
    assert commit(bench, 5, OLD, 1) is None
    assert claim(bench, NEW, "m2") == Claimed(5, True, b"", -1)
    assert isinstance(commit(bench, 9, OLD, 2), MemberFenced)
    assert isinstance(claim(bench, OLD), MemberFenced)
    assert commit(bench, 6, NEW, 1, "m2") is None
    assert claim(bench, NEW, "m2") == Claimed(6, True, b"", 1), "the same claim again"


def test_another_group_of_the_name_stands_above_whatever_the_grants_were(bench: Any) -> None:
    claim(bench, (1, 99))
    claim(bench, NEWER, "m2")
    assert isinstance(claim(bench, (1, 100)), MemberFenced)


def test_a_commit_above_the_fence_raises_it(bench: Any) -> None:
    claim(bench, OLD)
    commit(bench, 5, NEW, 1, "m2")
    assert bench.partition.fence("g") == NEW
    assert isinstance(commit(bench, 6, OLD, 1), MemberFenced)


def test_a_commit_that_is_late_or_doubled_never_moves_progress_back(bench: Any) -> None:
    claim(bench, OLD)
    commit(bench, 9, OLD, 2)
    assert commit(bench, 5, OLD, 1) is None, "it is answered as done"
    assert commit(bench, 9, OLD, 2) is None
    assert claim(bench, OLD) == Claimed(9, True, b"", 2)


def test_claims_and_commits_of_one_pass_see_each_other(bench: Any) -> None:
    first, claimed, late, again = bench.ask(
        CommitOffset("g", 5, "m1", 1, fence=OLD, metadata=b"five"),
        Claim("g", "m2", NEW),
        CommitOffset("g", 7, "m1", 2, fence=OLD),
        Claim("g", "m1", OLD),
    )
    assert first is None
    assert claimed == Claimed(5, True, b"five", -1)
    assert isinstance(late, MemberFenced) and isinstance(again, MemberFenced)
    assert claim(bench, NEW, "m2") == Claimed(5, True, b"five", -1)


def test_what_a_commit_brings_along_is_kept_until_the_next_commit_or_seek(bench: Any) -> None:
    claim(bench, OLD)
    commit(bench, 5, OLD, 1, metadata=b"note")
    assert claim(bench, OLD).metadata == b"note"
    commit(bench, 6, OLD, 2)
    assert claim(bench, OLD).metadata == b""
    commit(bench, 7, OLD, 3, metadata=b"again")
    bench.ask(Seek("g", 0, OLD))
    assert claim(bench, OLD) == Claimed(0, True, b"", 3)


def test_a_commit_brings_only_so_much_along(bench: Any) -> None:
    claim(bench, OLD)
    assert isinstance(commit(bench, 5, OLD, 1, metadata=bytes(limits.COMMIT_METADATA_BYTES_MAX + 1)), ValidationError)
    assert commit(bench, 5, OLD, 1, metadata=bytes(limits.COMMIT_METADATA_BYTES_MAX)) is None


def test_a_queue_group_is_not_claimed(bench: Any) -> None:
    bench.ask(MakeGroup("g", "queue"))
    assert isinstance(claim(bench, OLD), GroupKindConflict)


# ------------------------------------------------------------------ from outside


def test_an_operators_seek_raises_the_fence_and_the_owner_cannot_undo_it(bench: Any) -> None:
    claim(bench, OLD)
    commit(bench, 9, OLD, 1)
    assert bench.ask(Seek("g", 2, NEW)) == [None]
    assert isinstance(commit(bench, 12, OLD, 2), MemberFenced)
    assert bench.ask(Seek("g", 1, OLD))[0].code == MemberFenced.code
    assert claim(bench, (1, 6)) == Claimed(2, True, b"", 1)


def test_a_call_from_outside_that_a_newer_broker_should_answer_is_sent_there(bench: Any) -> None:
    claim(bench, OLD)
    for fence in (None, (1, 0)):
        assert isinstance(commit(bench, 5, fence, -1, ""), GenerationAhead)
        assert isinstance(bench.ask(Seek("g", 2, fence))[0], GenerationAhead)
    assert commit(bench, 5, (2, 0), -1, "") is None
    assert bench.partition.fence("g") == (2, 0)
    assert isinstance(commit(bench, 6, OLD, 1), MemberFenced)


def test_where_nobody_was_ever_a_member_nothing_is_written_of_it(make_bench: Any) -> None:
    bench, before = make_bench(), make_bench()
    before.feature_level = features.STAGES
    for one in (bench, before):
        one.append(count=5)
        one.poll(fence=(3, 0) if one is bench else None)
        one.ask(CommitOffset("s", 3, "r", 1))
    assert bench.log == before.log
    assert bench.partition.all_rows() == before.partition.all_rows()


# ------------------------------------------------------------------ polls


def test_what_a_poll_hands_out_raises_the_fence_and_an_empty_one_does_not(bench: Any) -> None:
    bench.ask(MakeGroup("g", "queue", "latest"))
    assert bench.poll(fence=NEW) is not None
    assert bench.partition.fence("g") == (0, 0)
    bench.append(count=3)
    bench.poll(fence=OLD)
    assert bench.partition.fence("g") == OLD
    bench.append(count=3)
    assert bench.poll(fence=NEW, auto_ack=True).leases
    assert bench.partition.fence("g") == NEW
    assert isinstance(bench.poll(fence=OLD), MemberFenced)
    assert isinstance(bench.poll(fence=None), GenerationAhead)


def test_a_poll_from_outside_leaves_no_trace_until_there_was_a_member(bench: Any) -> None:
    bench.poll(messages=1, fence=(4, 0))
    assert bench.partition.fence("g") == (0, 0)
    bench.poll(messages=1, fence=(4, 2))
    bench.poll(messages=1, fence=(5, 0))
    assert bench.partition.fence("g") == (5, 0)


def test_a_repeated_poll_gets_its_leases_back_also_when_it_is_fenced_and_nothing_new(bench: Any) -> None:
    first = bench.poll(messages=3, sequence=7, fence=OLD, member="m1")
    bench.poll(messages=3, fence=NEW, member="m2")
    again = bench.poll(messages=10, sequence=7, fence=OLD, member="m1")
    assert (again.leases, again.token) == (first.leases, first.token)
    assert isinstance(bench.poll(messages=3, sequence=8, fence=OLD, member="m1"), MemberFenced)


def test_settles_are_not_fenced_because_the_token_is_the_fence(bench: Any) -> None:
    first = bench.poll(messages=3, fence=OLD)
    bench.poll(messages=3, fence=NEW, member="m2")
    assert bench.settle((first.token, first.leases[0].first_offset, 3)) == [(0, 3)]


# ------------------------------------------------------------------ rows, levels, idleness


def test_fences_and_notes_are_saved_and_old_rows_load(bench: Any) -> None:
    claim(bench, OLD)
    commit(bench, 5, OLD, 1, metadata=b"note")
    bench.save()
    commit(bench, 6, NEW, 1, "m2", metadata=b"more")
    bench.restart()
    assert bench.partition.fence("g") == NEW
    assert claim(bench, NEW, "m2") == Claimed(6, True, b"more", 1)
    for fields in (6, 7, 8):
        row = ("g", "stream", 1, 0, 4, [0] * 10, [["r", 2]], -1)[:fields]
        loaded = Group.decode(1, msgspec.msgpack.encode(row), bench.partition._state.lanes)
        assert (loaded.fence, loaded.metadata, loaded.committed) == ((0, 0), b"", 4)
        assert loaded.header() == msgspec.msgpack.encode(row[:7] if fields > 6 else row)


def test_below_level_four_nothing_of_it_is_written(bench: Any) -> None:
    bench.feature_level = features.GROUPS - 1
    assert isinstance(claim(bench, OLD), NotSupported)
    bench.ask(CommitOffset("g", 1))
    before = len(bench.log)
    assert isinstance(commit(bench, 5, OLD, 1), NotSupported)
    assert isinstance(commit(bench, 5, None, 1, metadata=b"x"), NotSupported)
    assert len(bench.log) == before
    assert isinstance(bench.poll("q", fence=OLD), NotSupported)
    assert bench.partition.fence("q") == (0, 0)


def test_a_group_with_members_is_not_idle_however_quiet_it_is(make_bench: Any) -> None:
    bench = make_bench(group_idle_ms=1_000)
    bench.append(count=1)
    for group in ("kept", "idle"):
        bench.ask(CommitOffset(group, 1))
    bench.wait(5_000)
    decided = bench.partition.decide([Tick()], bench.settings, bench.now_ms, bench.feature_level, {"kept"})
    bench.apply(decided.record)
    assert bench.partition.has_group("kept") and not bench.partition.has_group("idle")


def test_a_fact_about_a_group_that_is_gone_changes_nothing(bench: Any) -> None:
    claim(bench, OLD)
    decided = bench.decide(Claim("g", "m2", NEW), CommitOffset("g", 5, "m2", 1, fence=NEW, metadata=b"x"))
    bench.ask(DropGroup("g"))
    bench.apply(decided.record)
    assert not bench.partition.has_group("g")
