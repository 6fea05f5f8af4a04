"""Members of groups: how they join, tell that they live, claim and give up partitions, and leave; and who is connected.

All of it is there from feature level 5 on. A *member id* is chosen by the client at random, new with every join. A
group has a *number*, which is never given twice, and a *generation*, which rises with every change of it; a *grant*
is the generation in which a partition was given to its owner. A member says with each call which (number, generation)
it has seen: that of the newest view that it acts on.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from lanner import limits
from lanner.wire.messages import Call, Control, Empty, Name, Number, PartitionId, Partitions

MemberId = Annotated[str, Meta(min_length=1, max_length=limits.IDENTITY_LENGTH_MAX)]
MemberName = Annotated[str, Meta(max_length=limits.MEMBER_LENGTH_MAX)]
Reason = Annotated[str, Meta(max_length=limits.REASON_LENGTH_MAX)]
Limit = Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)]


# ------------------------------------------------------------------ what members say


class GrantedPartition(Control):
    """A partition under one grant."""

    topic: Name
    incarnation: Number  # of the topic
    partition: PartitionId
    grant: Number
    first: bool = True  # it was there when the group first wanted the topic; else the group begins here at the earliest


class JoinGroup(Call["MemberView"]):
    """Become a member. Repeated under the same id it gets the same answer."""

    group: Name
    kind: Name  # "queue" or "stream"
    member_id: MemberId  # chosen at random, new with every join
    topics: Annotated[list[Name], Meta(max_length=limits.SUBSCRIPTION_TOPICS_MAX)] = field(default_factory=list)
    patterns: Annotated[list[Name], Meta(max_length=limits.SUBSCRIPTION_PATTERNS_MAX)] = field(
        default_factory=list
    )  # with * and ?
    assignor: Name = ""  # empty: the group's; of a new one shared for queues, sticky for streams
    instance: Name = ""  # with it a newer process takes the place of an older one, without a rebalance
    session_ms: Number = 0  # silent for so long it is no member any more; 0: the group's
    rack: Name = ""
    client: Name = ""  # how it calls itself: shown to people
    opaque: Annotated[bytes, Meta(max_length=limits.OPAQUE_BYTES_MAX)] = b""  # kept for the member, never read
    start: Name = "earliest"  # or "latest": where a group that does not exist yet begins, on all partitions at once
    door: Name = ""  # by which door it came, where that is not the native one


class MemberView(Control):
    """What a member has, as the broker's copy of the metadata says."""

    number: int  # of the group
    generation: int
    member_number: int
    session_ms: int
    held: list[GrantedPartition]
    revoked: list[GrantedPartition]  # to be finished, committed and released: another member follows
    confirmed_ms: int = -1  # so long ago the metadata's leader was told last whom this broker hears; -1: never
    news: bool = True  # False: nothing has changed for this member since what it has seen; held and revoked are empty
    assignor: str = ""
    shared: bool = False  # every member polls every partition, and nobody owns one


class Heartbeat(Call["MemberView"]):
    """Tell that a member lives, and what it gives up. Answered when its view changes, or when the wait is over."""

    group: Name
    member_id: MemberId
    number: Number  # of the group, and
    generation: Number  # of the newest view that the member has seen
    released: Annotated[list[GrantedPartition], Meta(max_length=limits.RELEASES_MAX)] = field(default_factory=list)
    wait_ms: Number = 0  # at most a quarter of the session


class LeaveGroup(Call[Empty]):
    group: Name
    member_id: MemberId
    reason: Reason = ""


class ClaimPartitions(Call["ClaimedPartitions"]):
    """The first thing that a new owner of a stream's partitions does: from then on older ones are refused there."""

    topic: Name
    group: Name
    member_id: MemberId
    number: Number
    generation: Number
    incarnation: Number
    partitions: Partitions
    start: Name = "earliest"  # or "latest": where the group begins, if it is not there yet


class ClaimedPartition(Control):
    partition: int
    code: int = 0  # 0, or a catalogue code (MemberFenced, ...)
    offset: int = 0  # the next to read
    committed: bool = False  # the group has committed; else this is where it began
    metadata: bytes = b""  # what the latest commit brought along
    sequence: int = -1  # of this member's latest commit; -1: none


