"""The way in: `connect` gives a Queue, and everything else is reached from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from typing import Any, Final, Unpack
from weakref import WeakSet

from lanner.client.admin import Admin
from lanner.client.arguments import Text
from lanner.client.brokers import Brokers
from lanner.client.commits import TIMEOUT_S, WAIT, Claimed, Committed
from lanner.client.consumer import Consumer
from lanner.client.dead_reader import DeadLetterReader
from lanner.client.member_reader import MemberReader
from lanner.client.member_settings import split_options
from lanner.client.options import (
    ColumnOptions,
    ConsumerOptions,
    DeadReaderOptions,
    MessageOptions,
    ProducerOptions,
    ReaderOptions,
    StageOptions,
    check_options,
)
from lanner.client.producer import Producer
from lanner.client.reader import Reader, check_one_topic
from lanner.client.receipts import Receipt, Receipts
from lanner.client.routing import Routing
from lanner.client.session import TIMEOUT_MS
from lanner.client.stages import Staged, StageWriter
from lanner.client.transactions import Transaction, Transactions

_log: Final = logging.getLogger("lanner.client")


class Queue:
    """The way to the brokers. `async with lanner.connect(...) as queue`, or `queue = await lanner.connect(...)`."""

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        token: str | None = None,
        client_name: str = "",
        timeout_ms: float = TIMEOUT_MS,
    ) -> None:
        self._brokers = Brokers(address, token=token, client_name=client_name, timeout_ms=timeout_ms)
        self._routing = Routing(self._brokers)
        self._publisher: Producer | None = None
        self._producers: list[Producer] = []
        self._members: WeakSet[Consumer | MemberReader] = WeakSet()  # that have joined a group, or may
        self._transactions = Transactions(self._brokers, self._routing)
        self.admin = Admin(self._brokers, self._routing)

    # ------------------------------------------------------------------ publishing

    async def publish(self, topic: str, value: Text, **options: Unpack[MessageOptions]) -> Receipt:
        """Publish one message; returns once it is stored durably.

        Options: key, headers, priority, partition, delay_ms or deliver_at, ttl_ms or expires_at, dedup_id. What several
        tasks publish while a request is under way travels together.
        """
        check_options("publish", options, MessageOptions)
        return await (await self._open_publisher().send(topic, value, **options))

    async def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[ColumnOptions]) -> Receipts:
        """Publish many messages, given as columns; returns once all are stored durably.

        Options: as of `publish`, with keys and headers as columns too; and return_errors.
        """
        check_options("publish_many", options, ColumnOptions)
        return await self._open_publisher().publish_many(topic, values, **options)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer of its own, with its own batching. Close it, or use it as `async with`.

        Options: linger_ms, batch_bytes, batch_messages, buffer_bytes_max, codec, idempotent, timeout_ms, timestamps.
        """
        self._brokers.check_open()
        check_options("producer", options, ProducerOptions)
        producer = Producer(self._brokers, self._routing, **options)
        self._producers = [one for one in self._producers if not one.is_closed]
        self._producers.append(producer)
        return producer

    def _open_publisher(self) -> Producer:
        self._brokers.check_open()
        if self._publisher is None:
            self._publisher = self.producer(linger_ms=0)
        return self._publisher

    # ------------------------------------------------------------------ transactions

    def transaction(
        self,
        transaction: str,
        owner: str,
        sequence: int,
        *,
        timeout: float = TIMEOUT_S,
        wait: str = WAIT,
        **options: Unpack[StageOptions],
    ) -> Transaction:
        """Messages to several topics and partitions that become visible all or none.

        `async with` commits when it is left and discards when an exception leaves it. The same sequence of the same
        owner again is the same work: `repeated` says that it was committed before. `timeout` in seconds is that of
        the commit, which returns when every partition shows it: what was committed can be read at once.
        `wait="decided"` is faster, and returns when it is recorded. Options: hold_ms, batch_bytes,
        batch_messages, codec.
        """
        check_options("transaction", options, StageOptions)
        return self._transactions.transaction(transaction, owner, sequence, timeout, wait, options)

    async def stage(
        self, transaction: str, owner: str, sequence: int, *, task: int = 0, **options: Unpack[StageOptions]
    ) -> StageWriter:
        """A writer for one task's part of a transaction that is committed elsewhere: see `commit_staged`.

        `await writer.finish()` gives what was staged, as a plain value that may travel to another process.
        """
        check_options("stage", options, StageOptions)
        return await self._transactions.stage(transaction, owner, sequence, task=task, **options)

    async def commit_staged(
        self,
        transaction: str,
        owner: str,
        sequence: int,
        staged: Sequence[Staged],
        *,
        timeout: float = TIMEOUT_S,
        wait: str = WAIT,
        once: bool = False,
    ) -> Committed:
        """Commit what several writers have staged, each task once. It may be repeated with the same values.

        Returns only when the commit is recorded, and when every partition shows it; should that take longer than
        `timeout`, with a warning and without `visible`. `wait="decided"` does not wait for it. An error's
        `details["outcome"]` says what is known: aborted, not begun, or unknown. `once`: the transaction's name is
        random and used this one time.
        """
        return await self._transactions.commit(
            transaction, owner, sequence, staged, timeout=timeout, wait=wait, once=once
        )

    async def discard_staged(
        self, transaction: str, owner: str, sequence: int, staged: Sequence[Staged], *, begun: bool = True
    ) -> Committed | None:
        """Abort the commit of exactly these stages, and drop them; the commit, if it turns out to be decided.

        Without `begun` there was no such commit, and they are only dropped.
        """
        return await self._transactions.discard(transaction, owner, sequence, staged, begun=begun)

    async def claim_transaction(self, transaction: str, owner: str, *, restart: bool = False) -> Claimed:
        """Take a transaction over for another owner. With `restart` it forgets which sequences are committed."""
        return await self._transactions.claim(transaction, owner, restart=restart)

    # ------------------------------------------------------------------ consuming

    def consumer(self, topic: str | Sequence[str], group: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A consumer of a queue group. `async with` gives back at the end what was not settled.

        Options: max_messages, max_bytes, lease_ms, prefetch, partitions, start, auto_ack, auto_extend, member.
        `prefetch` fixes how many messages `async for` takes at a time; by default it takes what it can handle in a
        tenth of a second. `auto_extend` keeps extending the leases of what is held. `auto_ack` settles as it hands
        out: at most once.

        By default all consumers of a group share all partitions. With an assignor ("sticky", "range", "round_robin")
        each is a member with partitions of its own, and the topic may be a pattern, such as "refunds.*". Further
        options of members: instance, session_ms, rack, on_assigned, on_revoked, on_lost, register.
        """
        self._brokers.check_open()
        check_options("consumer", options, ConsumerOptions)
        settings, rest = split_options(options)
        consumer = Consumer(self._brokers, self._routing, topic, group, settings, **rest)
        self._members.add(consumer)
        return consumer

    def reader(self, topic: str | Sequence[str], **options: Unpack[ReaderOptions]) -> Reader:
        """Read a topic as a stream, in offset order within each partition.

        Options: partitions, start, until_end, group, priorities, from_followers, page_bytes, buffer_bytes_max, on_hole.
        `start` is "earliest", "latest", an offset, a datetime, or offsets by partition; where a group has committed,
        that wins, and "committed" is an error where it has not (or has expired). `until_end` stops at what is the end
        now. `from_followers` lets brokers answer that do not lead.

        With an assignor ("sticky", "range", "round_robin") the reader is a member of its group: it reads the partitions
        that it is given and hands them over when others join or leave; there may be several topics, and patterns.
        Further options of members: instance, session_ms, rack, on_assigned, on_revoked, on_lost, stall_ms.
        """
        self._brokers.check_open()
        check_options("reader", options, ReaderOptions)
        settings, rest = split_options(options)
        if settings.assignor is not None:
            reader = MemberReader(self._brokers, self._routing, topic, settings, **rest)
            self._members.add(reader)
            return reader
        return Reader(self._brokers, self._routing, check_one_topic(topic, settings), **rest)

    def dead_letter_reader(self, topic: str, group: str, **options: Unpack[DeadReaderOptions]) -> DeadLetterReader:
        """Read the dead letters of a group as a stream, in the order in which they died on each partition.

        Options: partitions, start, until_end, page_bytes, on_hole. `start` is "earliest", "latest", or numbers by
        partition, as `positions()` gave them.
        """
        self._brokers.check_open()
        check_options("dead_letter_reader", options, DeadReaderOptions)
        return DeadLetterReader(self._brokers, self._routing, topic, group, **options)

    # ------------------------------------------------------------------ opening and closing

    @property
    def is_connected(self) -> bool:
        return self._brokers.is_up

    async def open(self) -> Queue:
        """Connect; raises at once, and says what to do, when there is no broker."""
        await self._brokers.open()
        return self

    async def close(self, *, flush: bool = True) -> None:
        """Send what producers still hold, leave the groups, then hang up. Without `flush` what is not confirmed is
        given up."""
        try:
            if flush and not self._brokers.is_closed:
                leaving = [member.leave() for member in self._members]
                for outcome in await asyncio.gather(*leaving, return_exceptions=True):
                    if isinstance(outcome, Exception):  # a callback's, mostly: the others leave all the same
                        _log.error("a member of a group did not leave in good order", exc_info=outcome)
                closing = [producer.close() for producer in self._producers]
                for outcome in await asyncio.gather(*closing, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
        finally:
            for producer in self._producers:
                producer.abandon()
            for member in self._members:
                member.abandon()
            await self._routing.close()
            await self._brokers.close()

    def __await__(self) -> Generator[Any, None, Queue]:
        return self.open().__await__()

    async def __aenter__(self) -> Queue:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        # After an error a broker that is away is not waited for; without one, what was sent must not vanish silently.
        await self.close(flush=kind is None or (issubclass(kind, Exception) and self._brokers.is_up))


def connect(
    address: str | Sequence[str] = "localhost:7400",
    *,
    token: str | None = None,
    client_name: str = "",
    timeout_ms: float = TIMEOUT_MS,
) -> Queue:
    """Connect: `async with lanner.connect("localhost:7400") as queue`.

    `address` may name several brokers with commas between: any one that answers is enough to find the others.
    `timeout_ms` is the deadline of every call that does not have its own.
    """
    return Queue(address, token=token, client_name=client_name, timeout_ms=timeout_ms)
