"""Node 1 of three, with the other two played by the test."""

from __future__ import annotations

import random
from typing import Any

from lanner.raft import Config, Entry, EntryKind, HardState, Message, MessageKind, RaftNode, Ready, Restored, Role
from tests.unit.raft.storage import NODE, StoredLog

VOTERS = frozenset({1, 2, 3})


def make_one_of_three(
    terms: tuple[int, ...] = (), *, term: int = 0, learners: frozenset[int] = frozenset(), **config: int
) -> tuple[RaftNode, StoredLog]:
    """A follower whose log has an entry of each given term."""
    log = StoredLog()
    log.stored = {at: Entry(at, of, EntryKind.NORMAL, b"%d" % at) for at, of in enumerate(terms, 1)}
    log.hard_state = HardState(max((term, *terms)), 0)
    restored = Restored(log.hard_state, VOTERS, learners, last_index=len(terms), last_term=terms[-1] if terms else 0)
    settings = {"election_ticks": 10, "heartbeat_ticks": 2, **config}
    return RaftNode(Config(NODE, **settings), restored, log, random.Random(3)), log


def drain(node: RaftNode, log: StoredLog) -> list[Message]:
    """Store and apply everything; the messages that came of it."""
    messages: list[Message] = []
    while node.has_ready():
        ready = node.ready()
        messages += ready.messages
        finish(node, log, ready)
    return messages


def finish(node: RaftNode, log: StoredLog, ready: Ready) -> None:
    log.store(ready)
    node.advance(ready)
    if ready.committed:
        node.applied(ready.committed[-1].index)


def say(node: RaftNode, kind: MessageKind, sender: int, *, term: int | None = None, **fields: Any) -> None:
    node.step(Message(kind=kind, sender=sender, receiver=NODE, term=node.term if term is None else term, **fields))


def elect(node: RaftNode, log: StoredLog) -> list[Message]:
    """Let node 2 vote for it; the messages it leads with."""
    node.campaign()
    drain(node, log)
    say(node, MessageKind.PRE_VOTE_REPLY, 2, term=node.term + 1)
    drain(node, log)
    say(node, MessageKind.VOTE_REPLY, 2)
    assert node.role is Role.LEADER
    return drain(node, log)


def make_leader_of_three(**config: int) -> tuple[RaftNode, StoredLog]:
    """A leader whose empty entry is committed and known to be by all."""
    node, log = make_one_of_three(**config)
    elect(node, log)
    for peer in (2, 3):
        say(node, MessageKind.APPEND_REPLY, peer, log_index=1, commit_index=1)
    drain(node, log)
    return node, log


def kinds(messages: list[Message]) -> list[tuple[str, int]]:
    return [(MessageKind(message.kind).name, message.receiver) for message in messages]
