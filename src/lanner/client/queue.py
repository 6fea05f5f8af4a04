"""The way in: `connect` gives a Queue, and everything else is reached from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from lanner import limits
from lanner.client.admin import Admin
from lanner.client.brokers import Brokers
from lanner.client.consumer import Consumer
from lanner.client.intake import Moment, Text
from lanner.client.producer import Producer
from lanner.client.reader import Reader, Start
from lanner.client.receipts import Receipt, Receipts
from lanner.client.routing import Routing
from lanner.client.session import TIMEOUT_MS
from lanner.client.stream import Hole
from lanner.model import PRIORITY_NORMAL


class Queue:
    """The way to the brokers. `async with lanner.connect(...) as queue`, or `queue = await lanner.connect(...)`."""

    def __init__(
        self, address: str, *, token: str | None = None, client_name: str = "", timeout_ms: float = TIMEOUT_MS
    ) -> None:
        self._brokers = Brokers(address, token=token, client_name=client_name, timeout_ms=timeout_ms)
        self._routing = Routing(self._brokers)
        self._publisher: Producer | None = None
        self._producers: list[Producer] = []
        self.admin = Admin(self._brokers, self._routing)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        topic: str,
        value: Text,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        priority: int | str = PRIORITY_NORMAL,
        partition: int | None = None,
        delay_ms: float | None = None,
        deliver_at: Moment | None = None,
        ttl_ms: float | None = None,
        expires_at: Moment | None = None,
        dedup_id: Text | None = None,
    ) -> Receipt:
        """Publish one message; returns once it is stored durably.

        What several tasks publish while a request is under way travels together.
        """
        publisher = self._publisher or self._open_publisher()
        sending = await publisher.send(
            topic,
            value,
            key=key,
            headers=headers,
            priority=priority,
            partition=partition,
            delay_ms=delay_ms,
            deliver_at=deliver_at,
            ttl_ms=ttl_ms,
            expires_at=expires_at,
            dedup_id=dedup_id,
        )
        return await sending

    async def publish_many(
        self,
        topic: str,
        values: Sequence[Text],
        *,
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[Mapping[str, Text] | None] | None = None,
        priority: int | str = PRIORITY_NORMAL,
        partition: int | None = None,
        delay_ms: float | None = None,
        deliver_at: Moment | None = None,
        ttl_ms: float | None = None,
        expires_at: Moment | None = None,
        return_errors: bool = False,
    ) -> Receipts:
        """Publish many messages, given as columns; returns once all are stored durably."""
        publisher = self._publisher or self._open_publisher()
        return await publisher.publish_many(
            topic,
            values,
            keys=keys,
            headers=headers,
            priority=priority,
            partition=partition,
            delay_ms=delay_ms,
            deliver_at=deliver_at,
            ttl_ms=ttl_ms,
            expires_at=expires_at,
            return_errors=return_errors,
        )

    def producer(
        self,
        *,
        linger_ms: float = 5,
        batch_bytes: int = 128 * limits.KIB,
        batch_messages: int = 1_000,
        buffer_bytes_max: int = 32 * limits.MIB,
        codec: str = "none",
        idempotent: bool = True,
        timeout_ms: float | None = None,
    ) -> Producer:
        """A producer of its own, with its own batching. Close it, or use it as `async with`."""
        self._brokers.check_open()
        producer = Producer(
            self._brokers,
            self._routing,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            buffer_bytes_max=buffer_bytes_max,
            codec=codec,
            idempotent=idempotent,
            timeout_ms=timeout_ms,
        )
        self._producers = [one for one in self._producers if not one.is_closed]
        self._producers.append(producer)
        return producer

    def _open_publisher(self) -> Producer:
        self._publisher = self.producer(linger_ms=0)
        return self._publisher

    # ------------------------------------------------------------------ consuming

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 100,
        max_bytes: int = limits.MIB,
        lease_ms: int | None = None,
        prefetch: int | None = None,
        partitions: Sequence[int] | None = None,
        start: str = "earliest",
        auto_ack: bool = False,
        auto_extend: bool = False,
        member: str | None = None,
    ) -> Consumer:
        """A member of a queue group. `async with` gives back at the end what was not settled.

        `prefetch` fixes how many messages `async for` takes at a time; by default it takes what it can handle in a
        tenth of a second. `auto_extend` keeps extending the leases of what is held. `auto_ack` settles as it hands
        out: at most once.
        """
        self._brokers.check_open()
        return Consumer(
            self._brokers,
            self._routing,
            topic,
            group,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease_ms=lease_ms,
            prefetch=prefetch,
            partitions=partitions,
            start=start,
            auto_ack=auto_ack,
            auto_extend=auto_extend,
            member=member,
        )

    def reader(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | int | None = None,
        start: Start = "earliest",
        until_end: bool = False,
        group: str | None = None,
        page_bytes: int = limits.MIB,
        buffer_bytes_max: int = 64 * limits.MIB,
        on_hole: Callable[[Hole], None] | None = None,
    ) -> Reader:
        """Read a topic as a stream, in offset order within each partition.

        `start` is "earliest", "latest", an offset, a datetime, or offsets by partition; where a group has committed,
        that wins. `until_end` stops at what is the end now.
        """
        self._brokers.check_open()
        return Reader(
            self._brokers,
            self._routing,
            topic,
            partitions=partitions,
            start=start,
            until_end=until_end,
            group=group,
            page_bytes=page_bytes,
            buffer_bytes_max=buffer_bytes_max,
            on_hole=on_hole,
        )

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
    address: str = "localhost:7400",
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
