"""Queue's consumers as members of groups, over a broker that is only a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.queue.v1 import queue_pb2 as calls
from lanner.api.grpc.queue_service import QueueService
from lanner.errors import AssignorConflict, InstanceFenced, MemberFenced, MemberUnknown, NotFoundError, ValidationError
from lanner.wire.members import (
    GrantedPartition,
    GroupMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberState,
    MemberView,
)
from lanner.wire.messages import Empty, MetadataReply, PartitionInfo, Poll, Settle, Settled, SettledItem, TopicInfo
from tests.unit.api.grpc.scripted import Script, ScriptedCaller

TOPICS = MetadataReply("c", [], [TopicInfo("orders", 1, [PartitionInfo(number, "n") for number in range(3)])])


def view(generation: int, *partitions: int, **named: Any) -> MemberView:
    held = [GrantedPartition("orders", 1, partition, generation) for partition in partitions]
    return MemberView(7, generation, 1, 30_000, held, [], **named)


def members(state: str, *names: str) -> GroupMembers:
    found = [
        MemberState(f"m-{name}", 1, name, name, "grpc", "", 30_000, 0, 0, [], [], topics=["orders"]) for name in names
    ]
    return GroupMembers("g", 7, "queue", "sticky", 5, 10_000, 60_000, state, len(found), 0, found)


def service(script: Script) -> QueueService:
    broker: Any = script
    return QueueService(Backing(broker))


async def connect(queue: QueueService, consumer: str = "c", group: str = "g") -> Any:
    caller: Any = ScriptedCaller()
    return await queue.connect(
        calls.ConnectRequest(consumer_id=consumer, consumer_group=group, topics=["orders"]), caller
    )


async def receive(queue: QueueService, partition: str, consumer: str = "c") -> Any:
    scripted = ScriptedCaller()
    caller: Any = scripted
    asked = calls.ReceiveMessageForPartitionIDRequest(consumer_id=consumer, partition_id=partition)
    await queue.receive(asked, caller)
    return scripted.sent[0]


async def ping(queue: QueueService, consumer: str = "c") -> list[str]:
    scripted = ScriptedCaller()
    caller: Any = scripted

    async def pings() -> AsyncIterator[Any]:
        yield calls.HealthCheckRequest(consumer_id=consumer)

    await queue.health_check(pings(), caller)
    return [pong.message for pong in scripted.sent]


async def test_connect_joins_as_an_instance_and_waits_for_its_partitions() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3),
        ListMembers=[members("assigning", "b", "c"), members("settled", "c", "b")],
        Heartbeat=[view(3, news=False), view(4, 0, 2)],
    )
    connected = await connect(service(script))
    (join,) = script.calls(JoinGroup)
    assert (join.group, join.kind, join.topics, join.assignor) == ("g", "queue", ["orders"], "sticky")
    assert (join.instance, join.client, join.session_ms, join.door) == ("c", "c", 30_000, "grpc")
    assert list(connected.consumer.partitions) == ["orders-0", "orders-2"]
    assert list(connected.consumer_group.consumers) == ["b", "c"]
    assert list(connected.consumer_group.topics) == ["orders"]


async def test_members_on_several_pages_are_all_told() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3, 1),
        ListMembers=[replace(members("settled", "c"), next=1), members("settled", "b")],
        Heartbeat=view(3, 1),
    )
    connected = await connect(service(script))
    assert list(connected.consumer_group.consumers) == ["b", "c"]


async def test_a_consumer_without_a_partition_stands_by() -> None:
    script = Script(
        Metadata=TOPICS, JoinGroup=view(3), ListMembers=members("settled", "b", "c"), Heartbeat=view(3, news=False)
    )
    connected = await connect(service(script))
    assert list(connected.consumer.partitions) == []
    assert connected.consumer.is_active


async def test_a_group_that_others_share_is_shared() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=[AssignorConflict(), view(3, shared=True)],
        ListMembers=members("settled", "c"),
        Heartbeat=view(3, shared=True),
    )
    connected = await connect(service(script))
    assert [join.assignor for join in script.calls(JoinGroup)] == ["sticky", ""]
    assert len(connected.consumer.partitions) == 3


async def test_an_id_that_is_no_name_has_an_instance_all_the_same() -> None:
    script = Script(
        Metadata=TOPICS, JoinGroup=view(3, 0), ListMembers=members("settled", "c"), Heartbeat=view(3, news=False)
    )
    queue = service(script)
    for consumer in ("worker 1 (ü)", "worker 1 (ü)", "worker 2", ".."):
        await connect(queue, consumer)
    instances = [join.instance for join in script.calls(JoinGroup)]
    assert len(set(instances)) == 3 and all(one.startswith("queue-") for one in instances)
    with pytest.raises(ValidationError):
        await connect(queue, "a\nb")


async def test_connect_again_tells_what_the_consumer_has_now_without_a_join() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3, 0, 1),
        ListMembers=members("settled", "c"),
        Heartbeat=[view(3, news=False), view(5, 1)],
    )
    queue = service(script)
    assert list((await connect(queue)).consumer.partitions) == ["orders-0", "orders-1"]
    assert list((await connect(queue)).consumer.partitions) == ["orders-1"]
    assert len(script.calls(JoinGroup)) == 1


async def test_a_consumer_that_was_lost_joins_when_it_connects_again() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=[view(3, 0), view(9, 2)],
        ListMembers=members("settled", "c"),
        Heartbeat=[view(3, news=False), MemberUnknown(), view(9, 2)],
    )
    queue = service(script)
    await connect(queue)
    assert list((await connect(queue)).consumer.partitions) == ["orders-2"]
    first, second = script.calls(JoinGroup)
    assert first.member_id != second.member_id and first.instance == second.instance


async def test_a_consumer_that_goes_to_another_group_leaves_the_first() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3, 0),
        ListMembers=members("settled", "c"),
        Heartbeat=view(3, news=False),
        LeaveGroup=Empty(),
    )
    queue = service(script)
    await connect(queue)
    await connect(queue, group="h")
    assert [left.group for left in script.calls(LeaveGroup)] == ["g"]


async def test_a_receive_names_its_member_and_an_ack_is_heard() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3, 0),
        ListMembers=members("settled", "c"),
        Heartbeat=view(3, news=False),
        Poll=[[5]],
        Settle=Settled([SettledItem(0, 1)]),
    )
    queue = service(script)
    await connect(queue)
    got = (await receive(queue, "orders-0")).message
    (poll,), (join,) = script.calls(Poll), script.calls(JoinGroup)
    assert (poll.partitions, poll.member_id, poll.number, poll.generation) == ([0], join.member_id, 7, 3)
    caller: Any = ScriptedCaller()
    await queue.ack(calls.AckMessageRequest(consumer_id="c", partition_id="orders-0", message_id=got.id), caller)
    assert [settle.member_id for settle in script.calls(Settle)] == [join.member_id]


async def test_a_fenced_receive_hears_what_the_consumer_has_now() -> None:
    script = Script(
        Metadata=TOPICS,
        JoinGroup=view(3, 0),
        ListMembers=members("settled", "c"),
        Heartbeat=[view(3, news=False), view(6, 0)],
        Poll=[MemberFenced(), [5]],
    )
    queue = service(script)
    await connect(queue)
    assert (await receive(queue, "orders-0")).HasField("message")
    assert [poll.generation for poll in script.calls(Poll)] == [3, 6]
    script.answers |= {"Poll": [MemberFenced()], "Heartbeat": [view(8, 1)]}
    with pytest.raises(MemberFenced, match="call Connect again"):
        await receive(queue, "orders-0")


async def test_a_ping_is_a_heartbeat() -> None:
    script = Script(
        Metadata=TOPICS, JoinGroup=view(3, 0), ListMembers=members("settled", "c"), Heartbeat=view(3, news=False)
    )
    queue = service(script)
    await connect(queue)
    before = len(script.calls(Heartbeat))
    assert await ping(queue) == ["PONG"]
    (beat,) = script.calls(Heartbeat)[before:]
    (join,) = script.calls(JoinGroup)
    assert (beat.group, beat.member_id, beat.number, beat.generation, beat.wait_ms) == ("g", join.member_id, 7, 3, 0)


@pytest.mark.parametrize("error", [MemberUnknown, InstanceFenced])
async def test_a_consumer_that_is_no_member_any_more_is_told_to_connect_again(error: type[Exception]) -> None:
    script = Script(
        Metadata=TOPICS, JoinGroup=view(3, 0), ListMembers=members("settled", "c"), Heartbeat=view(3, news=False)
    )
    queue = service(script)
    await connect(queue)
    script.answers["Heartbeat"] = [error()]
    with pytest.raises(error, match="call Connect again"):
        await ping(queue)
    with pytest.raises(NotFoundError, match="call Connect here first"):
        await ping(queue)
