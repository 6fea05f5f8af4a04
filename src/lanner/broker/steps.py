"""The steps of moves, carried out for the sets that are led here.

The metadata names each step again until it is reported done, so a step looks first at what is there: what was done
before, by this leader or an earlier one, is only reported. A change of membership counts as done when its entry has
committed; before that another leader could take it back. What cannot be done now is tried again, and what could not be
done for long is reported as failed, with the reason; the metadata decides what follows from that.

Nothing here knows a clock: time is counted in ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.replica import Replica
from lanner.cluster import Action, Cluster, Step, encode_fail_step, encode_finish_step
from lanner.errors import LannerError
from lanner.raft import Change, RaftNode

FAIL_TICKS: Final = 600  # so long in vain, and the step is reported as failed
REPORT_TICKS: Final = 40  # a report whose effect is not seen is handed out again
TRANSFER_TICKS: Final = 40  # a set takes no proposals while leadership is handed over: not too often
ROUND_TICKS: Final = 20  # a round of catching up that is this short was the last
LEAD_LAG_MAX: Final = 256  # entries; with leadership on its way they arrive within moments

Alive = Callable[[str], bool]
Route = Callable[[int, int], "str | None"]

_CHANGES: Final = {
    Action.ADD_LEARNER: Change.ADD_LEARNER,
    Action.PROMOTE: Change.PROMOTE,
    Action.DEMOTE: Change.DEMOTE,
    Action.BACK_DEMOTE: Change.DEMOTE,
    Action.REMOVE: Change.REMOVE,
    Action.BACK_REMOVE: Change.REMOVE,
    Action.BACK_PROMOTE: Change.PROMOTE,
}


@dataclass(slots=True)
class _Attempt:
    """One step, since it was first tried here."""

    since_tick: int
    report: bytes | None = None
    report_tick: int = 0  # when the report is to be handed out (again)
    once: bool = False  # a failure counts each time that it is told
    transfer_tick: int = 0
    round_index: int = -1  # of catching up: what the log's end was when the round began
    round_tick: int = 0
    seen: tuple[int, int] = (-1, -1)  # how far the replica was when that last changed


class Steps:
    """The steps that this broker carries out, and its reports of them."""

    def __init__(self, engine: Engine, route: Route) -> None:
        self._engine = engine
        self._route = route
        self._attempts: dict[
            tuple[int, int, Action], _Attempt
        ] = {}  # a move that is taken back goes on at the same step
        self._ticks = 0

    def tick(self, cluster: Cluster, alive: Alive) -> None:
        """Do what can be done now of everything that the metadata names."""
        self._ticks += 1
        steps = cluster.next_steps() if cluster.moves else []
        if self._attempts:
            named = {(step.move_id, step.position, step.action) for step in steps}
            for key in self._attempts.keys() - named:
                del self._attempts[key]
        for step in steps:
            key = (step.move_id, step.position, step.action)
            replica = self._engine.replicas.get(step.set_id)
            if replica is None or not replica.leads:
                self._attempts.pop(key, None)
                continue
            attempt = self._attempts.setdefault(key, _Attempt(self._ticks))
            if attempt.report is None:
                self._try(step, replica, attempt, alive)

    def take_reports(self) -> list[bytes]:
        reports = []
        for attempt in self._attempts.values():
            if attempt.report is not None and attempt.report_tick <= self._ticks:
                reports.append(attempt.report)
                attempt.report_tick = self._ticks + REPORT_TICKS
                if attempt.once:
                    attempt.report, attempt.once = None, False
        return reports

    def _try(self, step: Step, replica: Replica, attempt: _Attempt, alive: Alive) -> None:
        try:
            waits_for = self._carry_out(step, replica, attempt, alive)
        except LannerError as error:
            waits_for = error.message
        self._engine.wake(step.set_id)
        if not waits_for:
            attempt.report = encode_finish_step(step.move_id, step.position, step.action)
            attempt.report_tick = self._ticks
        elif self._ticks - attempt.since_tick >= FAIL_TICKS:
            attempt.report = encode_fail_step(step.move_id, step.position, step.action, waits_for)
            attempt.report_tick = attempt.since_tick = self._ticks
            attempt.once = True

    def _carry_out(self, step: Step, replica: Replica, attempt: _Attempt, alive: Alive) -> str:
        """Begin the step, or see how far it is. Empty: it is done; else what it waits for."""
        node, number = replica.node, step.replica_id
        if step.action is Action.CATCH_UP:
            return self._catch_up(step, node, attempt, alive)
        if step.action in (Action.HAND_OVER, Action.BACK_HAND_OVER):
            return self._lead_away(step, node, attempt, alive) if node.node_id == number else ""
        if _is_done(step.action, node, number):
            if node.memberships.current_index <= node.commit_index:
                return ""
            return "the change of membership has not committed yet"
        if node.node_id == number:  # who leads does not take itself out: first somebody else must lead
            return self._lead_away(step, node, attempt, alive)
        if step.action in (Action.PROMOTE, Action.BACK_PROMOTE):
            reason = self._unfit(step.set_id, node, number, alive)
            if reason:  # a voter that does not answer would weaken the set
                return reason
        elif number in node.voters and not self._can_do_without(step.set_id, node, number, alive):
            return "those who would be left to vote do not answer"
        node.change_membership(_CHANGES[step.action], number)
        return "the change of membership has not committed yet"

    def _catch_up(self, step: Step, node: RaftNode, attempt: _Attempt, alive: Alive) -> str:
        """Caught up is what the Raft dissertation says: entries go on coming in, so a replica catches up in rounds.

        A round begins with the log's end of that moment and is over when the replica holds it. A round that took no
        longer than an election timeout was the last: the replica is close to the end, and moves as fast as it does.
        """
        progress = None if node.leadership is None else node.leadership.progress.get(step.replica_id)
        if progress is None:
            return f"replica {step.replica_id} is not a member of its set"
        sending, key = self._engine.sending, (step.set_id, step.replica_id)
        outgoing = sending.outgoing.get(key)
        seen = (progress.match_index, -1 if outgoing is None else outgoing.number)
        if seen != attempt.seen or key in sending.waiting:
            # It moves, or waits for its turn to get a snapshot, so nothing has failed, however slow it is.
            attempt.seen, attempt.since_tick = seen, self._ticks
        if attempt.round_index < 0:
            attempt.round_index, attempt.round_tick = node.last_index, self._ticks
        if progress.match_index >= attempt.round_index:
            if self._ticks - attempt.round_tick <= ROUND_TICKS:
                return ""
            attempt.round_index, attempt.round_tick = node.last_index, self._ticks
        if not alive(step.node_id):
            return f"the broker of replica {step.replica_id} does not answer"
        return f"replica {step.replica_id} is at {progress.match_index} of {node.last_index} entries"

    def _lead_away(self, step: Step, node: RaftNode, attempt: _Attempt, alive: Alive) -> str:
        """This replica must stop leading; the next leader finds that done, and reports it."""
        if node.transferee or self._ticks < attempt.transfer_tick:
            return "leadership is on its way to another replica"
        successor = self.successor(step.set_id, node, alive, step.successor)
        if not successor:
            return "no other replica is fit to lead"
        attempt.transfer_tick = self._ticks + TRANSFER_TICKS
        node.transfer(successor)
        return "leadership is on its way to another replica"

    def successor(self, set_id: int, node: RaftNode, alive: Alive, wanted: int = 0) -> int:
        """Return the replica that could lead instead: the wanted one, or else any whose copy is whole; 0 for none."""
        fit = [peer for peer in sorted(node.voters) if not self._unfit(set_id, node, peer, alive)]
        record = self._engine.cluster.sets.get(set_id)
        if record is not None and record.damaged:  # these would decline
            fit = [peer for peer in fit if peer not in record.damaged] or fit
        if node.reluctant and node.leadership is not None and fit:  # one that is behind may need what is damaged here
            held = {peer: node.leadership.progress[peer].match_index for peer in fit}
            fit = [peer for peer in fit if held[peer] == max(held.values())]
        if wanted in fit:
            return wanted
        return fit[set_id % len(fit)] if fit else 0

    def _can_do_without(self, set_id: int, node: RaftNode, number: int, alive: Alive) -> bool:
        """Whether a majority of the other voters is there. If not, the change itself could never commit."""
        left = node.voters - {number}
        there = sum(voter == node.node_id or not self._unfit(set_id, node, voter, alive) for voter in left)
        return there > len(left) // 2

    def is_fit(self, set_id: int, node: RaftNode, peer: int, alive: Alive) -> bool:
        """Whether leadership may go there: to a voter that is heard and has all but the last moments of the log."""
        return peer in node.voters and not self._unfit(set_id, node, peer, alive)

    def _unfit(self, set_id: int, node: RaftNode, peer: int, alive: Alive) -> str:
        progress = None if node.leadership is None else node.leadership.progress.get(peer)
        if progress is None:
            return f"replica {peer} is not a member of its set"
        node_id = self._route(set_id, peer)
        if node_id is None or not alive(node_id):
            return f"the broker of replica {peer} does not answer"
        if not progress.heard or node.last_index - progress.match_index > LEAD_LAG_MAX:
            return f"replica {peer} is at {progress.match_index} of {node.last_index} entries"
        return ""


def _is_done(action: Action, node: RaftNode, number: int) -> bool:
    voter, learner = number in node.voters, number in node.learners
    if action is Action.ADD_LEARNER:
        return voter or learner
    if action in (Action.PROMOTE, Action.BACK_PROMOTE):
        return voter
    if action in (Action.DEMOTE, Action.BACK_DEMOTE):
        return not voter
    return not voter and not learner
