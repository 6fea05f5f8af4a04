"""Members that are cut short while they join, and what the last callbacks are told when one is closed."""

from __future__ import annotations

import asyncio

import pytest

from lanner.client.membership import STALLED
from lanner.errors import DeadlineExceeded, GroupKindConflict, MemberUnknown, ServiceUnavailable
from tests.unit.client.fake_home import granted
from tests.unit.client.test_membership import QUEUE, STREAM, Member, member_of


async def cancelled(work: asyncio.Task[None]) -> None:
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_join_that_is_cut_short_goes_on_under_its_id() -> None:
    async with member_of(QUEUE) as member:
        member.home.join_gate = asyncio.Event()
        for _ in range(2):
            await cancelled(asyncio.create_task(member.membership.open()))
        member.home.join_gate.set()
        await member.membership.open()
        assert len(set(member.home.joined)) == 1 and len(member.home.joined) == 3
        assert member.membership.member_id == member.home.joined[0]


async def test_a_join_whose_answer_was_lost_is_repeated_under_its_id_and_one_that_was_refused_is_not() -> None:
    async with member_of(QUEUE) as member:
        home = member.home
        home.join_gate = asyncio.Event()
        await cancelled(asyncio.create_task(member.membership.open()))
        home.refusal = DeadlineExceeded()
        with pytest.raises(DeadlineExceeded):
            await member.membership.open()
        home.refusal = GroupKindConflict()
        with pytest.raises(GroupKindConflict):
            await member.membership.open()
        home.refusal = None
        home.join_gate.set()
        await member.membership.open()
        assert len(home.joined) == len(set(home.joined)) == 2


async def test_a_member_that_is_closed_before_it_heard_that_it_has_joined_leaves() -> None:
    member = Member(QUEUE)
    member.home.join_gate = asyncio.Event()
    await cancelled(asyncio.create_task(member.membership.open()))
    await member.membership.close()
    assert member.home.left == [(member.home.joined[0], "")]


async def test_a_member_that_is_closed_while_it_joins_does_not_live_on() -> None:
    member = Member(STREAM)
    member.home.join_gate = asyncio.Event()
    opening = asyncio.create_task(member.membership.open())
    await member.home.until(lambda: bool(member.home.joined))
    await member.membership.close()
    member.home.join_gate.set()
    with pytest.raises(ServiceUnavailable, match="closed while it joined"):
        await opening
    assert set(member.home.left) == {(member.home.joined[0], "")}
    await asyncio.sleep(0.05)
    assert member.home.heartbeats == []


async def test_a_member_that_is_closed_while_it_joins_again_leaves() -> None:
    member = Member(QUEUE)
    await member.membership.open()
    member.home.join_gate = asyncio.Event()
    member.home.fail(MemberUnknown())
    await member.home.until(lambda: len(member.home.joined) == 2)
    await member.membership.close()
    assert member.home.left == [(member.home.joined[1], "")]


async def test_what_went_to_others_before_the_end_is_told_with_everything_else() -> None:
    member = Member(QUEUE)
    member.home.show(2, [granted(0, 2), granted(1, 2)])
    await member.membership.open()
    await member.attend()
    member.home.show(3, [granted(0, 2)])
    await member.home.until(lambda: member.membership.generation == 3)
    await member.membership.close()
    assert "on_revoked [0, 1]" in member.log, "partition 1 was opened, and never closed"


@pytest.mark.parametrize("kind", [STREAM, QUEUE])
async def test_what_was_lost_before_the_end_is_told_so(kind: object) -> None:
    member = Member(STREAM if kind is STREAM else QUEUE)
    member.home.show(2, [granted(0, 2)])
    await member.membership.open()
    await member.attend()
    member.home.fail(MemberUnknown())
    await member.home.until(lambda: member.membership.has_news)
    await member.membership.close()
    assert [line for line in member.log if line.startswith("on_")] == ["on_assigned [0]", "on_lost [0]"]


async def test_no_callback_of_the_end_runs_beside_another_one(caplog: pytest.LogCaptureFixture) -> None:
    member = Member(QUEUE)
    member.revoking = asyncio.Event()
    member.revoke_error = RuntimeError("the callback's own")
    member.home.show(2, [granted(0, 2), granted(1, 2)])
    await member.membership.open()
    await member.attend()
    member.home.show(3, [granted(0, 2)])
    attending = asyncio.create_task(member.attend())
    await member.home.until(lambda: "on_revoked [1]" in member.log)
    await cancelled(attending)  # the poll was given up, its callback goes on
    giving_up = asyncio.create_task(member.membership.give_everything_up())
    await asyncio.sleep(0.02)
    assert "on_revoked [0]" not in member.log
    member.revoking.set()
    with pytest.raises(RuntimeError):
        await giving_up
    assert member.log[-1] == "on_revoked [0]"
    assert "a callback failed" in caplog.text
    await member.membership.close()


async def test_one_that_stalled_and_could_not_say_so_does_not_join_before_its_application_is_back() -> None:
    async with member_of(STREAM, stall_ms=50) as member:
        member.home.leave_error = ServiceUnavailable("nobody leads the metadata")
        await member.membership.open()
        first = member.membership.member_id
        await member.home.until(lambda: member.home.left == [(first, STALLED)])
        await asyncio.sleep(0.3)
        assert member.home.joined == [first]
        member.home.leave_error = None


async def test_a_claim_that_is_refused_for_good_does_not_send_the_partition_round_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with member_of(STREAM) as member:
        member.home.offsets = {0: GroupKindConflict("'g' is a queue group"), 1: 5}
        member.home.show(2, [granted(0, 2), granted(1, 2)])
        await member.membership.open()
        await member.attend()
        assert member.log == ["on_assigned [1]", "begin 1 at 5"]
        await member.home.until(lambda: member.home.claimed.count(granted(0, 2)) == 2)
        assert member.home.released == []
        assert caplog.text.count("'g' is a queue group; until that is mended nothing is read there") == 1
        member.home.offsets = {0: 3}
        await member.attend()
        assert member.log[2:] == ["on_assigned [0]", "begin 0 at 3"]
