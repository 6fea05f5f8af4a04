"""What producers sent before, so that a retry finds its first result instead of being stored again.

A producer numbers its batches 0, 1, 2, … for each lane, and starts again under a higher epoch. The last five results
of a lane are kept: a repeat of one of them gets that result back. A repeat that is older still was certainly stored,
but where is forgotten: it is a duplicate with base offset -1. A number too high is a gap; a producer that is not
known must start at 0. A dedup id does the same for callers without a producer id.

A producer is known for a week after its last batch. Where too many come in that time, the longest idle are forgotten
before, and the *floor* is the highest id of those. Until the week is over, a producer that is not known is refused at
or below the floor, also at 0: it may have been there, and what it sends may be stored. Ids rise, so that one that is
made anew lies above the floor as a rule.

Nothing here forgets by itself: a decision says which idle producers and which old ids go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from lanner.errors import ProducerFenced, ProducerUnknown, SequenceGap
from lanner.limits import PRODUCER_RESULTS_KEPT
from lanner.partition.batches import Rows
from lanner.partition.keys import DEDUP, FLOOR, PRODUCERS, integer_key, integer_of, prefix_end

DEDUP_CHUNK_ENTRIES: Final = 256


class SentBatch(NamedTuple):
    sequence: int
    base_offset: int
    count: int  # type: ignore[assignment]
    append_ms: int


class Producer:
    __slots__ = ("active_ms", "epoch", "lanes")

    def __init__(self, epoch: int, active_ms: int) -> None:
        self.epoch = epoch
        self.active_ms = active_ms
        self.lanes: dict[int, list[SentBatch]] = {}


_ProducerRow = tuple[int, int, list[tuple[int, list[SentBatch]]]]
_encoder: Final = msgspec.msgpack.Encoder()
_producer_decoder: Final = msgspec.msgpack.Decoder(_ProducerRow)
_floor_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int])


class Producers:
    """By id, the longest idle first."""

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}
        self._dirty: set[int] = set()
        self._floor = (0, 0)  # the highest id of those that were forgotten early, and how long it counts
        self._floor_dirty = False

    def __len__(self) -> int:
        return len(self._known)

    def find_duplicate(self, producer_id: int, epoch: int, lane: int, sequence: int, now_ms: int) -> SentBatch | None:
        """The first result of a repeated batch; None for the next new one; raises for any other."""
        producer = self._known.get(producer_id)
        if producer is None:
            if sequence or (producer_id <= self._floor[0] and now_ms < self._floor[1]):
                raise ProducerUnknown(producer_id=producer_id)
            return None
        if epoch < producer.epoch:
            raise ProducerFenced(producer_id=producer_id, epoch=epoch, known_epoch=producer.epoch)
        sent = producer.lanes.get(lane, []) if epoch == producer.epoch else []
        expected = sent[-1].sequence + 1 if sent else 0
        if sequence == expected:
            return None
        if sequence > expected:
            raise SequenceGap(
                f"batch {sequence} of this producer and priority came, but {expected} is next; send that first",
                producer_id=producer_id,
                expected=expected,
            )
        for batch in sent:
            if batch.sequence == sequence:
                return batch
        return SentBatch(sequence, -1, 0, 0)

    def note(self, producer_id: int, epoch: int, lane: int, batch: SentBatch, now_ms: int) -> None:
        """A new batch got this result."""
        producer = self._known.pop(producer_id, None)
        if producer is None or producer.epoch != epoch:
            producer = Producer(epoch, now_ms)
        producer.active_ms = now_ms
        self._known[producer_id] = producer
        sent = producer.lanes.setdefault(lane, [])
        sent.append(batch)
        if len(sent) > PRODUCER_RESULTS_KEPT:
            del sent[0]
        self._dirty.add(producer_id)

    def idle(self, until_ms: int, limit: int) -> list[tuple[int, int]]:
        """(id, last activity) of producers that did nothing since, the longest idle first."""
        found: list[tuple[int, int]] = []
        for producer_id, producer in self._known.items():
            if producer.active_ms > until_ms or len(found) == limit:
                break
            found.append((producer_id, producer.active_ms))
        return found

    def first_active_ms(self) -> int | None:
        for producer in self._known.values():
            return producer.active_ms
        return None

    def forget(self, producer_id: int, active_ms: int, refused_until_ms: int = 0) -> None:
        """Unless it published after the decision was made."""
        producer = self._known.get(producer_id)
        if producer is not None and producer.active_ms == active_ms:
            del self._known[producer_id]
            self._dirty.add(producer_id)
            if refused_until_ms:
                self._floor = (max(self._floor[0], producer_id), max(self._floor[1], refused_until_ms))
                self._floor_dirty = True

    def load(self, rows: Rows) -> None:
        loaded: list[tuple[int, int, Producer]] = []
        for key, data in rows.scan(PRODUCERS, prefix_end(PRODUCERS)):
            epoch, active_ms, lanes = _producer_decoder.decode(data)
            producer = Producer(epoch, active_ms)
            producer.lanes = dict(lanes)
            loaded.append((active_ms, integer_of(PRODUCERS, key), producer))
        self._known = {producer_id: producer for _, producer_id, producer in sorted(loaded, key=lambda each: each[:2])}
        floor = rows.get(FLOOR)
        if floor is not None:
            self._floor = _floor_decoder.decode(floor)

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        for producer_id in self._dirty:
            producer = self._known.get(producer_id)
            into[integer_key(PRODUCERS, producer_id)] = None if producer is None else _encode(producer)
        self._dirty = set()
        if self._floor_dirty:
            into[FLOOR] = _encoder.encode(self._floor)
            self._floor_dirty = False

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        for producer_id, producer in self._known.items():
            into[integer_key(PRODUCERS, producer_id)] = _encode(producer)
        if self._floor[0]:
            into[FLOOR] = _encoder.encode(self._floor)


def _encode(producer: Producer) -> bytes:
    return _encoder.encode((producer.epoch, producer.active_ms, sorted(producer.lanes.items())))


class DedupResult(NamedTuple):
    base_offset: int
    count: int  # type: ignore[assignment]
    append_ms: int
    number: int  # counts the ids of the partition; 256 share a row


_DedupRow = list[tuple[bytes, int, int, int, int]]
_dedup_decoder: Final = msgspec.msgpack.Decoder(_DedupRow)


class DedupIds:
    """By id, the oldest first."""

    def __init__(self) -> None:
        self.numbered = 0
        self._known: dict[bytes, DedupResult] = {}
        self._chunks: dict[int, list[bytes]] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, dedup_id: bytes) -> DedupResult | None:
        return self._known.get(dedup_id)

    def note(self, dedup_id: bytes, base_offset: int, count: int, append_ms: int) -> None:
        number = self.numbered
        self.numbered += 1
        self._known[dedup_id] = DedupResult(base_offset, count, append_ms, number)
        self._chunks.setdefault(number // DEDUP_CHUNK_ENTRIES, []).append(dedup_id)
        self._dirty.add(number // DEDUP_CHUNK_ENTRIES)

    def first_append_ms(self) -> int | None:
        for result in self._known.values():
            return result.append_ms
        return None

    def last_of_oldest(self, until_ms: int, limit: int) -> int | None:
        """The append time of the limit-th oldest id that is not younger than that; None: there is none."""
        last: int | None = None
        for seen, result in enumerate(self._known.values()):
            if result.append_ms > until_ms or seen == limit:
                break
            last = result.append_ms
        return last

    def forget(self, until_ms: int) -> None:
        gone: list[bytes] = []
        for dedup_id, result in self._known.items():
            if result.append_ms > until_ms:
                break
            gone.append(dedup_id)
        for dedup_id in gone:
            number = self._known.pop(dedup_id).number // DEDUP_CHUNK_ENTRIES
            chunk = self._chunks[number]
            chunk.remove(dedup_id)  # it is the first: ids go in the order they came
            if not chunk:
                del self._chunks[number]
            self._dirty.add(number)

    def load(self, rows: Rows, numbered: int) -> None:
        self.numbered = numbered
        for key, data in rows.scan(DEDUP, prefix_end(DEDUP)):
            chunk = self._chunks[integer_of(DEDUP, key)] = []
            for dedup_id, *result in _dedup_decoder.decode(data):
                self._known[dedup_id] = DedupResult(*result)
                chunk.append(dedup_id)

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        for number in self._dirty:
            into[integer_key(DEDUP, number)] = self._encode(number) if number in self._chunks else None
        self._dirty = set()

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        for number in self._chunks:
            into[integer_key(DEDUP, number)] = self._encode(number)

    def _encode(self, number: int) -> bytes:
        return _encoder.encode([(dedup_id, *self._known[dedup_id]) for dedup_id in self._chunks[number]])

    def ids(self) -> Iterator[bytes]:
        return iter(self._known)
