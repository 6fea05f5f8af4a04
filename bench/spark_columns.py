"""`python -m bench.spark_columns`: what a row costs between a stored batch and Spark's record batches, without Spark.

One process, processor time, the best of several rounds: what the Python workers of `make bench-spark` do beside talking
to Spark and to the broker. BENCH_ROUNDS (7) makes it longer or shorter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pyarrow

from bench.figures import Figure, keep_figures, print_figures
from lanner import batch
from lanner.spark.columns import StoredBatch, gather
from lanner.spark.rows import pieces

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
ROWS = 1_000_000
BATCH_ROWS = 1_000
PAGE_BATCHES = 40
RECORD_ROWS = 10_000
VALUE_BYTES = 100


def stored_batches() -> list[StoredBatch]:
    """Pages as replies bring them: batches one behind the other, at no particular place in memory."""
    made = batch.encode([bytes([number % 251]) * VALUE_BYTES for number in range(BATCH_ROWS)])
    found = []
    for first in range(0, ROWS, BATCH_ROWS * PAGE_BATCHES):
        page = memoryview(bytes(3) + made * PAGE_BATCHES)[3:]
        for place in range(PAGE_BATCHES):
            data = page[place * len(made) : (place + 1) * len(made)]
            found.append(StoredBatch(first + place * BATCH_ROWS, 1_700_000_000_000 + place, data))
    return found


def read(stored: list[StoredBatch]) -> None:
    rows = sum(made.num_rows for made in gather("bench", 0, stored, 0, ROWS))
    assert rows == ROWS


def write(record_batch: pyarrow.RecordBatch) -> None:
    for _ in range(ROWS // RECORD_ROWS):
        for piece in pieces(record_batch, "bench", "", lambda _: 2):
            batch.encode(piece.values, keys=piece.keys)


def nanoseconds(work: Callable[[], None]) -> float:
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found) / ROWS * 1e9


def main() -> int:
    stored = stored_batches()
    values = pyarrow.array([b"v" * VALUE_BYTES] * RECORD_ROWS, pyarrow.binary())
    record_batch = pyarrow.record_batch({"value": values})
    note = f"processor time, values of {VALUE_BYTES} bytes, best of {ROUNDS}"
    figures = [
        Figure("stored batches → record batches", nanoseconds(lambda: read(stored)), "ns a row", note=note),
        Figure("record batches → batches", nanoseconds(lambda: write(record_batch)), "ns a row", note=note),
    ]
    print_figures(figures, "Spark's rows")
    keep_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
