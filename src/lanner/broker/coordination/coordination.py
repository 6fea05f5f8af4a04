"""Coordination on one broker: it follows the groups in its copy of the metadata, and while it leads the metadata it
drives the coordinator, over the engine.

The driver of an engine drives this beside it (`node` in a real broker, the flock in tests):

    coordination = Coordination(node_id, engine, homes, clock, in_thread, counts)
    coordination.follow()              after everything that may have changed something: a pump, a commit, a message
    coordination.tick()                with every tick of the engine, 50 ms apart, at most once per turn of the loop
    coordination.hear(node_id, ...)    a pulse of another broker has told whom that one has heard

A coordinator lives from the moment at which this broker may decide (its own first entry of the term has applied) until
it leads no more. The next one begins with nothing heard and nobody silent.

Rules
- One command of the coordinator is in flight at a time; what is due meanwhile goes into the next one. What callers ask
  for (`changes`) does not wait for it: each change is decided by itself.
- An answer for more partitions than a moment allows is found in a thread, on a question that nothing changes. If the
  group changes meanwhile the answer is of an older version, and means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from lanner import limits
from lanner.broker.coordination.figures import GROUPS_TOLD_MAX, Counts, Figures, figures_of
from lanner.broker.coordination.homes import Homes
from lanner.broker.ports import Applied, Clock
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.cluster import Altered, Change, Cluster, GroupsChanged, Joined, Left, encode_change_groups
from lanner.cluster.assignors import ASSIGNORS, Answer
from lanner.cluster.coordinating import Asked, Coordinator
from lanner.errors import LannerError

TICK_MS: Final = 50
_ASKED_PARTITIONS_MAX: Final = (
    10_000  # that the questions of one tick ask for, about; making them takes the loop's time
)

Answered = list[tuple[Asked, Answer, float]]  # what was asked and answered, and how many seconds it took
InThread = Callable[[Callable[[], Answered], Callable[[Answered], None]], None]  # work, and who is told what it found


class HeardMember(NamedTuple):
    """What only the broker that leads the metadata knows of a member."""

    home: str  # node id of the broker that heard it last; empty: none since this one leads
    silent_ms: int


class Coordination:
    def __init__(
        self, node_id: str, engine: Engine, homes: Homes, clock: Clock, in_thread: InThread, counts: Counts
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._homes = homes
        self._clock = clock
        self._in_thread = in_thread
        self._counts = counts
        self._copy: Cluster | None = None  # of the metadata, as it was last followed
        self._term = 0  # in which it coordinates; 0: it does not
        self._coordinator: Coordinator | None = None
        self._in_flight = False
        self._asked: set[int] = set()  # groups whose answer is looked for in a thread
        self._home_of: dict[int, str] = {}  # member → node id of the broker that heard it last

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator, while this broker leads the metadata."""
        return self._coordinator

    # ------------------------------------------------------------------ what it is told

    def follow(self) -> None:
        """Look at what has changed in this broker's copy of the metadata, and whether it leads."""
        copy, replica = self._engine.cluster, self._engine.replicas[CLUSTER_SET]
        changed = copy.take_changed_groups()
        if copy is not self._copy:  # the first one, or one that came as a snapshot: anything may have changed
            self._copy = copy
            changed = {*copy.groups(), *self._homes.awaited}
            self._stop()
        term = replica.node.term if replica.leads else 0
        if term != self._term:
            self._stop()
            if term:
                self._term, self._coordinator = term, Coordinator(copy, TICK_MS)
                self._counts.begin(copy.groups().values())
        elif changed and self._coordinator is not None:
            self._coordinator.applied(changed)
            groups = copy.groups()
            self._counts.changed(groups[number] for number in changed if number in groups)
            self._counts.forget(number for number in changed if number not in groups)
        if changed:
            self._homes.changed(changed)

    def _stop(self) -> None:
        """Forget what was heard: another broker coordinates, or none does."""
        self._term, self._coordinator = 0, None
        self._in_flight = False
        self._asked, self._home_of = set(), {}

    def hear(self, node_id: str, members: Sequence[int]) -> None:
        """A broker has heard these members. Without effect unless this one coordinates."""
        coordinator = self._coordinator
        if coordinator is None or not members:
            return
        coordinator.heard(members)
        self._home_of.update((member, node_id) for member in members if coordinator.silent_ms(member) is not None)
        if len(self._home_of) > 2 * limits.MEMBERS_MAX:  # most have gone
            kept = [
                (member, home) for member, home in self._home_of.items() if coordinator.silent_ms(member) is not None
            ]
            self._home_of = dict(kept)

    def heard_member(self, member: int) -> HeardMember | None:
        """What is known of a member here; None: this broker does not coordinate, or has no such member."""
        silent_ms = None if self._coordinator is None else self._coordinator.silent_ms(member)
        return None if silent_ms is None else HeardMember(self._home_of.get(member, ""), silent_ms)

    def figures(self) -> Figures:
        coordinator, told = self._coordinator, []
        if coordinator is not None:
            self.follow()
            groups = islice(self._engine.cluster.groups().values(), GROUPS_TOLD_MAX)
            told = [figures_of(group, coordinator) for group in groups]
        return Figures(told, self._counts.counts)

    # ------------------------------------------------------------------ what it does

    def tick(self) -> None:
        """One more turn of the loop."""
        if CLUSTER_SET not in self._engine.replicas:
            return
        self.follow()  # the coordinator must not look at groups that are gone
        coordinator = self._coordinator
        if coordinator is None:
            return
        self.hear(self._node_id, self._homes.take_heard())
        coordinator.tick()
        self._ask(coordinator)
        if not self._in_flight:
            now_ms = self._clock.now_ms()
            due = coordinator.due(now_ms)
            if due:
                self._propose(due, now_ms)

    def _ask(self, coordinator: Coordinator) -> None:
        """Have the assignors answer what is asked now."""
        questions = [one for one in coordinator.questions(self._asked, _ASKED_PARTITIONS_MAX) if _is_known(one)]
        if not questions:
            return

        def told(found: Answered) -> None:
            if self._coordinator is coordinator:
                for asked, answer, seconds in found:
                    self._counts.assigned(seconds)
                    self._asked.discard(asked.number)
                    coordinator.answered(asked, answer)

        if sum(map(_effort, questions)) <= limits.ASSIGN_AT_ONCE_PARTITIONS_MAX:
            told(_answer(questions))
        else:
            self._asked.update(one.number for one in questions)
            self._in_thread(lambda: _answer(questions), told)

    def _propose(self, due: Sequence[Change], now_ms: int) -> None:
        term = self._term

        def told(result: Applied) -> None:
            if self._term != term:
                return  # of a time that is over
            self._in_flight = False
            if isinstance(result, GroupsChanged):
                groups = self._engine.cluster.groups()
                for change, outcome in zip(due, result.results, strict=True):
                    self._counts.took_effect(change, outcome, groups.get(_number_of(change)))

        command = encode_change_groups(due, now_ms)
        self._in_flight = True
        self._counts.proposed(len(command))
        try:
            self._engine.propose(CLUSTER_SET, command, told)
        except LannerError as error:  # it stays due
            told(error)


def _is_known(asked: Asked) -> bool:
    """An assignor of a newer release is asked where that runs; until then its groups stay as they are."""
    return asked.assignor in ASSIGNORS


def _effort(asked: Asked) -> int:
    """In partitions, as long as all members want the same; else each costs about ten times as much."""
    same = len({one.topics for one in asked.question.subscribers}) <= 1
    return sum(asked.question.topics.values()) * (1 if same else 10)


def _answer(questions: Sequence[Asked]) -> Answered:
    found = []
    for asked in questions:
        began = time.perf_counter()
        answer = ASSIGNORS[asked.assignor](asked.question)
        found.append((asked, answer, time.perf_counter() - began))
    return found


def _number_of(change: Change) -> int:
    assert not isinstance(change, Joined | Left | Altered), "those are what callers want"
    return change.number


__all__ = ["TICK_MS", "Coordination", "HeardMember", "InThread"]
