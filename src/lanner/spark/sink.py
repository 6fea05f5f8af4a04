"""Writing topics from Spark: all rows of a batch become visible together, or none does.

Each task stages its rows under an attempt of its own and sends what it staged to the driver, as the message that Spark
carries there. The driver commits what the messages name. Attempts that are in no message (of tasks that failed, or
were run twice) are committed by nobody, and expire.

A streaming write is exactly-once: the query's id and the batch's number name its work, so a batch that is run again
after a crash finds that it was committed, or is committed now. The query's id lives in its checkpoint; another
checkpoint under the same `transactionalId` is another owner, and refused. A batch write has a random name of its own,
unless `transactionalId` and `transactionSequence` name its work.

A write returns when every partition shows its rows, so that a program may read at once what it has written.

`commit` runs in another process than `write`, and may see another writer: the messages carry all that it needs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanner import sync
from lanner.client.stages import Staged
from lanner.errors import ServerError, ValidationError
from lanner.spark.rows import ANY, check_columns, pieces
from lanner.spark.write_options import WriteOptions, parse_write_options

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_OWNER_OF_BATCHES: Final = "batch"


class Work(NamedTuple):
    """What a write is called: the transaction, its owner, and the sequence."""

    transaction: str
    owner: str
    sequence: int
    once: bool = False  # a random name, for this write alone


class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    def __init__(self, staged: Staged, once: bool) -> None:
        self.staged = staged
        self.once = once


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ServerError("Spark runs this outside of a task")
    return context


def _stage(options: WriteOptions, work: Work, rows: Iterator[Any]) -> StagedRows:
    """Stage the rows of a task. A batch that was committed before is only read to its end."""
    with sync.connect(options.servers, client_name="lanner-spark") as queue:
        writer = queue.stage(
            work.transaction,
            work.owner,
            work.sequence,
            task=_context().partitionId(),
            hold_ms=options.hold_ms,
            codec=options.codec,
        )
        try:
            for record_batch in rows:
                if writer.repeated:
                    continue
                for piece in pieces(record_batch, options.topic, options.value_format, writer.partitions_of):
                    partition = None if piece.partition == ANY else piece.partition
                    writer.stage_rows(*piece._replace(partition=partition))  # type: ignore[arg-type]
            return StagedRows(writer.finish(), work.once)
        except BaseException:
            writer.abandon()
            staged = writer.staged()
            queue.discard_staged(*staged[:3], [staged], begun=False)
            raise


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    staged = _staged(messages)
    if not staged:
        return
    if len(staged) < len(messages):
        raise ServerError("Spark committed a write without a message of every task")
    once = all(isinstance(one, StagedRows) and one.once for one in messages)
    with sync.connect(options.servers, client_name="lanner-spark") as queue:
        queue.commit_staged(*staged[0][:3], staged, timeout=options.commit_ms / 1000, wait="visible", once=once)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what was staged. Where every message is there a commit may have begun: it is given up first, and what
    turns out to be committed stays."""
    staged = _staged(messages)
    if staged:
        with sync.connect(options.servers, client_name="lanner-spark") as queue:
            queue.discard_staged(*staged[0][:3], staged, begun=len(staged) == len(messages))


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [one.staged for one in messages if isinstance(one, StagedRows)]


class LannerWriter(DataSourceArrowWriter):
    """A batch write: nothing shows until the job commits."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._random = f"spark-batch-{secrets.token_hex(16)}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options = self._options
        if not options.transaction:
            return _stage(options, Work(self._random, _OWNER_OF_BATCHES, 0, once=True), iterator)
        # Inside foreachBatch the work belongs to that query.
        owner = _context().getLocalProperty(QUERY_ID) or _OWNER_OF_BATCHES
        return _stage(options, Work(options.transaction, owner, options.sequence), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class LannerStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: each batch exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _context()
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise ServerError("Spark does not say which query and which batch this is")
        transaction = self._options.transaction or f"spark-{query_id}"
        return _stage(self._options, Work(transaction, query_id, int(batch_id)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)


def open_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> LannerWriter:
    return LannerWriter(_checked(given, schema, overwrite, streaming=False))


def open_stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> LannerStreamWriter:
    return LannerStreamWriter(_checked(given, schema, overwrite, streaming=True))


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
    options = parse_write_options(given, streaming=streaming)
    if overwrite:
        how = 'outputMode("append")' if streaming else 'mode("append")'
        raise ValidationError(f"a topic is written to, not replaced: say .{how}", field="mode")
    kinds = {field.name: field.type for field in to_arrow_schema(schema, timezone="UTC")}
    check_columns(kinds, options.topic, options.value_format)
    return options
