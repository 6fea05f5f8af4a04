"""Claims, and groups that begin: what members ask of partitions before they work there."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import features
from lanner.calls import ANONYMOUS
from lanner.errors import (
    GenerationAhead,
    GroupKindConflict,
    MemberFenced,
    MemberUnknown,
    NotLeader,
    NotSupported,
    StaleIncarnation,
    ValidationError,
)
from lanner.forwarding.values import NewMessage
from lanner.wire.members import ClaimedPartition, ClaimPartitions, MakeGroup
from tests.unit.broker.crews import Crew
from tests.unit.broker.offices import Offices, opened


async def ask(offices: Offices, call: Any, at: str = "a") -> Any:
    return (await offices[at].service.ask(ANONYMOUS, call)).control


async def published(offices: Offices, count: int = 12, partitions: int = 3) -> None:
    given = [NewMessage(b"%d" % number, partition=number % partitions) for number in range(count)]
    await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", given)


def committed(offices: Offices, set_id: int, group: str = "g") -> int | None:
    leader = offices.flock.leader_of(set_id)
    assert leader is not None
    return leader.replica(set_id).partition.committed(group)


async def test_a_claim_raises_the_fence_and_tells_how_far_the_group_had_come() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await published(offices)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one", 1: "one"})
        told = await ask(offices, crew.claim("one", 0, 1))
        assert told.partitions == [ClaimedPartition(0), ClaimedPartition(1)], "it begins at the beginning"
        for partition in (0, 1):
            leader = offices.leader(set_ids[partition])
            assert leader.broker.replica(set_ids[partition]).partition.fence("g") == crew.seen
        await ask(offices, crew.commit("one", {0: 3}, 7, metadata={0: b"half"}))
        crew.leave("one")
        crew.join("two")
        crew.assign({0: "two"})
        told = await ask(offices, crew.claim("two", 0))
        assert told.partitions == [ClaimedPartition(0, 0, 3, True, b"half", -1)]
        crew_again = await ask(offices, crew.claim("two", 0))
        assert crew_again == told, "repeated, it is the same"


async def test_each_partition_of_a_claim_has_its_own_result() -> None:
    async with opened() as offices:
        offices.topic("orders")
        crew = Crew(offices.flock)
        crew.join("one", "two")
        crew.assign({0: "one", 1: "two"})
        told = await ask(offices, crew.claim("one", 0, 1, 2))
        assert [one.code for one in told.partitions] == [0, MemberFenced.code, MemberFenced.code]
        told = await ask(offices, crew.claim("nobody", 0))
        assert [one.code for one in told.partitions] == [MemberUnknown.code]
        refused = sum(
            (office.service.fenced for office in offices.by_name.values()), start=type(offices["a"].service.fenced)()
        )
        assert refused == {"claim_partitions": 3}


async def test_a_claim_of_a_view_from_before_the_grant_is_refused() -> None:
    """It was sent before the member lost and regained the partition: what it knows of its position is old."""
    async with opened("a") as offices:
        offices.topic("orders", 1)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one"})
        before = crew.seen
        crew.release("one", 0)
        crew.assign({0: "one"})
        told = await ask(offices, crew.claim("one", 0, seen=before))
        assert [one.code for one in told.partitions] == [MemberFenced.code]
        assert [one.code for one in (await ask(offices, crew.claim("one", 0))).partitions] == [0]


async def test_a_generation_that_nobody_made_is_not_believed() -> None:
    async with opened("a") as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one"})
        number, generation = crew.seen
        told = await ask(offices, crew.claim("one", 0, seen=(number, generation + 1_000)))
        assert [one.code for one in told.partitions] == [GenerationAhead.code]
        assert offices["a"].broker.replica(set_id).partition.fence("g") == (0, 0)
        assert [one.code for one in (await ask(offices, crew.claim("one", 0))).partitions] == [0]


async def test_a_claim_of_a_topic_that_was_made_again_or_of_nobody_says_so() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one"})
        with pytest.raises(StaleIncarnation):
            await ask(offices, ClaimPartitions("orders", "g", "one", *crew.seen, crew.incarnation + 1, [0]))
        with pytest.raises(ValidationError, match="names its member"):
            await ask(offices, ClaimPartitions("orders", "g", "", *crew.seen, 0, [0]))
        with pytest.raises(ValidationError, match="choose earliest or latest"):
            await ask(offices, ClaimPartitions("orders", "g", "one", *crew.seen, 0, [0], "middle"))


async def test_a_claim_where_the_partition_is_not_led_says_who_leads() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        crew = Crew(offices.flock)
        crew.join("one")
        crew.assign({0: "one"})
        leader = offices.leader(set_id)
        other = next(office for office in offices.by_name.values() if office is not leader)
        with pytest.raises(NotLeader):
            await other.service.serve(ANONYMOUS, crew.claim("one", 0))


async def test_the_group_of_a_queue_is_not_claimed() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        crew = Crew(offices.flock, kind="queue")
        crew.join("one")
        crew.assign({0: "one"})
        await ask(offices, MakeGroup("orders", "g", "queue"))
        told = await ask(offices, crew.claim("one", 0))
        assert [one.code for one in told.partitions] == [GroupKindConflict.code]


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_group_begins_on_all_its_partitions_at_once(kind: str) -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await published(offices)
        for _ in range(2):  # twice comes to the same
            await ask(offices, MakeGroup("orders", "g", kind, "latest"), at="b")
        await published(offices, 3)
        for set_id in set_ids:
            machine = offices.leader(set_id).broker.replica(set_id).partition
            assert machine.kind_of("g") == kind
            assert machine.describe_group("g", 0).lag <= 5
        other = "stream" if kind == "queue" else "queue"
        with pytest.raises(GroupKindConflict):
            await ask(offices, MakeGroup("orders", "g", other))
        with pytest.raises(ValidationError, match="no kind of group"):
            await ask(offices, MakeGroup("orders", "h", "heap"))


async def test_below_their_level_members_calls_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        monkeypatch.setattr(features, "MEMBERS", offices["a"].engine.feature_level + 1)
        for call in (MakeGroup("orders", "g", "queue"), ClaimPartitions("orders", "g", "one", 1, 1, 0, [0])):
            with pytest.raises(NotSupported, match="lanner cluster upgrade"):
                await ask(offices, call)
