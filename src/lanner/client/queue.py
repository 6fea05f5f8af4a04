"""The way in: `connect` gives a Queue, and everything else is reached from it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, Unpack

from lanner.client.admin import Admin
from lanner.client.brokers import Brokers
from lanner.client.consumer import Consumer
from lanner.client.intake import Text
from lanner.client.options import ColumnOptions, ConsumerOptions, MessageOptions, ProducerOptions, ReaderOptions
from lanner.client.producer import Producer
from lanner.client.reader import Reader
from lanner.client.receipts import Receipt, Receipts
from lanner.client.routing import Routing
from lanner.client.session import TIMEOUT_MS


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
        self.admin = Admin(self._brokers, self._routing)

    # ------------------------------------------------------------------ publishing

    async def publish(self, topic: str, value: Text, **options: Unpack[MessageOptions]) -> Receipt:
        """Publish one message; returns once it is stored durably.

        Options: key, headers, priority, partition, delay_ms or deliver_at, ttl_ms or expires_at, dedup_id. What several
        tasks publish while a request is under way travels together.
        """
        publisher = self._publisher or self._open_publisher()
        return await (await publisher.send(topic, value, **options))

    async def publish_many(self, topic: str, values: Sequence[Text], **options: Unpack[ColumnOptions]) -> Receipts:
        """Publish many messages, given as columns; returns once all are stored durably.

        Options: as of `publish`, with keys and headers as columns too; and return_errors.
        """
        publisher = self._publisher or self._open_publisher()
        return await publisher.publish_many(topic, values, **options)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer of its own, with its own batching. Close it, or use it as `async with`.

        Options: linger_ms, batch_bytes, batch_messages, buffer_bytes_max, codec, idempotent, timeout_ms.
        """
        self._brokers.check_open()
        producer = Producer(self._brokers, self._routing, **options)
        self._producers = [one for one in self._producers if not one.is_closed]
        self._producers.append(producer)
        return producer

    def _open_publisher(self) -> Producer:
        self._publisher = self.producer(linger_ms=0)
        return self._publisher

    # ------------------------------------------------------------------ consuming

    def consumer(self, topic: str, group: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A member of a queue group. `async with` gives back at the end what was not settled.

        Options: max_messages, max_bytes, lease_ms, prefetch, partitions, start, auto_ack, auto_extend, member.
        `prefetch` fixes how many messages `async for` takes at a time; by default it takes what it can handle in a
        tenth of a second. `auto_extend` keeps extending the leases of what is held. `auto_ack` settles as it hands
        out: at most once.
        """
        self._brokers.check_open()
        return Consumer(self._brokers, self._routing, topic, group, **options)

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        """Read a topic as a stream, in offset order within each partition.

        Options: partitions, start, until_end, group, page_bytes, buffer_bytes_max, on_hole. `start` is "earliest",
        "latest", an offset, a datetime, or offsets by partition; where a group has committed, that wins. `until_end`
        stops at what is the end now.
        """
        self._brokers.check_open()
        return Reader(self._brokers, self._routing, topic, **options)

    # ------------------------------------------------------------------ opening and closing

    @property
    def is_connected(self) -> bool:
        return self._brokers.is_up

    async def open(self) -> Queue:
        """Connect; raises at once, and says what to do, when there is no broker."""
        await self._brokers.open()
        return self

    async def close(self, *, flush: bool = True) -> None:
        """Send what producers still hold, then hang up. Without `flush` what is not confirmed is given up."""
        try:
            if flush and not self._brokers.is_closed:
                closing = [producer.close() for producer in self._producers]
                for outcome in await asyncio.gather(*closing, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
        finally:
            for producer in self._producers:
                producer.abandon()
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
