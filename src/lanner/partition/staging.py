"""Stages: batches that are in the log, but have no offsets yet, and the tries that hold them.

A stage belongs to an *attempt*, which numbers its stages 0, 1, 2, … on each partition. Attempts that nobody prepares
expire. A *prepared* try names whole attempts: they stay until its outcome is acted on, in parts, in the order of its
manifest; `dealt` says how far that is. An attempt leaves with its last stage, a try with its last attempt.

What is told of a stage is packed, 31 bytes each: a partition may hold a million of them. A row holds up to 256, the
first of an attempt also what all its stages share. `metadata_index` is the latest metadata that this partition has
acted on: its leader acts on none that is older.

Nothing here judges or forgets by itself: what comes is judged by those who decide and those who apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from lanner.partition.batches import Rows
from lanner.partition.keys import ATTEMPTS, PREPARED, integer_key, integer_of, prefix_end
from lanner.partition.records import ATTEMPT_BYTES, Counted, StageNote
from lanner.partition.requests import Prepared
from lanner.partition.timetable import Timetable

CHUNK_STAGES: Final = 256
_STAGE: Final = Struct("<QIHBQQ")
_CHUNK_NUMBER_BYTES: Final = 2


class StagedBatch(NamedTuple):
    """What becomes a batch of the partition once it is published."""

    index: int  # type: ignore[assignment]
    size: int
    count: int  # type: ignore[assignment]
    priority: int
    deliver_at_ms: int
    expires_at_ms: int


class Attempt:
    """The stages of one attempt, and whose they are."""

    __slots__ = ("active_ms", "chunks", "hold_ms", "owner", "sequence", "size", "task", "token", "transaction")

    def __init__(self, transaction: str, owner: str, sequence: int, task: int, hold_ms: int) -> None:
        self.transaction = transaction
        self.owner = owner
        self.sequence = sequence
        self.task = task
        self.hold_ms = hold_ms
        self.active_ms = 0
        self.size = 0
        self.chunks: list[bytearray] = []
        self.token = 0  # of the try that holds it

    @property
    def stages(self) -> int:
        return sum(map(len, self.chunks)) // _STAGE.size

    def has_head(self, note: StageNote) -> bool:
        """Whether a stage says the same of its attempt as those before it."""
        return (self.transaction, self.owner, self.sequence, self.task, self.hold_ms) == (
            note.transaction,
            note.owner,
            note.sequence,
            note.task,
            note.hold_ms,
        )

    def between(self, first: int, end: int) -> Iterator[StagedBatch]:
        for number in range(first, end):
            chunk, at = divmod(number, CHUNK_STAGES)
            yield StagedBatch._make(_STAGE.unpack_from(self.chunks[chunk], at * _STAGE.size))

    def count_of(self, number: int) -> int:
        """How many messages a stage has."""
        return next(self.between(number, number + 1)).count


class _Head(msgspec.Struct, array_like=True):
    transaction: str
    owner: str
    sequence: int
    task: int
    hold_ms: int
    active_ms: int
    stages: int
    size: int
    first: bytes  # the first chunk


class _Try(msgspec.Struct, array_like=True):
    transaction: str
    owner: str
    sequence: int
    manifest: tuple[Counted, ...]
    dealt: int
    prepared_ms: int


_encoder: Final = msgspec.msgpack.Encoder()
_head_decoder: Final = msgspec.msgpack.Decoder(_Head)
_try_decoder: Final = msgspec.msgpack.Decoder(_Try)


def _chunk_key(attempt: bytes, chunk: int) -> bytes:
    return ATTEMPTS + attempt + chunk.to_bytes(_CHUNK_NUMBER_BYTES, "big")


class Stages:
    """All attempts and prepared tries of one partition."""

    def __init__(self) -> None:
        self.staged_bytes = 0  # of attempts that no try holds
        self.prepared_bytes = 0  # of stages that a try holds and has not dealt with
        self.metadata_index = 0
        self.attempts: dict[bytes, Attempt] = {}
        self.prepared: dict[int, Prepared] = {}  # by token
        # derived
        self.stages = 0  # of all attempts
        self.expired = 0  # stages that went because their time was over, since this was loaded
        self.dropped = 0  # stages that went because nobody would commit them, likewise
        self.expiry: Timetable[bytes] = Timetable()
        self.by_writer: dict[tuple[str, str], dict[bytes, None]] = {}  # (transaction, owner) → attempts
        self._dirty: set[bytes] = set()

    # ------------------------------------------------------------------ attempts

    def add(self, note: StageNote, batch: StagedBatch, now_ms: int) -> None:
        """The next stage of an attempt, or the first of a new one."""
        attempt = self.attempts.get(note.attempt)
        if attempt is None:
            attempt = Attempt(note.transaction, note.owner, note.sequence, note.task, note.hold_ms)
            self._enter(note.attempt, attempt)
        if not attempt.chunks or len(attempt.chunks[-1]) == CHUNK_STAGES * _STAGE.size:
            attempt.chunks.append(bytearray())
        attempt.chunks[-1] += _STAGE.pack(*batch)
        attempt.active_ms = now_ms
        attempt.size += batch.size
        self.stages += 1
        self.staged_bytes += batch.size
        self.expiry.put(note.attempt, now_ms + attempt.hold_ms)
        self._dirty.add(_chunk_key(note.attempt, 0))
        self._dirty.add(_chunk_key(note.attempt, len(attempt.chunks) - 1))

    def _enter(self, name: bytes, attempt: Attempt) -> None:
        self.attempts[name] = attempt
        self.by_writer.setdefault((attempt.transaction, attempt.owner), {})[name] = None

    def _leave(self, name: bytes) -> Attempt:
        attempt = self.attempts.pop(name)
        writer = (attempt.transaction, attempt.owner)
        del self.by_writer[writer][name]
        if not self.by_writer[writer]:
            del self.by_writer[writer]
        self.expiry.drop(name)
        self.stages -= attempt.stages
        self._dirty.update(_chunk_key(name, chunk) for chunk in range(len(attempt.chunks)))
        return attempt

    def drop(self, name: bytes, active_ms: int, now_ms: int) -> list[int]:
        """Let an attempt go, unless it is prepared or was staged to since; the indexes of its stages."""
        attempt = self.attempts.get(name)
        if attempt is None or attempt.token or attempt.active_ms != active_ms:
            return []
        self._leave(name)
        if active_ms + attempt.hold_ms <= now_ms:
            self.expired += attempt.stages
        else:
            self.dropped += attempt.stages
        self.staged_bytes -= attempt.size
        return [batch.index for batch in attempt.between(0, attempt.stages)]

    # ------------------------------------------------------------------ tries

    def missing(self, transaction: str, owner: str, sequence: int, manifest: Sequence[Counted]) -> list[bytes]:
        """The attempts of a manifest that are not here, free, with exactly the stages it names."""
        gone: list[bytes] = []
        for task, name, stages in manifest:
            attempt = self.attempts.get(name)
            if (
                attempt is None
                or attempt.token
                or attempt.stages != stages
                or (attempt.transaction, attempt.owner, attempt.sequence, attempt.task)
                != (transaction, owner, sequence, task)
            ):
                gone.append(name)
        return gone

    def prepare(self, token: int, prepared: Prepared) -> None:
        """Hold what the manifest names, which is here."""
        size = 0
        for _, name, _ in prepared.manifest:
            attempt = self.attempts[name]
            attempt.token = token
            size += attempt.size
            self.expiry.drop(name)
        self.staged_bytes -= size
        self.prepared_bytes += size
        stages = sum(counted.stages for counted in prepared.manifest)
        self._put(token, prepared._replace(size=size, stages=stages))

    def _put(self, token: int, prepared: Prepared) -> None:
        self.prepared[token] = prepared
        self._dirty.add(integer_key(PREPARED, token))

    def next_of(self, token: int, limit: int) -> list[StagedBatch]:
        """The next stages of a try that are to be dealt with, in the order of its manifest."""
        return list(islice(self._undealt(self.prepared[token], token), limit))

    def _undealt(self, prepared: Prepared, token: int) -> Iterator[StagedBatch]:
        before = 0
        for _, name, stages in prepared.manifest:
            end = before + stages
            if end > prepared.dealt:
                attempt = self.attempts[name]
                assert attempt.token == token, "a stage is gone before it was dealt with"
                yield from attempt.between(max(prepared.dealt - before, 0), stages)
            before = end

    def deal(self, token: int, count: int) -> list[StagedBatch]:
        """Take the next stages of a try out: they are published or withdrawn now."""
        prepared = self.prepared[token]
        batches = self.next_of(token, count)
        size = sum(batch.size for batch in batches)
        dealt = prepared.dealt + len(batches)
        self.prepared_bytes -= size
        before = 0
        for _, name, stages in prepared.manifest:
            before += stages
            if prepared.dealt < before <= dealt:
                self._leave(name)
        if dealt < prepared.stages:
            self._put(token, prepared._replace(dealt=dealt, size=prepared.size - size))
        else:
            del self.prepared[token]
            self._dirty.add(integer_key(PREPARED, token))
        return batches

    # ------------------------------------------------------------------ rows

    def load(self, rows: Rows) -> None:
        """The counters in the header are the caller's to set."""
        for key, data in rows.scan(ATTEMPTS, prefix_end(ATTEMPTS)):
            name = key[1 : 1 + ATTEMPT_BYTES]
            if key[1 + ATTEMPT_BYTES :] == bytes(_CHUNK_NUMBER_BYTES):  # the first chunk, which comes first
                head = _head_decoder.decode(data)
                attempt = Attempt(head.transaction, head.owner, head.sequence, head.task, head.hold_ms)
                attempt.active_ms, attempt.size = head.active_ms, head.size
                attempt.chunks.append(bytearray(head.first))
                self._enter(name, attempt)
            else:
                self.attempts[name].chunks.append(bytearray(data))
        for key, data in rows.scan(PREPARED, prefix_end(PREPARED)):
            self._load_try(integer_of(PREPARED, key), _try_decoder.decode(data))
        for name, attempt in self.attempts.items():
            self.stages += attempt.stages
            if not attempt.token:
                self.expiry.put(name, attempt.active_ms + attempt.hold_ms)

    def _load_try(self, token: int, row: _Try) -> None:
        stages = sum(counted.stages for counted in row.manifest)
        prepared = Prepared(
            row.transaction, row.owner, row.sequence, row.manifest, row.dealt, row.prepared_ms, 0, stages
        )
        before = 0
        for _, name, stages in row.manifest:
            before += stages
            if before > row.dealt:
                self.attempts[name].token = token
        size = sum(batch.size for batch in self._undealt(prepared, token))
        self.prepared[token] = prepared._replace(size=size)

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        for key in self._dirty:
            into[key] = self._encode(key)
        self._dirty = set()

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        keys = [integer_key(PREPARED, token) for token in self.prepared]
        keys += [
            _chunk_key(name, chunk) for name, attempt in self.attempts.items() for chunk in range(len(attempt.chunks))
        ]
        for key in keys:
            row = self._encode(key)
            assert row is not None
            into[key] = row

    def _encode(self, key: bytes) -> bytes | None:
        """A row as it is now; None: it is gone."""
        if key.startswith(PREPARED):
            found = self.prepared.get(integer_of(PREPARED, key))
            return None if found is None else _encoder.encode(_Try(*found[:6]))
        attempt = self.attempts.get(key[1 : 1 + ATTEMPT_BYTES])
        chunk = int.from_bytes(key[1 + ATTEMPT_BYTES :], "big")
        if attempt is None or chunk >= len(attempt.chunks):
            return None
        if chunk:
            return bytes(attempt.chunks[chunk])
        head = _Head(
            attempt.transaction,
            attempt.owner,
            attempt.sequence,
            attempt.task,
            attempt.hold_ms,
            attempt.active_ms,
            attempt.stages,
            attempt.size,
            bytes(attempt.chunks[0]),
        )
        return _encoder.encode(head)

    # ------------------------------------------------------------------ what must hold

    def indexes(self) -> Iterator[int]:
        """Of every stage that is neither published nor gone: these entries stay readable."""
        for attempt in self.attempts.values():
            if not attempt.token:
                yield from (batch.index for batch in attempt.between(0, attempt.stages))
        for token, prepared in self.prepared.items():
            yield from (batch.index for batch in self._undealt(prepared, token))

    def check(self, applied_index: int) -> None:
        held: dict[bytes, int] = {}
        for token, prepared in self.prepared.items():
            assert prepared.dealt < prepared.stages == sum(counted.stages for counted in prepared.manifest)
            before = 0
            for task, name, stages in prepared.manifest:
                before += stages
                if before <= prepared.dealt:
                    continue
                assert name not in held, "two tries hold one attempt"
                held[name] = token
                attempt = self.attempts[name]
                assert (attempt.transaction, attempt.owner, attempt.sequence, attempt.task, attempt.stages) == (
                    prepared.transaction,
                    prepared.owner,
                    prepared.sequence,
                    task,
                    stages,
                ), "a prepared attempt is not what its try says"
            assert prepared.size == sum(batch.size for batch in self._undealt(prepared, token))
        assert self.prepared_bytes == sum(prepared.size for prepared in self.prepared.values())
        free = {name: attempt for name, attempt in self.attempts.items() if name not in held}
        assert self.staged_bytes == sum(attempt.size for attempt in free.values())
        assert self.expiry.times == {name: one.active_ms + one.hold_ms for name, one in free.items()}
        for name, attempt in self.attempts.items():
            batches = list(attempt.between(0, attempt.stages))
            assert attempt.token == held.get(name, 0) and batches, "an attempt is held by no try, or is empty"
            assert attempt.size == sum(batch.size for batch in batches)
            assert all(len(chunk) == CHUNK_STAGES * _STAGE.size for chunk in attempt.chunks[:-1])
            assert max(batch.index for batch in batches) <= applied_index
            assert name in self.by_writer[attempt.transaction, attempt.owner]
        assert self.stages == sum(attempt.stages for attempt in self.attempts.values())
        assert sum(map(len, self.by_writer.values())) == len(self.attempts)
