"""Clients of a simulated cluster: the traffic of one broker, sent to whichever broker comes to mind.

They keep what they have learnt about who leads, and forget it when it leads nowhere. A call that is not answered in
time is unknown to them, never failed. They send again under the same identity: producers their batch with its
sequence, consumers the very poll whose answer they missed. What the simulator knows and they cannot, namely when
such a call is certainly over, is written into the history for the judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, cast

from msgspec.structs import replace

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Topic
from lanner.errors import NotLeader
from lanner.partition import BatchRef, Lease, Partition, encode_append
from lanner.testing.clock import SimClock
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_calls import Answered, Calls, Told
from lanner.testing.history import Administered, Event, History, Polled, Published, Settled, Status
from lanner.testing.operators import OperatedTraffic
from lanner.testing.parties import LOST, Consumer

_TIMEOUTS_MS: Final = (300, 800, 800, 2_500)


class ClusterTraffic(OperatedTraffic):
    """All clients of one simulated cluster."""

    pipelined = False  # or a batch that is sent again could be overtaken by its successor, on its way to another broker

    def __init__(
        self,
        rng: Random,
        clock: SimClock,
        history: History,
        calls: Calls,
        serving: Callable[[], list[ClusterBroker]],
        leader: Callable[[int], ClusterBroker | None],
    ) -> None:
        super().__init__(rng, cast(Any, None), clock, history)
        self._calls = calls
        self._serving = serving  # brokers that clients have heard of
        self._leader = leader  # who leads a set by now, if anybody does
        self._hints: dict[int, int] = {}
        self._latest = 0
        self._said: Answered | None = None  # what is being told just now
        self._doubts: dict[int, Event] = {}

    # ------------------------------------------------------------------ calls

    def _begin(self, unknown: Event) -> int:
        self._latest = super()._begin(unknown)
        return self._latest

    def _call(
        self,
        set_id: int,
        begin: Callable[[ClusterBroker, Told], None],
        on_answer: Callable[[Answered], None],
    ) -> None:
        operation, self._latest = self._latest, 0

        def heard(answered: Answered) -> None:
            self._said = answered
            if answered.answer is LOST or answered.refused:
                self._hints.pop(set_id, None)
            if answered.leader:
                self._hints[set_id] = answered.leader
            on_answer(answered)
            self._said = None

        def over() -> None:
            event = self._doubts.pop(operation, None)
            if event is not None:
                self.history.add(replace(event, returned=self.now()))

        serving = self._serving()
        receiver = self._hints.get(set_id, 0)
        if not receiver or receiver not in {broker.number for broker in serving} or self.rng.random() < 0.1:
            receiver = self.rng.choice(serving).number
        self._calls.make(set_id, receiver, begin, heard, over, self.rng.choice(_TIMEOUTS_MS))

    def _ask(self, set_id: int, request: Any, on_answer: Callable[[Any, int], None]) -> None:
        def begin(broker: ClusterBroker, told: Told) -> None:
            broker.engine.ask(set_id, request, told)

        self._call(set_id, begin, lambda answered: on_answer(answered.answer, answered.index))

    def _append(self, set_id: int, data: bytes, on_applied: Callable[[Any], None]) -> None:
        def begin(broker: ClusterBroker, told: Told) -> None:
            if not broker.engine.replica(set_id).leads:  # as every publish is refused until then
                raise NotLeader("it does not lead yet")
            payload = encode_append(broker.leader_ms(), data)
            broker.engine.propose(set_id, payload, lambda result: told(result, 0))

        self._call(set_id, begin, lambda answered: on_applied(answered.answer))

    def _change(self, command: bytes, on_result: Callable[[Any], None] | None = None) -> None:
        self.change(command, on_result)

    def change(self, command: bytes, on_result: Callable[[Any], None] | None = None) -> None:
        """A command for the metadata. What comes of it shows there, or it was lost."""

        def begin(broker: ClusterBroker, told: Told) -> None:
            broker.engine.propose(CLUSTER_SET, command, lambda result: told(result, 0))

        self._call(CLUSTER_SET, begin, lambda answered: on_result and on_result(answered.answer))

    # ------------------------------------------------------------------ how calls end

    def _lose(self, operation: int) -> None:
        """Nobody will hear of it. Where the judges are told when such a thing is over, that is yet to come."""
        event = self._open.pop(operation)
        self.counts["unknown"] += 1
        waits = isinstance(event, Polled | Administered) or (isinstance(event, Published) and event.deliver_at_ms)
        if waits:
            self._doubts[operation] = event
        else:
            self.history.add(event)

    def _end(self, operation: int, event: Event) -> None:
        said = self._said
        if said is not None and said.at and event.returned is not None:
            # When the caller heard of it says little; when it was decided, everything.
            event = replace(event, returned=said.at)
        if said is not None and said.stale and isinstance(event, Polled):
            # What a deposed leader says without a record was true, but need not be any more.
            event = replace(event, status=Status.FAILED) if event.messages else replace(event, repeated=True)
            self.counts["stale"] += 1
        if said is not None and said.stale and isinstance(event, Settled):
            event = replace(event, lost=False)  # what others decided since is not known there
        super()._end(operation, event)

    def give_up(self) -> None:
        super().give_up()
        for event in self._doubts.values():
            self.history.add(event)
        self._doubts.clear()

    def _decided_ms(self, set_id: int, index: int) -> int:
        assert self._said is not None
        return self._said.decided_ms

    # ------------------------------------------------------------------ what clients do

    def _read(self, set_id: int, ref: BatchRef) -> Mapping[int, bytes]:
        if self._said is not None and self._said.values is not None:
            return self._said.values[ref.base_offset]
        broker = self._leader(set_id)
        assert broker is not None, "asked for only where somebody leads"
        broker.disk.crash_in(None)  # power that goes here would be lost on nobody
        return broker.read(set_id, ref)

    def _met_damage(self) -> None:
        """A reader is told to ask again: another broker is about to lead."""
        super()._met_damage()
        raise NotLeader("this broker's copy is damaged there")

    def _cut(self, leases: Sequence[Lease], values: Mapping[int, bytes]) -> tuple[Sequence[Lease], list[Lease]]:
        if self._said is not None and self._said.unread:  # the broker could not read them, and gives them back
            self.counts["damaged_polls"] += 1
            return [], list(leases)
        return super()._cut(leases, values)

    def partition(self, set_id: int) -> Partition:
        broker = self._leader(set_id)
        assert broker is not None, "asked for only where somebody leads"
        return broker.engine.replica(set_id).partition

    def _committed(self, set_id: int) -> Callable[[Any, int], None]:
        tell = super()._committed(set_id)

        def answered(answer: Any, index: int) -> None:
            if self._leader(set_id) is not None:  # or nobody can be asked how far the group is
                tell(answer, index)

        return answered

    def settle_one(self, consumer: Consumer) -> bool:
        if not consumer.held:
            return False
        self.settle(consumer)
        return True

    def look(self, what: str) -> bool:
        """Read, inspect or administer, unless one of the partitions has no leader to ask just now."""
        if any(self._leader(set_id) is None for set_id in self.settings):
            return False
        with suppress(NotLeader):  # it was told to ask again
            {"read": self.read, "inspect": self.inspect, "administer": self.administer}[what]()
        return True

    def _topics(self) -> Mapping[str, Topic]:
        return next(broker for broker in self._serving() if broker.opened).engine.cluster.topics
