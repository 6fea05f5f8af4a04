"""Members of groups on real brokers without sockets: they join anywhere, are heard anywhere, and share partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from lanner import features, limits
from lanner.broker.coordination import coordination
from lanner.broker.coordination.changes import JoinRate
from lanner.broker.desks import memberships
from lanner.calls import ANONYMOUS
from lanner.cluster import METADATA_SET
from lanner.cluster.assignors import ASSIGNORS, Answer, Question
from lanner.errors import (
    ConnectionLost,
    GenerationAhead,
    GroupNotFound,
    InstanceFenced,
    LannerError,
    MemberUnknown,
    NotSupported,
    Overloaded,
    ServiceUnavailable,
    TopicNotFound,
    ValidationError,
)
from lanner.forwarding.values import NewMessage
from lanner.wire.administration import AlterTopic, CreateTopic, DeleteTopic
from lanner.wire.members import (
    AlterGroup,
    EvictMember,
    GrantedPartition,
    GroupMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListMembers,
    MakeGroup,
    MemberView,
)
from lanner.wire.messages import Call, Command
from tests.unit.broker.offices import Office, Offices, opened

IDS = count(1)


class Member:
    """A process that is a member: it joins through one broker, and sends its heartbeats wherever it is told to."""

    def __init__(self, office: Office, *, kind: str = "stream", **options: Any) -> None:
        self.office = office
        self.id = f"member-{next(IDS)}"
        self.kind = kind
        self.options: dict[str, Any] = {"topics": ["orders"], "session_ms": 2_000} | options
        self.view: MemberView
        self.released: dict[GrantedPartition, None] = {}
        self.answers = 0

    async def join(self) -> MemberView:
        call = JoinGroup("g", self.kind, self.id, **self.options)
        self.view = (await self.office.service.ask(ANONYMOUS, call)).control
        return self.view

    async def beat(self, wait_ms: int = 60_000) -> MemberView:
        """One heartbeat: it gives up what is revoked at once."""
        self.released = dict.fromkeys((*self.released, *self.view.revoked))
        call = Heartbeat("g", self.id, self.view.number, self.view.generation, list(self.released), wait_ms)
        answer = (await self.office.service.ask(ANONYMOUS, call)).control
        if not self.office.broker.up:
            raise ConnectionLost("the broker is gone")
        self.answers += 1
        if answer.news:
            self.view = answer
        return answer

    async def live(self) -> None:
        """Until it is told that it is none any more. A broker that cannot answer is left for the next."""
        while True:
            try:
                await self.beat()
            except LannerError as error:
                if not error.retryable:
                    raise
                up = [one for one in self.office.offices.by_name.values() if one.broker.up]
                self.office = up[(up.index(self.office) + 1) % len(up)] if self.office in up else up[0]
                await asyncio.sleep(0.002)

    async def leave(self) -> None:
        await self.office.service.ask(ANONYMOUS, LeaveGroup("g", self.id))

    @property
    def held(self) -> list[tuple[str, int]]:
        return sorted((one.topic, one.partition) for one in self.view.held)


class Crowd:
    """Members that live until the test ends."""

    def __init__(self, offices: Offices) -> None:
        self.offices = offices
        self.lives: dict[Member, asyncio.Task[None]] = {}

    async def join(self, name: str, **options: Any) -> Member:
        member = Member(self.offices[name], **options)
        await member.join()
        self.lives[member] = asyncio.create_task(member.live())
        return member

    async def kill(self, member: Member) -> None:
        """It says nothing more."""
        self.lives[member].cancel()
        await asyncio.gather(self.lives.pop(member), return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.002)

    def stop(self, office: Office) -> None:
        """Pull the plug of a broker; those whose heartbeats wait there notice that at once."""
        self.offices.stop(office)
        office.broker.homes.wake_all()

    async def close(self) -> None:
        for member in list(self.lives):
            await self.kill(member)


def places(*members: Member) -> list[tuple[str, int]]:
    return sorted(place for member in members for place in member.held)


ALL = [("orders", partition) for partition in range(6)]


def shared_out(*members: Member) -> bool:
    """Whether every partition has one owner, and they have about the same number."""
    counts = [len(member.held) for member in members]
    return places(*members) == ALL and max(counts) - min(counts) <= 1


async def test_members_on_different_brokers_share_the_partitions_and_inherit_them() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        first = await crowd.join("a")
        await crowd.until(lambda: first.held == ALL)
        second, third = await crowd.join("b"), await crowd.join("c")
        await crowd.until(lambda: shared_out(first, second, third))
        await third.leave()
        await crowd.until(lambda: shared_out(first, second))
        await crowd.kill(second)  # without a word
        await crowd.until(lambda: first.held == ALL)
        with pytest.raises(MemberUnknown):
            await second.beat()
        await crowd.close()


async def test_a_member_hears_at_once_of_what_concerns_it_and_of_nothing_else() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        offices.topic("refunds", 2)
        crowd = Crowd(offices)
        first = await crowd.join("a", session_ms=limits.SESSION_MS_MAX)
        await crowd.until(lambda: first.held == ALL)
        answers = first.answers
        other = await crowd.join("b", topics=["refunds"], session_ms=limits.SESSION_MS_MAX)
        await crowd.until(lambda: len(other.held) == 2)
        assert first.answers == answers, "its heartbeat goes on waiting, a minute and more"
        await crowd.join("c", session_ms=limits.SESSION_MS_MAX)
        await crowd.until(lambda: len(first.held) == 3)
        await crowd.close()


async def test_a_heartbeat_without_news_is_answered_after_a_quarter_of_the_session() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 2)
        member = Member(offices["a"], session_ms=1_000)
        await member.join()
        while not member.held:
            await member.beat()
        seen = member.view
        told = await member.beat(60_000)
        assert not told.news and told.held == [] and told.confirmed_ms == 0
        assert member.view == seen
        assert (await member.beat(0)).news is False, "one that does not wait is answered as well"


async def test_a_join_that_is_repeated_gets_the_same_member_through_any_broker() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["a"])
        first = await member.join()
        for name in "bca":
            member.office = offices[name]
            again = await member.join()
            assert (again.number, again.member_number) == (first.number, first.member_number)
        [group] = offices.flock.metadata.groups().values()
        assert len(group.members) == 1


async def test_a_member_that_only_polls_or_waits_is_heard() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["b"], session_ms=1_000)
        await member.join()
        [group] = offices.flock.metadata.groups().values()
        homes = offices["c"].broker.homes
        for _ in range(20):
            homes.heard("g", member.id)
            offices.flock.pass_time(10)
        with homes.present("g", member.id):
            offices.flock.pass_time(200)
        assert len(group.members) == 1
        homes.heard("g", "somebody else")
        homes.heard("another", member.id)
        offices.flock.pass_time(30)
        assert not offices.flock.metadata.groups()[group.row.number].members, "now nobody hears it"


async def test_a_member_whose_home_dies_goes_on_at_another_one() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        leader = offices.leader(METADATA_SET)
        home = next(one for one in offices.by_name.values() if one is not leader)
        member = await crowd.join(home.name, session_ms=4_000)
        await crowd.until(lambda: member.held == ALL and 0 <= home.broker.homes.confirmed_ms <= 200)
        number = member.view.member_number
        crowd.stop(home)
        await crowd.until(lambda: member.office is not home)
        later_ms = offices.flock.now_ms + 12_000
        await crowd.until(lambda: offices.flock.now_ms >= later_ms)
        assert not crowd.lives[member].done()
        assert (member.view.member_number, member.held) == (number, ALL)
        await crowd.close()


async def test_nobody_is_evicted_when_the_leader_of_the_metadata_dies() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        members = [await crowd.join(name, session_ms=3_000) for name in "abcabc"]
        await crowd.until(lambda: shared_out(*members))
        numbers = [member.view.member_number for member in members]
        for _ in range(2):
            leader = offices.leader(METADATA_SET)
            crowd.stop(leader)
            await crowd.until(
                lambda: offices.flock.leader_of(METADATA_SET) is not None and all(m.office.broker.up for m in members)
            )
            offices.restart(leader.name)
            later_ms = offices.flock.now_ms + 10_000
            await crowd.until(lambda: offices.flock.now_ms >= later_ms)  # noqa: B023
        [group] = offices.flock.metadata.groups().values()
        assert sorted(group.members) == sorted(numbers), "the same members, under the same numbers"
        assert shared_out(*members)
        await crowd.kill(members[0])
        await crowd.until(lambda: shared_out(*members[1:]))
        await crowd.close()


async def test_a_new_process_of_an_instance_takes_over_and_the_older_one_is_told() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        other = await crowd.join("a")
        old = await crowd.join("b", instance="web-1")
        await crowd.until(lambda: shared_out(other, old))
        held, waiting = old.held, crowd.lives[old]
        new = await crowd.join("c", instance="web-1")
        assert new.held == held, "with its answer, under new grants"
        with pytest.raises(InstanceFenced):
            await waiting
        assert places(other, new) == ALL
        del crowd.lives[old]
        await crowd.close()


async def test_topics_that_grow_go_and_come_again_are_shared_out_anew() -> None:
    async with opened() as offices:
        offices.topic("orders", 2)
        crowd = Crowd(offices)
        first, second = await crowd.join("a", patterns=["ord*"]), await crowd.join("b", patterns=["ord*"])
        await crowd.until(lambda: places(first, second) == ALL[:2])
        there = offices["c"].anywhere
        await there.ask(ANONYMOUS, AlterTopic("orders", {"partitions": 6}))
        await crowd.until(lambda: shared_out(first, second))
        grown = [one.partition for member in (first, second) for one in member.view.held if not one.first]
        assert sorted(grown) == [2, 3, 4, 5], "there the group begins at the first message"
        old = {one.incarnation for one in first.view.held}
        await there.ask(ANONYMOUS, DeleteTopic("orders"))
        await crowd.until(lambda: places(first, second) == [])
        await there.ask(ANONYMOUS, CreateTopic("orders", {"partitions": 6, "replication": 3}))
        await crowd.until(lambda: shared_out(first, second))
        assert old.isdisjoint(one.incarnation for one in first.view.held)
        await there.ask(ANONYMOUS, CreateTopic("ordinary", {"partitions": 1, "replication": 3}))
        await crowd.until(lambda: ("ordinary", 0) in places(first, second))
        await crowd.close()


async def test_a_queue_group_hands_over_at_once_and_may_be_switched_to_shared_and_back() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        first = await crowd.join("a", kind="queue", assignor="sticky")
        second = await crowd.join("b", kind="queue")
        await crowd.until(lambda: shared_out(first, second))
        altered = await offices["c"].service.ask(ANONYMOUS, AlterGroup("g", "shared"))
        await crowd.until(lambda: first.view.shared and second.view.shared)
        assert altered.control.number == first.view.number and altered.control.generation <= first.view.generation
        assert places(first, second) == []
        await offices["c"].service.ask(ANONYMOUS, AlterGroup("g", "range", 5_000, 70_000))
        await crowd.until(lambda: first.held == ALL[:3] and second.held == ALL[3:])
        assert first.view.session_ms == 2_000, "its own"
        told = (await offices["c"].service.ask(ANONYMOUS, ListMembers("g"))).control
        assert (told.assignor, told.session_ms, told.revoke_ms) == ("range", 5_000, 70_000)
        touched = [(await offices[name].service.ask(ANONYMOUS, AlterGroup("g"))).control.generation for name in "abc"]
        assert touched == [told.generation + 1, told.generation + 2, told.generation + 3]
        await crowd.close()


async def test_a_fifth_assignor_is_one_more_function_in_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordination, memberships):
        monkeypatch.setattr(module, "ASSIGNORS", {**ASSIGNORS, "newest": to_the_newest})
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        first = await crowd.join("a", assignor="newest")
        await crowd.until(lambda: first.held == ALL)
        second = await crowd.join("b", assignor="newest")
        await crowd.until(lambda: (first.held, second.held) == ([], ALL))
        await offices["c"].service.ask(ANONYMOUS, AlterGroup("g", "sticky"))
        await crowd.until(lambda: shared_out(first, second))
        await offices["c"].service.ask(ANONYMOUS, AlterGroup("g", "newest"))
        await crowd.until(lambda: (first.held, second.held) == ([], ALL))
        await crowd.close()


def to_the_newest(question: Question) -> Answer:
    return dict.fromkeys(question.partition_ids(), max(one.number for one in question.subscribers))


async def test_a_new_group_that_starts_at_the_latest_message_begins_everywhere_with_its_first_join() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 3)
        there = offices["a"].anywhere
        await there.publish_messages(ANONYMOUS, "orders", [NewMessage(b"old", partition=number) for number in range(3)])
        await Member(offices["b"], start="latest").join()
        for set_id in set_ids:
            partition = offices.leader(set_id).broker.replica(set_id).partition
            assert partition._state.groups["g"].start_offset == 1, (
                "nothing of before, and nothing is left out from now on"
            )
        made = [command for office in offices.by_name.values() for _, command in office.called]
        await Member(offices["c"], start="latest").join()
        assert Command.MAKE_GROUP in made
        again = [command for office in offices.by_name.values() for _, command in office.called][len(made) :]
        assert Command.MAKE_GROUP not in again, "the group has begun"


async def test_a_group_begins_on_what_a_pattern_finds_some_at_a_time_and_without_what_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("a") as offices:
        for number in range(80):
            offices.topic(f"t{number}", 1)
        service = offices["a"].service
        ask, begun, most, now = service.ask, [], 0, 0

        async def asked(identity: Any, call: Any, bulk: Any = ()) -> Any:
            nonlocal most, now
            if not isinstance(call, MakeGroup):
                return await ask(identity, call, bulk)
            if call.topic == "t7":
                raise TopicNotFound("it was deleted a moment ago")
            begun.append(call.topic)
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            return None

        monkeypatch.setattr(service, "ask", asked)
        member = Member(offices["a"], topics=[], patterns=["t*"], start="latest")
        await member.join()
        assert len(begun) == 79 and most <= 32


async def test_a_member_that_has_seen_nothing_is_looked_up_where_the_metadata_is_led() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        leader = offices.leader(METADATA_SET)
        behind = next(one for one in offices.by_name.values() if one is not leader)
        deaf = behind.broker.seat.replica_id
        offices.flock.lost = lambda set_id, message: (set_id, message.receiver) == (METADATA_SET, deaf)
        member = Member(leader)
        await member.join()
        assert behind.engine.cluster.group("g") is None
        asking = asyncio.ensure_future(behind.service.ask(ANONYMOUS, Heartbeat("g", member.id, 0, 0)))
        await asyncio.sleep(0.01)
        offices.flock.lost = lambda set_id, message: False
        assert (await asking).control.news


# ------------------------------------------------------------------ what operators see and do


async def listed(office: Office, **options: int) -> GroupMembers:
    return (await office.service.ask(ANONYMOUS, ListMembers("g", **options))).control


async def test_members_are_listed_with_what_they_hold_and_who_hears_them() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        first = await crowd.join("a", client="host-a:1", rack="r1")
        await crowd.until(lambda: first.held == ALL)
        slow = Member(offices["b"], instance="web-1")  # it holds nothing, and tells nothing but that it lives
        await slow.join()
        await crowd.until(lambda: bool(first.view.revoked) or len(first.held) == 3)
        await slow.beat(0)
        await crowd.until(lambda: len(first.held) == 3 and not first.view.revoked)
        await slow.beat(0)
        for office in offices.by_name.values():
            while (told := await listed(office)).state != "settled":
                await asyncio.sleep(0.002)
            assert (told.group, told.kind, told.assignor, told.count, told.partitions) == (
                "g",
                "stream",
                "sticky",
                2,
                6,
            )
            assert told.unowned == 0
            one, two = told.members
            assert (one.member_id, one.client, one.rack, one.home) == (first.id, "host-a:1", "r1", "a")
            assert (two.member_id, two.instance, two.home) == (slow.id, "web-1", "b")
            assert one.heard_ms >= 0 and two.heard_ms >= 0, "the leader was asked"
            assert [(part.topic, part.first, part.last) for part in (*one.held, *two.held)] == [
                ("orders", 0, 2),
                ("orders", 3, 5),
            ]
            assert [(done.reason, done.moved, done.partitions) for done in told.rebalances] == [
                (f"{first.id[:8]}… joined", 6, 6),
                (f"{slow.id[:8]}… (web-1) joined", 3, 6),
            ]
            assert all(done.took_ms >= 0 for done in told.rebalances)
            page = await listed(office, limit=1)
            assert [part.member_id for part in page.members] == [first.id] and page.next
            rest = await listed(office, limit=1, after=page.next)
            assert [part.member_id for part in rest.members] == [slow.id] and not rest.next
        await crowd.close()


async def test_the_bytes_that_a_member_brings_are_kept_as_they_are_also_over_a_restart() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["b"], opaque=b"\0\1")
        await member.join()

        def kept(name: str) -> list[bytes]:
            return [
                one.opaque for group in offices[name].engine.cluster.groups().values() for one in group.members.values()
            ]

        await offices["a"].until(lambda: all(kept(name) == [b"\0\1"] for name in "abc"), 5_000)
        for name in "abc":
            offices.stop(offices[name])
            offices.restart(name)
        await offices["a"].until(lambda: all(kept(name) == [b"\0\1"] for name in "abc"), 5_000)


async def test_a_page_of_members_is_bounded_by_its_bytes_and_the_next_goes_on() -> None:
    """Each wants as many topics as a subscription may name."""
    async with opened("a") as offices:
        offices.topic("orders", 1)
        many = [f"{number:0199d}x" for number in range(limits.SUBSCRIPTION_BYTES_MAX // 200 - 1)]
        members = [Member(offices["a"], topics=["orders", *many]) for _ in range(20)]
        for member in members:
            await member.join()
        seen: list[str] = []
        after = pages = 0
        while pages == 0 or after:
            page = await listed(offices["a"], limit=1_000, after=after)
            assert len(msgspec.msgpack.encode(page)) < limits.CONTROL_BYTES_MAX // 2 and page.members
            assert page.count == 20
            seen += [one.member_id for one in page.members]
            after, pages = page.next, pages + 1
        assert seen == [member.id for member in members]
        assert pages > 1


async def test_a_partition_that_waits_for_its_owner_is_shown_with_its_heir_and_forced_after_its_time() -> None:
    async with opened() as offices:
        offices.topic("orders", 2)
        slow = Member(offices["a"], session_ms=limits.SESSION_MS_MAX)
        await slow.join()
        while len(slow.held) < 2:
            await slow.beat()
        heir = Member(offices["b"], session_ms=limits.SESSION_MS_MAX)
        await heir.join()
        await Crowd(offices).until(lambda: offices.flock.metadata.group("g").handing_over)  # type: ignore[union-attr]
        told = await listed(offices["c"])
        assert told.state == "handing over"
        [waiting] = told.members[0].revoked
        assert (waiting.topic, waiting.heir) == ("orders", heir.id) and waiting.waiting_ms >= 0
        await offices["c"].service.ask(ANONYMOUS, AlterGroup("g", session_ms=1_000, revoke_ms=1_000))
        await heir.beat(0)
        while not heir.held:
            await heir.beat()
        await slow.beat(0)
        assert len(slow.held) == 1, "it is a member all the same"


async def test_without_the_leader_members_are_listed_with_what_is_not_known() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["a"])
        await member.join()
        leader = offices.leader(METADATA_SET)
        other = next(one for one in offices.by_name.values() if one is not leader)
        offices.refuse = lambda node_id, command: node_id == leader.node_id
        told = await listed(other)
        assert [(one.member_id, one.home, one.heard_ms) for one in told.members] == [(member.id, "", -1)]


async def test_an_evicted_member_is_told_and_its_partitions_go_to_the_others() -> None:
    async with opened() as offices:
        offices.topic("orders", 6)
        crowd = Crowd(offices)
        first, second = await crowd.join("a"), await crowd.join("b")
        await crowd.until(lambda: shared_out(first, second))
        life = crowd.lives.pop(first)
        await offices["c"].service.ask(ANONYMOUS, EvictMember("g", first.id, "it hangs"))
        with pytest.raises(MemberUnknown):
            await life
        await crowd.until(lambda: second.held == ALL)
        assert (await listed(offices["c"])).rebalances[-1].reason == f"{first.id[:8]}… left: evicted: it hangs"
        with pytest.raises(MemberUnknown):
            await offices["c"].service.ask(ANONYMOUS, EvictMember("g", first.id))
        await first.leave()  # which it may, twice and more
        await crowd.close()


async def test_an_empty_group_is_listed_and_one_that_never_had_members_is_not() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["a"])
        await member.join()
        await member.leave()
        assert (await listed(offices["b"])).state == "empty"
        calls: list[Call[Any]] = [ListMembers("h"), AlterGroup("h"), EvictMember("h", "m")]
        for call in calls:
            with pytest.raises(GroupNotFound):
                await offices["b"].service.ask(ANONYMOUS, call)


# ------------------------------------------------------------------ what is refused


async def test_a_home_that_is_behind_says_nothing_about_a_member() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        member = Member(offices["a"])
        view = await member.join()
        ahead = [Heartbeat("g", member.id, view.number, view.generation + 100), Heartbeat("g", "m", view.number + 1, 1)]
        for call in (*ahead, Heartbeat("h", "m", view.number + 1, 1)):
            with pytest.raises(GenerationAhead):
                await offices["b"].service.ask(ANONYMOUS, call)
        with pytest.raises(MemberUnknown):
            await offices["b"].service.ask(ANONYMOUS, Heartbeat("h", "m", view.number, 1))
        with pytest.raises(MemberUnknown):
            await offices["b"].service.ask(ANONYMOUS, Heartbeat("g", "m", view.number, 1))


async def test_what_a_join_may_not_say_is_refused_before_anything_is_recorded() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        bad: list[dict[str, object]] = [
            {"kind": "heap"},
            {"start": "yesterday"},
            {"assignor": "clever"},
            {"topics": []},
            {"session_ms": 10},
            {"patterns": ["[a-z]"]},
        ]
        for options in bad:
            with pytest.raises(ValidationError):
                await Member(offices["a"], **options).join()
        with pytest.raises(ValidationError):
            await offices["a"].service.ask(ANONYMOUS, AlterGroup("g", "clever"))
        assert not offices.flock.metadata.groups()


async def test_joins_beyond_what_a_second_takes_are_sent_away_and_nothing_else_is() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        member = Member(offices["a"])
        await member.join()
        offices["a"].service._joins = JoinRate(Stopped(), 3)
        for _ in range(3):
            await member.join()
        with pytest.raises(Overloaded) as refused:
            await member.join()
        assert refused.value.retry_after_ms == 600
        await member.beat(0)
        await member.leave()


class Stopped:
    """A clock that stands."""

    def now_ms(self) -> int:
        return 1_400


async def test_below_the_level_of_members_all_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        monkeypatch.setattr(features, "MEMBERS", offices["a"].engine.feature_level + 1)
        calls: list[Call[Any]] = [
            JoinGroup("g", "stream", "m", ["orders"]),
            Heartbeat("g", "m", 1, 1),
            LeaveGroup("g", "m"),
            ListMembers("g"),
            AlterGroup("g"),
            EvictMember("g", "m"),
        ]
        for call in calls:
            with pytest.raises(NotSupported, match="cluster upgrade"):
                await offices["a"].service.ask(ANONYMOUS, call)


async def test_members_go_on_while_nobody_leads_the_metadata_and_joins_are_told_so() -> None:
    async with opened() as offices:
        offices.topic("orders", 3)
        crowd = Crowd(offices)
        leader = offices.leader(METADATA_SET)
        alone = next(one for one in offices.by_name.values() if one is not leader)
        member = await crowd.join(alone.name)
        await crowd.until(lambda: len(member.held) == 3)
        await crowd.kill(member)
        for office in offices.by_name.values():
            if office is not alone:
                offices.stop(office)
        told = await member.beat(0)
        assert (told.generation, told.news) == (member.view.generation, False)
        assert told.confirmed_ms == -1, "nobody counts what this broker hears"
        with pytest.raises(ServiceUnavailable):
            await Member(alone).join()
