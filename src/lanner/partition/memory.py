"""What a group's settles were answered, for those who did not hear it and ask again.

A settle is known by its token, its offsets and its kind. While a lease lives it notes itself which of its messages were
settled how; when it ends, that is moved here, as ranges of offsets. So a settle that took effect and is asked again,
over whatever door, by whichever broker, gets its first answer instead of `LeaseLost`. Nothing that was leased again is
touched: the memory only answers.

An extension is a promise about the present. While its lease lives it is made anew; it is remembered only of messages
that its holder has settled since, because of those it can neither be kept nor broken.

Entries are bytes, and lie in rows of many: they are written often, looked up seldom, and must not slow a collector of
garbage. Forgetting is a fixed rule that runs when something is remembered: a row goes when all of it is older than
SETTLES_KEPT_MS, or when there are more than SETTLED_RANGES_KEPT ranges and it is the oldest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lanner.limits import SETTLED_RANGES_KEPT, SETTLES_KEPT_MS
from lanner.partition.leases import LeaseRecord

RANGES_PER_ROW: Final = 512
_VERSION: Final = 1

Answered = Mapping[int, tuple[list[int], list[int]]]
"""Of one lease, by kind: the first offsets and the counts of what was settled so."""

_Row = tuple[int, int, list[int], list[bytes]]  # version, time of the latest, tokens, entries
_encoder: Final = msgspec.msgpack.Encoder()
_row_decoder: Final = msgspec.msgpack.Decoder(_Row)
_entry_decoder: Final = msgspec.msgpack.Decoder(dict[int, tuple[list[int], list[int]]])


@dataclass(slots=True)
class _Block:
    """Leases that ended one after the other: what lies in one row."""

    number: int
    last_ms: int = 0
    ranges: int = 0
    tokens: list[int] = field(default_factory=list)


class SettleMemory:
    """The answers of one group on one partition, in the order in which its leases ended."""

    __slots__ = ("_blocks", "_dirty", "_ranges", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}  # token → what was answered
        self._blocks: deque[_Block] = deque()
        self._ranges = 0
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        """How many ranges are remembered."""
        return self._ranges

    def remember(self, lease: LeaseRecord, now_ms: int) -> None:
        """A lease has ended; what its holders were answered counts from now on."""
        found = lease.answered_ranges()
        if not found:
            return
        ranges = sum(len(firsts) for firsts, _ in found.values())
        blocks = self._blocks
        if not blocks or blocks[-1].ranges >= RANGES_PER_ROW:
            blocks.append(_Block(blocks[-1].number + 1 if blocks else 0))
        block = blocks[-1]
        block.tokens.append(lease.token)
        block.ranges += ranges
        block.last_ms = now_ms
        self.entries[lease.token] = _encoder.encode(found)
        self._ranges += ranges
        self._dirty.add(block.number)
        while len(blocks) > 1 and (
            blocks[0].last_ms < now_ms - SETTLES_KEPT_MS or self._ranges - blocks[0].ranges >= SETTLED_RANGES_KEPT
        ):
            self._forget(blocks.popleft())

    def _forget(self, block: _Block) -> None:
        for token in block.tokens:
            del self.entries[token]
        self._ranges -= block.ranges
        self._dirty.add(block.number)

    def answered(self, token: int) -> Answered:
        """What the holders of a lease that has ended were answered."""
        entry = self.entries.get(token)
        return {} if entry is None else _entry_decoder.decode(entry)

    # ------------------------------------------------------------------ rows

    def load(self, number: int, data: bytes) -> None:
        """A saved row; they come in order."""
        version, last_ms, tokens, entries = _row_decoder.decode(data)
        assert version == _VERSION, f"the row of answers has version {version}"
        block = _Block(number, last_ms, 0, tokens)
        for token, entry in zip(tokens, entries, strict=True):
            self.entries[token] = entry
            block.ranges += sum(len(firsts) for firsts, _ in _entry_decoder.decode(entry).values())
        self._ranges += block.ranges
        self._blocks.append(block)

    def take_dirty(self, put: Callable[[int, bytes | None], None]) -> None:
        """Hand over the rows that changed since the last call, by number; None: it is gone."""
        if self._dirty:
            dirty, self._dirty = self._dirty, set()
            kept = {block.number: block for block in self._blocks}
            for number in dirty:
                put(number, self._encode(kept[number]) if number in kept else None)

    def all_rows(self) -> dict[int, bytes]:
        return {block.number: self._encode(block) for block in self._blocks}

    def _encode(self, block: _Block) -> bytes:
        entries = self.entries
        return _encoder.encode((_VERSION, block.last_ms, block.tokens, [entries[token] for token in block.tokens]))

    def check(self) -> None:
        """Assert what must always hold."""
        tokens = [token for block in self._blocks for token in block.tokens]
        assert tokens == list(self.entries), "rows and entries differ"
        ranges = sum(len(firsts) for token in tokens for firsts, _ in self.answered(token).values())
        assert self._ranges == ranges == sum(block.ranges for block in self._blocks)
        numbers = [block.number for block in self._blocks]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def count_within(answered: Answered, kind: int, first_offset: int, count: int) -> int:
    """How many of these offsets were settled so."""
    firsts, counts = answered.get(kind, ((), ()))
    end = first_offset + count
    at = max(0, bisect_right(firsts, first_offset) - 1)
    found = 0
    while at < len(firsts) and firsts[at] < end:
        found += max(0, min(firsts[at] + counts[at], end) - max(firsts[at], first_offset))
        at += 1
    return found
