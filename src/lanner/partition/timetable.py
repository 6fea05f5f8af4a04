"""What is due when: keys with one time each, the earliest first.

A heap whose stale entries are skipped (the dictionary is the truth), so that moving or dropping a key costs no search.
The top is always valid, so looking at it is free. Looking never changes anything: what is due is read off the heap
without popping. A timetable is never stored; it is derived from rows that are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Any)


class Timetable(Generic[Key]):
    __slots__ = ("_heap", "times")

    def __init__(self) -> None:
        self.times: dict[Key, int] = {}
        self._heap: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self.times)

    def __contains__(self, key: Key) -> bool:
        return key in self.times

    def put(self, key: Key, time_ms: int) -> None:
        """The key is due at this time, and no longer at any other."""
        if self.times.get(key) == time_ms:
            return
        self.times[key] = time_ms
        heappush(self._heap, (time_ms, key))
        if len(self._heap) > 2 * len(self.times) + 64:
            self._heap = [(due_ms, known) for known, due_ms in self.times.items()]
            heapify(self._heap)
        else:
            self._clean()

    def drop(self, key: Key) -> None:
        if self.times.pop(key, None) is not None:
            self._clean()

    def first_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def until(self, now_ms: int, limit: int) -> list[Key]:
        """Up to `limit` keys due by then, the earliest first."""
        heap = self._heap
        if not heap or heap[0][0] > now_ms:
            return []
        found: dict[Key, None] = {}
        frontier = [(heap[0], 0)]
        while frontier and len(found) < limit:
            (time_ms, key), at = heappop(frontier)
            if time_ms > now_ms:
                break
            if self.times.get(key) == time_ms:
                found[key] = None
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))
        return list(found)

    def _clean(self) -> None:
        heap = self._heap
        times = self.times
        while heap and times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
