"""Rest: sets in which nothing happens are not ticked, on any of their brokers.

A broker has hundreds of replicas, and most of them are idle most of the time; heartbeats for each would be most of its
work. Brokers tell each other that they live (pulses), so a set need not:

- A leader that has been idle for some ticks (all that is there is committed, applied and known to everyone it hears)
  sends one last heartbeat that says so, and is not ticked any more.
- A follower that is idle too takes it in silence, and rests. One that is not answers, as it answers any heartbeat; that
  wakes the leader, which goes on for some ticks before it tries again.
- Whatever is stored, and whatever is heard from another replica, wakes. So does the news that a broker with a replica
  of the set is no longer heard: then the set elects, or its leader finds that it has lost its majority.

A mark that is lost leaves a follower awake, alone; it hears nothing, asks whether it should stand, and thereby wakes
the others. Nothing rests on time here: a leader decides nothing that a majority has not stored, however long it slept.
"""

from __future__ import annotations

from typing import Final

from lanner.broker.replica import Replica
from lanner.raft import Message, MessageKind

REST_TICKS: Final = 20
_HEARTBEAT: Final = int(MessageKind.HEARTBEAT)


class Rest:
    """Which replicas are awake, and for how long each leader among them has had nothing to do."""

    def __init__(self) -> None:
        self._awake: dict[int, Replica] = {}
        self._idle_ticks: dict[int, int] = {}

    def __contains__(self, set_id: int) -> bool:
        return set_id not in self._awake

    def wake(self, replica: Replica) -> None:
        self._awake[replica.set_id] = replica

    def heard(self, replica: Replica, message: Message) -> None:
        """The replica has taken a message. Only the mark of rest, to one that is idle, lets it rest."""
        if message.kind == _HEARTBEAT and message.hint and replica.node.idle:
            self.forget(replica.set_id)
        else:
            self.wake(replica)

    def forget(self, set_id: int) -> None:
        self._awake.pop(set_id, None)
        self._idle_ticks.pop(set_id, None)

    def tick(self) -> list[Replica]:
        """Tick what is awake; the replicas that have something to say or to store because of it."""
        stirred, sleepy = [], []
        idle_ticks = self._idle_ticks
        for set_id, replica in self._awake.items():
            node = replica.node
            if node.leadership is not None:
                if not node.idle:
                    idle_ticks.pop(set_id, None)
                elif (count := idle_ticks.get(set_id, 0) + 1) < REST_TICKS:
                    idle_ticks[set_id] = count
                else:
                    sleepy.append(replica)
                    continue
            node.tick()
            if node.has_ready():
                stirred.append(replica)
        for replica in sleepy:
            self.forget(replica.set_id)
            replica.node.rest()
        return stirred + sleepy
