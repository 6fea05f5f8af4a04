"""Which of several places a poll asks next, so that the most urgent comes first over all of them.

A place is whatever can be polled by itself: a broker, seen by a client or by another broker, or a partition, seen by
the broker that leads it. The shell says what it has seen (`see`), asks as it is told (`next`), and says what came of
that (`took`). When `next` says None, there is nothing to ask at present: something is still unanswered, the poll is
full, or nothing is left that may be taken.

Rules:
- The place with the most urgent lane is asked first, and only for what is at least as urgent as the best of the others.
  Among equals the higher rank goes first; the shell turns the ranks, so that no place starves.
- Less urgent places are asked only when the more urgent ones have answered. Equals are asked together, as far as each
  has said how many messages it has: one that has few does not keep the others waiting, and one that has many fills the
  poll alone, because a whole batch of one place costs less than parts of several.
- All that is asked for and not answered, together with all that was taken, is never more than the poll wants.
- A place that had to hold back because others had better is asked again. One that still has as much as was asked for is
  not: messages may keep coming, and a poll must end. But then nothing less urgent is taken elsewhere.
- A place that gave nothing is left out, whatever it said it had: it may be at a bound.

Waiting, lost answers and repetitions are the shells' business.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

PlaceT = TypeVar("PlaceT")

NOTHING = -1  # the lane of a place that has nothing
MANY = 1 << 62  # messages of a place that does not say how many it has


def most_of(messages: int) -> int:
    """How many messages a broker may have that answers with this number; -1: it does not say."""
    return MANY if messages < 0 else messages


class Ask(NamedTuple, Generic[PlaceT]):
    """One poll of one place."""

    place: PlaceT
    min_priority: int
    max_messages: int
    max_bytes: int


class _Seen(NamedTuple):
    """What a place has."""

    lane: int
    rank: int
    messages: int


class Urgency(Generic[PlaceT]):
    """One poll over several places."""

    def __init__(self, max_messages: int, max_bytes: int, asks_max: int, min_priority: int = 0) -> None:
        self._messages_left = max_messages
        self._bytes_left = max_bytes
        self._asks_left = asks_max
        self._floor = min_priority  # nothing less urgent is asked for any more
        self._left = NOTHING  # at places that are not asked again
        self._seen: dict[PlaceT, _Seen] = {}  # the places to ask
        self._asked: dict[PlaceT, int] = {}  # lane of the places that are to answer

    @property
    def left(self) -> int:
        """The most urgent lane that is known to be left at some place."""
        return max([self._left, *(seen.lane for seen in self._seen.values())])

    def see(self, place: PlaceT, lane: int, rank: int = 0, count: int = MANY) -> None:
        """A place says how urgent the best is that it has, and how many messages it may have of that lane; NOTHING: it
        has nothing."""
        if lane > NOTHING:
            self._seen[place] = _Seen(lane, rank, count)
        else:
            self._seen.pop(place, None)

    def next(self) -> Ask[PlaceT] | None:
        """The next place to ask."""
        if not self._seen or self._messages_left <= 0 or self._bytes_left <= 0 or not self._asks_left:
            return None
        place = max(self._seen, key=self._seen.__getitem__)
        seen = self._seen.pop(place)
        others = [one.lane for one in self._seen.values()]
        floor = max([self._floor, *others, *self._asked.values()])
        if seen.lane < floor:
            self._seen[place] = seen
            return None
        messages, size = self._messages_left, self._bytes_left
        if seen.lane in others and seen.messages < messages:
            messages = max(1, seen.messages)
            size = -(-size // (1 + others.count(seen.lane)))
        self._asks_left -= 1
        self._asked[place] = seen.lane
        self._messages_left -= messages
        self._bytes_left -= size
        return Ask(place, floor, messages, size)

    def took(
        self,
        ask: Ask[PlaceT],
        messages: int,
        size: int,
        left: int = NOTHING,
        count: int = MANY,
        *,
        again: bool = True,
    ) -> None:
        """A place has answered: how many messages of what size, how urgent the best is that it still has, and how many
        it may have of that. Whether it can be asked again in this poll is for the shell to say."""
        del self._asked[ask.place]
        self._messages_left += ask.max_messages - messages
        self._bytes_left += ask.max_bytes - size
        if messages and left < ask.min_priority and again:
            self.see(ask.place, left, 0, count)
            return
        self._left = max(self._left, left)
        if messages:
            self._floor = max(self._floor, left)
