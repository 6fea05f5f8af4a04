"""Control parts that only brokers say to each other, over links that began with a PeerHello.

RAFT, SNAPSHOT and PULSE are not answered: Raft has its own answers, and losing a frame costs only time.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, field

from lanner import limits
from lanner.wire.messages import Address, Asked, Control, Name, Number


class Founder(Control):
    name: Name
    node_id: Name
    addresses: Annotated[dict[Name, Address], Meta(max_length=10)]
    rack: Name = ""
    feature_min: Number = 1
    feature_max: Number = 1


class PeerInfo(Asked["PeerInfoReply"]):
    """Who are you, and which cluster do you belong to? Asked while a cluster is founded or joined.

    With `join` set, the asker wants to be registered under what it says of itself."""

    asker: Founder
    join: bool = False


class PeerInfoReply(Control):
    broker: Founder
    cluster_id: Name = ""  # empty: none yet
    founders: Annotated[list[Founder], Meta(max_length=limits.BROKERS_MAX)] = field(default_factory=list)  # recorded
    replica_id: Number = 0  # of the metadata's set, for a broker that asked to join; 0: not given yet, ask again
    seeds: Annotated[list[Address], Meta(max_length=limits.BROKERS_MAX)] = field(default_factory=list)  # as it was told
    brokers: Annotated[list[Founder], Meta(max_length=limits.BROKERS_MAX)] = field(
        default_factory=list
    )  # that the cluster has now, for a broker that asked to join; none from 0.1.0


class Forward(Control):
    """A call, passed on by the broker where it came in to the one that serves it, with the name of who made it. Bulk:
    that of the call. It is answered as the call is. From feature level 4 on."""

    caller: Annotated[str, Meta(min_length=1, max_length=limits.NAME_LENGTH_MAX)]
    command: Annotated[int, Meta(ge=0, le=127)]  # of the call
    call: Raw  # its control part


class Propose(Asked["Proposed"]):
    """Bulk: one command of the metadata machine, for the broker that leads it."""


class Proposed(Control):
    index: Number  # where it was applied: the outcome is known to every broker that has applied that


class RaftFrame(Control):
    """Not answered. Bulk: Raft messages one after the other, each of one replica set."""

    items: Annotated[list[tuple[Number, Number]], Meta(max_length=limits.RAFT_FRAME_MESSAGES_MAX)]  # (set, bytes)


class SnapshotFrame(Control):
    """Not answered. Bulk: a piece of a snapshot, or the answer to one."""


class Pulse(Control):
    """Not answered. A sign of life, the sender's clock, and which sets it leads since which term (what changed)."""

    now_ms: Number
    leads: Annotated[list[tuple[Number, Number]], Meta(max_length=limits.PARTITIONS_TOTAL_MAX + 1)] = field(
        default_factory=list
    )  # (set, term)
    leaving: bool = False  # it stops: nobody should hand leadership to it
    # From feature level 5 on, about members of groups:
    heard: Annotated[list[Number], Meta(max_length=limits.MEMBERS_HEARD_MAX)] = field(
        default_factory=list
    )  # numbers of members that the sender has heard since the last one; said only to who leads the metadata
    sent_ms: Number = 0  # by a clock of the sender that is never set
    echo_ms: Number = 0  # `sent_ms` of the latest pulse that the sender has from the receiver; 0: none
