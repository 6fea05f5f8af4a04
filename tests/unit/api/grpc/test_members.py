"""Members of groups over `lanner.v1.Queue`, over a broker that is only a script."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.consuming import Consuming
from lanner.api.grpc.door import lanner_methods
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.members import Members
from lanner.errors import MemberFenced, ValidationError
from lanner.wire.administration import Seek
from lanner.wire.members import (
    AlterGroup,
    ClaimedPartition,
    ClaimedPartitions,
    ClaimPartitions,
    EvictMember,
    GrantedPartition,
    GroupAltered,
    GroupMembers,
    HandOver,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListMembers,
    MemberState,
    MemberView,
    PartitionRange,
    RebalanceState,
)
from lanner.wire.messages import Commit, Committed, CommittedReply, Empty, Fetch, Fetched, Poll, Settle, Settled
from tests.unit.api.grpc.scripted import Script, ScriptedCaller

VIEW = MemberView(
    7, 9, 41, 30_000, [GrantedPartition("orders", 5, 1, 9)], [GrantedPartition("orders", 5, 2, 8, False)], assignor="s"
)


async def asked(script: Script, method: str, request: Message) -> Any:
    broker: Any = script
    caller: Any = ScriptedCaller()
    backing = Backing(broker)
    part = Members(backing) if hasattr(Members, method) else Consuming(backing)
    answer = await getattr(part, method)(request, caller)
    return answer if answer is not None else caller.sent[0]


async def test_a_join_says_what_it_was_told_and_gets_a_member_id() -> None:
    script = Script(JoinGroup=VIEW)
    request = shapes.JoinGroupRequest(
        group="g", kind="stream", topics=["orders"], patterns=["r.*"], assignor="sticky", instance="i", start="latest"
    )
    view = await asked(script, "join_group", request)
    (call,) = script.asked
    assert call == JoinGroup(
        "g", "stream", view.member_id, ["orders"], ["r.*"], "sticky", "i", 30_000, start="latest", door="grpc"
    )
    assert (view.number, view.generation, view.unchanged, view.assignor) == (7, 9, False, "s")
    assert [(one.topic, one.incarnation, one.partition, one.grant, one.first) for one in view.held] == [
        ("orders", 5, 1, 9, True)
    ]
    assert [(one.partition, one.first) for one in view.revoked] == [(2, False)]
    mine = await asked(script, "join_group", shapes.JoinGroupRequest(group="g", member_id="mine", topics=["orders"]))
    assert (mine.member_id, script.asked[1].kind) == ("mine", "queue")


async def test_a_heartbeat_tells_what_was_seen_and_what_is_released() -> None:
    script = Script(Heartbeat=MemberView(7, 9, 41, 30_000, [], [], news=False))
    grant = shapes.Grant(topic="orders", incarnation=5, partition=2, grant=8)
    request = shapes.HeartbeatRequest(group="g", member_id="m", number=7, generation=9, released=[grant], wait_ms=250)
    view = await asked(script, "heartbeat", request)
    assert script.asked == [Heartbeat("g", "m", 7, 9, [GrantedPartition("orders", 5, 2, 8)], 250)]
    assert view.unchanged
    script.asked.clear()
    await asked(script, "heartbeat", shapes.HeartbeatRequest(group="g", member_id="m", generation=9))
    assert script.asked == [Heartbeat("g", "m", 0, 0), Heartbeat("g", "m", 7, 9)]


async def test_a_member_leaves_is_evicted_and_its_group_is_altered() -> None:
    script = Script(LeaveGroup=Empty(), EvictMember=Empty(), AlterGroup=GroupAltered(7, 10))
    await asked(script, "leave_group", shapes.LeaveGroupRequest(group="g", member_id="m", reason="done"))
    await asked(script, "evict_member", shapes.EvictMemberRequest(group="g", member_id="m", reason="stuck"))
    altered = await asked(
        script, "alter_group", shapes.AlterGroupRequest(group="g", assignor="range", session_ms=5_000)
    )
    assert (altered.number, altered.generation) == (7, 10)
    assert script.asked == [
        LeaveGroup("g", "m", "done"),
        EvictMember("g", "m", "stuck"),
        AlterGroup("g", "range", 5_000, 0),
    ]


async def test_members_are_listed_page_by_page() -> None:
    one = MemberState(
        "a",
        41,
        "i",
        "",
        "",
        "",
        10_000,
        1,
        2,
        [PartitionRange("orders", 0, 3)],
        [HandOver("orders", 4, "b")],
        "n2",
        400,
        ["orders"],
    )
    rebalances = [RebalanceState(900, "joined", 2, 8), RebalanceState(950, "left", 1, 8, 30)]
    script = Script(
        ListMembers=GroupMembers("g", 7, "queue", "sticky", 9, 1, 2, "settled", 5, 0, [one], rebalances, 41, 8)
    )
    found = await asked(script, "list_members", shapes.ListMembersRequest(group="g", after=3))
    assert script.asked == [ListMembers("g", 3, 100)]
    (member,) = found.members
    assert (member.member_id, member.door, member.heard_ms, member.home) == ("a", "native", 400, "n2")
    assert [(held.first, held.last) for held in member.held] == [(0, 3)]
    assert (member.revoked[0].heir, member.revoked[0].HasField("waiting_ms")) == ("b", False)
    assert [one.HasField("took_ms") for one in found.rebalances] == [False, True]
    assert (found.state, found.count, found.next, found.partitions) == ("settled", 5, 41, 8)


async def test_a_claim_tells_each_partition_its_outcome() -> None:
    script = Script(
        Heartbeat=VIEW,
        ClaimPartitions=ClaimedPartitions(
            [ClaimedPartition(1, 0, 17, True, b"note", 4), ClaimedPartition(2, MemberFenced.code)]
        ),
    )
    request = shapes.ClaimPartitionsRequest(topic="orders", group="g", member_id="m", generation=9, partitions=[1, 2])
    first, second = (await asked(script, "claim_partitions", request)).partitions
    assert script.asked[1] == ClaimPartitions("orders", "g", "m", 7, 9, 0, [1, 2])
    assert (first.offset, first.committed, first.metadata, first.sequence, first.error) == (17, True, b"note", 4, "")
    assert (second.error, second.HasField("sequence")) == ("MemberFenced", False)


async def test_a_member_receives_what_it_holds_and_settles_under_its_name() -> None:
    script = Script(Heartbeat=VIEW, Poll=[[5]], Settle=Settled([]))
    got = await asked(script, "receive", shapes.ReceiveMessagesRequest(topic="orders", group="g", member_id="m"))
    assert len(shapes.ReceiveMessagesResponse.FromString(got.SerializeToString()).messages) == 1
    (poll,) = script.calls(Poll)
    assert (poll.partitions, poll.member_id, poll.number, poll.generation) == ([1], "m", 7, 9)
    named = shapes.ReceiveMessagesRequest(
        topic="orders", group="g", member_id="m", partitions=[2], number=7, generation=8
    )
    await asked(script, "receive", named)
    assert [(one.partitions, one.generation) for one in script.calls(Poll)] == [([1], 9), ([2], 8)]
    for method, kind in (("ack", "Ack"), ("nack", "Nack"), ("extend", "Extend"), ("reject", "Reject")):
        await asked(script, method, getattr(shapes, f"{kind}Request")(topic="orders", group="g", member_id="m"))
    assert [settle.member_id for settle in script.calls(Settle)] == ["m"] * 4


async def test_a_member_commits_and_fetches_under_the_generation_that_it_has_seen() -> None:
    script = Script(
        Heartbeat=VIEW, Commit=Empty(), Fetch=Fetched(0, 0, 0, []), Committed=CommittedReply({0: 5}, {0: b"n"})
    )
    request = shapes.CommitRequest(
        topic="orders", group="g", offsets={0: 5}, member_id="m", generation=8, sequence=2, metadata={0: b"note"}
    )
    await asked(script, "commit", request)
    (commit,) = script.calls(Commit)
    assert (commit.member_id, commit.number, commit.generation, commit.metadata) == ("m", 7, 8, {0: b"note"})
    assert (commit.reader, commit.sequence) == ("m", 2)
    await asked(script, "fetch", shapes.FetchRequest(topic="orders", group="g", member_id="m", generation=8))
    (fetch,) = script.calls(Fetch)
    assert (fetch.group, fetch.member_id, fetch.number, fetch.generation) == ("g", "m", 7, 8)
    found = await asked(script, "committed", shapes.CommittedRequest(topic="orders", group="g"))
    assert dict(found.metadata) == {0: b"n"}
    assert script.calls(Committed)


async def test_a_group_is_moved_by_force_while_it_has_members() -> None:
    script = Script(Seek=Empty())
    await asked(script, "seek", shapes.SeekRequest(topic="orders", group="g", place="earliest", force=True))
    assert [call.force for call in script.calls(Seek)] == [True]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("join_group", shapes.JoinGroupRequest(group="a b", topics=["orders"])),
        ("join_group", shapes.JoinGroupRequest(group="g", kind="topic", topics=["orders"])),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["a b"])),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["orders"], member_id="x" * 65)),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["orders"], start="middle")),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["orders"] * 1_001)),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["orders"], assignor="a b")),
        ("join_group", shapes.JoinGroupRequest(group="g", topics=["orders"], session_ms=1 << 60)),
        ("heartbeat", shapes.HeartbeatRequest(group="g")),
        ("heartbeat", shapes.HeartbeatRequest(group="g", member_id="m", number=1 << 60, generation=1)),
        ("heartbeat", shapes.HeartbeatRequest(group="g", member_id="m", released=[shapes.Grant(partition=5_000)])),
        ("leave_group", shapes.LeaveGroupRequest(group="g")),
        ("leave_group", shapes.LeaveGroupRequest(group="g", member_id="m", reason="r" * 1_001)),
        ("evict_member", shapes.EvictMemberRequest(group="g")),
        ("list_members", shapes.ListMembersRequest(group="g", limit=1_001)),
        ("alter_group", shapes.AlterGroupRequest(group="g", assignor="a b")),
        ("claim_partitions", shapes.ClaimPartitionsRequest(topic="t", group="g", member_id="m", partitions=[0])),
        ("claim_partitions", shapes.ClaimPartitionsRequest(topic="t", group="g", member_id="m", generation=1)),
        ("claim_partitions", shapes.ClaimPartitionsRequest(topic="t", group="g", generation=1, partitions=[0])),
        ("commit", shapes.CommitRequest(topic="t", group="g", offsets={0: 1}, member_id="m")),
        ("commit", shapes.CommitRequest(topic="t", group="g", offsets={0: 1}, member_id="m", generation=1, reader="r")),
        ("commit", shapes.CommitRequest(topic="t", group="g", offsets={0: 1}, sequence=1)),
        ("commit", shapes.CommitRequest(topic="t", group="g", offsets={0: 1}, metadata={0: b"x" * 5_000})),
        ("fetch", shapes.FetchRequest(topic="t", member_id="m")),
        ("receive", shapes.ReceiveMessagesRequest(topic="t", group="g", member_id="x" * 65)),
    ],
)
async def test_what_cannot_be_meant_is_refused(method: str, request_: Message) -> None:
    script = Script(Heartbeat=VIEW)
    with pytest.raises(ValidationError):
        await asked(script, method, request_)
    assert not [call for call in script.asked if not isinstance(call, Heartbeat)]


def test_every_method_of_the_proto_is_served_and_no_other() -> None:
    broker: Any = Script()
    described = shapes.DESCRIPTOR.services_by_name["Queue"].methods_by_name
    assert set(lanner_methods(Backing(broker))) == set(described)
