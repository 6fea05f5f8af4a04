"""What a task of a replay does with its rows: it publishes them in chunks, each exactly once.

Every source partition has a transaction of its own, whose name follows from the replay's id and its work. The sequence
of a chunk is the offset that comes after its last message. So the brokers know, for each partition, how far the replay
has come, in the same step in which they show the messages: a task begins by claiming the transaction, which tells it
where to go on, and fences whichever run or attempt had it before. A task that Spark runs again, and a replay that was
killed and is repeated under its id, therefore publish what is missing and nothing twice. Chunks need not be the same
ones again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import compute

from lanner import limits, sync
from lanner.errors import ConflictError, FenceConflict
from lanner.spark.archive import lanes
from lanner.spark.rows import ANY

_ROWS_AT_ONCE: Final = 4_096
_RATE_SLICES: Final = 10  # a second of a bounded rate is sent in so many parts


class Publication(NamedTuple):
    """What a replay publishes, as its tasks need to know it."""

    servers: str
    target: str
    replay_id: str
    work: str  # a digest of what is replayed: other work under the same id is another transaction
    partitions: int | None  # of the target, where keys decide; None: each message keeps its own
    rate: float | None  # of one task
    now_ms: int  # delays and expiries up to here are over
    expired_too: bool

    def transaction(self, partition: int) -> str:
        return f"replay-{self.replay_id}-{self.work}-{partition}"


class Pace:
    """When the next messages may go, at so many a second."""

    def __init__(self, rate: float, began: float) -> None:
        self._rate = rate
        self._began = began
        self._sent = 0

    def wait_seconds(self, count: int, now: float) -> float:
        """How long to wait before the next message, once these are sent."""
        self._sent += count
        return max(0.0, self._began + self._sent / self._rate - now)


class Published(NamedTuple):
    """What became of one source partition."""

    messages: int
    expired: int
    resumed: bool  # an earlier run had published some


def publisher(publication: Publication) -> Callable[[Iterable[Any]], Iterator[Published]]:
    """What a task does with its rows, which have the columns of `lanes.SCHEMA`; Spark sends it to the executors."""

    def publish(rows: Iterable[Any]) -> Iterator[Published]:
        return published(publication, _record_batches(iter(rows)))

    return publish


def _record_batches(rows: Iterator[Any]) -> Iterator[Any]:
    """Rows as Spark hands them out, in columns."""
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        columns = dict(zip(lanes.SCHEMA.names, zip(*some, strict=True), strict=True))
        columns["headers"] = tuple(
            None if found is None else [{"key": name, "value": value} for name, value in found]
            for found in columns["headers"]
        )
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(columns[field.name], field.type) for field in lanes.SCHEMA], schema=lanes.SCHEMA
        )


def published(publication: Publication, record_batches: Iterator[Any]) -> Iterator[Published]:
    """Publish rows that come by partition and offset; what became of each partition."""
    rate = publication.rate
    rows_max = limits.REPLAY_CHUNK_ROWS if rate is None else max(1, int(rate / _RATE_SLICES))
    pace = None if rate is None else Pace(rate, time.monotonic())
    part: _Part | None = None
    with sync.connect(publication.servers, client_name="lanner-replay") as queue:
        for partition, rows in lanes.chunks(record_batches, rows_max, limits.REPLAY_CHUNK_BYTES):
            if part is None or part.partition != partition:
                if part is not None:
                    yield part.result()
                part = _Part(queue, publication, partition)
            count = part.publish(rows)
            if pace is not None:
                time.sleep(pace.wait_seconds(count, time.monotonic()))
    if part is not None:
        yield part.result()


class _Part:
    """One source partition, on its way."""

    def __init__(self, queue: sync.Queue, publication: Publication, partition: int) -> None:
        self.partition = partition
        self._queue = queue
        self._publication = publication
        self._transaction = publication.transaction(partition)
        self._owner = f"run-{secrets.token_hex(12)}"
        self._next = queue.claim_transaction(self._transaction, self._owner).latest
        self._resumed = self._next >= 0
        self._messages = self._expired = 0

    def publish(self, rows: Any) -> int:
        """Publish what was not published before and has not expired; how many messages that is."""
        left = rows.filter(compute.greater_equal(rows["offset"], self._next))
        if not self._publication.expired_too:
            before = left.num_rows
            left = lanes.without_expired(left, self._publication.now_ms)
            self._expired += before - left.num_rows
        self._publish(left.combine_chunks())
        self._messages += left.num_rows
        return int(left.num_rows)

    def _publish(self, rows: Any) -> None:
        if not rows.num_rows:
            return
        made = lanes.by_lane(rows, self._publication.now_ms, self._publication.partitions)
        if len(made.starts) > limits.REPLAY_CHUNK_BATCHES:
            half = rows.num_rows // 2
            self._publish(rows.slice(0, half).combine_chunks())
            self._publish(rows.slice(half).combine_chunks())
            return
        try:
            self._commit(made, rows["offset"][rows.num_rows - 1].as_py() + 1)
        except FenceConflict as error:
            raise ConflictError(
                f"another run of the replay {self._publication.replay_id!r} has begun: this one ends, and the other "
                "goes on where it was"
            ) from error

    def _commit(self, made: lanes.Lanes, sequence: int) -> None:
        writer = self._queue.stage(self._transaction, self._owner, sequence)
        try:
            for piece in lanes.pieces(made, self._publication.target):
                partition = None if piece.partition == ANY else piece.partition
                writer.stage_rows(*piece._replace(partition=partition))  # type: ignore[arg-type]
            staged = writer.finish()
        except BaseException:
            writer.abandon()
            self._queue.discard_staged(*writer.staged()[:3], [writer.staged()], begun=False)
            raise
        self._queue.commit_staged(self._transaction, self._owner, sequence, [staged], wait="visible")
        self._next = sequence

    def result(self) -> Published:
        return Published(self._messages, self._expired, self._resumed)
