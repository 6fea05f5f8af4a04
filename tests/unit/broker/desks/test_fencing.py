"""Members' calls where partitions are led: what a caller stands for by this broker's copy of the metadata, and what the
partition has accepted. The members here do what the test says; nobody coordinates."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from lanner.calls import ANONYMOUS
from lanner.errors import (
    GenerationAhead,
    GroupInUse,
    MemberFenced,
    MembershipRequired,
    MemberUnknown,
    StaleIncarnation,
)
from lanner.forwarding.values import NewMessage
from lanner.partition import Partition
from lanner.wire.administration import DropGroup, Seek
from lanner.wire.messages import Command, Commit, Committed, Fetch, Poll, Settle, SettleItem
from tests.unit.broker.crews import Crew
from tests.unit.broker.offices import Office, Offices, opened


async def ask(offices: Offices, call: Any, at: str = "a") -> Any:
    return (await offices[at].service.ask(ANONYMOUS, call)).control


async def published(offices: Offices, count: int = 12, partitions: int = 1) -> None:
    given = [NewMessage(b"%d" % number, partition=number % partitions) for number in range(count)]
    await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", given)


async def owned(offices: Offices) -> Crew:
    """A crew of one, who has claimed the only partition of a topic with some messages."""
    await published(offices)
    crew = Crew(offices.flock)
    crew.join("one")
    crew.assign({0: "one"})
    await ask(offices, crew.claim("one", 0))
    return crew


def fence_of(offices: Offices, set_id: int, group: str = "g") -> tuple[int, int]:
    return offices.leader(set_id).broker.replica(set_id).partition.fence(group)


def committed(offices: Offices, set_id: int, group: str = "g") -> int | None:
    return offices.leader(set_id).broker.replica(set_id).partition.committed(group)


def refusals(offices: Offices) -> Counter[str]:
    found: Counter[str] = Counter()
    for office in offices.by_name.values():
        found.update(office.service.fenced)
    return found


def elsewhere(offices: Offices, set_id: int) -> Office:
    """A broker that does not lead."""
    leader = offices.leader(set_id)
    return next(office for office in offices.by_name.values() if office is not leader)


# ------------------------------------------------------------------ streams


async def test_a_zombies_commit_is_refused_once_its_partition_has_a_new_owner() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        crew = Crew(offices.flock)
        crew.join("old")
        crew.assign({0: "old"})
        await ask(offices, crew.claim("old", 0))
        await ask(offices, crew.commit("old", {0: 4}, 1))
        seen = crew.seen
        crew.expire("old")
        with pytest.raises(MemberUnknown, match="join again"):
            await ask(offices, crew.commit("old", {0: 5}, 2, seen))
        crew.join("new")
        crew.assign({0: "new"})
        (claimed,) = (await ask(offices, crew.claim("new", 0))).partitions
        assert claimed.offset == 4
        with pytest.raises(MemberUnknown):
            await ask(offices, crew.commit("old", {0: 6}, 3, seen))
        assert committed(offices, set_id) == 4
        assert refusals(offices) == {"commit": 2}


async def test_where_leadership_moves_to_a_broker_with_an_older_copy_the_log_knows() -> None:
    """Its copy says that the zombie still owns the partition. Only the fence in the partition's own log refuses it."""
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        flock = offices.flock
        crew = Crew(flock)
        crew.join("old", "new")
        crew.assign({0: "old"})
        await ask(offices, crew.claim("old", 0))
        await ask(offices, crew.commit("old", {0: 4}, 1))
        seen = crew.seen
        stale = next(one for one in flock.up() if one is not flock.leader_of(0) and one is not flock.leader_of(set_id))
        flock.lost = lambda kind, message: kind == 0 and stale.steward.route(0, message.receiver) == stale.node_id
        crew.expire("old")
        crew.assign({0: "new"})
        await ask(offices, crew.claim("new", 0), at=offices.leader(set_id).name)
        leader = flock.leader_of(set_id)
        assert leader is not None
        leader.replica(set_id).node.transfer(stale.replica(set_id).node.node_id)
        leader.engine.wake(set_id)
        await until(lambda: stale.leads(set_id))
        group = stale.cluster.group("g")
        assert group is not None and "old" in group.ids, "its copy is the old one"
        with pytest.raises(MemberFenced) as refused:
            await offices[stale.name].service.serve(ANONYMOUS, crew.commit("old", {0: 9}, 2, seen))
        assert refused.value.details["partition"] == 0
        assert stale.replica(set_id).partition.committed("g") == 4
        with pytest.raises(GenerationAhead):
            await offices[stale.name].service.serve(ANONYMOUS, crew.commit("new", {0: 9}, 1))


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_copy_that_is_behind_waits_until_it_has_heard() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await published(offices)
        flock = offices.flock
        crew = Crew(flock)
        crew.join("one")
        partition, stale = next(
            (at, office)
            for at, set_id in enumerate(set_ids)
            if (office := offices.leader(set_id)).broker is not flock.leader_of(0)
        )
        node_id = stale.node_id
        flock.lost = lambda kind, message: kind == 0 and stale.broker.steward.route(0, message.receiver) == node_id
        crew.assign({partition: "one"})
        claiming = asyncio.ensure_future(stale.service.serve(ANONYMOUS, crew.claim("one", partition)))
        await asyncio.sleep(0.02)
        assert not claiming.done()
        flock.lost = lambda kind, message: False
        assert [one.code for one in (await claiming).control.partitions] == [0]


