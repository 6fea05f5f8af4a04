"""Calls of clients to a simulated cluster: over the network to any broker, on to the leader, and back, or lost.

A broker that does not lead what a call is about passes it on once, to the broker it takes for the leader. A caller who
hears nothing in time gives up, and then nobody but the simulator can know what became of the call. It may be on its way
still, wait in a broker, or lie in the log of a leader that was deposed. It is *over* as soon as it certainly has had
its effect or never will:

- it was lost before it reached a leader, or was refused there;
- its leader answered it, whether or not that was heard;
- its leader was deposed or lost its memory, and an entry of a later term has been committed: whatever that leader
  had in its log is committed before that entry, or never will be.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final, Protocol

from lanner.broker.replicas.replica import Replica
from lanner.errors import LannerError, NotLeader, StorageDamaged
from lanner.partition import Appended, BatchRef, PollAnswer
from lanner.raft import Role
from lanner.testing.clock import SimClock
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_witness import ClusterWitness
from lanner.testing.network import Letter, SimNetwork
from lanner.testing.parties import LOST
from lanner.testing.sim_broker import Broken

CLIENT: Final = 0  # the number of all clients on the network
CALL: Final = "call"
ANSWER: Final = "answer"
_NUMBER: Final = struct.Struct("<Q")

Told = Callable[[Any, int], None]


class Stage(Enum):
    TRAVELLING = "on its way to a leader"
    ASKED = "a leader has it"
    DOUBTFUL = "a leader had it and is none any more"
    OVER = "it has had its effect, or never will"


@dataclass(slots=True, eq=False)
class Call:
    number: int
    set_id: int
    begin: Callable[[ClusterBroker, Told], None]  # what the leader is to do; it tells what came of it
    on_answer: Callable[[Answered], None]
    on_over: Callable[[], None]  # told once, and only when the caller has given up
    stage: Stage = Stage.TRAVELLING
    given_up: bool = False
    first: int = 0  # the broker that was called
    broker: ClusterBroker | None = None  # the leader that has it
    life: int = 0
    term: int = 0
    answered: Answered | None = None


@dataclass(slots=True, eq=False)
class Answered:
    """What a leader said, and what only the simulator knows about it."""

    answer: Any
    index: int = 0
    at: float = 0  # the moment from which it was true
    decided_ms: int = 0
    values: dict[int, Mapping[int, bytes]] | None = None  # of leased batches by base offset: value by offset
    stale: bool = False  # said by one who was deposed without knowing, and not held up by a record
    leader: int = 0  # who leads, by number, as far as the one who answered knows
    refused: bool = False  # before anything happened
    unread: bool = False  # the leader's copy of what was leased is damaged, so that nobody got it


class Cluster(Protocol):
    rng: Random
    clock: SimClock
    network: SimNetwork
    witness: ClusterWitness
    brokers: dict[int, ClusterBroker]
    counts: Counter[str]

    def later(self, delay_ms: int, act: Callable[[], None]) -> None: ...
    def number_of(self, node_id: str) -> int | None: ...


class Calls:
    """Every call that is not over."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls: dict[int, Call] = {}
        self._made = 0
        self._doubtful: dict[int, list[Call]] = {}  # by set

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for an answer, or a call that was given up is still on its way somewhere."""
        return any(call.stage is not Stage.DOUBTFUL or not call.given_up for call in self._calls.values())

    # ------------------------------------------------------------------ callers

    def make(
        self,
        set_id: int,
        receiver: int,
        begin: Callable[[ClusterBroker, Told], None],
        on_answer: Callable[[Answered], None],
        on_over: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        self._made += 1
        call = Call(self._made, set_id, begin, on_answer, on_over, first=receiver)
        self._calls[call.number] = call
        self._cluster.counts["calls"] += 1
        self._cluster.later(timeout_ms, lambda: self._give_up(call))
        self._post(CLIENT, receiver, call, CALL)

    def _post(self, sender: int, receiver: int, call: Call, kind: str) -> None:
        cluster = self._cluster
        frame = _NUMBER.pack(call.number)
        cluster.network.post(sender, receiver, call.set_id, frame, cluster.clock.elapsed_ms, kind, once=True)

    def _give_up(self, call: Call) -> None:
        if call.given_up:
            return
        call.given_up = True
        call.on_answer(Answered(LOST))
        if call.stage is Stage.OVER:
            self._forget(call)

    def _over(self, call: Call) -> None:
        if call.stage is Stage.OVER:
            return
        call.stage = Stage.OVER
        if call.given_up:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        """It is over, and nobody waits for it."""
        if self._calls.pop(call.number, None) is not None:
            call.on_over()

    # ------------------------------------------------------------------ letters

    def lost(self, letter: Letter) -> None:
        if letter.kind == CALL:
            call = self._calls.get(_NUMBER.unpack(letter.frame)[0])
            if call is not None and call.stage is Stage.TRAVELLING:
                self._over(call)

    def arrived(self, letter: Letter, broker: ClusterBroker | None) -> None:
        call = self._calls.get(_NUMBER.unpack(letter.frame)[0])
        if call is None:
            return
        if letter.kind == CALL:
            if broker is None or not broker.opened:
                self._over(call)
            else:
                self._serve(broker, call, forwarded=letter.sender != CLIENT)
        elif letter.receiver == CLIENT:
            self._hear(call)
        else:  # back at the broker that passed it on
            self._post(letter.receiver, CLIENT, call, ANSWER)

    def _hear(self, call: Call) -> None:
        if call.given_up or call.answered is None:
            return
        call.given_up = True
        if call.stage is Stage.OVER:  # else the broker that answered does not know what became of it
            del self._calls[call.number]
        call.on_answer(call.answered)

    # ------------------------------------------------------------------ brokers

    def _serve(self, broker: ClusterBroker, call: Call, *, forwarded: bool) -> None:
        replica = broker.engine.replicas.get(call.set_id)
        if replica is None or replica.node.role is not Role.LEADER:
            leader = broker.leader_of(call.set_id)
            number = None if leader is None else self._cluster.number_of(leader)
            if number is not None and number != broker.number and not forwarded:
                self._cluster.counts["forwards"] += 1
                self._post(broker.number, number, call, CALL)
                return
            self._over(call)
            self._reply(broker, call, Answered(NotLeader("not here"), leader=number or 0, refused=True))
            return
        call.stage, call.broker, call.life, call.term = Stage.ASKED, broker, broker.life, replica.node.term
        asking = True

        def told(answer: Any, index: int) -> None:
            if call.stage is not Stage.ASKED:
                return
            given_up = isinstance(answer, NotLeader) or replica.closed
            if given_up and not asking:
                self._doubt(call)
                self._reply(broker, call, Answered(LOST))
                return
            answered = self._describe(broker, replica, call, answer, index)
            if answered is None:
                self._doubt(call)
                self._reply(broker, call, Answered(LOST))
                return
            answered.refused = given_up
            self._over(call)
            self._reply(broker, call, answered)

        try:
            call.begin(broker, told)
        except LannerError as error:
            told(error, 0)
        asking = False
        broker.work()

    def _describe(
        self, broker: ClusterBroker, replica: Replica, call: Call, answer: Any, index: int
    ) -> Answered | None:
        """None: what was leased is damaged there, and nobody else who runs could say what it was."""
        witness = self._cluster.witness
        applied_index = index or (replica.node.applied_index if isinstance(answer, Appended) else 0)
        at = witness.when_applied(call.set_id, applied_index) if applied_index else witness.moment()
        answered = Answered(answer, index, at, leader=broker.number)
        answered.stale = not index and not witness.is_latest(call.set_id, replica.node.term)
        if call.set_id:
            known_ms = witness.sets[call.set_id].decided_ms.get(index) if index else None
            answered.decided_ms = known_ms or max(replica.partition.machine_ms, broker.leader_ms())
        if isinstance(answer, PollAnswer):
            refs = [lease.ref for lease in answer.leases]
            try:
                answered.values = {ref.base_offset: broker.read(call.set_id, ref) for ref in refs}
            except StorageDamaged:
                answered.values, answered.unread = self._read_elsewhere(call.set_id, refs), True
                return None if answered.values is None else answered
        return answered

    def _read_elsewhere(self, set_id: int, refs: list[BatchRef]) -> dict[int, Mapping[int, bytes]] | None:
        """What clients cannot know: what was in batches that one broker cannot read any more."""
        for broker in self._cluster.brokers.values():
            replica = broker.engine.replicas.get(set_id) if broker.opened and not broker.disk.is_off else None
            if replica is not None and replica.node.applied_index >= max(ref.index for ref in refs):
                broker.disk.crash_in(None)
                with suppress(StorageDamaged, Broken):  # it may be the same broker, or be ahead and have let go of it
                    return {ref.base_offset: broker.read(set_id, ref) for ref in refs}
        return None

    def _reply(self, broker: ClusterBroker, call: Call, answered: Answered) -> None:
        call.answered = answered
        if call.number in self._calls:
            back = broker.number if call.first == broker.number else call.first
            if back == broker.number:
                self._post(broker.number, CLIENT, call, ANSWER)
            else:
                self._post(broker.number, back, call, ANSWER)

    # ------------------------------------------------------------------ doubt

    def _doubt(self, call: Call) -> None:
        call.stage = Stage.DOUBTFUL
        self._doubtful.setdefault(call.set_id, []).append(call)

    def crashed(self, broker: ClusterBroker) -> None:
        """The broker has lost its memory, and with it all that it had been asked."""
        for call in list(self._calls.values()):
            if call.stage is Stage.ASKED and call.broker is broker and call.life <= broker.life:
                self._doubt(call)

    def look(self) -> None:
        """Calls whose leaders' logs are settled by a later term are over."""
        if not self._doubtful:
            return
        for set_id, calls in list(self._doubtful.items()):
            terms = self._cluster.witness.sets[set_id].terms
            settled = terms[-1] if terms else 0
            left = [call for call in calls if call.term >= settled]
            if len(left) < len(calls):
                self._doubtful[set_id] = left
                for call in calls:
                    if call.term < settled:
                        self._over(call)
            if not left:
                del self._doubtful[set_id]

    def end(self) -> None:
        """Everything is at rest: whatever was in doubt has had its effect, or never will."""
        for call in list(self._calls.values()):
            if call.stage is Stage.DOUBTFUL:
                self._over(call)
        self._doubtful.clear()
