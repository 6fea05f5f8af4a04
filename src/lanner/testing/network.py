"""A network that betrays as it is told to: it loses, doubles, delays, reorders and splits, and one seed repeats it all.

It carries frames between brokers that are known by their numbers. Messages of Raft travel as the bytes that a real link
would carry: each is encoded when it is sent and decoded when it arrives, so a message that does not survive its own
format is found here. What becomes of a frame is decided by the seed alone. Nothing here knows what a frame means; time
is told with each call.

Faults are attributes: `loss`, `doubling` and `detour` are chances from 0 to 1. A split cuts links both ways, `cut` one
way; what was on its way when a link was cut is lost. `heal` mends every link, `calm` ends every fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import combinations
from random import Random
from typing import Final, NamedTuple

from lanner.raft import Message, decode_message, encode_message

DELAY_MS_MAX: Final = 4
_DELAYS_MS: Final = range(DELAY_MS_MAX + 1)  # of which `choice` draws like `randint`, in fewer calls
DETOUR_MS_MAX: Final = 120  # of a message that takes the long way, and is overtaken by others
RAFT: Final = "raft"


class Letter(NamedTuple):
    """A frame on its way; ordered by its arrival, then by when it was sent."""

    arrives_ms: int
    number: int
    sender: int
    receiver: int
    set_id: int
    frame: bytes
    kind: str = RAFT


class SimNetwork:
    """Links between brokers that are known by their numbers."""

    def __init__(self, rng: Random) -> None:
        self.loss = 0.0
        self.doubling = 0.0
        self.detour = 0.0
        self.counts: Counter[str] = Counter()
        self.on_loss: Callable[[Letter], None] | None = None  # told of every letter that will never arrive
        self._rng = rng
        self._letters: list[Letter] = []
        self._sent = 0
        self._cut: set[tuple[int, int]] = set()
        self.deaf: set[tuple[int, int]] = set()  # (receiver, set) that hears nothing of that set

    def __len__(self) -> int:
        """How many frames are on their way."""
        return len(self._letters)

    @property
    def next_ms(self) -> int | None:
        """When the next one arrives."""
        return self._letters[0].arrives_ms if self._letters else None

    # ------------------------------------------------------------------ messages

    def send(self, set_id: int, message: Message, now_ms: int) -> None:
        """Take a message of Raft on its way, or not, between brokers that have the numbers of their replicas."""
        self.post(message.sender, message.receiver, set_id, b"".join(encode_message(message)), now_ms)

    def post(
        self, sender: int, receiver: int, set_id: int, frame: bytes, now_ms: int, kind: str = RAFT, once: bool = False
    ) -> None:
        """Take a frame on its way, or not. `once`: it is never doubled, as what a caller asks for must not be."""
        self.counts["sent"] += 1
        letter = Letter(now_ms, 0, sender, receiver, set_id, frame, kind)
        if (sender, receiver) in self._cut or self._rng.random() < self.loss:
            self._lose(letter)
            return
        self._send(letter)
        if not once and self._rng.random() < self.doubling:
            self.counts["doubled"] += 1
            self._send(letter)

    def _send(self, letter: Letter) -> None:
        rng = self._rng
        delay_ms = rng.choice(_DELAYS_MS)
        if rng.random() < self.detour:
            self.counts["detours"] += 1
            delay_ms += rng.randint(1, DETOUR_MS_MAX)
        self.redeliver(letter, letter.arrives_ms + delay_ms)

    def redeliver(self, letter: Letter, arrives_ms: int) -> None:
        """Let a letter arrive at this time: its receiver cannot take it now."""
        self._sent += 1
        _, _, sender, receiver, set_id, frame, kind = letter
        heappush(self._letters, Letter(arrives_ms, self._sent, sender, receiver, set_id, frame, kind))

    def arrive(self, now_ms: int) -> tuple[int, Message] | None:
        """The next message that has arrived, with its set; None: none has yet."""
        letter = self.take(now_ms)
        return None if letter is None else (letter.set_id, decode_message(letter.frame))

    def take(self, now_ms: int) -> Letter | None:
        """The next letter that has arrived; None: none has yet."""
        while self._letters and self._letters[0].arrives_ms <= now_ms:
            letter = heappop(self._letters)
            deaf = letter.kind == RAFT and (letter.receiver, letter.set_id) in self.deaf
            if deaf or (letter.sender, letter.receiver) in self._cut:
                self._lose(letter)
                continue
            self.counts["arrived"] += 1
            return letter
        return None

    def _lose(self, letter: Letter) -> None:
        self.counts["lost"] += 1
        if self.on_loss is not None:
            self.on_loss(letter)

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
        self.deaf.clear()
        self.heal()
