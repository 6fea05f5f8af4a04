"""Read a topic as a stream, from where the last run stopped, without asyncio.

python examples/stream.py
"""

from __future__ import annotations

import sys

import lanner


def main(address: str) -> None:
    with (
        lanner.sync.connect(address) as queue,
        queue.reader("orders", group="report", until_end=True) as reader,
    ):
        count = size = 0
        for batch in reader.read_batches():
            values = batch.values()
            count += len(values)
            size += sum(map(len, values))
        reader.commit()
        print(f"{count} messages, {size} bytes; now at {reader.positions()}")
        if reader.missing:
            print(f"retention took {reader.missing} messages before they were read")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:7400")
