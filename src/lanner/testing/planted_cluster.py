"""Bugs that it takes several brokers to have: mistakes in votes, commits, memberships, snapshots and leadership.

Each is the smallest change of the real code that makes it, put in from outside. See `planted`.
"""

from __future__ import annotations

from typing import Any, Final

from lanner.broker.links.acquaintances import Acquaintances
from lanner.broker.links.founding import Founding
from lanner.broker.pace import Pace
from lanner.broker.replicas import restoring
from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.installs import Incoming
from lanner.broker.replicas.replica import Replica
from lanner.broker.replicas.snapshots import SnapshotSender
from lanner.broker.steps import Steps
from lanner.broker.steward import Steward
from lanner.errors import UnknownRecord
from lanner.raft import HardState, Message, MessageKind, RaftNode, Role, Snapshot
from lanner.raft.electing import Election
from lanner.raft.following import Following
from lanner.raft.leading import Leadership
from lanner.raft.log import Tail
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_troubles import Troubles
from lanner.testing.disk import SimDisk
from lanner.testing.plants import Patch, Plant


def _double_vote(patch: Patch) -> None:
    on_vote = Election.on_vote

    def forget_and_vote(election: Election, message: Message) -> None:
        election._node.vote = 0
        on_vote(election, message)

    patch(Election, "on_vote", forget_and_vote)


def _elect_shorter(patch: Patch) -> None:
    patch(Election, "_log_is_recent", lambda election, message: True)


def _vote_unsynced(patch: Patch) -> None:
    on_vote = Election.on_vote

    def vote_at_once(election: Election, message: Message) -> None:
        on_vote(election, message)
        granted, election._granted = election._granted, []
        for grant in granted:
            election._node.send(MessageKind.VOTE_REPLY, grant.vote, term=grant.term)

    patch(Election, "on_vote", vote_at_once)


def _lose_vote(patch: Patch) -> None:
    patch(restoring, "HardState", lambda term, vote: HardState(term, 0))


def _commit_older(patch: Patch) -> None:
    maybe_commit = Leadership.maybe_commit

    def commit_whatever_a_majority_holds(leadership: Leadership) -> None:
        first, leadership.first_own_index = leadership.first_own_index, 1
        try:
            maybe_commit(leadership)
        finally:
            leadership.first_own_index = first

    patch(Leadership, "maybe_commit", commit_whatever_a_majority_holds)
    patch(Tail, "size", lambda tail, first, last: 0)


def _truncate(patch: Patch) -> None:
    """An append that says nothing new makes the log end where it ends."""
    take = Following._take

    def take_and_cut(following: Following, entries: Any) -> None:
        node, tail = following._node, following._node.tail
        last = entries[-1].index
        if tail.delivered_index <= last < tail.last_index:
            tail.truncate(last + 1)
            if node.memberships.truncate(last + 1):
                node.membership_changed()
        take(following, entries)

    patch(Following, "_take", take_and_cut)


def _answer_unsynced(patch: Patch) -> None:
    patch(Following, "_answerable", lambda following: following._agreed_index)


def _decide_alone(patch: Patch) -> None:
    decide = Replica.decide

    def decide_and_answer(replica: Replica, *given: Any) -> None:
        decide(replica, *given)
        if replica._decision is not None:
            questions, answers = replica._decision
            replica._decision = ([], [])
            for question, answer in zip(questions, answers, strict=True):
                question.on_answer(answer, replica.node.last_index)

    patch(Replica, "decide", decide_and_answer)


def _change_early(patch: Patch) -> None:
    tick = Steps.tick

    def tick_for_every_leader(steps: Steps, *rest: Any) -> None:
        leads = Replica.leads
        Replica.leads = property(lambda replica: replica.node.role is Role.LEADER)  # type: ignore[assignment]
        try:
            tick(steps, *rest)
        finally:
            Replica.leads = leads  # type: ignore[method-assign]

    patch(Steps, "tick", tick_for_every_leader)
    patch(Leadership, "check_change", lambda leadership: None)


def _keep_identity(patch: Patch) -> None:
    def wipe_only_the_disk(troubles: Troubles, broker: ClusterBroker) -> ClusterBroker:
        troubles.cluster.crash(broker, down_ms=50)
        broker.disk = SimDisk()
        return broker

    patch(Troubles, "wipe", wipe_only_the_disk)


def _forget_members(patch: Patch) -> None:
    restore = RaftNode.restore

    def restore_all_but_members(node: RaftNode, snapshot: Snapshot) -> None:
        restore(node, snapshot._replace(voters=node.voters, learners=node.learners))

    patch(RaftNode, "restore", restore_all_but_members)


def _decide_early(patch: Patch) -> None:
    patch(RaftNode, "own_term_applied", property(lambda node: node.leadership is not None))


def _mix_moments(patch: Patch) -> None:
    patch(SnapshotSender, "holds", lambda sending, set_id: False)


def _flip_half_built(patch: Patch) -> None:
    patch(Incoming, "complete", property(lambda incoming: incoming.whole and not incoming.storing))


def _wait_for_the_disk(patch: Patch) -> None:
    patch(Engine, "_talk", lambda engine: None)


