"""Wishes of operators and what they are shown: through any broker, by name or node id, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import features
from lanner.calls import Identity
from lanner.errors import LannerError, NotFoundError, PartitionNotFound, TopicNotFound, ValidationError
from lanner.wire.cluster import ChangeCluster, DescribeCluster, DescribePartitions, Scrub
from tests.unit.broker.offices import Offices, opened

ALICE = Identity("alice", "rest")


async def wish(offices: Offices, action: str, at: str = "b", **named: Any) -> Any:
    return (await offices[at].service.ask(ALICE, ChangeCluster(action, **named))).control.plan


@pytest.mark.parametrize(
    ("asked", "error", "why"),
    [
        (ChangeCluster("explode"), ValidationError, "'explode' is not known; there are drain, undrain"),
        (ChangeCluster("drain"), ValidationError, "name a broker"),
        (ChangeCluster("drain", broker="z"), NotFoundError, "z"),
        (ChangeCluster("transfer", target="a"), ValidationError, "name the topic and the partition"),
        (ChangeCluster("transfer", target="a", topic="orders"), ValidationError, "name the topic and the partition"),
        (ChangeCluster("transfer", target="a", topic="nope", partition=0), TopicNotFound, "nope"),
        (ChangeCluster("transfer", target="a", topic="orders", partition=9), PartitionNotFound, "9"),
        (ChangeCluster("move", topic="orders", partition=0, broker="a"), ValidationError, "name a target"),
        (ChangeCluster("cancel", plan_id=99), NotFoundError, "99"),
    ],
)
async def test_a_wish_that_cannot_be_meant_is_refused_by_name(
    asked: ChangeCluster, error: type[LannerError], why: str
) -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        with pytest.raises(error, match=why):
            await offices["c"].service.ask(ALICE, asked)


async def test_a_broker_is_drained_and_taken_back_by_name_or_node_id() -> None:
    async with opened("abcd") as offices:
        offices.topic("orders", 1)
        plan = await wish(offices, "drain", broker="d")
        assert (plan.kind, plan.node_id) == ("drain", "node-d")
        assert await wish(offices, "undrain", broker="node-d") is None
        described = (await offices["a"].service.ask(ALICE, DescribeCluster())).control
        assert {one.name for one in described.brokers} == set("abcd")


async def test_an_upgrade_where_everything_is_there_already_does_nothing() -> None:
    async with opened() as offices:
        level = offices["a"].engine.feature_level
        assert await wish(offices, "upgrade") is None
        assert offices["a"].engine.feature_level == max(level, features.HIGHEST)


async def test_another_broker_is_to_lead_and_all_partitions_are_shown() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        offices.topic("refunds", 2)
        target = next(name for name in "abc" if name != offices.leader(set_id).name)
        assert await wish(offices, "transfer", target=target, topic="orders", partition=0) is None
        (row,) = (await offices["a"].service.ask(ALICE, DescribePartitions("orders"))).control.partitions
        assert [one.name for one in row.replicas if one.preferred] == [target]
        rows = (await offices["a"].service.ask(ALICE, DescribePartitions())).control.partitions
        assert [(one.topic, one.partition) for one in rows] == [("orders", 0), ("refunds", 0), ("refunds", 1)]


async def test_a_broker_is_asked_to_read_its_disk_only_when_that_is_wished() -> None:
    async with opened("a") as offices:
        idle = (await offices["a"].service.serve(ALICE, Scrub())).control
        assert not idle.running and idle.passes == 0
        begun = (await offices["a"].service.serve(ALICE, Scrub(start=True))).control
        assert begun.running or begun.passes == 1