async def test_an_outsiders_commit_is_refused_while_members_work_and_raises_the_fence_when_none_do() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = await owned(offices)
        with pytest.raises(MembershipRequired, match="sticky"):
            await ask(offices, Commit("g", "orders", {0: 7}))
        seen = crew.seen
        crew.leave("one")
        await ask(offices, Commit("g", "orders", {0: 7}))
        assert fence_of(offices, set_id) == crew.seen, "else a zombie's commit undoes it"
        assert fence_of(offices, set_id) > seen
        assert committed(offices, set_id) == 7


async def test_a_group_that_nobody_joined_commits_as_ever_and_stands_above_every_group_before_it() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        await ask(offices, Commit("plain", "orders", {0: 3}))
        assert fence_of(offices, set_id, "plain") == (0, 0), "no group has ever had members"
        Crew(offices.flock, group="other").join("one")
        await ask(offices, Commit("plain", "orders", {0: 4}))
        assert fence_of(offices, set_id, "plain") == (2, 0)
        assert committed(offices, set_id, "plain") == 4


async def test_what_a_commit_brings_along_is_told_with_the_offset() -> None:
    async with opened() as offices:
        offices.topic("orders", 2)
        await published(offices, partitions=2)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one", 1: "one"})
        await ask(offices, crew.commit("one", {0: 1, 1: 2}, 1, metadata={1: b"here"}))
        told = await ask(offices, Committed("g", "orders"), at="b")
        assert (told.offsets, told.metadata) == ({0: 1, 1: 2}, {1: b"here"})


async def test_a_fetch_of_a_member_without_the_partition_is_refused_and_of_anybody_else_is_served() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        await published(offices)
        crew = Crew(offices.flock)
        crew.join("one", "two")
        crew.assign({0: "one"})
        await ask(offices, crew.claim("one", 0))
        assert (await ask(offices, crew.fetch("one", 0))).end_offset == 12
        assert (await ask(offices, Fetch("orders", 0, 0, group="g"))).end_offset == 12
        with pytest.raises(MemberFenced):
            await ask(offices, crew.fetch("two", 0))
        with pytest.raises(StaleIncarnation):
            await ask(offices, crew.fetch("one", 0, incarnation=crew.incarnation + 1))
        assert refusals(offices) == {"fetch": 1}
        shown = [line for office in offices.by_name.values() for line in office.service.metrics()]
        assert shown.count('lanner_group_fenced_total{call="fetch"} 1') == 1


async def test_a_fetch_below_the_fence_is_refused_though_the_copy_knows_no_better() -> None:
    async with opened("a") as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = await owned(offices)
        touched = crew.touch()
        await ask(offices, Seek("orders", "g", to="earliest", force=True, number=touched[0], generation=touched[1]))
        assert fence_of(offices, set_id) == touched
        with pytest.raises(MemberFenced):
            await ask(offices, crew.fetch("one", 0))


async def test_a_fetch_that_waits_ends_when_the_partition_is_lost() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = Crew(offices.flock)
        crew.join("one", "two")
        crew.assign({0: "one"})
        fetching = asyncio.ensure_future(
            offices.leader(set_id).service.serve(ANONYMOUS, crew.fetch("one", 0, wait_ms=30_000))
        )
        await asyncio.sleep(0.02)
        assert not fetching.done()
        crew.expire("one")
        with pytest.raises(MemberUnknown):
            await asyncio.wait_for(fetching, 10)


# ------------------------------------------------------------------ queues


async def test_members_of_a_queue_lease_what_they_own_and_nothing_else() -> None:
    async with opened() as offices:
        offices.topic("orders", 2)
        await published(offices, partitions=2)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", "two")
        crew.assign({0: "one", 1: "two"})
        found = await ask(offices, crew.poll("one", 0))
        assert {one.partition for one in found.batches} == {0}
        with pytest.raises(MemberFenced) as refused:
            await ask(offices, crew.poll("one", 0, 1))
        assert refused.value.details["partition"] == 1
        with pytest.raises(MembershipRequired, match="join"):
            await ask(offices, Poll("g", "orders", "outsider", -1))
        with pytest.raises(StaleIncarnation):
            await ask(offices, crew.poll("one", 0, incarnation=crew.incarnation + 1))
        assert refusals(offices)["poll"] >= 2