def _lead_on(patch: Patch) -> None:
    patch(Pace, "should_hand_over", property(lambda pace: False))


def _lead_damaged(patch: Patch) -> None:
    patch(Engine, "_damaged", lambda engine, set_id, error: None)


def _forget_damage(patch: Patch) -> None:
    patch(Steward, "_damage_reports", lambda steward: [])


def _rest_behind_damage(patch: Patch) -> None:
    patch(Steward, "_doubt_leader", lambda steward, cluster, replica: None)


def _tell_of_founders(patch: Patch) -> None:
    patch(Founding, "told", property(lambda founding: founding.founders))
    patch(Acquaintances, "meet", lambda others, node_id: False)


def _skip_unknown(patch: Patch) -> None:
    apply_entries = Replica._apply

    def apply_what_is_known(replica: Replica, entries: Any, effects: Any) -> None:
        machine: Any = replica.machine
        apply = machine.apply

        def apply_or_skip(index: int, payload: bytes | None) -> Any:
            try:
                return apply(index, payload)
            except UnknownRecord:
                return apply(index, None)

        machine.apply = apply_or_skip
        try:
            apply_entries(replica, entries, effects)
        finally:
            machine.apply = apply

    patch(Replica, "_apply", apply_what_is_known)


_LOG: Final = (
    "leader completeness",
    "committed entry changed",
    "committed entry lost",
    "durability",
    "log matching",
)
_QUEUE: Final = (
    "leased twice",
    "acked message redelivered",
    "stale lease accepted",
    "delivery count went back",
    "message vanished",
    "dead message delivered",
)

CLUSTER_PLANTS: Final[dict[str, Plant]] = {
    "double-vote": Plant("a node votes for everybody who asks", ("double vote", "election safety"), _double_vote),
    "shorter-log-elected": Plant("a node votes for candidates that lack what it has", _LOG, _elect_shorter),
    "vote-before-sync": Plant(
        "a vote is given before the disk holds it", ("unsynced vote", "double vote"), _vote_unsynced
    ),
    "vote-lost-on-restart": Plant(
        "a restart forgets for whom it voted", ("durable state went back", "double vote", "election safety"), _lose_vote
    ),
    "older-term-committed": Plant(
        "a leader commits entries of earlier terms because a majority has them",
        ("older term committed", *_LOG),
        _commit_older,
    ),
    "committed-entries-truncated": Plant(
        "a short append cuts off what came after it",
        ("unsynced answer", "broker refuses its own disk", "monotonic", *_LOG),
        _truncate,
    ),
    "ack-before-followers-sync": Plant(
        "a follower answers for what its disk does not hold", ("unsynced answer", *_LOG), _answer_unsynced
    ),
    "stale-leader-decides": Plant("a leader answers from a decision that no majority holds", _QUEUE, _decide_alone),
    "membership-changed-early": Plant(
        "a leader changes the membership before it has committed in its own term",
        ("early membership", "membership", *_LOG),
        _change_early,
    ),
    "wiped-voter-votes": Plant(
        "a broker that lost its disk comes back as the voter that it was",
        ("durable state went back", "double vote", "broker refuses its own disk", *_LOG),
        _keep_identity,
    ),
    "snapshot-forgets-membership": Plant(
        "a snapshot leaves the membership as it was before", ("membership", "election safety", *_LOG), _forget_members
    ),
    "decision-before-noop": Plant(
        "a new leader decides before it has applied what earlier leaders committed",
        ("early decision", *_QUEUE),
        _decide_early,
    ),
    "snapshot-of-two-moments": Plant(
        "saves go on while a snapshot's rows are read",
        ("machines differ", "message cannot be read", "replicas differ", "invariant broken"),
        _mix_moments,
    ),
    "half-built-install": Plant(
        "a snapshot takes the log's place before all of it is stored",
        ("machines differ", "message cannot be read", "replicas differ", "membership"),
        _flip_half_built,
    ),
    "heartbeats-behind-disk": Plant(
        "whatever is to be said waits until the sync that is under way has ended",
        ("deposed by a slow disk", "hung disk leads"),
        _wait_for_the_disk,
    ),
    "damaged-replica-leads": Plant(
        "a copy that is known to be damaged stands for leader as any other", ("damaged copy stands",), _lead_damaged
    ),
    "damage-not-reported": Plant(
        "nobody is told that a copy is damaged, so that it stays", ("cluster never comes to rest",), _forget_damage
    ),
    "closed-leader-believed": Plant(
        "a set that rests never asks whether the damaged copy that leads it was closed",
        ("cluster never comes to rest",),
        _rest_behind_damage,
    ),
    "told-of-founders-only": Plant(
        "a broker that joins is told of the founders only, who may be gone",
        ("cluster never comes to rest",),
        _tell_of_founders,
    ),
    "unknown-record-skipped": Plant(
        "a replica skips a committed record that its release does not know",
        ("machines differ", "state differs after a restart", "replicas differ"),
        _skip_unknown,
    ),
    "hung-disk-leads": Plant("a leader whose disk hangs goes on leading", ("hung disk leads",), _lead_on),
}
