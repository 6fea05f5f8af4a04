"""One streaming query, measured: how long Spark took for its batch, what processors and memory, how late it is.

Rates are by Spark's own clock for the batch (`addBatch`: plan, run, commit), without starting and ending the query.
Processor time is of the whole query, and of all processes: the Java of Spark with its Python workers, and the broker.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_S = 0.05
_PAUSE_S = 0.1
_WARM = 5


class Run(NamedTuple):
    """One query that has ended."""

    rows: int
    seconds: float
    spark_cpu_s: float
    broker_cpu_s: float

    @property
    def rows_a_second(self) -> float:
        return self.rows / self.seconds


def family(pid: int) -> Iterator[int]:
    """A process and all that came of it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from family(int(child))


def cpu_seconds(pid: int) -> float:
    """Of a process, all that came of it, and those of them that have ended."""
    total = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / _TICKS_A_SECOND


def java_pid(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


def run_query(
    spark: SparkSession, frame: DataFrame, sink: str, options: Mapping[str, Any], *, rows: int, broker: int | None
) -> Run:
    """Let one AvailableNow query read what there is, in one batch, into the sink."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", f"{folder}/checkpoint")
        if sink == "parquet":
            writer = writer.option("path", f"{folder}/table")
        before = cpu_seconds(java_pid(spark)), 0.0 if broker is None else cpu_seconds(broker)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        after = cpu_seconds(java_pid(spark)), 0.0 if broker is None else cpu_seconds(broker)
        (batch,) = [one for one in query.recentProgress if one["numInputRows"]]
        assert batch["numInputRows"] == rows, batch["numInputRows"]
        return Run(rows, batch["durationMs"]["addBatch"] / 1_000, after[0] - before[0], after[1] - before[1])


def in_turns(runs: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Each once to warm up, then one after the other, again and again: what disturbs one disturbs its neighbour."""
    found: dict[str, list[Run]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def middle(runs: Sequence[Run]) -> float:
    """Rows a second, the median."""
    return median(run.rows_a_second for run in runs)


def latencies_ms(reader: DataFrame, publish: Callable[[bytes], object], count: int) -> list[float]:
    """From just before a publish to the moment a `foreachBatch` has the message: one after the other, each once the
    last one has arrived and Spark waits again."""
    took_ms: list[float] = []
    arrived = threading.Event()

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.select("value").collect()
        now = time.time()
        for row in rows:
            took_ms.append((now - float(bytes(row[0]))) * 1_000)
            arrived.set()

    with tempfile.TemporaryDirectory() as folder:
        query = reader.writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
        query.processAllAvailable()
        for _ in range(count + _WARM):
            arrived.clear()
            publish(repr(time.time()).encode())
            assert arrived.wait(60), query.exception()
            time.sleep(_PAUSE_S)
        query.stop()
    return took_ms[_WARM:]


class Peak:
    """The most memory that one Python worker was seen with."""

    bytes = 0


@contextmanager
def watched_workers(spark: SparkSession) -> Iterator[Peak]:
    """Look at the resident memory of Spark's Python workers, again and again, while the block runs."""
    peak, ended = Peak(), threading.Event()

    def look() -> None:
        java = java_pid(spark)
        while not ended.wait(_SAMPLE_S):
            for pid in family(java):
                try:
                    if pid != java and "python" in os.readlink(f"/proc/{pid}/exe"):
                        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                        peak.bytes = max(peak.bytes, pages * _PAGE_BYTES)
                except OSError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