async def test_a_member_polls_through_a_broker_that_leads_nothing_of_it() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 2)
        await published(offices, partitions=2)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", "two")
        crew.assign({0: "one", 1: "one"})
        leaders = {offices.leader(set_id).name for set_id in set_ids}
        (other,) = set(offices.by_name) - leaders
        found = await ask(offices, crew.poll("one", 0, 1), at=other)
        assert {one.partition for one in found.batches} == {0, 1}
        assert {fence_of(offices, set_id) for set_id in set_ids} == {crew.seen}
        crew.assign({0: "two", 1: "two"})
        await published(offices, partitions=2)
        with pytest.raises(MemberFenced):
            await ask(offices, crew.poll("one", 0, 1), at=other)
        number = crew.group.ids["two"]
        homes = offices[other].broker.homes
        found = await ask(offices, crew.poll("two", 0, 1), at=other)
        assert found.batches
        homes.take_heard()
        polling = asyncio.ensure_future(ask(offices, crew.poll("two", 0, 1, wait_ms=30_000), at=other))
        await asyncio.sleep(0.02)
        homes.take_heard()
        assert homes.take_heard() == [number], "it is heard where it waits"
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def test_a_poll_whose_answer_is_lost_between_brokers_has_its_leases_back_though_it_is_fenced_by_then() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", "two")
        crew.assign({0: "one"})
        lost: list[str] = []

        def lose(node_id: str, command: Command) -> bool:
            if command is not Command.POLL or lost:
                return False
            lost.append(node_id)
            crew.assign({0: "two"})
            return True

        offices.lose = lose
        found = await ask(offices, crew.poll("one", 0), at=elsewhere(offices, set_id).name)
        assert lost and sum(part.count for one in found.batches for part in one.ranges) == 12


async def test_a_poll_that_waits_is_refused_when_its_partition_goes_to_another() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", "two")
        crew.assign({0: "one"})
        polling = asyncio.ensure_future(ask(offices, crew.poll("one", 0, wait_ms=30_000)))
        await asyncio.sleep(0.02)
        assert not polling.done()
        crew.assign({0: "two"})
        with pytest.raises(MemberFenced):
            await asyncio.wait_for(polling, 10)


async def test_a_poll_that_waits_leases_under_the_newest_grant() -> None:
    """It began before a rebalance elsewhere in its group, which leaves its partition alone."""
    async with opened("a") as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one")
        crew.assign({0: "one"})
        grant = crew.seen
        polling = asyncio.ensure_future(ask(offices, crew.poll("one", 0, wait_ms=30_000)))
        await asyncio.sleep(0.02)
        crew.join("two")
        await asyncio.sleep(0.02)
        assert not polling.done()
        await published(offices)
        assert (await asyncio.wait_for(polling, 10)).batches
        assert fence_of(offices, set_id) == grant


async def test_a_repeated_poll_has_its_leases_back_when_it_is_fenced_and_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        await published(offices)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", "two")
        crew.assign({0: "one"})
        call = crew.poll("one", 0, sequence=1, max_messages=4)
        first = await ask(offices, call)
        crew.assign({0: "two"})
        again = await ask(offices, call)
        assert [(one.token, one.ranges) for one in again.batches] == [(one.token, one.ranges) for one in first.batches]
        with pytest.raises(MemberFenced):
            await ask(offices, replace(call, sequence=2))
        items = [
            SettleItem(0, one.token, part.first_offset, part.count, 1) for one in again.batches for part in one.ranges
        ]
        told = await ask(offices, Settle("g", "orders", items, "one"))
        assert {one.code for one in told.items} == {0}, "the token of a lease is a fence of its own"
        with pytest.raises(MemberFenced):
            await ask(offices, call)
        monkeypatch.setattr(Partition, "has_polled", lambda *_: True)
        with pytest.raises(MemberFenced):  # what it had ended between the look and the decision
            await ask(offices, call)


async def test_everybody_polls_a_shared_group_and_a_switch_fences_those_before_it() -> None:
    async with opened("a") as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one", assignor="shared")
        for member in ("one", ""):
            call = replace(crew.poll("one", max_messages=1), member_id=member, number=0, generation=0)
            assert (await ask(offices, call)).batches
        shared = fence_of(offices, set_id)
        crew.alter("sticky")
        with pytest.raises(MembershipRequired):
            await ask(offices, Poll("g", "orders", "outsider", -1))
        crew.assign({0: "one"})
        assert (await ask(offices, crew.poll("one", 0, max_messages=1))).batches
        assert fence_of(offices, set_id) == crew.seen > shared
        crew.alter("shared")
        assert (await ask(offices, Poll("g", "orders", "outsider", -1, max_messages=1))).batches


