"""Where each numbered death of a group is: numbers of entries in order, and their places."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator


class DeadNumbers:
    """`end` is the number that the next message to die gets; -1: nobody has asked for numbers yet."""

    def __init__(self) -> None:
        self.end = -1
        self._firsts: list[int] = []  # of entries, in order
        self._places: dict[int, tuple[int, int]] = {}  # first number → (lane, place)

    def __len__(self) -> int:
        return len(self._firsts)

    def first(self) -> int:
        """The lowest number that is still there; the end when there is none."""
        return self._firsts[0] if self._firsts else self.end

    def add(self, number: int, lane: int, place: int) -> None:
        insort(self._firsts, number)
        self._places[number] = (lane, place)

    def remove(self, number: int) -> None:
        del self._firsts[bisect_left(self._firsts, number)]
        del self._places[number]

    def places_from(self, number: int) -> Iterator[tuple[int, int]]:
        """(lane, place) of entries in the order of their numbers; the first may begin before the number."""
        for at in range(max(0, bisect_right(self._firsts, number) - 1), len(self._firsts)):
            yield self._places[self._firsts[at]]

    def items(self) -> dict[int, tuple[int, int]]:
        return dict(self._places)
