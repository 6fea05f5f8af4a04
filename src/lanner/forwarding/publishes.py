"""Publishing for callers without a producer of their own (REST): under the door's identity, so that a retry never
doubles.

A partition remembers the last results of each producer and lane. So each batch that is under way has a *slot* of its
own: a producer id and the next sequence of it in that lane. It is sent, and sent again, as the same bytes under the
same sequence until the outcome is known; only then the slot goes to the next batch. As no slot has two batches under
way, batches overtake each other as they like and none waits for a gap to close.

- Refused for sure: the sequence was not used, and the slot stays as it is.
- Outcome unknown at the deadline: the slot is never used again. What was sent under it may still arrive.
- Batches of one call that belong behind each other (one lane, too large for one batch) go one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from lanner.calls import Identity
from lanner.errors import LannerError, Overloaded, ProducerUnknown, SequenceGap, StorageFull, TopicFull
from lanner.forwarding.asking import UNANSWERED, Asking, Tries
from lanner.forwarding.batches import MessageGroup, Router, group_messages
from lanner.forwarding.ports import Here, Hops, KnownTopic, Map
from lanner.forwarding.values import NewMessage, Placed, Run
from lanner.wire.messages import OpenProducer, Publish, Published

_ATTEMPT_MS: Final = 3_000  # then it is sent again: to another leader, or to the same one that was only slow
SLOTS_MAX: Final = 256  # batches under way for one lane of one partition
_LANES_KNOWN_MAX: Final = 10_000
_FULL: Final = (Overloaded, StorageFull, TopicFull)


class Slot:
    """One producer in one lane of one partition; at most one batch of it is under way."""

    __slots__ = ("producer_id", "sequence")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0


class LaneSlots:
    """The slots of one lane of one partition."""

    __slots__ = ("free", "made", "under_way", "waiting")

    def __init__(self) -> None:
        self.free: list[Slot] = []
        self.made = 0  # how many producers of the door have ever been used here
        self.under_way = 0
        self.waiting: list[asyncio.Future[None]] = []


class Sent(NamedTuple):
    """Where a batch of a call went."""

    group: MessageGroup
    result: Published


class DoorProducers:
    """The door's own producer ids, and which sequence each has reached where."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._ids: list[int] = []
        self._opening = asyncio.Lock()
        self._lanes: dict[tuple[int, int], LaneSlots] = {}

    async def take(self, set_id: int, lane_number: int) -> Slot:
        """A slot that nobody uses; waits while too many batches of the lane are under way."""
        lane = self._lanes.get((set_id, lane_number))
        if lane is None:
            lane = self._lanes[set_id, lane_number] = LaneSlots()
        while lane.under_way >= SLOTS_MAX:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lane.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    _wake_next(lane)  # it was this one's turn, and it is not there any more
                raise
        lane.under_way += 1
        if lane.free:
            return lane.free.pop()
        place = lane.made
        lane.made += 1
        try:
            return Slot(await self._id(place))
        except BaseException:
            self.leave(set_id, lane_number)
            raise

    async def _id(self, place: int) -> int:
        """The door's producer id of that number; the same for every lane, as each lane counts for itself."""
        while place >= len(self._ids):
            async with self._opening:
                if place >= len(self._ids):
                    self._ids.append(await self.open())
        return self._ids[place]

    async def open(self) -> int:
        """One more producer id, which nobody had before."""
        return (await self._here.handle(OpenProducer())).control.producer_id

    def give_back(self, set_id: int, lane_number: int, slot: Slot) -> None:
        """The outcome is known: the next batch may use it."""
        self._lanes[set_id, lane_number].free.append(slot)
        self.leave(set_id, lane_number)

    def leave(self, set_id: int, lane_number: int) -> None:
        """One batch less is under way; without `give_back`, its slot is never used again."""
        lane = self._lanes[set_id, lane_number]
        lane.under_way -= 1
        _wake_next(lane)

    def prune(self, live: Container[int]) -> None:
        """Forget the lanes of sets that are gone for good. Of any other set, forgetting would use a sequence twice."""
        if len(self._lanes) > _LANES_KNOWN_MAX:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane.under_way or key[0] in live}


def _wake_next(lane: LaneSlots) -> None:
    while lane.waiting:
        turn = lane.waiting.pop(0)
        if not turn.done():
            turn.set_result(None)
            return


