"""A member over a home in memory: what it tells the home, the application and the worker, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lanner.client.assignments import Granted
from lanner.client.member_ports import Callbacks
from lanner.client.membership import STALLED, Membership
from lanner.errors import (
    AssignorConflict,
    InstanceFenced,
    MemberFenced,
    MemberUnknown,
    NotLeader,
    ServiceUnavailable,
    ValidationError,
)
from lanner.model import GroupKind, TopicPartition
from tests.unit.client.fake_home import FakeHome, FakeWorker, granted

STREAM, QUEUE = GroupKind.STREAM, GroupKind.QUEUE


class Member:
    """A membership with everything around it; callbacks write into the worker's log."""

    def __init__(self, kind: GroupKind, stall_ms: int = 300_000) -> None:
        self.home = FakeHome()
        self.worker = FakeWorker()
        self.log = self.worker.log
        self.revoking: asyncio.Event | None = None
        self.revoke_error: Exception | None = None

        async def on_revoked(places: list[TopicPartition]) -> None:
            self.log.append(f"on_revoked {_numbers(places)}")
            if self.revoking is not None:
                await self.revoking.wait()
            if self.revoke_error is not None:
                raise self.revoke_error

        callbacks = Callbacks(
            lambda places: self.log.append(f"on_assigned {_numbers(places)}"),
            on_revoked,
            lambda places: self.log.append(f"on_lost {_numbers(places)}"),
        )
        self.membership = Membership(self.home, self.worker, kind, callbacks=callbacks, stall_ms=stall_ms)

    async def begin(self, *given: Granted) -> None:
        """Join, and have what is granted."""
        self.home.show(2, list(given))
        await self.membership.open()
        await self.attend()

    async def attend(self) -> None:
        """As an application that asks for messages: waits for news first."""
        with self.membership.presence.visit():
            await self.home.until(lambda: self.membership.has_news)
            await self.membership.attend()


def _numbers(places: list[TopicPartition]) -> list[int]:
    return [place.partition for place in places]


@asynccontextmanager
async def member_of(kind: GroupKind, stall_ms: int = 300_000) -> AsyncIterator[Member]:
    member = Member(kind, stall_ms)
    try:
        yield member
    finally:
        await member.membership.close(keep=True, finished=False)


async def test_a_stream_partition_is_claimed_then_told_then_read() -> None:
    async with member_of(STREAM) as member:
        member.home.offsets = {0: 42}
        await member.begin(granted(0, 2))
        assert member.home.claimed == [granted(0, 2)]
        assert member.log == ["on_assigned [0]", "begin 0 at 42"]
        assert member.membership.assignment == [TopicPartition("orders", 0)]
        assert member.membership.generation == 2


async def test_nothing_is_read_before_the_claim_is_answered() -> None:
    async with member_of(STREAM) as member:
        member.home.claim_gate = asyncio.Event()
        member.home.show(2, [granted(0, 2)])
        await member.membership.open()
        await member.home.until(lambda: len(member.home.heartbeats) >= 2)
        await member.membership.attend()
        assert member.log == [] and member.membership.assignment == []
        member.home.claim_gate.set()
        await member.attend()
        assert member.log == ["on_assigned [0]", "begin 0 at 0"]


async def test_a_queue_partition_is_polled_without_a_claim() -> None:
    async with member_of(QUEUE) as member:
        await member.begin(granted(0, 2), granted(1, 2))
        assert member.home.claimed == []
        assert member.log == ["on_assigned [0, 1]", "begin 0 at 0", "begin 1 at 0"]


async def test_a_revoked_stream_partition_is_released_only_after_the_answer_to_its_commit() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2), granted(1, 2))
        member.log.clear()
        member.worker.commit_gate = asyncio.Event()
        member.home.show(3, [granted(0, 2)], [granted(1, 2)])
        attending = asyncio.create_task(member.attend())
        await member.home.until(lambda: "commit [1]" in member.log)
        assert member.log == ["pause 1", "on_revoked [1]", "commit [1]"]
        assert member.home.released == []
        member.worker.commit_gate.set()
        await attending
        await member.home.until(lambda: member.home.released == [granted(1, 2)])
        assert member.log[-2:] == ["committed", "drop 1"]
        assert member.membership.assignment == [TopicPartition("orders", 0)]


async def test_a_revoked_partition_waits_for_an_application_that_is_at_work() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        member.home.show(3, [], [granted(0, 2)])
        await member.home.until(lambda: member.membership.generation == 3)
        assert member.log == ["pause 0"]
        await member.attend()
        assert member.log == ["pause 0", "on_revoked [0]", "commit [0]", "committed", "drop 0"]


async def test_a_move_that_is_called_off_in_time_lets_the_partition_go_on() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        member.home.show(3, [], [granted(0, 2)])
        await member.home.until(lambda: member.membership.generation == 3)
        member.home.show(4, [granted(0, 2)])
        await member.home.until(lambda: member.membership.generation == 4)
        assert member.log == ["pause 0", "resume 0"]
        await member.membership.attend()
        assert member.home.released == [] and len(member.log) == 2


