"""The same client, blocking: for scripts, threads and notebooks.

One background thread runs the event loop; every call here hands its work to that loop and waits. Objects may be used
from several threads. Names and arguments are those of the asynchronous client.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from lanner.client import consumer as asynchronous_consumer
from lanner.client import delivery as asynchronous_delivery
from lanner.client import producer as asynchronous_producer
from lanner.client import queue as asynchronous_queue
from lanner.client import reader as asynchronous_reader
from lanner.client.arguments import Text
from lanner.client.commits import TIMEOUT_S, WAIT, Claimed, Committed
from lanner.client.delivery import Deliveries, Delivery, Part, Settling
from lanner.client.options import (
    ColumnOptions,
    ConsumerOptions,
    DeadReaderOptions,
    MessageOptions,
    ProducerOptions,
    ReaderOptions,
    StageOptions,
    Start,
)
from lanner.client.receipts import Receipt, Receipts
from lanner.client.session import TIMEOUT_MS
from lanner.client.stages import Staged
from lanner.client.stream import Hole, ReadBatch
from lanner.model import Message as StoredMessage
from lanner.model import TopicPartition
from lanner.sync_admin import Admin
from lanner.sync_callbacks import Relay, Relays
from lanner.sync_dead import DeadLetterReader
from lanner.sync_thread import LoopThread
from lanner.sync_transactions import StageWriter, Transaction
from lanner.wire.messages import SettleItem, SettleKind

Result = TypeVar("Result")

SENDINGS_MAX = 10_000  # messages that a blocking producer may have under way


async def _made(make: Callable[[], Result]) -> Result:
    """Objects of the asynchronous client are made on the loop they live on."""
    return make()


class Message(Delivery):
    """A leased message of a blocking consumer."""

    __slots__ = ()

    def ack(self) -> None:
        """It is done: the group never sees it again. Raises LeaseLost when the lease had ended."""
        self._settle(SettleKind.ACK, None, "")

    def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """It failed: deliver it again after a delay (by default the topic's backoff)."""
        self._settle(SettleKind.NACK, delay_ms, reason)

    def extend(self, lease_ms: int | None = None) -> None:
        """More time, from now (by default the topic's lease)."""
        self._settle(SettleKind.EXTEND, lease_ms, "")

    def reject(self, reason: str = "") -> None:
        """It can never succeed: park it among the dead letters now."""
        self._settle(SettleKind.REJECT, None, reason)

    def _settle(self, kind: int, delay_ms: int | None, reason: str) -> None:
        thread = _thread_of(self._part)

        async def settle() -> None:
            await self._part.settle_one(self._place, kind, -1 if delay_ms is None else delay_ms, reason)

        thread.call(settle())


class MessageBatch(Deliveries[Message]):
    """What one poll brought, settled as a whole or message by message."""

    _kind = Message

    def ack(self) -> None:
        self._settle(SettleKind.ACK, None, "")

    def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        self._settle(SettleKind.NACK, delay_ms, reason)

    def extend(self, lease_ms: int | None = None) -> None:
        self._settle(SettleKind.EXTEND, lease_ms, "")

    def reject(self, reason: str = "") -> None:
        self._settle(SettleKind.REJECT, None, reason)

    def _settle(self, kind: int, delay_ms: int | None, reason: str) -> None:
        async def settle() -> None:
            items = self._items(kind, delay_ms, reason)
            if items:
                await self.parts[0].settler.settle(items)

        if self.parts:
            _thread_of(self.parts[0]).call(settle())


class _Settler:
    """Stands for a topic's queue where its messages are settled, and knows the thread of its loop."""

    def __init__(self, thread: LoopThread, settler: asynchronous_delivery.Settler) -> None:
        self.thread = thread
        self.topic = settler.topic
        self.group = settler.group
        self._settler = settler

    def settle(self, items: list[SettleItem]) -> Settling:
        return self._settler.settle(items)

    def forget(self, part: Part) -> None:
        self._settler.forget(part)


def _thread_of(part: Part) -> LoopThread:
    assert isinstance(part.settler, _Settler)
    return part.settler.thread


class Consumer:
    """A member of a queue group: iterate it, or poll."""

    def __init__(self, thread: LoopThread, consumer: asynchronous_consumer.Consumer, relay: Relay) -> None:
        self._thread = thread
        self._consumer = consumer
        self._relay = relay
        self._messages: Iterator[Message] | None = None  # what is left of the batch that is iterated
        self._iterating = threading.RLock()  # one thread fills what all of them iterate

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def group(self) -> str:
        return self._consumer.group

    def poll(self, max_messages: int | None = None, wait_ms: int = 1_000) -> MessageBatch:
        """At most so many messages, as soon as there is one; none when the wait is over."""
        self._messages = None
        return self._blocking(self._relay.call(self._consumer.poll(max_messages, wait_ms)))

    def _blocking(self, batch: asynchronous_delivery.MessageBatch) -> MessageBatch:
        for part in batch.parts:
            part.settler = _Settler(self._thread, part.settler)
        return MessageBatch(batch.parts, batch.limited)

    def ack(self, delivered: Message | MessageBatch) -> None:
        delivered.ack()

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Message:
        pace = self._consumer.pace
        with self._iterating:
            while True:
                if self._messages is not None:
                    for message in self._messages:
                        message._part.seen = message._place + 1
                        return message
                    self._messages = None
                    pace.finished(time.monotonic())
                batch = self._blocking(self._relay.call(self._consumer.take()))
                pace.started(len(batch), time.monotonic())
                self._messages = iter(batch)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member holds; empty for one that has not joined, and in a group that is shared."""
        return self._consumer.assignment

    @property
    def generation(self) -> int:
        """Of the group, as this member last saw it; 0: it has not joined."""
        return self._consumer.generation

    def close(self, *, keep: bool = False) -> None:
        """Give back what is not settled, and leave; with `keep` the group keeps the place of this instance."""
        self._relay.call(self._consumer.close(keep=keep))

    def __enter__(self) -> Consumer:
        self._thread.call(self._consumer.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reader:
    """A topic as a stream: iterate messages, or `read_batches()` for speed."""

    def __init__(self, thread: LoopThread, reader: asynchronous_reader.Reader, relay: Relay) -> None:
        self._thread = thread
        self._reader = reader
        self._relay = relay
        self._iterating = threading.RLock()  # one thread fills what all of them iterate

    @property
    def holes(self) -> Sequence[Hole]:
        return self._reader.holes

    @property
    def missing(self) -> int:
        return self._reader.missing

    def read_batch(self, wait_ms: float | None = None) -> ReadBatch | None:
        """The next batch. None: the wait is over, or (`until_end`) everything is read."""
        return self._relay.call(self._reader.read_batch(wait_ms))

    def read_batches(self) -> Iterator[ReadBatch]:
        while (batch := self.read_batch()) is not None:
            yield batch

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> StoredMessage:
        reader = self._reader
        with self._iterating:
            while True:
                if reader.needs_attention:
                    self._relay.call(reader.attend())
                message = reader.message_in_hand()
                if message is not None:
                    return message
                if not self._relay.call(reader.take_next_in_hand()):
                    raise StopIteration

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read here."""
        return self._thread.call(_made(lambda: self._reader.assignment))

    @property
    def generation(self) -> int:
        """Of the group, as its member last saw it; 0: it is no member."""
        return self._reader.generation

    def positions(self) -> dict[int, int]:
        return self._thread.call(_made(self._reader.positions))

    def seek(self, start: Start) -> None:
        self._thread.call(self._reader.seek(start))

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        self._thread.call(self._reader.commit(offsets))

    def lag(self) -> dict[int, int]:
        return self._thread.call(self._reader.lag())

    def close(self, *, keep: bool = False) -> None:
        """Read no more. A member leaves its group; with `keep` its instance keeps its partitions."""
        self._relay.call(self._reader.close(keep=keep))

    def __enter__(self) -> Reader:
        self._thread.call(self._reader.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._relay.call(self._reader.__aexit__(kind, error, trace))


class Producer:
    """Batches in the background. `send` returns a future of the receipt; it blocks while too much is under way."""

    def __init__(self, thread: LoopThread, producer: asynchronous_producer.Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._places = threading.BoundedSemaphore(SENDINGS_MAX)

    def send(self, topic: str, value: Text, **options: Unpack[MessageOptions]) -> concurrent.futures.Future[Receipt]:
        """Take one message; options as of the asynchronous `send`."""
        self._places.acquire()
        try:
            started = self._thread.start(self._producer.publish(topic, value, **options))
        except BaseException:
            self._places.release()
            raise
        started.add_done_callback(lambda _: self._places.release())
        return started

    def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[ColumnOptions]) -> Receipts:
        return self._thread.call(self._producer.publish_many(topic, values, **options))

    def flush(self) -> None:
        self._thread.call(self._producer.flush())

    def close(self) -> None:
        self._thread.call(self._producer.close())

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Queue:
    """A connection to a broker. Use it as `with lanner.sync.connect(...) as queue`."""

    def __init__(self, thread: LoopThread, queue: asynchronous_queue.Queue) -> None:
        self._thread = thread
        self._queue = queue
        self.admin = Admin(thread, queue.admin)
        self._relays = Relays(thread)
        self._on_close: list[Callable[[], None]] = []
        self._closing = threading.Lock()

    def publish(self, topic: str, value: Text, **options: Unpack[MessageOptions]) -> Receipt:
        """Publish one message and wait until it is stored durably; options as of the asynchronous `publish`."""
        return self._thread.call(self._queue.publish(topic, value, **options))

    def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[ColumnOptions]) -> Receipts:
        """Publish many messages, given as columns; options as of the asynchronous `publish_many`."""
        return self._thread.call(self._queue.publish_many(topic, values, **options))

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        return Producer(self._thread, self._thread.call(_made(lambda: self._queue.producer(**options))))

    def consumer(self, topic: str | Sequence[str], group: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """As of the asynchronous client. Callbacks run in the thread that polls."""
        relay = self._relays.relay(options)
        made = self._thread.call(_made(lambda: self._queue.consumer(topic, group, **options)))
        self._thread.call(made.open())
        return Consumer(self._thread, made, relay)

    def reader(self, topic: str | Sequence[str], **options: Unpack[ReaderOptions]) -> Reader:
        """As of the asynchronous client. Callbacks run in the thread that reads."""
        relay = self._relays.relay(options)
        made = self._thread.call(_made(lambda: self._queue.reader(topic, **options)))
        self._thread.call(made.open())
        return Reader(self._thread, made, relay)

    def dead_letter_reader(self, topic: str, group: str, **options: Unpack[DeadReaderOptions]) -> DeadLetterReader:
        made = self._thread.call(_made(lambda: self._queue.dead_letter_reader(topic, group, **options)))
        self._thread.call(made.open())
        return DeadLetterReader(self._thread, made)

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
        """Messages that become visible all or none: `with queue.transaction(...) as transaction`."""
        work = _made(
            lambda: self._queue.transaction(transaction, owner, sequence, timeout=timeout, wait=wait, **options)
        )
        return Transaction(self._thread, self._thread.call(work))

    def stage(
        self, transaction: str, owner: str, sequence: int, *, task: int = 0, **options: Unpack[StageOptions]
    ) -> StageWriter:
        work = self._queue.stage(transaction, owner, sequence, task=task, **options)
        return StageWriter(self._thread, self._thread.call(work))

    def commit_staged(
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
        work = self._queue.commit_staged(transaction, owner, sequence, staged, timeout=timeout, wait=wait, once=once)
        return self._thread.call(work)

    def discard_staged(
        self, transaction: str, owner: str, sequence: int, staged: Sequence[Staged], *, begun: bool = True
    ) -> Committed | None:
        return self._thread.call(self._queue.discard_staged(transaction, owner, sequence, staged, begun=begun))

    def claim_transaction(self, transaction: str, owner: str, *, restart: bool = False) -> Claimed:
        return self._thread.call(self._queue.claim_transaction(transaction, owner, restart=restart))

    @property
    def is_connected(self) -> bool:
        return self._queue.is_connected

    def on_close(self, end: Callable[[], None]) -> None:
        """Call this once the connection is closed."""
        self._on_close.append(end)

    def close(self) -> None:
        """Send what producers still hold, leave the groups, then hang up. Members' last callbacks run here."""
        self._relays.check_outside()
        if self._thread.is_forked:
            return
        with self._closing:
            if self._thread.is_stopping:
                return
            try:
                self._relays.close(self._queue.close())
            finally:
                self._thread.stop()
                for end in self._on_close:
                    end()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    address: str | Sequence[str] = "localhost:7400",
    *,
    token: str | None = None,
    client_name: str = "",
    timeout_ms: float = TIMEOUT_MS,
) -> Queue:
    """Connect to a broker: `with lanner.sync.connect("localhost:7400") as queue`."""
    thread = LoopThread()
    try:
        queue = asynchronous_queue.connect(address, token=token, client_name=client_name, timeout_ms=timeout_ms)
        thread.call(queue.open())
    except BaseException:
        thread.stop()
        raise
    return Queue(thread, queue)