class ForwardedPublishes(Asking):
    """What callers without a producer publish."""

    def __init__(self, here: Here, map_: Map, hops: Hops) -> None:
        super().__init__(here, map_, hops)
        self._router = Router()
        self._producers = DoorProducers(here)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> Placed:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""
        self._here.admit(identity, "publish", [topic])
        found = await self.find_topic(topic)
        leader_of, set_ids = self._map.leader_of, found.set_ids
        groups = group_messages(
            messages, len(set_ids), found.settings, self._router, lambda partition: leader_of(set_ids[partition]) != ""
        )
        if len(groups) == 1:
            sent = await self._publish_in_order(identity, found, groups)
        else:
            sent = await self._publish_all(identity, found, groups)
        return _placed(sent)

    async def _publish_all(self, identity: Identity, topic: KnownTopic, groups: Sequence[MessageGroup]) -> list[Sent]:
        """Everything at once, except what belongs behind each other; waits for all, then says what failed."""
        chains: dict[object, list[MessageGroup]] = {}
        for group in groups:
            chains.setdefault(group.kind, []).append(group)
        outcomes = await asyncio.gather(
            *(self._publish_in_order(identity, topic, chain) for chain in chains.values()), return_exceptions=True
        )
        sent: list[Sent] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            sent += outcome
        return sent

    async def _publish_in_order(
        self, identity: Identity, topic: KnownTopic, groups: Sequence[MessageGroup]
    ) -> list[Sent]:
        sent = []
        for group in groups:
            set_id, lane = topic.set_ids[group.partition], group.priority
            slot = await self._producers.take(set_id, lane)
            known = False
            try:
                result, slot = await self._publish(identity, topic, group, slot)
                slot.sequence += 1
                known = True
            except _Refused as refusal:
                known = True
                raise refusal.error from None
            finally:
                if known:
                    self._producers.give_back(set_id, lane, slot)
                else:
                    self._producers.leave(set_id, lane)
                    self._producers.prune(self._map.live_sets)
            sent.append(Sent(group, result))
        return sent

    async def _publish(
        self, identity: Identity, topic: KnownTopic, group: MessageGroup, slot: Slot
    ) -> tuple[Published, Slot]:
        """Send one batch until its outcome is known. A refusal is sure only while no attempt went unanswered."""
        call = Publish(topic.name, group.partition, topic.incarnation)
        data = group.encode(slot.producer_id, slot.sequence)
        tries: Tries | None = None
        outcome_unknown = False
        while True:
            leader = next(iter(self.placed(topic, [group.partition])))
            try:
                if not leader:
                    raise self._map.not_leader(topic, group.partition)
                return (await self.serve_at(leader, identity, call, [data], _ATTEMPT_MS)).control, slot
            except UNANSWERED as error:
                outcome_unknown = outcome_unknown or (bool(leader) and error.details.get("refused") is not True)
                problem: LannerError = error
            except (ProducerUnknown, SequenceGap):
                # Idle for so long that it was forgotten: begin again as somebody new. It was not stored.
                slot = Slot(await self._producers.open())
                data = group.encode(slot.producer_id, slot.sequence)
                continue
            except LannerError as error:
                if not outcome_unknown or not isinstance(error, _FULL):
                    raise _Refused(error) from None
                problem = error
            tries = tries or Tries(self._loop)
            try:
                if self._here.draining:
                    raise problem
                await tries.pause(problem)
            except LannerError as error:
                if outcome_unknown:
                    raise
                raise _Refused(error) from None


def _placed(sent: Sequence[Sent]) -> Placed:
    """Where each message went, in the order of the call."""
    found: list[tuple[int, Run]] = []  # each with the place in the call at which it begins
    for group, result in sent:
        # A repetition that the door made itself is none to its caller.
        duplicate = result.duplicate and bool(group.dedup_id)
        offset = result.base_offset
        for places in _in_a_row(group.places):
            offsets = range(offset, offset + len(places))
            found.append((places.start, Run(group.partition, offsets, result.append_ms, duplicate)))
            offset = offsets.stop
    if len(found) > 1:
        found.sort(key=itemgetter(0))
    return Placed([run for _, run in found])


def _in_a_row(places: Sequence[int]) -> Sequence[range]:
    """Rising places as ranges."""
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):
        return (range(first, last + 1),)
    ends = [place for place, behind in pairwise(places) if behind != place + 1]
    begins = [behind for place, behind in pairwise(places) if behind != place + 1]
    return [range(begin, end + 1) for begin, end in zip([first, *begins], [*ends, last], strict=True)]


class _Refused(Exception):
    """The batch was not stored, and never will be."""

    def __init__(self, error: LannerError) -> None:
        self.error = error
        super().__init__(error.message)