async def test_a_call_that_is_cancelled_cuts_no_hand_over_short() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.worker.commit_gate = asyncio.Event()
        member.home.show(3, [], [granted(0, 2)])
        attending = asyncio.create_task(member.attend())
        await member.home.until(lambda: "commit [0]" in member.log)
        attending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attending
        assert member.home.released == []
        member.worker.commit_gate.set()
        await member.membership.attend()
        await member.home.until(lambda: member.home.released == [granted(0, 2)])
        assert member.log.count("on_revoked [0]") == 1
        assert member.log[-2:] == ["committed", "drop 0"], "it was released before its commit was answered"


async def test_a_member_that_is_closed_during_a_hand_over_ends_that_first() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.worker.commit_gate = asyncio.Event()
        member.home.show(3, [], [granted(0, 2)])
        attending = asyncio.create_task(member.attend())
        await member.home.until(lambda: "commit [0]" in member.log)
        attending.cancel()
        closing = asyncio.create_task(member.membership.close())
        await asyncio.sleep(0.02)
        assert member.home.left == []
        member.worker.commit_gate.set()
        await closing
        assert "committed" in member.log and len(member.home.left) == 1


async def test_an_application_that_could_not_finish_is_heard_and_nothing_is_committed() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        member.revoke_error = RuntimeError("could not flush")
        member.home.show(3, [], [granted(0, 2)])
        with pytest.raises(RuntimeError, match="could not flush"):
            await member.attend()
        await member.home.until(lambda: member.home.released == [granted(0, 2)])
        assert member.log == ["pause 0", "on_revoked [0]", "drop 0"]


async def test_a_commit_that_is_refused_as_an_old_owner_s_is_a_loss() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.worker.commit_error = MemberFenced("another has it")
        member.home.show(3, [], [granted(0, 2)])
        await member.attend()
        assert member.log[-3:] == ["commit [0]", "on_lost [0]", "drop 0"]


async def test_a_commit_that_cannot_be_made_is_repeated_until_the_partition_is_forced_away() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.worker.commit_error = NotLeader("nobody leads it")
        member.home.show(3, [], [granted(0, 2)])
        attending = asyncio.create_task(member.attend())
        await member.home.until(lambda: member.log.count("commit [0]") >= 2)
        assert member.home.released == [] and not attending.done()
        member.home.show(4)
        await attending
        assert member.log[-2:] == ["on_lost [0]", "drop 0"]


async def test_a_partition_that_is_gone_from_the_view_is_lost_and_not_committed() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        member.home.show(5)
        await member.attend()
        assert member.log == ["drop 0", "on_lost [0]"]


async def test_a_queue_partition_that_is_gone_from_the_view_is_revoked_without_a_commit_or_release() -> None:
    async with member_of(QUEUE) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        member.home.show(5)
        await member.attend()
        assert member.log == ["drop 0", "on_revoked [0]", "drop 0"]
        assert member.home.released == []


async def test_an_evicted_member_loses_everything_and_joins_under_a_new_id() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.log.clear()
        first = member.membership.member_id
        member.home.fail(MemberUnknown("evicted"))
        member.home.show(9)
        await member.home.until(lambda: not member.membership.assignment)
        member.home.fail(None)
        await member.home.until(lambda: len(member.home.joined) >= 2 and bool(member.membership.member_id))
        await member.membership.attend()
        assert member.log == ["drop 0", "on_lost [0]"]
        assert member.membership.member_id not in ("", first)
        assert member.membership.rejoins >= 1


async def test_a_newer_process_of_the_instance_ends_the_member_for_good() -> None:
    async with member_of(STREAM) as member:
        await member.begin(granted(0, 2))
        member.home.fail(InstanceFenced("a newer process"))
        for _ in range(2):
            with pytest.raises(InstanceFenced, match="newer"):
                await member.attend()
        assert member.log.count("on_lost [0]") == 1
        assert len(member.home.joined) == 1


async def test_a_fenced_grant_is_lost_and_released_and_a_new_grant_is_claimed() -> None:
    async with member_of(STREAM) as member:
        member.home.show(2, [granted(0, 2)])
        member.home.on_release = lambda one: member.home.show(4, [granted(0, 4)])
        await member.membership.open()
        await member.attend()
        member.log.clear()
        member.membership.fenced(granted(0, 2))
        await member.attend()
        await member.home.until(lambda: granted(0, 4) in member.home.claimed)
        await member.attend()
        assert member.home.released == [granted(0, 2)]
        assert member.log == ["drop 0", "on_lost [0]", "on_assigned [0]", "begin 0 at 0"]


async def test_a_claim_that_nobody_answers_is_repeated_and_holds_up_no_other() -> None:
    async with member_of(STREAM) as member:
        member.home.offsets = {0: NotLeader("nobody leads it"), 1: 5}
        await member.begin(granted(0, 2), granted(1, 2))
        assert member.log == ["on_assigned [1]", "begin 1 at 5"]
        member.home.offsets = {0: 3}
        await member.attend()
        assert member.log[2:] == ["on_assigned [0]", "begin 0 at 3"]


