"""Publish to a broker on this machine: one message, many at once, and a steady flow through a producer.

Start a broker with `lanner up`, then: python examples/publish.py
"""

from __future__ import annotations

import asyncio
import sys

import lanner


async def main(address: str) -> None:
    async with lanner.connect(address) as queue:
        receipt = await queue.publish("orders", "refund RF001", priority="high", key="customer-7")
        print(f"stored durably as {receipt.id}")

        receipts = await queue.publish_many("orders", [f"order {number}" for number in range(1_000)])
        print(f"stored {len(receipts)} more, the last as {receipts[-1].id}")

        async with queue.producer(linger_ms=5) as producer:
            for number in range(10_000):
                await producer.send("orders", f"event {number}", priority="low")
        print("stored 10000 events in batches")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7400"))
