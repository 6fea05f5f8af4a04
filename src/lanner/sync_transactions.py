"""Transactions of the blocking client: the same calls, handed to the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from lanner.client import stages as asynchronous_stages
from lanner.client import transactions as asynchronous_transactions
from lanner.client.arguments import Text
from lanner.client.commits import Committed
from lanner.client.options import StageColumnOptions, StagedMessageOptions
from lanner.client.stages import Staged
from lanner.sync_admin import Caller


class Transaction:
    """`with queue.transaction(...) as transaction`: leaving commits, an exception discards."""

    def __init__(self, thread: Caller, transaction: asynchronous_transactions.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def repeated(self) -> bool:
        """This sequence was committed before; publishes did nothing."""
        return self._transaction.repeated

    @property
    def committed(self) -> Committed | None:
        return self._transaction.committed

    def publish(self, topic: str, value: Text, **options: Unpack[StagedMessageOptions]) -> None:
        self._thread.call(self._transaction.publish(topic, value, **options))

    def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[StageColumnOptions]) -> None:
        self._thread.call(self._transaction.publish_many(topic, values, **options))

    def commit(self) -> Committed:
        return self._thread.call(self._transaction.commit())

    def discard(self) -> None:
        self._thread.call(self._transaction.discard())

    def __enter__(self) -> Transaction:
        self._thread.call(self._transaction.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._thread.call(self._transaction.__aexit__(kind, error, trace))


class StageWriter:
    """Stages one task's part of a transaction; `finish` tells what was staged."""

    def __init__(self, thread: Caller, writer: asynchronous_stages.StageWriter) -> None:
        self._thread = thread
        self._writer = writer

    @property
    def repeated(self) -> bool:
        return self._writer.repeated

    def publish(self, topic: str, value: Text, **options: Unpack[StagedMessageOptions]) -> None:
        self._thread.call(self._writer.publish(topic, value, **options))

    def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[StageColumnOptions]) -> None:
        self._thread.call(self._writer.publish_many(topic, values, **options))

    def partitions_of(self, topic: str) -> int:
        return self._thread.call(self._writer.partitions_of(topic))

    def stage_rows(
        self,
        topic: str,
        partition: int | None,
        priority: int,
        deliver_at_ms: int,
        expires_at_ms: int,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        self._thread.call(
            self._writer.stage_rows(
                topic, partition, priority, deliver_at_ms, expires_at_ms, values, keys, headers, timestamps
            )
        )

    def finish(self) -> Staged:
        return self._thread.call(self._writer.finish())

    def staged(self) -> Staged:
        return self._writer.staged()

    def abandon(self) -> None:
        self._thread.call(self._writer.abandon())
