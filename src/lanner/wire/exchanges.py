"""Which control part belongs to which command: the one table that both ends decode by.

It knows types and how to say, in words, what is wrong with a control part that does not fit its type. It does not know
frames, connections or what a broker does with a command.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from lanner.errors import LannerError, NotSupported, ProtocolError, RemoteProtocolError
from lanner.wire import administration, cluster, dead, members, messages, peers, staging
from lanner.wire.messages import Command, Control


class Exchange(NamedTuple):
    """One command: what asks, what answers, whether bulk bytes may come with either, and whether it is answered."""

    request: type[Control]
    reply: type[Control]
    request_bulk: bool = False
    reply_bulk: bool = False
    answered: bool = True


EXCHANGES: Final[Mapping[Command, Exchange]] = {
    Command.HELLO: Exchange(messages.Hello, messages.HelloReply),
    Command.PING: Exchange(messages.Empty, messages.Empty),
    Command.METADATA: Exchange(messages.Metadata, messages.MetadataReply),
    Command.OPEN_PRODUCER: Exchange(messages.OpenProducer, messages.ProducerOpened),
    Command.PUBLISH: Exchange(messages.Publish, messages.Published, request_bulk=True),
    Command.FETCH: Exchange(messages.Fetch, messages.Fetched, reply_bulk=True),
    Command.POLL: Exchange(messages.Poll, messages.Polled, reply_bulk=True),
    Command.SETTLE: Exchange(messages.Settle, messages.Settled),
    Command.COMMIT: Exchange(messages.Commit, messages.Empty),
    Command.COMMITTED: Exchange(messages.Committed, messages.CommittedReply),
    Command.PEEK: Exchange(messages.Peek, messages.Peeked),
    Command.OFFSETS: Exchange(messages.Offsets, messages.OffsetsReply),
    Command.RELEASE: Exchange(messages.Release, messages.Settled),
    Command.CREATE_TOPIC: Exchange(administration.CreateTopic, administration.TopicDescription),
    Command.DELETE_TOPIC: Exchange(administration.DeleteTopic, messages.Empty),
    Command.ALTER_TOPIC: Exchange(administration.AlterTopic, administration.TopicDescription),
    Command.DESCRIBE_TOPIC: Exchange(administration.DescribeTopic, administration.TopicDescription),
    Command.LIST_TOPICS: Exchange(administration.ListTopics, administration.TopicNames),
    Command.LIST_GROUPS: Exchange(administration.ListGroups, administration.GroupsReply),
    Command.DESCRIBE_GROUP: Exchange(administration.DescribeGroup, administration.GroupDescription),
    Command.DROP_GROUP: Exchange(administration.DropGroup, messages.Empty),
    Command.SEEK: Exchange(administration.Seek, messages.Empty),
    Command.LIST_DEAD: Exchange(administration.ListDead, administration.DeadLetters, reply_bulk=True),
    Command.REDRIVE: Exchange(administration.RedriveDead, administration.CountReply),
    Command.DISCARD: Exchange(administration.DiscardDead, administration.CountReply),
    Command.BEST_PRIORITY: Exchange(messages.BestPriority, messages.BestPriorityFound),
    Command.STAGE: Exchange(staging.Stage, staging.Staged, request_bulk=True),
    Command.PREPARE: Exchange(staging.Prepare, staging.PartitionOutcomes),
    Command.FETCH_DEAD: Exchange(dead.FetchDead, dead.FetchedDead, reply_bulk=True),
    Command.DISCARD_STAGES: Exchange(staging.DiscardStages, staging.PartitionOutcomes),
    Command.DESCRIBE_CLUSTER: Exchange(cluster.DescribeCluster, cluster.ClusterDescription),
    Command.DESCRIBE_PARTITIONS: Exchange(cluster.DescribePartitions, cluster.PartitionsDescription),
    Command.CHANGE_CLUSTER: Exchange(cluster.ChangeCluster, cluster.ClusterChanged),
    Command.RAFT_STATUS: Exchange(cluster.RaftStatus, cluster.RaftStatusReply),
    Command.SCRUB: Exchange(cluster.Scrub, cluster.ScrubProgress),
    Command.BEGIN: Exchange(staging.Begin, staging.CommitState),
    Command.END: Exchange(staging.End, staging.CommitState),
    Command.LOOK: Exchange(staging.Look, staging.Looked),
    Command.CLAIM: Exchange(staging.Claim, staging.Claimed),
    Command.LIST_TRANSACTIONS: Exchange(staging.ListTransactions, staging.TransactionList),
    Command.FORGET: Exchange(staging.Forget, administration.CountReply),
    Command.CLAIM_PARTITIONS: Exchange(members.ClaimPartitions, members.ClaimedPartitions),
    Command.JOIN_GROUP: Exchange(members.JoinGroup, members.MemberView),
    Command.HEARTBEAT: Exchange(members.Heartbeat, members.MemberView),
    Command.LEAVE_GROUP: Exchange(members.LeaveGroup, messages.Empty),
    Command.LIST_MEMBERS: Exchange(members.ListMembers, members.GroupMembers),
    Command.ALTER_GROUP: Exchange(members.AlterGroup, members.GroupAltered),
    Command.EVICT_MEMBER: Exchange(members.EvictMember, messages.Empty),
    Command.MAKE_GROUP: Exchange(members.MakeGroup, messages.Empty),
    Command.LIST_CLIENTS: Exchange(members.ListClients, members.ClientList),
    Command.PEER_INFO: Exchange(peers.PeerInfo, peers.PeerInfoReply),
    Command.PROPOSE: Exchange(peers.Propose, peers.Proposed, request_bulk=True),
    Command.FORWARD: Exchange(peers.Forward, messages.Empty, request_bulk=True),
    Command.RAFT: Exchange(peers.RaftFrame, messages.Empty, request_bulk=True, answered=False),
    Command.SNAPSHOT: Exchange(peers.SnapshotFrame, messages.Empty, request_bulk=True, answered=False),
    Command.PULSE: Exchange(peers.Pulse, messages.Empty, answered=False),
    Command.REPORT: Exchange(staging.Report, messages.Empty, answered=False),
}

assert set(EXCHANGES) == set(Command)

# Beside its own errors the decoder lets through what a hostile control part can provoke in it.
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)

_PATH: Final = re.compile(r"`(?:key in )?\$([^`]*)`")
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]")
_TOO_SHORT: Final = re.compile(r"Expected `array` of at least length \d+, got (\d+)")


def explain(what: str, kind: type[Control], error: Exception) -> RemoteProtocolError:
    """The decoder's error in the words of the protocol: which command, which field, what was wrong."""
    text = str(error) or type(error).__name__
    path = _PATH.search(text)
    names, innermost = _names(kind, path[1] if path else "")
    too_short = _TOO_SHORT.match(text)
    if too_short and innermost is not None:
        names.append(innermost.__struct_fields__[int(too_short[1])])
        text = "it is missing"
    field = ".".join(names) or "control"
    text = text.split(" - at ")[0]
    return RemoteProtocolError(f"{what}: {field} is not valid: {text}", command=what, field=field)


def _names(kind: Any, path: str) -> tuple[list[str], type[Control] | None]:
    """The field names along a path of the decoder, and the struct it ends in. Structs travel as arrays, so the
    decoder names a field by its place."""
    names: list[str] = []
    for step in _STEP.findall(path):
        kind = _bare(kind)
        if isinstance(kind, type) and issubclass(kind, Control) and step != "...":
            name = kind.__struct_fields__[int(step)]
            names.append(name)
            kind = typing.get_type_hints(kind)[name]
        else:
            kind = next(iter(typing.get_args(kind)), None)
    kind = _bare(kind)
    return names, kind if isinstance(kind, type) and issubclass(kind, Control) else None


def _bare(kind: Any) -> Any:
    """A type without `| None`; its bounds are gone already, since get_type_hints drops them."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def of_older_release(error: LannerError, command: Command) -> LannerError:
    """Say of a command that the broker cannot know yet what to do about it; every other error as it is."""
    if not isinstance(error, ProtocolError) or error.details.get("field") != "command":
        return error
    return NotSupported(
        f"the broker is of an older release, which has no {command.name}: upgrade every broker, then run "
        "`lanner cluster upgrade`"
    )
