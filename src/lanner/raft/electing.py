"""How a node comes to lead: asking whether an election could be won, then winning it.

- *Pre-vote.* A node whose timer ran out first asks, without a new term, who would vote for it. One that was cut off
  asks in vain when it returns, and disturbs nobody.
- *The lease of a leader.* Who has heard from a leader within the shortest election timeout answers no candidate, so a
  node that was removed, or hears nobody, cannot depose a leader that others follow. A leader that loses its
  majority steps down before that time is over. An election the leader asked for itself (a hand-over) passes the lease.
- *Reluctance.* A node whose copy of the log is damaged (its driver says so) leaves it to others to lead. Only when
  nobody has led for several timeouts it stands itself: a set of which every copy has some damage must not stand still.
- *Nothing is said before it is durable.* A vote is answered, and votes are asked for, once term and vote are on disk: a
  candidate that forgot its candidacy could stand again in the same term, with a shorter log, and count old answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanner.raft.entry import HardState, Message, MessageKind, Role

if TYPE_CHECKING:
    from lanner.raft.node import RaftNode

FORCED: Final = 1
DECLINED_MAX: Final = 5  # so often a reluctant node leaves it to others


class Election:
    """One node's part in elections, its own and others'."""

    __slots__ = ("_declined", "_forced", "_granted", "_node", "_requested", "_votes")

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._votes: dict[int, bool] = {}
        self._forced = False
        self._requested = False
        self._declined = 0  # since somebody led
        self._granted: list[HardState] = []  # votes that are told to their candidates once they are durable

    def reset(self) -> None:
        self._votes.clear()
        self._forced = self._requested = False

    def leader_known(self) -> None:
        """Count the elections that a reluctant node declines anew: a leader was heard."""
        self._declined = 0

    # ------------------------------------------------------------------ standing

    def campaign(self, *, forced: bool = False) -> None:
        node = self._node
        if node.role is Role.LEADER or node.node_id not in node.voters or node.following.flipping:
            return
        if node.role is Role.CANDIDATE and node.durable_hard_state.term < node.term:
            return  # its own vote is still being written: a slow disk is no reason for another term
        if node.reluctant and len(node.voters) > 1 and self._declined < DECLINED_MAX:
            self._declined += 1
            return
        if forced or len(node.voters) == 1:
            self._start(forced=forced)
            return
        node.become_pre_candidate()
        self._votes[node.node_id] = True
        self._request_votes(MessageKind.PRE_VOTE, node.term + 1)

    def on_timeout_now(self, message: Message) -> None:
        """The leader hands over: stand without a pre-vote, and let the others ignore their lease on it."""
        self.campaign(forced=True)

    def _start(self, *, forced: bool = False) -> None:
        self._node.become_candidate()
        self._forced = forced

    def hard_state_stored(self) -> None:
        """Tell the candidate that has the vote, and ask for votes: term and vote are durable."""
        node = self._node
        durable = node.durable_hard_state
        if self._granted:
            granted, self._granted = self._granted, []
            for grant in granted:
                if grant.term > durable.term:
                    self._granted.append(grant)
                elif grant.term == node.term and durable == grant:
                    node.send(MessageKind.VOTE_REPLY, grant.vote)
        if node.role is not Role.CANDIDATE or self._requested or durable != (node.term, node.node_id):
            return
        self._requested = True
        self._votes[node.node_id] = True
        if not self._count_votes():
            self._request_votes(MessageKind.VOTE, node.term)

    def _request_votes(self, kind: MessageKind, term: int) -> None:
        node, tail = self._node, self._node.tail
        context = FORCED if self._forced else 0
        for voter in sorted(node.voters):
            if voter != node.node_id:
                node.send(kind, voter, term=term, log_index=tail.last_index, log_term=tail.last_term, context=context)

    # ------------------------------------------------------------------ answers to an own candidacy

    def on_pre_vote_reply(self, message: Message) -> None:
        node = self._node
        if node.role is Role.PRE_CANDIDATE and (message.rejected or message.term == node.term + 1):
            self._votes.setdefault(message.sender, not message.rejected)
            self._count_votes()

    def on_vote_reply(self, message: Message) -> None:
        if self._node.role is Role.CANDIDATE and self._requested:
            self._votes.setdefault(message.sender, not message.rejected)
            self._count_votes()

    def _count_votes(self) -> bool:
        """Win or lose the election if the votes decide it; whether they do."""
        node = self._node
        granted = sum(self._votes.get(voter, False) for voter in node.voters)
        refused = sum(not self._votes.get(voter, True) for voter in node.voters)
        if granted >= node.quorum:
            if node.role is Role.PRE_CANDIDATE:
                self._start()
            else:
                node.become_leader()
            return True
        if refused >= node.quorum:
            node.become_follower(node.term, 0)
            return True
        return False

    # ------------------------------------------------------------------ the candidacies of others

    def has_live_leader(self, candidate: int) -> bool:
        """Whether a leader was heard within the shortest election timeout, so that no other should be elected."""
        node = self._node
        if node.role is Role.LEADER:
            return True
        return node.leader_id not in (0, candidate) and node.elapsed_ticks < node.config.election_ticks

    def on_pre_vote(self, message: Message) -> None:
        """Answer a pre-vote, which promises nothing and changes nothing."""
        node = self._node
        if self.has_live_leader(message.sender):
            return
        if message.term > node.term and self._log_is_recent(message):
            node.send(MessageKind.PRE_VOTE_REPLY, message.sender, term=message.term)
        else:
            node.send(MessageKind.PRE_VOTE_REPLY, message.sender, rejected=True)

    def on_vote(self, message: Message) -> None:
        """Grant or refuse a vote in this node's own term, which it has moved to already if it had to."""
        node = self._node
        free = node.vote == message.sender or (node.vote == 0 and node.leader_id == 0)
        if not (free and node.role is not Role.LEADER and self._log_is_recent(message)):
            node.send(MessageKind.VOTE_REPLY, message.sender, rejected=True)
            return
        node.vote = message.sender
        node.elapsed_ticks = 0
        grant = HardState(node.term, node.vote)
        if node.durable_hard_state == grant:
            node.send(MessageKind.VOTE_REPLY, message.sender)
        else:
            self._granted.append(grant)

    def _log_is_recent(self, message: Message) -> bool:
        """Whether the candidate's log is at least as recent as this node's."""
        tail = self._node.tail
        return (message.log_term, message.log_index) >= (tail.last_term, tail.last_index)
