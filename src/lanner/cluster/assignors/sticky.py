"""Even shares, with as few moves as possible: what a member has it keeps, unless it has too much.

The promises, in order of rank:
1. Every partition that some member wants has one owner, who wants it.
2. The shares are even. With equal subscriptions they differ by one at most. With unequal ones no single move to a
   subscriber that has at least two fewer is left to be made.
3. As few partitions as possible leave a member that could keep them. With equal subscriptions this is a minimum. With
   unequal ones each move is needed: taking one back would make the shares less even.
4. Among the partitions that are free anyway, one goes to a member in a rack that holds a copy, where there is room.

Equal subscriptions take O((members + partitions) log). Unequal ones are levelled by single moves; the sum of the
squares of all shares falls with each, so this ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from lanner.cluster.assignors.question import Answer, Question, Subscriber
from lanner.model import TopicPartitionId


def assign(question: Question) -> Answer:
    members = question.ranked()
    if not members:
        return {}
    if all(one.topics == members[0].topics for one in members):
        return _share_evenly(question, members)
    return _Levelling(question, members).run()


# ------------------------------------------------------------------ equal subscriptions


def _share_evenly(question: Question, members: list[Subscriber]) -> Answer:
    partition_ids = question.partition_ids()
    owned: dict[int, list[TopicPartitionId]] = {one.number: [] for one in members}
    free: list[TopicPartitionId] = []
    for partition_id in partition_ids:
        owned.get(question.present.get(partition_id, 0), free).append(partition_id)
    room = _quotas(owned, len(partition_ids))
    answer: Answer = {}
    for one in members:
        own = owned[one.number]
        surplus = len(own) - room[one.number]
        if surplus > 0:
            given_up = _choose_surplus(own, surplus, one.rack, question.racks)
            free += given_up
            own = sorted(set(own) - given_up)
        answer |= dict.fromkeys(own, one.number)
        room[one.number] -= len(own)
    free.sort()
    if question.racks:
        free = _deal_near(free, members, room, question.racks, answer)
    _deal(free, room, answer)
    return answer


def _quotas(owned: Mapping[int, list[TopicPartitionId]], total: int) -> dict[int, int]:
    """How many each may have. One more than the others: the members that have it already, then the first to join."""
    low, extra = divmod(total, len(owned))
    fullest_first = sorted(owned, key=lambda number: (-min(len(owned[number]), low + 1), number))
    return {number: low + (rank < extra) for rank, number in enumerate(fullest_first)}


def _choose_surplus(
    own: list[TopicPartitionId], count: int, rack: str, racks: Mapping[TopicPartitionId, frozenset[str]]
) -> set[TopicPartitionId]:
    """What a member gives up: first what is far from it, then of the topic that it has most of, the highest first."""
    seen: Counter[int] = Counter()
    ranked: list[tuple[bool, int, int, int]] = []
    for topic, partition in own:
        seen[topic] += 1
        near = not rack or rack in racks.get((topic, partition), ())
        ranked.append((near, -seen[topic], -partition, topic))
    return {(topic, -minus) for _, _, minus, topic in sorted(ranked)[:count]}


def _deal_near(
    free: list[TopicPartitionId],
    members: list[Subscriber],
    room: dict[int, int],
    racks: Mapping[TopicPartitionId, frozenset[str]],
    answer: Answer,
) -> list[TopicPartitionId]:
    """Give each free partition to a member in one of its racks, in turn; what is left has no such member."""
    turns: dict[str, deque[int]] = {}
    for one in members:
        if one.rack and room[one.number] > 0:
            turns.setdefault(one.rack, deque()).append(one.number)
    left = []
    for partition_id in free:
        near = next((turns[rack] for rack in sorted(racks.get(partition_id, ())) if turns.get(rack)), None)
        if near is None:
            left.append(partition_id)
            continue
        number = near.popleft()
        answer[partition_id] = number
        room[number] -= 1
        if room[number] > 0:
            near.append(number)
    return left


def _deal(free: list[TopicPartitionId], room: Mapping[int, int], answer: Answer) -> None:
    """Go round among the members that have room, so that each topic is spread."""
    turns = deque((number, left) for number, left in sorted(room.items()) if left > 0)
    for partition_id in free:
        number, left = turns.popleft()
        answer[partition_id] = number
        if left > 1:
            turns.append((number, left - 1))


# ------------------------------------------------------------------ unequal subscriptions


class _Levelling:
    """Shares on their way to being even: who has what now, and how much that is."""

    def __init__(self, question: Question, members: list[Subscriber]) -> None:
        self._question = question
        self._topics = {one.number: one.topics for one in members}
        self._takers: dict[int, list[int]] = {}  # topic → who wants it
        for one in members:
            for topic in one.topics:
                self._takers.setdefault(topic, []).append(one.number)
        self._answer: Answer = {}
        self._load = dict.fromkeys(self._topics, 0)
        self._own: dict[tuple[int, int], set[int]] = {}  # (member, topic) → partitions
        self._lightest: dict[int, list[tuple[int, int]]] = {}  # topic → heap of (load, member); loads may be outdated

    def run(self) -> Answer:
        free = []
        for partition_id in self._question.partition_ids():
            number = self._question.present.get(partition_id, 0)
            if partition_id[0] in self._topics.get(number, ()):
                self._put(partition_id, number)
            else:
                free.append(partition_id)
        for topic, takers in self._takers.items():
            self._lightest[topic] = [(self._load[number], number) for number in takers]
            heapify(self._lightest[topic])
        for partition_id in sorted(free, key=lambda partition_id: (len(self._takers[partition_id[0]]), partition_id)):
            self._put(partition_id, self._lightest_taker(partition_id[0]))
        self._level()
        return self._answer

    def _put(self, partition_id: TopicPartitionId, number: int) -> None:
        self._answer[partition_id] = number
        self._load[number] += 1
        self._own.setdefault((number, partition_id[0]), set()).add(partition_id[1])

    def _move(self, partition_id: TopicPartitionId, number: int) -> None:
        before = self._answer[partition_id]
        self._own[before, partition_id[0]].remove(partition_id[1])
        self._load[before] -= 1
        for topic in self._topics[before]:
            heappush(self._lightest[topic], (self._load[before], before))
        self._put(partition_id, number)

    def _lightest_taker(self, topic: int) -> int:
        heap = self._lightest[topic]
        while heap[0][0] != self._load[heap[0][1]]:
            number = heap[0][1]
            heapreplace(heap, (self._load[number], number))
        return heap[0][1]

    def _level(self) -> None:
        """Single moves from the heaviest to the lightest, until none makes the shares more even."""
        heap = [(-load, number) for number, load in self._load.items()]
        heapify(heap)
        stuck: set[int] = set()  # have nothing to give to anybody, until somebody beside them becomes lighter
        while heap:
            minus, number = heappop(heap)
            if -minus != self._load[number]:
                continue  # it was put here again, with the load that it has now
            found = self._find_move(number)
            if found is None:
                stuck.add(number)
                continue
            partition_id, taker = found
            self._move(partition_id, taker)
            lighter = self._load[number]
            again = {one for one in stuck if self._load[one] >= lighter + 2}
            stuck -= again | {taker}
            for one in {number, taker, *again}:
                heappush(heap, (-self._load[one], one))

    def _find_move(self, number: int) -> tuple[TopicPartitionId, int] | None:
        """What this member should give to whom: to the lightest member that wants something of it."""
        best: tuple[int, int, int] | None = None  # load, topic, taker
        for topic in sorted(self._topics[number]):
            if self._own.get((number, topic)):
                taker = self._lightest_taker(topic)
                load = self._load[taker]
                if load + 2 <= self._load[number] and (best is None or load < best[0]):
                    best = load, topic, taker
        if best is None:
            return None
        _, topic, taker = best
        return (topic, max(self._own[number, topic])), taker
