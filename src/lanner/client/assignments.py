"""What a member of a group has, and what it must do about it: the rules of a client. No socket, no clock.

A member sees *views*: which partitions it holds under which grants, and which of them it should give up. It learns of
them from any broker, so an older view may come after a newer one. The rules:

1. A view that is older than the newest one is ignored: it neither brings partitions back, nor takes any away.
2. A partition that is new, or has a new grant, is claimed before anything is read. A position is never carried from one
   grant to the next.
3. A partition that is revoked is finished, committed, and only then released. The release is repeated with every
   heartbeat until no view shows that grant any more.
4. A grant that was released is never used again, also when the move was called off: it is released again.
5. A partition that is gone from the view, or whose grant was refused (MemberFenced), is lost: nothing of it may be
   committed. What was refused is released as well, so that the group gives a new grant to somebody.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from lanner.model import TopicPartitionId

Seen = tuple[int, int]  # number of the group, generation


class Granted(NamedTuple):
    """A partition under one grant."""

    topic: str
    incarnation: int
    partition: int
    grant: int

    @property
    def partition_id(self) -> TopicPartitionId:
        return self.incarnation, self.partition


class View(NamedTuple):
    """What a broker's copy of the metadata says of a member."""

    seen: Seen
    held: Sequence[Granted]
    revoked: Sequence[Granted]


class Phase(Enum):
    CLAIMING = "claiming"  # granted; where to begin is not known yet
    WORKING = "working"
    REVOKED = "revoked"  # to be finished, committed and released


class Turn(NamedTuple):
    """What a view asks of the member."""

    claim: list[Granted]
    revoke: list[Granted]
    lost: list[Granted]


class Assignments:
    """The partitions of one member, for as long as it is one."""

    def __init__(self) -> None:
        self.seen: Seen = (0, 0)
        self.phases: dict[Granted, Phase] = {}
        self._released: dict[TopicPartitionId, Seen] = {}  # the highest (number, grant) that was given up
        self._releases: list[Granted] = []

    @property
    def releases(self) -> list[Granted]:
        """What the next heartbeat says is given up."""
        return list(self._releases)

    def take(self, view: View) -> Turn:
        """Go by a view; nothing follows from one that is older than another that was seen."""
        turn = Turn([], [], [])
        if view.seen < self.seen:
            return turn
        self.seen = view.seen
        self._releases = []
        shown: set[Granted] = set()
        for one in view.held:
            if self._is_over(one):
                self._releases.append(one)
                continue
            shown.add(one)
            if one not in self.phases:
                self.phases[one] = Phase.CLAIMING
                turn.claim.append(one)
            elif self.phases[one] is Phase.REVOKED:
                self.phases[one] = Phase.WORKING  # the move was called off before anything was released
        for one in view.revoked:
            if self._is_over(one):
                self._releases.append(one)
                continue
            if self.phases.get(one) is Phase.WORKING:
                shown.add(one)
                self.phases[one] = Phase.REVOKED
                turn.revoke.append(one)
            elif self.phases.get(one) is Phase.REVOKED:
                shown.add(one)
            else:
                self.release(one)  # nothing was begun, so there is nothing to finish
        for one in [one for one in self.phases if one not in shown]:
            del self.phases[one]
            turn.lost.append(one)
        return turn

    def claimed(self, one: Granted) -> bool:
        """Begin to work; False: the partition is not this member's any more."""
        if self.phases.get(one) is not Phase.CLAIMING:
            return False
        self.phases[one] = Phase.WORKING
        return True

    def release(self, one: Granted) -> None:
        """Give a partition up, once its last commit was answered. This grant is never used again."""
        self.phases.pop(one, None)
        key = self.seen[0], one.grant
        self._released[one.partition_id] = max(self._released.get(one.partition_id, (0, 0)), key)
        if one not in self._releases:
            self._releases.append(one)

    def fenced(self, one: Granted) -> bool:
        """The grant was refused: it is lost, and released. False: it was not had any more."""
        had = one in self.phases
        self.release(one)
        return had

    def _is_over(self, one: Granted) -> bool:
        return self._released.get(one.partition_id, (0, 0)) >= (self.seen[0], one.grant)
