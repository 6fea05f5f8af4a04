"""The brokers as a member's home: who is asked what, over real sockets and scripted brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lanner import limits
from lanner.client.assignments import Granted, View
from lanner.client.brokers import Brokers
from lanner.client.homes import BrokerHome
from lanner.client.member_ports import Told
from lanner.client.routing import Routing
from lanner.errors import AssignorConflict, LannerError, MemberFenced, MemberUnknown, NotLeader, ServiceUnavailable
from lanner.wire.members import (
    ClaimedPartition,
    ClaimedPartitions,
    ClaimPartitions,
    GrantedPartition,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberView,
)
from lanner.wire.messages import Command, Empty

SEEN = (7, 3)


def granted(partition: int, grant: int = 2) -> Granted:
    return Granted("t", 1, partition, grant)


def view_of(held: list[GrantedPartition], **options: Any) -> MemberView:
    return MemberView(*SEEN, 1, 10_000, held, [], **options)


@pytest.fixture
async def home(cluster: Any) -> AsyncIterator[BrokerHome]:
    brokers = Brokers(cluster.address, timeout_ms=2_000)
    await brokers.open()
    routing = Routing(brokers)
    await routing.route("t")
    for node_id in cluster.brokers:
        session = brokers.to(node_id)
        assert session is not None
        await session.wait_until_tried(asyncio.get_running_loop().time() + 2)
    joining = JoinGroup("billing", "stream", "-", ["t"], assignor="sticky", session_ms=10_000, start="latest")
    yield BrokerHome(brokers, routing, joining)
    await routing.close()
    await brokers.close()


def answer_all(cluster: Any, command: Command, answer: Any) -> None:
    for broker in cluster.brokers.values():
        broker.answers[command] = lambda control, request, broker=broker: (
            answer(control, broker) if callable(answer) else answer
        )


def claimed(call: ClaimPartitions) -> ClaimedPartitions:
    return ClaimedPartitions([ClaimedPartition(one, offset=10 * one) for one in call.partitions])


async def test_a_join_says_what_is_wanted_under_its_own_id_and_gives_the_view(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.JOIN_GROUP, view_of([GrantedPartition("t", 1, 0, 2)], confirmed_ms=5))
    told = await home.join("m1")
    assert told == Told(View(SEEN, [granted(0)], []), 10_000, 5, False)
    (call,) = [call for calls in cluster.of(Command.JOIN_GROUP).values() for call in calls]
    assert (call.group, call.member_id, call.topics, call.assignor) == ("billing", "m1", ["t"], "sticky")


async def test_a_member_that_joins_again_takes_the_assignor_that_the_group_has_by_then(
    cluster: Any, home: BrokerHome
) -> None:
    altered = False

    def join(call: JoinGroup, broker: Any) -> Any:
        return AssignorConflict("it is range") if altered and call.assignor else view_of([])

    answer_all(cluster, Command.JOIN_GROUP, join)
    await home.join("m1")
    altered = True
    await home.join("m2")
    calls = [call for calls in cluster.of(Command.JOIN_GROUP).values() for call in calls]
    assert sorted((call.member_id, call.assignor) for call in calls) == [("m1", "sticky"), ("m2", ""), ("m2", "sticky")]


async def test_the_first_join_is_refused_where_the_group_has_another_assignor(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.JOIN_GROUP, AssignorConflict("it is range"))
    with pytest.raises(AssignorConflict):
        await home.join("m1")


async def test_a_heartbeat_without_news_has_no_view_and_says_what_was_seen_and_given_up(
    cluster: Any, home: BrokerHome
) -> None:
    answer_all(cluster, Command.HEARTBEAT, view_of([], news=False, confirmed_ms=-1, shared=True))
    assert await home.heartbeat("m1", SEEN, [granted(1)], 20, False) == Told(None, 10_000, -1, True)
    (call,) = [call for calls in cluster.of(Command.HEARTBEAT).values() for call in calls]
    assert call == Heartbeat("billing", "m1", 7, 3, [GrantedPartition("t", 1, 1, 2)], 20)


async def test_a_heartbeat_gives_up_no_more_at_a_time_than_one_may(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.HEARTBEAT, view_of([], news=False))
    many = [granted(0, grant) for grant in range(limits.RELEASES_MAX + 5)]
    await home.heartbeat("m1", SEEN, many, 20, False)
    (call,) = [call for calls in cluster.of(Command.HEARTBEAT).values() for call in calls]
    assert len(call.released) == limits.RELEASES_MAX


async def test_the_home_stays_the_same_until_another_is_asked_for(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.HEARTBEAT, view_of([], news=False))

    def heard() -> dict[str, int]:
        return {node_id: len(calls) for node_id, calls in cluster.of(Command.HEARTBEAT).items()}

    for _ in range(5):
        await home.heartbeat("m1", SEEN, [], 0, False)
    assert sorted(heard().values()) == [0, 0, 5]
    first = max(heard(), key=lambda node_id: heard()[node_id])
    await home.heartbeat("m1", SEEN, [], 0, True)
    await home.heartbeat("m1", SEEN, [], 0, False)
    assert heard()[first] == 5
    assert sorted(heard().values()) == [0, 2, 5]


async def test_a_home_that_does_not_answer_is_an_error_that_may_be_repeated(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.HEARTBEAT, None)
    with pytest.raises(LannerError) as caught:
        await home.heartbeat("m1", SEEN, [], 20, False)
    assert caught.value.retryable


async def test_what_a_home_refuses_is_told_as_it_is(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.HEARTBEAT, MemberUnknown("evicted"))
    with pytest.raises(MemberUnknown, match="evicted"):
        await home.heartbeat("m1", SEEN, [], 20, False)


async def test_a_leave_is_repeated_elsewhere_when_a_broker_fails(cluster: Any, home: BrokerHome) -> None:
    asked: list[str] = []

    def leave(call: LeaveGroup, broker: Any) -> Any:
        asked.append(broker.node_id)
        return ServiceUnavailable("restarting") if len(asked) == 1 else Empty()

    answer_all(cluster, Command.LEAVE_GROUP, leave)
    await home.leave("m1", "stalled")
    assert len(asked) == 2 and asked[0] != asked[1]
    call = next(call for calls in cluster.of(Command.LEAVE_GROUP).values() for call in calls)
    assert call == LeaveGroup("billing", "m1", "stalled")


async def test_each_partition_is_claimed_where_it_is_led(cluster: Any, home: BrokerHome) -> None:
    answer_all(cluster, Command.CLAIM_PARTITIONS, lambda call, broker: claimed(call))
    found = await home.claim("m1", SEEN, [granted(0), granted(1), granted(2)])
    assert found == {granted(0): 0, granted(1): 10, granted(2): 20}
    calls = cluster.of(Command.CLAIM_PARTITIONS)
    assert {node_id: [call.partitions for call in some] for node_id, some in calls.items()} == {
        "n1": [[0]],
        "n2": [[1]],
        "n3": [[2]],
    }
    assert calls["n1"] == [ClaimPartitions("t", "billing", "m1", 7, 3, 1, [0], "latest")]


async def test_a_partition_that_came_later_is_claimed_from_its_earliest_message(cluster: Any, home: BrokerHome) -> None:
    cluster.leaders[:] = ["n1", "n1", "n1"]
    answer_all(cluster, Command.CLAIM_PARTITIONS, lambda call, broker: claimed(call))
    held = [GrantedPartition("t", 1, 0, 2), GrantedPartition("t", 1, 1, 2, first=False)]
    answer_all(cluster, Command.JOIN_GROUP, view_of(held))
    await home.join("m1")
    await home.claim("m1", SEEN, [granted(0), granted(1)])
    calls = [call for some in cluster.of(Command.CLAIM_PARTITIONS).values() for call in some]
    starts = {partition: call.start for call in calls for partition in call.partitions}
    assert starts == {0: "latest", 1: "earliest"}


async def test_one_partition_s_refusal_is_told_beside_another_s_answer(cluster: Any, home: BrokerHome) -> None:
    def answer(call: ClaimPartitions, broker: Any) -> Any:
        if call.partitions == [0]:
            return ClaimedPartitions([ClaimedPartition(0, MemberFenced.code)])
        return NotLeader("not here") if call.partitions == [1] else ClaimedPartitions([])

    answer_all(cluster, Command.CLAIM_PARTITIONS, answer)
    found = await home.claim("m1", SEEN, [granted(0), granted(1), granted(2)])
    kinds = {one.partition: type(outcome) for one, outcome in found.items()}
    assert kinds == {0: MemberFenced, 1: NotLeader, 2: ServiceUnavailable}
