"""Consensus on one log, as a machine without hands.

The room knows terms, votes, the log's indexes and what it takes to commit. It refuses to know disks, sockets, clocks
and what a payload means: the caller ticks it, gives it messages and proposals, and carries out what it asks for. So
one seed replays it exactly, and the same core runs over a journal, over memory, or in a simulator. Its shape is that
of etcd's RawNode, because drivers of that shape are well understood and another core could take its place.

The driver's loop::

    node = RaftNode(config, restored, log, rng)
    node.campaign()                              # a sole voter need not wait for a timeout
    while True:
        ...                                      # node.tick(), node.step(message), node.propose(payload)
        while node.has_ready():
            ready = node.ready()                 # hands out, once, everything that is new
            send(ready.messages)                 # at once: what depends on the disk is not among them yet
            if ready.must_store:
                queue_write(ready.hard_state, ready.entries, then=lambda: node.advance(ready))
            for entry in ready.committed:        # durable here and committed: safe to apply at once
                machine.apply(entry)
            if ready.committed:
                node.applied(ready.committed[-1].index)

Rules
- `ready()` hands a thing out once, and is asked again after `advance`, and whenever something was put in: several
  readies may be on their way to the disk. Those that store something complete in order, each by one `advance(ready)`.
  A crash may lose every ready that was not advanced, and nothing else.
- Term and vote are durable before they count, a candidate's vote for itself included.
- An entry commits when a majority holds it durably *and* it, or a later one, is of the leader's own term. So a leader
  first appends an empty entry; when that one has been applied (`own_term_applied`) it may decide things.
- `committed` holds each entry once, in order, never before it is durable here. After a restart it begins behind what
  the machine had saved, and entries that only the disk has are read through `LogReader`, some at a time.
- Messages may be lost, doubled, late and out of order; that costs time, never safety. A message to another receiver id
  is ignored: a replica that lost its disk comes back under a new id, as a learner.
- Membership changes one node at a time and takes effect when appended (see `membership`).
- A snapshot's content is the driver's business. `ready.snapshots` names peers that need one: stream it, announced by
  `snapshot_message`, then `report_snapshot`. `installing` is the one that a leader offers this node: build it beside
  the log, and if `begin_install` still wants it, let one write flip to it, then call `installed`.
- What was proposed and is not yet committed is bounded in bytes; beyond it `propose` answers Overloaded.
"""

from lanner.raft.codec import decode_message, encode_message
from lanner.raft.config import Config, Restored
from lanner.raft.entry import (
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SoftState,
)
from lanner.raft.log import LogReader
from lanner.raft.membership import Change, Membership, find_memberships
from lanner.raft.node import RaftNode

__all__ = [
    "Change",
    "Config",
    "Entry",
    "EntryKind",
    "HardState",
    "LogReader",
    "Membership",
    "Message",
    "MessageKind",
    "RaftNode",
    "Ready",
    "Restored",
    "Role",
    "Snapshot",
    "SoftState",
    "decode_message",
    "encode_message",
    "find_memberships",
]
