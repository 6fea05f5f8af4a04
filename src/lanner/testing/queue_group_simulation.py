"""The same for a queue group: its members poll what they own, and operators switch it to shared and back.

A partition changes hands at once here, so nothing is handed over in order; leases are held against the fence, and
settles are not.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lanner.client.assignments import Granted
from lanner.cluster import Altered
from lanner.model import GroupKind
from lanner.partition import Poll, PollAnswer
from lanner.testing.group_processes import GROUP, Process
from lanner.testing.group_simulation import GroupSimulation


class QueueGroupSimulation(GroupSimulation):
    kind: ClassVar[GroupKind] = GroupKind.QUEUE
    assignor: ClassVar[str] = "sticky"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._polls = 0

    @property
    def _shared(self) -> bool:
        group = self._newest.group(GROUP)
        return group is not None and group.shared

    def _join(self, process: Process) -> None:
        if self._shared:
            self._switch()  # to join needs the group's own assignor; this one is for members with partitions
        super()._join(process)

    def _interfere(self) -> None:
        self._switch()

    def _switch(self) -> None:
        self._change(Altered(GROUP, "sticky" if self._shared else "shared"))
        self._newest.check()
        self.counts["switches"] += 1

    def _claim(self, process: Process, one: Granted) -> None:
        """There is nothing to be known before the first poll."""
        if process.assignments.claimed(one):
            process.positions[one] = 0

    def _work(self, process: Process, one: Granted) -> None:
        self._poll(process, one.partition, one)

    def _commit(self, process: Process, one: Granted) -> Any:
        return None  # settles go by their tokens

    def _go_on(self, process: Process) -> None:
        if process.assignments.phases:
            super()._go_on(process)
        else:
            self._poll(process, self.rng.randrange(len(self.partitions)), None)

    def _poll(self, process: Process, partition: int, one: Granted | None) -> None:
        """With a grant, as its owner; without, as any member of a shared group does, or somebody from outside."""
        member, seen = process.member, process.assignments.seen
        if one is None and self.rng.random() < 0.5:
            member, seen = "", (0, 0)
        if self._is_late(lambda: self._poll_at(partition, member, seen)):
            return
        answer = self._poll_at(partition, member, seen)
        if one is not None and type(answer).__name__ == "MemberFenced":
            self._fenced(process, one)

    def _poll_at(self, partition: int, member: str, seen: tuple[int, int]) -> Any:
        found = self.partitions[partition]
        group = self._copies[found.leader].group(GROUP)
        fence = self._resolve(partition, member, seen)
        if not isinstance(fence, tuple):
            return fence
        self._polls += 1
        poll = Poll(GROUP, member or "outsider", self._polls, 1, auto_ack=self.rng.random() < 0.3, fence=fence)
        answer = found.ask(poll, self.now_ms)
        self._note(f"poll {partition} {member} {fence} {answer}")
        if isinstance(answer, PollAnswer) and answer.leases:
            shared = group is None or group.shared or not member
            self.judge.leased(partition, member, fence, shared)
        found.append(2, self.now_ms)
        return answer