async def test_a_partition_that_is_revoked_before_the_application_heard_of_it_is_released_in_silence() -> None:
    async with member_of(STREAM) as member:
        member.home.show(2, [granted(0, 2)])
        await member.membership.open()
        await member.home.until(lambda: member.membership.has_news)
        member.home.show(3, [], [granted(0, 2)])
        await member.home.until(lambda: member.home.released == [granted(0, 2)])
        await member.membership.attend()
        assert member.log == []


async def test_a_home_that_nobody_confirms_is_left_for_another() -> None:
    async with member_of(STREAM) as member:
        member.home.confirmed_ms = -1
        await member.membership.open()
        await member.home.until(lambda: any(elsewhere for _, _, elsewhere in member.home.heartbeats))
        assert len(member.home.heartbeats) >= 2, "the first home has half a session"
        assert not member.home.heartbeats[0][2]


async def test_a_heartbeat_that_fails_is_sent_to_another_home_under_the_same_id() -> None:
    async with member_of(STREAM) as member:
        await member.membership.open()
        member.home.fail(ServiceUnavailable("gone"))
        await member.home.until(lambda: any(elsewhere for _, _, elsewhere in member.home.heartbeats))
        member.home.fail(None)
        assert {one for one, _, _ in member.home.heartbeats} == {member.home.joined[0]}
        assert len(member.home.joined) == 1


async def test_a_member_that_no_home_answers_knows_that_it_is_cut_off() -> None:
    async with member_of(STREAM) as member:
        member.home.silent = True
        await member.membership.open()
        assert not member.membership.is_cut_off
        await member.home.until(lambda: member.membership.is_cut_off)


async def test_a_member_that_was_cut_off_does_not_let_the_heartbeat_that_ends_it_wait_for_news() -> None:
    async with member_of(STREAM) as member:
        home, membership = member.home, member.membership
        await membership.open()
        await home.until(lambda: bool(home.waits))
        assert home.waits[0] > 0
        home.fail(ServiceUnavailable("no broker"))
        await home.until(lambda: membership.is_cut_off)
        before = len(home.waits)
        await home.until(lambda: len(home.waits) > before)
        assert home.waits[-1] == 0
        home.fail(None)
        await home.until(lambda: not membership.is_cut_off)
        await home.until(lambda: home.waits[-1] > 0)


async def test_an_application_that_does_not_come_back_leaves_and_joins_when_it_does() -> None:
    async with member_of(STREAM, stall_ms=100) as member:
        await member.begin(granted(0, 2))
        first = member.membership.member_id
        await member.home.until(lambda: member.home.left == [(first, STALLED)])
        assert member.home.joined == [first]
        await member.attend()
        assert member.log[-1] == "on_lost [0]"
        await member.home.until(lambda: len(member.home.joined) == 2)


async def test_a_queue_s_application_may_stay_away_because_it_has_leases_for_that() -> None:
    async with member_of(QUEUE, stall_ms=1) as member:
        await member.membership.open()
        await member.home.until(lambda: len(member.home.heartbeats) >= 4)
        assert member.home.left == []


async def test_a_join_that_is_refused_says_why() -> None:
    async with member_of(STREAM) as member:
        member.home.refusal = AssignorConflict("the group has range")
        with pytest.raises(AssignorConflict):
            await member.membership.open()


async def test_leaving_revokes_commits_and_says_so() -> None:
    member = Member(STREAM)
    member.home.show(2, [granted(0, 2)])
    await member.membership.open()
    await member.attend()
    member.log.clear()
    member_id = member.membership.member_id
    await member.membership.close()
    assert member.log == ["pause 0", "on_revoked [0]", "commit [0]", "committed"]
    assert member.home.left == [(member_id, "")]


async def test_an_application_that_failed_leaves_without_a_commit() -> None:
    member = Member(STREAM)
    member.home.show(2, [granted(0, 2)])
    await member.membership.open()
    await member.attend()
    await member.membership.close(finished=False)
    assert not any(line.startswith("commit") for line in member.log)
    assert len(member.home.left) == 1


async def test_a_kept_member_commits_and_does_not_leave() -> None:
    member = Member(STREAM)
    member.home.show(2, [granted(0, 2)])
    await member.membership.open()
    await member.attend()
    await member.membership.close(keep=True)
    assert "committed" in member.log
    assert member.home.left == []


async def test_a_callback_that_asks_for_messages_is_told_not_to() -> None:
    async with member_of(QUEUE) as member:

        async def asks(places: list[TopicPartition]) -> None:
            await member.membership.attend()

        member.membership = Membership(member.home, member.worker, QUEUE, callbacks=Callbacks(on_assigned=asks))
        member.home.show(2, [granted(0, 2)])
        await member.membership.open()
        with pytest.raises(ValidationError, match="callback"):
            await member.attend()


async def test_a_shared_group_is_known_as_one() -> None:
    async with member_of(QUEUE) as member:
        member.home.shared = True
        await member.membership.open()
        seen = [member.membership.shared]
        member.home.shared = False
        member.home.show(2, [granted(0, 2)])
        await member.attend()
        seen.append(member.membership.shared)
        assert seen == [True, False]
        assert member.log[-1] == "begin 0 at 0"
