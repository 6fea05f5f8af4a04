"""A network that betrays as it is told to: it loses, doubles, delays, reorders and splits, and one seed repeats it all.

It carries messages of Raft between brokers as the bytes that a real link would carry: each is encoded when it is sent
and decoded when it arrives, so a message that does not survive its own format is found here. What becomes of a message
is decided by the seed alone. Nothing here knows what a message means; time is told with each call.

Faults are attributes: `loss`, `doubling` and `detour` are chances from 0 to 1. A split cuts links both ways, `cut` one
way; what was on its way when a link was cut is lost. `heal` mends every link, `calm` ends every fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import combinations
from random import Random
from typing import Final, NamedTuple

from lanner.raft import Message, decode_message, encode_message

DELAY_MS_MAX: Final = 4
DETOUR_MS_MAX: Final = 120  # of a message that takes the long way, and is overtaken by others


class Letter(NamedTuple):
    """A message on its way; ordered by its arrival, then by when it was sent."""

    arrives_ms: int
    number: int
    sender: int
    receiver: int
    set_id: int
    frame: bytes


class SimNetwork:
    """Links between brokers that are known by their numbers."""

    def __init__(self, rng: Random) -> None:
        self.loss = 0.0
        self.doubling = 0.0
        self.detour = 0.0
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._letters: list[Letter] = []
        self._sent = 0
        self._cut: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        """How many messages are on their way."""
        return len(self._letters)

    # ------------------------------------------------------------------ messages

    def send(self, set_id: int, message: Message, now_ms: int) -> None:
        """Take a message on its way, or not."""
        self.counts["sent"] += 1
        if (message.sender, message.receiver) in self._cut or self._rng.random() < self.loss:
            self.counts["lost"] += 1
            return
        frame = b"".join(encode_message(message))
        self._post(set_id, message, frame, now_ms)
        if self._rng.random() < self.doubling:
            self.counts["doubled"] += 1
            self._post(set_id, message, frame, now_ms)

    def _post(self, set_id: int, message: Message, frame: bytes, now_ms: int) -> None:
        rng = self._rng
        delay_ms = rng.randint(0, DELAY_MS_MAX)
        if rng.random() < self.detour:
            self.counts["detours"] += 1
            delay_ms += rng.randint(1, DETOUR_MS_MAX)
        self._sent += 1
        heappush(self._letters, Letter(now_ms + delay_ms, self._sent, message.sender, message.receiver, set_id, frame))

    def arrive(self, now_ms: int) -> tuple[int, Message] | None:
        """The next message that has arrived, with its set; None: none has yet."""
        while self._letters and self._letters[0].arrives_ms <= now_ms:
            letter = heappop(self._letters)
            if (letter.sender, letter.receiver) in self._cut:
                self.counts["lost"] += 1
                continue
            self.counts["arrived"] += 1
            return letter.set_id, decode_message(letter.frame)
        return None

    # ------------------------------------------------------------------ links

    def split(self, *sides: Iterable[int]) -> None:
        """Let nobody on one side hear anybody on another."""
        self.counts["splits"] += 1
        for one, other in combinations([tuple(side) for side in sides], 2):
            for left in one:
                for right in other:
                    self._cut |= {(left, right), (right, left)}

    def cut(self, sender: int, receiver: int) -> None:
        """Let nothing of this sender reach this receiver; the other way stays open."""
        self.counts["one_way_splits"] += 1
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        """Mend every link."""
        self._cut.clear()

    @property
    def whole(self) -> bool:
        return not self._cut

    def calm(self) -> None:
        """End every fault; what is on its way still arrives."""
        self.loss = self.doubling = self.detour = 0.0
        self.heal()