async def test_each_call_that_names_a_member_is_heard_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        await published(offices)
        homes = offices["a"].broker.homes
        crew = Crew(offices.flock, kind="queue")
        crew.join("one")
        crew.assign({0: "one"})
        number = crew.group.ids["one"]
        homes.take_heard()
        for call in (crew.poll("one", 0), Settle("g", "orders", [SettleItem(0, 1, 0, 1, 1)], "one")):
            await ask(offices, call)
            assert homes.take_heard() == [number]
        await ask(offices, crew.poll("one", 0, max_messages=100))  # there is nothing left
        homes.take_heard()
        polling = asyncio.ensure_future(ask(offices, crew.poll("one", 0, wait_ms=30_000)))
        await asyncio.sleep(0.02)
        homes.take_heard()
        assert homes.take_heard() == [number], "for as long as it waits"
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        homes.take_heard()
        assert homes.take_heard() == []


# ------------------------------------------------------------------ operators


async def test_a_seek_while_members_work_needs_force_and_then_fences_them() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await published(offices, partitions=3)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one", 1: "one", 2: "one"})
        await ask(offices, crew.claim("one", 0, 1, 2))
        await ask(offices, crew.commit("one", {0: 4, 1: 4, 2: 4}, 1))
        for at in offices.by_name:
            with pytest.raises(GroupInUse, match="--force"):
                await ask(offices, Seek("orders", "g", to="earliest"), at=at)
        before = crew.seen
        await ask(offices, Seek("orders", "g", to="earliest", force=True), at="b")
        assert crew.seen == (before[0], before[1] + 1), "one touch for all of them"
        assert {fence_of(offices, set_id) for set_id in set_ids} == {crew.seen}
        assert [committed(offices, set_id) for set_id in set_ids] == [0, 0, 0]
        with pytest.raises(MemberFenced):
            await ask(offices, crew.commit("one", {0: 4}, 2))
        crew.release("one", 0)
        crew.assign({0: "one"})
        (claimed,) = (await ask(offices, crew.claim("one", 0))).partitions
        assert (claimed.code, claimed.offset) == (0, 0), "it goes on from there"


async def test_a_seek_by_force_at_one_broker_begins_a_generation_of_its_own() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = await owned(offices)
        before = crew.seen
        call = Seek("orders", "g", to="latest", partitions=[0], force=True)
        await offices.leader(set_id).service.serve(ANONYMOUS, call)
        assert fence_of(offices, set_id) == crew.seen > before
        assert committed(offices, set_id) == 12


@pytest.mark.parametrize("force", [False, True])
async def test_a_group_without_members_is_sought_as_ever(force: bool) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await published(offices)
        for group in ("plain", "g"):
            await ask(offices, Commit(group, "orders", {0: 5}))
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one"})
        crew.leave("one")
        for group in ("plain", "g"):
            await ask(offices, Seek("orders", group, to="latest", force=force))
            assert committed(offices, set_id, group) == 12
        assert fence_of(offices, set_id) == crew.seen, "an owner that has left does not undo it"


async def test_a_group_with_members_is_not_dropped() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = await owned(offices)
        with pytest.raises(GroupInUse, match="1 members"):
            await ask(offices, DropGroup("orders", "g"), at="b")
        crew.leave("one")
        await ask(offices, DropGroup("orders", "g"), at="b")
        assert not offices.leader(set_id).broker.replica(set_id).partition.has_group("g")


# ------------------------------------------------------------------ quiet groups


async def test_a_group_that_has_owners_is_not_idle_however_quiet() -> None:
    """And it stays for as long again when the last of them has left."""
    async with opened("a") as offices:
        idle_ms = 60_000
        (set_id,) = offices.topic("orders", 1, group_idle_ms=idle_ms)
        crew = await owned(offices)
        await ask(offices, Commit("idle", "orders", {0: 5}))
        machine = offices.leader(set_id).broker.replica(set_id).partition
        offices.flock.now_ms += idle_ms + 1_000
        await until(lambda: not machine.has_group("idle"))
        assert machine.has_group("g")
        offices.flock.now_ms += 2 * idle_ms
        crew.leave("one")
        await ask(offices, Commit("other", "orders", {0: 5}))  # a decision, which drops what is idle
        assert machine.has_group("g"), "a member that is replaced by another leaves it alone for a moment"
        offices.flock.now_ms += idle_ms + 120_000
        await until(lambda: not machine.has_group("g"))
