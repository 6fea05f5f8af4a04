"""Quiescence: sets in which nothing happens are not ticked, on any of their brokers.

A broker has hundreds of replicas, and most of them are idle most of the time; heartbeats for each would be most of its
work. Brokers tell each other that they live (pulses), so a set need not:

- A leader that has been idle for some ticks (all that is there is committed, applied and known to everyone it hears)
  sends one last heartbeat that says so, and is not ticked any more.
- A follower that is idle too takes it in silence, and quiesces. One that is not answers, as it answers any heartbeat;
  that wakes the leader, which goes on for some ticks before it tries again.
- Whatever is stored, and whatever is heard from another replica, wakes. So does the news that a broker with a replica
  of the set is no longer heard: then the set elects, or its leader finds that it has lost its majority.

A mark that is lost, or not sent because the follower is not heard, leaves it awake, alone; it hears nothing, asks
whether it should stand, and thereby wakes the others. Nothing depends on time here: a leader decides nothing that a
majority has not stored, however long it slept.
"""

from __future__ import annotations

from typing import Final

from lanner.broker.replicas.replica import Replica
from lanner.raft import Message, MessageKind, RaftNode

QUIESCE_TICKS: Final = 20
LOOK_TICKS: Final = 4
_HEARTBEAT: Final = int(MessageKind.HEARTBEAT)


class Quiescence:
    """Which replicas are awake, and for how long each leader among them has had nothing to do."""

    def __init__(self) -> None:
        self._awake: dict[int, Replica] = {}
        self._idle_ticks: dict[int, int] = {}
        self._ticks = 0

    def __contains__(self, set_id: int) -> bool:
        return set_id not in self._awake

    def wake(self, replica: Replica) -> None:
        self._awake[replica.set_id] = replica

    def heard(self, replica: Replica, message: Message) -> None:
        """The replica has taken a message. Only a quiescing heartbeat, to one that is idle, lets it quiesce."""
        if message.kind == _HEARTBEAT and message.hint and replica.node.idle:
            self.forget(replica.set_id)
            return
        if replica.set_id in self and message.sender != replica.node.leader_id:
            # Awake alone it would hear no heartbeats, and soon vote for any that asks; so the leader wakes, too.
            replica.node.wake_leader()
        self.wake(replica)

    def forget(self, set_id: int) -> None:
        self._awake.pop(set_id, None)
        self._idle_ticks.pop(set_id, None)

    def tick(self) -> list[Replica]:
        """Tick what is awake; the replicas that have something to say or to store because of it."""
        self._ticks += 1
        stirred, sleepy = [], []
        for set_id, replica in self._awake.items():
            node = replica.node
            # Whether a leader is idle is worth a look now and then, of some at each tick.
            if (
                (set_id + self._ticks) % LOOK_TICKS == 0
                and node.leadership is not None
                and self._may_quiesce(set_id, node)
            ):
                sleepy.append(replica)
            elif node.tick():
                stirred.append(replica)
        for replica in sleepy:
            self.forget(replica.set_id)
            replica.node.quiesce()
        return stirred + sleepy

    def _may_quiesce(self, set_id: int, node: RaftNode) -> bool:
        if not node.idle:
            self._idle_ticks.pop(set_id, None)
            return False
        self._idle_ticks[set_id] = count = self._idle_ticks.get(set_id, 0) + LOOK_TICKS
        return count >= QUIESCE_TICKS
