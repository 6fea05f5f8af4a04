"""Two real ends over a wire made of lists: handshake, exchanges, and everything a bad peer can send."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner import limits
from lanner.errors import (
    LannerError,
    LeaseLost,
    LocalProtocolError,
    MessageTooLarge,
    NotLeader,
    NotSupported,
    Overloaded,
    ProtocolError,
    ServerError,
    ServiceUnavailable,
    Unauthenticated,
    UnsupportedVersion,
    catalogue,
)
from lanner.wire import administration, cluster, dead, members, messages, peers, staging
from lanner.wire.connection import (
    ClientConnection,
    Failure,
    Reply,
    Request,
    ServerConnection,
    error_reply,
)
from lanner.wire.exchanges import EXCHANGES
from lanner.wire.frames import encode_frame
from lanner.wire.messages import ERROR, REPLY, Command, Control, Empty, HelloReply, Poll, Publish, Published, SettleItem
from lanner.wire.states import State

WELCOME = HelloReply(1, "cluster", "node", "lanner/test", limits.FRAME_BYTES_MAX, 1_024)


def sent(end: ClientConnection | ServerConnection) -> bytes:
    return b"".join(end.take_outgoing())


def frame(command: int, control: Any, bulk: bytes = b"", correlation: int = 5) -> bytes:
    encoded = control if isinstance(control, bytes) else msgspec.msgpack.encode(control)
    payload = struct.pack(">II", correlation, len(encoded)) + encoded + bulk
    return struct.pack(">BI", command, len(payload)) + payload


def open_pair() -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(), ServerConnection()
    client.hello("test", "secret")
    [hello] = server.receive(sent(client))
    server.welcome(hello, WELCOME)
    assert client.receive(sent(server)) == []
    assert client.state is server.state is State.OPEN
    return client, server


def errors_in(data: bytes) -> list[tuple[int, LannerError]]:
    """The ERROR frames in what a server sent, as an open client reads them."""
    found = []
    while data:
        command, length, correlation, control_length = struct.unpack_from(">BIII", data)
        assert command == ERROR
        reply = msgspec.msgpack.decode(data[13 : 13 + control_length], type=messages.ErrorReply)
        found.append((correlation, catalogue()[reply.code](reply.message, **reply.details)))
        data = data[5 + length :]
    return found


# ---------------------------------------------------------------------- the handshake


def test_hello_carries_versions_name_and_token_and_opens_both_ends() -> None:
    client, server = ClientConnection(), ServerConnection()
    client.hello("test", "secret")
    assert client.state is State.GREETING
    [hello] = server.receive(sent(client))
    assert hello.control == messages.Hello([1], "test", "secret")
    assert server.state is State.GREETING
    server.welcome(hello, WELCOME)
    client.receive(sent(server))
    assert client.hello_reply == WELCOME
    assert client.state is server.state is State.OPEN


def test_garbage_before_hello_is_refused_with_what_was_expected() -> None:
    server = ServerConnection()
    assert server.receive(b"GET / HTTP/1.1\r\n\r\n") == []
    [(correlation, error)] = errors_in(sent(server))
    assert correlation == 0
    assert isinstance(error, ProtocolError)
    assert "expected HELLO (0x01)" in error.message
    assert server.is_closed


def test_any_other_command_before_hello_is_refused() -> None:
    server = ServerConnection()
    assert server.receive(frame(Command.PING, [])) == []
    assert "expected HELLO" in errors_in(sent(server))[0][1].message
    assert server.is_closed


def test_a_frame_before_hello_must_be_small() -> None:
    server = ServerConnection()
    server.receive(struct.pack(">BI", Command.HELLO, limits.FRAME_BYTES_MAX_BEFORE_HELLO + 1))
    assert "until HELLO is answered" in errors_in(sent(server))[0][1].message
    assert server.is_closed


def test_a_malformed_hello_ends_the_connection_and_names_the_field() -> None:
    server = ServerConnection()
    assert server.receive(frame(Command.HELLO, ["one"])) == []
    [(_, error)] = errors_in(sent(server))
    assert error.details == {"command": "HELLO", "field": "versions"}
    assert server.is_closed


def test_a_client_of_unknown_versions_is_told_which_there_are() -> None:
    client, server = ClientConnection(), ServerConnection()
    client.hello()
    client.take_outgoing()
    assert server.receive(frame(Command.HELLO, [[7, 8]], correlation=1)) == []
    client.receive(sent(server))
    assert isinstance(client.failure, UnsupportedVersion)
    assert "speaks version 1" in client.failure.message
    assert "offers 7, 8" in client.failure.message
    assert client.is_closed
    assert server.is_closed


def test_a_refused_client_learns_why() -> None:
    client, server = ClientConnection(), ServerConnection()
    client.hello()
    [hello] = server.receive(sent(client))
    server.refuse(hello, Unauthenticated("no such token"))
    client.receive(sent(server))
    assert isinstance(client.failure, Unauthenticated)
    assert client.failure.message == "no such token"
    assert server.state is client.state is State.CLOSED
    assert isinstance(server.failure, Unauthenticated)


def test_nothing_may_follow_hello_before_it_is_answered() -> None:
    server = ServerConnection()
    hello = frame(Command.HELLO, [[1]])
    assert len(server.receive(hello + hello)) == 1
    assert "wait for the reply" in errors_in(sent(server))[0][1].message
    assert server.is_closed


def test_what_follows_a_refused_hello_in_the_same_piece_is_ignored() -> None:
    server = ServerConnection()
    assert server.receive(frame(Command.HELLO, [[9]]) + frame(Command.HELLO, [[1]])) == []
    assert len(errors_in(sent(server))) == 1


def test_hello_comes_once() -> None:
    client, server = open_pair()
    assert server.receive(frame(Command.HELLO, [[1]])) == []
    assert "HELLO comes once" in errors_in(sent(server))[0][1].message
    assert server.state is State.OPEN
    with pytest.raises(ProtocolError, match="HELLO is not possible while the connection is open"):
        client.hello()


def test_a_client_refuses_a_version_it_did_not_offer() -> None:
    client = ClientConnection()
    client.hello()
    client.receive(frame(Command.HELLO | REPLY, [2, "c", "n", "b", 1, 1], correlation=1))
    assert isinstance(client.failure, UnsupportedVersion)


def test_a_client_refuses_a_malformed_welcome() -> None:
    client = ClientConnection()
    client.hello()
    client.receive(frame(Command.HELLO | REPLY, [1, "c"], correlation=1))
    assert client.failure is not None
    assert "the reply to HELLO: node_id is not valid" in client.failure.message


def test_a_client_that_reached_something_else_says_what_it_expected() -> None:
    client = ClientConnection()
    client.hello()
    assert client.receive(b"SSH-2.0-OpenSSH_9.2\r\n") == []
    assert isinstance(client.failure, ProtocolError)
    assert "expected the reply to HELLO (0x81) or an error (0xff)" in client.failure.message


# ---------------------------------------------------------------------- exchanges


FOUNDER = peers.Founder("a", "n", {"native": "h:1"}, "rack")
PLAN = cluster.PlanProgress(1, "drain", "n", "running", 1, 2, 3, 4, 5, 6, "why")
BROKER = cluster.BrokerState("a", "n", "r", "active", {"native": "h:1"}, 1, 2, 3, "voter", True, PLAN)
GRANTED = members.GrantedPartition("t", 2, 1, 5, False)
SAMPLES: dict[type[Control], Control] = {
    messages.Empty: Empty(),
    messages.Metadata: messages.Metadata(["a"], True),
    messages.MetadataReply: messages.MetadataReply(
        "c", [messages.BrokerInfo("n", "h", 1)], [messages.TopicInfo("t", 1, [messages.PartitionInfo(0, "n")])]
    ),
    messages.OpenProducer: messages.OpenProducer(),
    messages.ProducerOpened: messages.ProducerOpened(5),
    messages.Publish: Publish("t", 1),
    messages.Published: Published(1, 2, 3),
    messages.Fetch: messages.Fetch("t", 0, 9),
    messages.Fetched: messages.Fetched(0, 9, 9, [messages.FetchedBatch(0, 9, 1, 2)]),
    messages.Poll: Poll("g", "t", "m", 1),
    messages.Polled: messages.Polled(
        [messages.PolledBatch(0, 1, 2, 3, 4, 5, 2, [messages.LeasedRange(2, 1, 1)])], True
    ),
    messages.Settle: messages.Settle("g", "t", [SettleItem(0, 1, 2, 3, 1)]),
    messages.Settled: messages.Settled([messages.SettledItem(0, 3)]),
    messages.Commit: messages.Commit("g", "t", {0: 5}),
    messages.Committed: messages.Committed("g", "t"),
    messages.CommittedReply: messages.CommittedReply({0: 5}),
    messages.Peek: messages.Peek("t"),
    messages.Peeked: messages.Peeked([messages.PeekedMessage(0, 1, 2, 4, b"v", b"k", {"h": b"x"})]),
    messages.Offsets: messages.Offsets("t"),
    messages.OffsetsReply: messages.OffsetsReply([messages.PartitionOffsets(0, 1, 2)]),
    messages.Release: messages.Release("g", "t", []),
    administration.CreateTopic: administration.CreateTopic("t", {"partitions": 1}),
    administration.AlterTopic: administration.AlterTopic("t", {"lease_ms": 1_000}),
    administration.DeleteTopic: administration.DeleteTopic("t"),
    administration.DescribeTopic: administration.DescribeTopic("t"),
    administration.ListTopics: administration.ListTopics(),
    administration.TopicNames: administration.TopicNames(["t"]),
    administration.ListGroups: administration.ListGroups("t"),
    administration.TopicDescription: administration.TopicDescription(
        "t", 1, {}, [administration.PartitionState(0, "n", 0, 1, 2, 3, 4, {9: 1})]
    ),
    administration.GroupsReply: administration.GroupsReply(["g"]),
    administration.DescribeGroup: administration.DescribeGroup("t", "g"),
    administration.DropGroup: administration.DropGroup("t", "g"),
    administration.GroupDescription: administration.GroupDescription(
        "t", "g", "queue", [administration.GroupPartition(0, 1, 2, 3, 4, 5, 6, {4: 2}, 7)]
    ),
    administration.Seek: administration.Seek("t", "g", to="earliest"),
    administration.ListDead: administration.ListDead("t", "g"),
    administration.DeadLetters: administration.DeadLetters([administration.DeadLetter(0, 1, 2, 3, "why", 5, 6, 2)], 1),
    administration.RedriveDead: administration.RedriveDead("t", "g", 0, [1]),
    administration.DiscardDead: administration.DiscardDead("t", "g", 0, [1]),
    administration.CountReply: administration.CountReply(3),
    members.JoinGroup: members.JoinGroup(
        "g", "stream", "3f9a", ["t"], ["o*"], "sticky", "web-1", 9_000, "r", "c", b"o"
    ),
    members.MemberView: members.MemberView(1, 7, 3, 9_000, [GRANTED], [GRANTED], 150, True, "sticky"),
    members.Heartbeat: members.Heartbeat("g", "3f9a", 1, 7, [GRANTED], 2_000),
    members.LeaveGroup: members.LeaveGroup("g", "3f9a", "stalled"),
    members.ClaimPartitions: members.ClaimPartitions("t", "g", "3f9a", 1, 7, 2, [0, 1], "latest"),
    members.ClaimedPartitions: members.ClaimedPartitions([members.ClaimedPartition(0, 0, 5, True, b"m", 3)]),
    members.MakeGroup: members.MakeGroup("t", "g", "queue", "latest"),
    members.AlterGroup: members.AlterGroup("g", "sticky", 9_000, 60_000),
    members.GroupAltered: members.GroupAltered(1, 8),
    members.EvictMember: members.EvictMember("g", "3f9a", "broken"),
    members.ListMembers: members.ListMembers("g", 5, 10),
    members.GroupMembers: members.GroupMembers(
        "g",
        1,
        "stream",
        "sticky",
        7,
        9_000,
        60_000,
        "handing over",
        1,
        0,
        [
            members.MemberState(
                "3f9a",
                3,
                "web-1",
                "c",
                "native",
                "r",
                9_000,
                1,
                2,
                [members.PartitionRange("t", 0, 3)],
                [members.HandOver("t", 4, "77c1", 1_200)],
            )
        ],
        [members.RebalanceState(1, "77c1 joined", 2, 8, 310)],
        3,
        8,
    ),
    members.ListClients: members.ListClients("g", ("n", 3), 10),
    members.ClientList: members.ClientList(
        [members.ClientState("n", "a", 3, "native", "h:1", "c", 1, 2, [members.ClientUse("g", "t", "m", "", 5, 9)])],
        ("n", 3),
        ["b"],
    ),
    messages.BestPriority: messages.BestPriority("g", "t"),
    messages.BestPriorityFound: messages.BestPriorityFound(9),
    cluster.DescribeCluster: cluster.DescribeCluster(),
    cluster.ClusterDescription: cluster.ClusterDescription("c", "n", 1, 2, 3, 4, 0, [BROKER], [PLAN]),
    cluster.DescribePartitions: cluster.DescribePartitions("t"),
    cluster.PartitionsDescription: cluster.PartitionsDescription(
        [cluster.PartitionReplicas(1, "t", 0, "n", 3, [cluster.ReplicaState(1, "n", "a", "voter", True, True, 0)])]
    ),
    cluster.ChangeCluster: cluster.ChangeCluster("drain", "a"),
    cluster.ClusterChanged: cluster.ClusterChanged(PLAN),
    cluster.RaftStatus: cluster.RaftStatus("t", 0),
    cluster.RaftStatusReply: cluster.RaftStatusReply({"term": 1}),
    cluster.Scrub: cluster.Scrub(True),
    cluster.ScrubProgress: cluster.ScrubProgress(True, 1, 2, 3, 4, 5, 6),
    staging.Stage: staging.Stage("t", 1, 2, "billing", "nightly", 42, 3, b"a" * 16, 0, 60_000),
    staging.Staged: staging.Staged(0, True),
    dead.FetchDead: dead.FetchDead("t", 0, "g", 5, 10, 100, 0, 1, 2),
    dead.FetchedDead: dead.FetchedDead(
        1, 9, 7, [dead.DeadBatch(0, 5, 4, 7, [dead.DeadRun(5, 0, 2, 3, "bad", 6)])], [(3, 5)], 1, 2
    ),
    staging.Prepare: staging.Prepare(9, [staging.Manifest("t", 1, 2, [(3, b"a" * 16, 1)])]),
    staging.DiscardStages: staging.DiscardStages([staging.Discard("t", 1, 2, [b"a" * 16])]),
    staging.PartitionOutcomes: staging.PartitionOutcomes([staging.PartitionOutcome("t", 1, 58, "gone", [b"a" * 16])]),
    staging.Begin: staging.Begin("billing", "nightly", 42, b"c" * 16, [staging.Participant("t", 2, [1])], 5_000, True),
    staging.CommitState: staging.CommitState(staging.CommitPhase.ABORTED, 9, "deadline"),
    staging.End: staging.End("billing", "nightly", b"c" * 16),
    staging.Look: staging.Look("billing", b"c" * 16, "nightly", 42, staging.CommitPhase.VISIBLE, 100, 9),
    staging.Looked: staging.Looked(staging.CommitState(staging.CommitPhase.VISIBLE, 9), "nightly", True, 42),
    staging.Claim: staging.Claim("billing", "nightly", True),
    staging.Claimed: staging.Claimed("weekly", 41),
    staging.ListTransactions: staging.ListTransactions("billing", True, "a", 5),
    staging.TransactionList: staging.TransactionList(
        [
            staging.TransactionState(
                "billing",
                "nightly",
                False,
                1_000,
                [(0, 41)],
                [staging.EndedCommit(b"c" * 16, 9, staging.CommitPhase.COMMITTED)],
                staging.OpenTry(9, 42, b"c" * 16, 1, 1, 2, 0, 1, [staging.TryPartition("t", 1, "n", "prepared", 7)]),
            )
        ],
        "billing",
        2,
        1,
        7,
    ),
    staging.Forget: staging.Forget(["billing"]),
    staging.Report: staging.Report([staging.ReportItem(9, 4, staging.ReportKind.REFUSED, "full")]),
    peers.PeerInfo: peers.PeerInfo(FOUNDER, True),
    peers.PeerInfoReply: peers.PeerInfoReply(FOUNDER, "c", [FOUNDER]),
    peers.Propose: peers.Propose(),
    peers.Forward: peers.Forward(
        "alice", int(Command.OFFSETS), msgspec.Raw(msgspec.msgpack.encode(messages.Offsets("t")))
    ),
    peers.Proposed: peers.Proposed(7),
    peers.RaftFrame: peers.RaftFrame([(0, 2)]),
    peers.SnapshotFrame: peers.SnapshotFrame(),
    peers.Pulse: peers.Pulse(1_000, [(0, 3)]),
}


BARE = (Command.HELLO, Command.FORWARD)  # the one opens a connection, the other is opened before anybody sees it
ANSWERED = [command for command in Command if EXCHANGES[command].answered and command not in BARE]
UNANSWERED = [command for command in Command if not EXCHANGES[command].answered]


@pytest.mark.parametrize("command", UNANSWERED)
def test_a_command_without_an_answer_is_told_and_nothing_waits_for_it(command: Command) -> None:
    client, server = open_pair()
    exchange = EXCHANGES[command]
    client.tell(command, SAMPLES[exchange.request], [b"in"] if exchange.request_bulk else [])
    [request] = server.receive(sent(client))
    assert (request.command, request.correlation, request.control) == (command, 0, SAMPLES[exchange.request])
    assert bytes(request.bulk) == (b"in" if exchange.request_bulk else b"")
    assert client.unanswered == 0
    assert not server.fail(request, ServerError())
    assert sent(server) == b""


def test_what_is_told_and_does_not_decode_ends_the_connection_with_the_reason() -> None:
    client, server = open_pair()
    broken = frame(Command.PULSE, ["now"], correlation=0)
    assert server.receive(broken + frame(Command.PING, [])) == []
    assert server.is_closed
    assert client.receive(sent(server)) == []
    assert isinstance(client.failure, ProtocolError)
    assert client.failure.details == {"command": "PULSE", "field": "now_ms"}


def test_only_commands_without_an_answer_are_told_and_only_on_an_open_connection() -> None:
    client, _ = open_pair()
    with pytest.raises(LocalProtocolError, match="nothing to tell"):
        client.tell(Command.PING, Empty())
    with pytest.raises(LocalProtocolError, match="nothing to tell"):
        client.tell(Command.PULSE, Empty())
    with pytest.raises(LocalProtocolError, match="PULSE is asked with"):
        client.request(Command.PULSE, SAMPLES[peers.Pulse])
    with pytest.raises(ProtocolError, match="not possible while the connection is new"):
        ClientConnection().tell(Command.PULSE, SAMPLES[peers.Pulse])


def test_a_broker_that_connects_to_another_says_who_it_is() -> None:
    client, server = ClientConnection(), ServerConnection()
    peer = messages.PeerHello("c", "n", "a", "h:1", True)
    client.hello("lanner", peer=peer)
    [hello] = server.receive(sent(client))
    assert hello.control.peer == peer


@pytest.mark.parametrize("command", ANSWERED)
def test_every_command_travels_there_and_back_as_its_own_types(command: Command) -> None:
    client, server = open_pair()
    exchange = EXCHANGES[command]
    asked, answered = SAMPLES[exchange.request], SAMPLES[exchange.reply]
    correlation = client.request(command, asked, [b"in"] if exchange.request_bulk else [])
    [request] = server.receive(sent(client))
    assert (request.command, request.correlation, request.control) == (command, correlation, asked)
    assert bytes(request.bulk) == (b"in" if exchange.request_bulk else b"")
    assert server.reply(request, answered, [b"o", b"ut"] if exchange.reply_bulk else [])
    [reply] = client.receive(sent(server))
    assert isinstance(reply, Reply)
    assert reply[:3] == (correlation, command, answered)
    assert bytes(reply.bulk) == (b"out" if exchange.reply_bulk else b"")
    assert client.unanswered == 0


def test_requests_pipeline_and_replies_come_in_any_order() -> None:
    client, server = open_pair()
    ids = [client.request(Command.PUBLISH, Publish("t", number), [b"x"]) for number in range(3)]
    requests = server.receive(sent(client))
    for request in reversed(requests):
        server.reply(request, Published(request.control.partition, 0, 1))
    replies = client.receive(sent(server))
    assert [reply.correlation for reply in replies] == ids[::-1]
    assert [reply.control.base_offset for reply in replies if isinstance(reply, Reply)] == [2, 1, 0]


def test_the_settles_of_a_poll_are_answered_first_under_the_same_id() -> None:
    client, server = open_pair()
    poll = Poll("g", "t", "m", 1, settles=[SettleItem(0, 1, 2, 3, 1)])
    correlation = client.request(Command.POLL, poll)
    [request] = server.receive(sent(client))
    assert server.reply_settles(request, messages.Settled([messages.SettledItem(0, 3)]))
    [first] = client.receive(sent(server))
    assert isinstance(first, Reply)
    assert (first.correlation, first.command) == (correlation, Command.SETTLE)
    assert client.unanswered == 1
    server.reply(request, messages.Polled([]))
    [second] = client.receive(sent(server))
    assert isinstance(second, Reply)
    assert (second.correlation, second.command) == (correlation, Command.POLL)
    assert client.unanswered == 0


@pytest.mark.parametrize("kind", catalogue().values(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_catalogue_arrives_as_itself(kind: type[LannerError]) -> None:
    client, server = open_pair()
    correlation = client.request(Command.PING, Empty())
    [request] = server.receive(sent(client))
    assert server.fail(request, kind("what to do", topic="orders", retry_after_ms=7))
    [failure] = client.receive(sent(server))
    assert isinstance(failure, Failure)
    assert failure.correlation == correlation
    assert type(failure.error) is (LocalProtocolError if kind is ProtocolError else kind)
    assert failure.error.message == "what to do"
    assert failure.error.details == {"topic": "orders", "retry_after_ms": 7}
    assert client.unanswered == 0


@pytest.mark.parametrize(
    "details", [{"bad": 2**70}, {"bad": "x" * 100_000}, {"bad": {1.5: object()}}], ids=["number", "long", "keys"]
)
def test_details_that_cannot_travel_are_left_behind_but_the_error_arrives(details: dict[str, Any]) -> None:
    reply = error_reply(Overloaded("later", **details))
    encoded = msgspec.msgpack.encode(reply, enc_hook=str)
    assert len(encoded) < 10_000
    assert reply.code == Overloaded.code


def test_objects_in_details_travel_as_text() -> None:
    reply = error_reply(NotLeader("ask the other", leader=State.OPEN))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply, enc_hook=str))[2] == {"leader": "open"}


def test_a_command_that_a_broker_of_an_older_release_does_not_know_is_not_supported_there() -> None:
    client, server = open_pair()
    correlation = client.request(Command.JOIN_GROUP, members.JoinGroup("g", "queue", "m", ["t"]))
    asked = sent(client)
    server.receive(frame(0x3F, asked[13:], correlation=correlation))  # so it looks to one that does not know 0x34
    [failure] = client.receive(sent(server))
    assert isinstance(failure, Failure) and failure.correlation == correlation
    assert isinstance(failure.error, NotSupported) and "older release, which has no JOIN_GROUP" in str(failure.error)
    assert "lanner cluster upgrade" in str(failure.error) and not failure.error.retryable


def test_details_of_a_peer_cannot_pose_as_arguments() -> None:
    client, _ = open_pair()
    correlation = client.request(Command.PING, Empty())
    reply = [LeaseLost.code, "gone", {"message": "other", "self": 1, "topic": "t"}]
    [failure] = client.receive(frame(ERROR, reply, correlation=correlation))
    assert isinstance(failure, Failure)
    assert failure.error.message == "gone"
    assert failure.error.details == {"topic": "t"}


def test_a_reply_larger_than_a_frame_becomes_an_error_and_says_that_it_was_not_sent() -> None:
    client, server = open_pair()
    client.request(Command.FETCH, messages.Fetch("t", 0, 0))
    [request] = server.receive(sent(client))
    assert not server.reply(request, messages.Fetched(0, 0, 0, []), [b"x" * limits.FRAME_BYTES_MAX])
    [failure] = client.receive(sent(server))
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ServerError)
    assert "ask for less" in failure.error.message


def test_a_request_larger_than_a_frame_is_refused_before_it_is_sent() -> None:
    client, server = open_pair()
    with pytest.raises(MessageTooLarge):
        client.request(Command.PUBLISH, Publish("t", 0), [b"x" * limits.FRAME_BYTES_MAX])
    assert client.outgoing_bytes == 0
    assert client.unanswered == 0
    client.request(Command.PUBLISH, Publish("t", 0), [b"x"])
    assert len(server.receive(sent(client))) == 1


def test_a_request_of_the_wrong_type_is_the_callers_mistake() -> None:
    client, _ = open_pair()
    with pytest.raises(LocalProtocolError, match="FETCH is asked with Fetch, not Publish"):
        client.request(Command.FETCH, Publish("t", 0))
    with pytest.raises(LocalProtocolError):
        client.request(Command.PING, Empty(), [b"bulk"])


def test_nothing_is_asked_before_the_connection_is_open() -> None:
    client = ClientConnection()
    with pytest.raises(ProtocolError, match="not possible while the connection is new"):
        client.request(Command.PING, Empty())


def test_correlation_ids_come_round_and_pass_over_what_still_waits() -> None:
    client, _ = open_pair()
    first = client.request(Command.PING, Empty())
    client._correlation = 2**32 - 2
    assert client.request(Command.PING, Empty()) == 2**32 - 1
    assert client.request(Command.PING, Empty()) == 1  # never 0, which means the connection itself
    assert client.request(Command.PING, Empty()) == first + 1


def test_what_is_said_collects_until_it_is_taken() -> None:
    client, server = open_pair()
    for _ in range(3):
        client.request(Command.PING, Empty())
    size = client.outgoing_bytes
    data = sent(client)
    assert size == len(data)
    assert client.outgoing_bytes == 0
    assert client.take_outgoing() == []
    assert len(server.receive(data)) == 3


def test_what_is_said_may_be_taken_in_pieces() -> None:
    client, server = open_pair()
    for _ in range(5):
        client.request(Command.PUBLISH, Publish("t", 0), [bytes(100)])
    size = client.outgoing_bytes
    first = b"".join(client.take_outgoing(150))
    assert 150 <= len(first) < 300
    assert client.outgoing_bytes == size - len(first)
    assert len(server.receive(first + sent(client))) == 5
    client.request(Command.PING, Empty())
    assert len(client.take_outgoing(1_000)) == 1
    assert client.outgoing_bytes == 0


# ---------------------------------------------------------------------- bad peers


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (frame(0x77, []), "command"),
        (frame(Command.PING | REPLY, []), "command"),
        (frame(ERROR, [1, "x"]), "command"),
        (frame(Command.PUBLISH, ["t", "x"], b"bulk"), "partition"),
        (frame(Command.PUBLISH, b"\xc1", b"bulk"), "control"),
        (frame(Command.PING, [], b"bulk"), "bulk"),
        (frame(Command.POLL, ["g", "t", "m", -2]), "sequence"),
    ],
)
def test_a_request_that_makes_no_sense_fails_alone(data: bytes, field: str) -> None:
    _, server = open_pair()
    good = frame(Command.PING, [], correlation=6)
    requests = server.receive(good + data + good)
    assert [request.command for request in requests] == [Command.PING, Command.PING]
    [(correlation, error)] = errors_in(sent(server))
    assert correlation == 5
    assert isinstance(error, ProtocolError)
    assert error.details["field"] == field
    assert server.state is State.OPEN


def test_broken_framing_ends_the_connection_after_what_came_whole() -> None:
    _, server = open_pair()
    [request] = server.receive(frame(Command.PING, []) + struct.pack(">BI", 0x10, 2**32 - 1))
    assert request.command is Command.PING
    [(correlation, error)] = errors_in(sent(server))
    assert correlation == 0
    assert "4294967295" in error.message
    assert server.is_closed
    assert server.receive(frame(Command.PING, [])) == []
    assert not server.reply(request, Empty())
    assert not server.reply_settles(request, messages.Settled([]))
    assert not server.fail(request, LeaseLost())
    assert sent(server) == b""


def test_broken_framing_as_the_first_thing_ends_it_too() -> None:
    _, server = open_pair()
    assert server.receive(struct.pack(">BI", 0x10, 2**32 - 1)) == []
    assert server.is_closed


def test_a_reply_that_answers_nothing_ends_the_client() -> None:
    for data in (
        frame(Command.PING | REPLY, [], correlation=99),
        frame(Command.PING | REPLY, [], correlation=0),
        frame(ERROR, [1, "x"], correlation=99),
        frame(0x33, [], correlation=2),
        frame(Command.FETCH | REPLY, [], correlation=2),
        frame(Command.SETTLE | REPLY, [[]], correlation=2),
    ):
        client, _ = open_pair()
        client.request(Command.PING, Empty())
        assert client.receive(data + frame(Command.PING | REPLY, [], correlation=2)) == []
        assert isinstance(client.failure, ProtocolError)
        assert client.is_closed
        assert client.receive(b"") == []


def test_a_malformed_reply_fails_only_its_request() -> None:
    client, _ = open_pair()
    ping, publish = client.request(Command.PING, Empty()), client.request(Command.PUBLISH, Publish("t", 0))
    bad = frame(Command.PUBLISH | REPLY, ["x", 1, 1], correlation=publish)
    [failure, reply] = client.receive(bad + frame(Command.PING | REPLY, [], correlation=ping))
    assert isinstance(failure, Failure)
    assert "the reply to PUBLISH: base_offset is not valid" in failure.error.message
    assert isinstance(reply, Reply)
    assert client.state is State.OPEN


def test_a_malformed_error_is_an_error_all_the_same() -> None:
    client, _ = open_pair()
    ping = client.request(Command.PING, Empty())
    [failure] = client.receive(frame(ERROR, ["x"], correlation=ping))
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, ProtocolError)


def test_an_unknown_error_code_becomes_a_server_error() -> None:
    client, _ = open_pair()
    ping = client.request(Command.PING, Empty())
    [failure] = client.receive(frame(ERROR, [9_999, "from the future"], correlation=ping))
    assert isinstance(failure, Failure)
    assert type(failure.error) is ServerError


def test_an_error_of_the_connection_ends_the_client_with_it() -> None:
    client, server = open_pair()
    client.request(Command.PING, Empty())
    server.end(ServiceUnavailable("stopping"))
    server.end(ServiceUnavailable("again"))  # said once
    client.receive(sent(server))
    assert isinstance(client.failure, ServiceUnavailable)
    assert client.failure.message == "stopping"
    assert client.is_closed


def test_broken_framing_from_a_broker_ends_the_client() -> None:
    for before in (b"", frame(Command.PING | REPLY, [], correlation=2)):
        client, _ = open_pair()
        client.request(Command.PING, Empty())
        client.receive(before + struct.pack(">BI", 0x90, 2**32 - 1))
        assert isinstance(client.failure, ProtocolError)
        assert client.is_closed


def test_a_closed_connection_keeps_its_first_reason() -> None:
    client, _ = open_pair()
    client.close(Overloaded("first"))
    client.close(Overloaded("second"))
    assert client.failure is not None
    assert client.failure.message == "first"


@given(st.lists(st.binary(max_size=100), max_size=6))
def test_no_bytes_make_an_open_server_raise(pieces: list[bytes]) -> None:
    _, server = open_pair()
    for piece in pieces:
        for request in server.receive(piece):
            assert isinstance(request, Request)


@given(st.sampled_from(list(Command)), st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
))  # fmt: skip
def test_any_control_part_gives_a_typed_request_or_one_error(command: Command, control: Any) -> None:
    _, server = open_pair()
    requests = server.receive(frame(command, control))
    assert len(requests) + len(errors_in(sent(server))) == 1
    assert all(type(request.control) is EXCHANGES[command].request for request in requests)
    assert server.state is (State.OPEN if requests or EXCHANGES[command].answered else State.CLOSED)


def test_a_frame_of_the_codec_and_of_this_file_are_the_same() -> None:
    assert b"".join(encode_frame(Command.PUBLISH, 5, Publish("t", 1), [b"z"])) == frame(
        Command.PUBLISH, ["t", 1, 0], b"z"
    )


# ---------------------------------------------------------------------- calls that are passed on


@pytest.mark.parametrize("command", [Command.OFFSETS, Command.PUBLISH, Command.POLL])
def test_a_call_that_is_passed_on_comes_out_of_its_envelope_as_if_its_caller_had_sent_it(command: Command) -> None:
    client, server = open_pair()
    call, answer = SAMPLES[EXCHANGES[command].request], SAMPLES[EXCHANGES[command].reply]
    bulk = [b"in"] if EXCHANGES[command].request_bulk else []
    correlation = client.request(command, call, bulk, "alice")
    sent = b"".join(client.take_outgoing())
    assert b"alice" in sent
    [request] = server.receive(sent)
    assert (request.command, request.control, request.caller) == (command, call, "alice")
    assert bytes(request.bulk) == b"".join(bulk)
    server.reply(request, answer, [b"out"] if EXCHANGES[command].reply_bulk else [])
    [reply] = client.receive(b"".join(server.take_outgoing()))
    assert isinstance(reply, Reply)
    assert (reply.correlation, reply.command, reply.control) == (correlation, command, answer)


def test_a_call_of_the_sender_itself_names_nobody() -> None:
    client, server = open_pair()
    client.request(Command.OFFSETS, messages.Offsets("t"))
    [request] = server.receive(b"".join(client.take_outgoing()))
    assert request.caller == ""


@pytest.mark.parametrize(
    ("envelope", "bulk", "match"),
    [
        (peers.Forward("a", int(Command.PROPOSE), msgspec.Raw(b"\x90")), [], "0x61 is no call"),
        (peers.Forward("a", int(Command.FORWARD), msgspec.Raw(b"\x90")), [], "0x66 is no call"),
        (peers.Forward("a", 0x7F, msgspec.Raw(b"\x90")), [], "0x7f is no call"),
        (peers.Forward("a", int(Command.OFFSETS), msgspec.Raw(b"\x90")), [], "OFFSETS: topic is not valid"),
        (peers.Forward("a", int(Command.OFFSETS), msgspec.Raw(b"\x91\xa1t")), [b"x"], "OFFSETS: bulk is not valid"),
        (peers.Forward("", int(Command.OFFSETS), msgspec.Raw(b"\x91\xa1t")), [], "FORWARD: caller is not valid"),
    ],
)
def test_an_envelope_with_something_else_in_it_is_refused_alone(
    envelope: peers.Forward, bulk: list[bytes], match: str
) -> None:
    _, server = open_pair()
    assert server.receive(b"".join(encode_frame(Command.FORWARD, 7, envelope, bulk))) == []
    assert not server.is_closed
    [(correlation, error)] = errors_in(sent(server))
    assert correlation == 7
    with pytest.raises(ProtocolError, match=match):
        raise error