class ClaimedPartitions(Control):
    partitions: list[ClaimedPartition]


class MakeGroup(Call[Empty]):
    """Begin a group where it is not there yet, on all partitions at once."""

    topic: Name
    group: Name
    kind: Name  # "queue" or "stream"
    start: Name = "earliest"  # or "latest"
    partitions: Partitions | None = None


# ------------------------------------------------------------------ what operators ask


class AlterGroup(Call["GroupAltered"]):
    """Change a group that has, or had, members. With nothing to change it only begins another generation."""

    group: Name
    assignor: Name = ""  # sticky, range, round_robin or shared; empty: as it is
    session_ms: Number = 0  # 0: as it is
    revoke_ms: Number = 0  # 0: as it is


class GroupAltered(Control):
    number: int
    generation: int


class EvictMember(Call[Empty]):
    """Have a member be none any more. Its process is told MemberUnknown."""

    group: Name
    member_id: MemberId
    reason: Reason = ""


class ListMembers(Call["GroupMembers"]):
    """One page of a group's members, by their numbers. GroupNotFound: it has never had members."""

    group: Name
    after: Number = 0  # GroupMembers.next of the last page
    limit: Limit = 100


class PartitionRange(Control):
    """Partitions of one topic that follow each other."""

    topic: str
    first: int
    last: int


class HandOver(Control):
    """A partition that waits for its owner to give it up."""

    topic: str
    partition: int
    heir: str  # member id
    waiting_ms: int = -1  # since when; -1: not known


class MemberState(Control):
    member_id: str
    number: int
    instance: str
    client: str
    door: str
    rack: str
    session_ms: int
    joined_ms: int
    joined_age_ms: int
    held: list[PartitionRange]
    revoked: list[HandOver]
    home: str = ""  # the broker that heard it last; empty: not known
    heard_ms: int = -1  # how long ago it was heard; -1: not known
    topics: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)


class RebalanceState(Control):
    begun_ms: int
    reason: str
    moved: int
    partitions: int  # of all topics that the group wants
    took_ms: int = -1  # -1: it goes on


class GroupMembers(Control):
    group: str
    number: int
    kind: str
    assignor: str
    generation: int
    session_ms: int
    revoke_ms: int
    state: str  # "settled", "assigning", "handing over" or "empty"
    count: int  # of members, on all pages
    unowned: int  # partitions that a member wants and nobody owns
    members: list[MemberState]
    rebalances: list[RebalanceState] = field(default_factory=list)  # the latest last
    next: int = 0  # ask for what comes after this; 0: that was all
    partitions: int = 0  # that members want


# ------------------------------------------------------------------ who is connected


class ListClients(Call["ClientList"]):
    """One page of the connections of all brokers, by broker and in the order in which they came."""

    group: Name = ""  # only those that use this group
    after: tuple[Name, Number] | None = None  # ClientList.next of the last page
    limit: Limit = 100
    holders: Annotated[list[tuple[Name, Name, MemberName]], Meta(max_length=limits.CLIENT_HOLDERS_MAX)] | None = (
        None  # (group, topic, member): brokers ask each other what these hold, instead of who is connected
    )


class ClientUse(Control):
    """One group that a connection uses, and what it holds there."""

    group: str
    topic: str  # empty: only heartbeats came by this connection
    member: str  # the name that it polls or commits under; empty: it has not yet
    member_id: str = ""  # empty: it has not joined
    leased: int = (
        0  # messages that this member holds: native, where this broker leads; else everywhere; -1: not counted
    )
    until_ms: int = 0  # when the last of these leases ends; 0: none
    idle_ms: int = 0  # how long ago it used the group last


class ClientState(Control):
    node_id: str  # of the broker
    broker: str  # its name
    number: int  # of the connection, on its broker
    door: str  # native, rest or grpc
    address: str
    client: str  # how it calls itself
    since_ms: int
    age_ms: int
    uses: list[ClientUse] = field(default_factory=list)


class ClientList(Control):
    clients: list[ClientState]
    next: tuple[str, int] | None = None  # (node id, number) of the last one; None: that was all
    missing: list[str] = field(default_factory=list)  # names of brokers that did not answer
    held: list[tuple[int, int]] = field(default_factory=list)  # of each holder asked for: messages, and until when
