"""A reader that is a member of its group: run several, and stop and start them as you like.

Each has partitions of its own, and hands them over when members come and go. In good order nothing is read twice.
python examples/members.py
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import lanner


def tell(what: str, partitions: list[lanner.TopicPartition]) -> None:
    print(what, *partitions)


async def main(address: str) -> None:
    async with (
        lanner.connect(address) as queue,
        queue.reader(
            "orders",
            group="audit",
            assignor="sticky",
            on_assigned=lambda partitions: tell("reads", partitions),
            on_revoked=lambda partitions: tell("hands over", partitions),
            on_lost=lambda partitions: tell("has lost", partitions),
        ) as reader,
    ):
        async for message in reader:
            print(f"{message.topic}/{message.partition}/{message.offset}: {message.value!r}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7400"))
