"""A worker: takes the most urgent message first, and settles it.

Run several; they share the work. Stop one in the middle and its messages go to the others at once.
python examples/worker.py
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import lanner


async def handle(message: lanner.Message) -> None:
    print(f"{message.id} priority {message.priority}, attempt {message.attempt}: {message.text()}")


async def main(address: str) -> None:
    async with lanner.connect(address) as queue, queue.consumer("orders", group="billing") as consumer:
        async for message in consumer:
            try:
                await handle(message)
            except Exception as problem:
                await message.nack(reason=str(problem))  # again after the topic's backoff; dead after its limit
            else:
                await message.ack()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7400"))
