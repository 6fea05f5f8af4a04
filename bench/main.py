"""`make bench`: each figure of a real broker beside what the machine itself can do, measured in the same run.

Every part can be run alone: `make bench ONLY=latency`. Parts that compare against a floor interleave the two and
repeat, because the machine is shared; what is shown is the median of the rounds. BENCH_SECONDS (4: of a round, in the
parts with three brokers or about doors), BENCH_SOAK_SECONDS (600) and BENCH_KILLS (24) make the long parts shorter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import lanner
from bench import (
    batch_codec,
    cluster,
    failover,
    footprint,
    load,
    partition_decisions,
    raft_core,
    rebalancing,
    through_doors,
    transactions,
)
from bench.figures import Figure, keep_figures, percentile, print_figures
from bench.floors import echo_floor, journal_floor, scratch
from bench.processes import workers
from lanner import batch
from lanner.testing.process import BrokerProcess

ROUNDS = 3
SECONDS = 4.0
BATCH_MESSAGES = 600
BATCHES_IN_FLIGHT = 16

_names = itertools.count(1)


@contextmanager
def broker() -> Iterator[BrokerProcess]:
    """A fresh broker, as `lanner up` starts it, on the disk of the working tree."""
    with scratch() as folder, BrokerProcess(Path(folder) / "data") as process:
        yield process


def fresh_topic(process: BrokerProcess, partitions: int = 3) -> str:
    name = f"bench-{next(_names)}"
    with lanner.sync.connect(process.native) as queue:
        queue.admin.create_topic(name, partitions=partitions)
    return name


def filled_topic(process: BrokerProcess, count: int, partitions: int, batch_messages: int = BATCH_MESSAGES) -> str:
    """A topic with so many messages of 100 bytes, in batches."""
    topic = fresh_topic(process, partitions)
    load.fill(process.native, topic, count, batch_messages)
    return topic


def commits_since(process: BrokerProcess, before: dict[int, tuple[int, int]]) -> int:
    """How often the broker wrote its journal: the calls of the thread that wrote the most bytes."""
    delta = {
        thread: (calls - before.get(thread, (0, 0))[0], size - before.get(thread, (0, 0))[1])
        for thread, (calls, size) in process.write_calls().items()
        if thread != process.pid
    }
    return max(1, max(delta.values(), key=lambda one: one[1])[0])


# ------------------------------------------------------------------ parts


def measure_batch() -> list[Figure]:
    values = load.messages(BATCH_MESSAGES)
    data = batch.encode(values)
    encode_us = batch_codec.best_us(lambda: batch.encode(values)) / BATCH_MESSAGES
    decode_us = batch_codec.best_us(lambda: batch.decode(data).values()) / BATCH_MESSAGES
    return [
        Figure("batch encode", encode_us, "µs a message", goal=0.6, lower_is_better=True),
        Figure("batch decode, verified", decode_us, "µs a message", goal=0.3, lower_is_better=True),
    ]


def measure_publish() -> list[Figure]:
    """One producer, batches of 600 × 100 bytes, against the disk and the loop."""
    chunk = batch.encode(load.messages(BATCH_MESSAGES))
    rates, journal, echo, grouped = [], [], [], []
    with broker() as process, workers(1) as pool:
        topic = fresh_topic(process)
        for _ in range(ROUNDS):
            before = process.write_calls()
            arguments = (process.native, topic, BATCH_MESSAGES, BATCHES_IN_FLIGHT, SECONDS)
            span = pool.submit(load.publish_batched, *arguments).result()
            rates.append(span.rate)
            grouped.append(span.count / BATCH_MESSAGES / commits_since(process, before))
            with scratch() as folder:
                at_a_time = max(1, round(grouped[-1]))
                journal.append(journal_floor(Path(folder), chunk, at_a_time, 2.0)[0] * BATCH_MESSAGES)
            echo.append(echo_floor(chunk, BATCHES_IN_FLIGHT, 2.0) * BATCH_MESSAGES)
        through = pool.submit(load.publish_through_producer, process.native, topic, SECONDS).result().rate
    note = f"{median(grouped):.1f} batches a commit"
    floor = median(journal)
    rate = median(rates)
    return [
        Figure("publish, batched, fsync", rate, "msg/s", 0.5 * floor, floor, "journal", note),
        Figure("publish, batched, against the loop", rate, "msg/s", None, median(echo), "echo"),
        Figure("publish, through a producer", through, "msg/s", None, floor, "journal", "send() per message"),
    ]


def measure_single() -> list[Figure]:
    """One message a request, 64 in flight."""
    chunk = batch.encode(load.messages(1))
    rates, journal, echo, grouped = [], [], [], []
    with broker() as process, workers(1) as pool:
        topic = fresh_topic(process)
        for _ in range(ROUNDS):
            before = process.write_calls()
            span = pool.submit(load.publish_single, process.native, topic, 3, 64, SECONDS).result()
            rates.append(span.rate)
            grouped.append(span.count / commits_since(process, before))
            with scratch() as folder:
                journal.append(journal_floor(Path(folder), chunk, max(1, round(grouped[-1])), 2.0)[0])
            echo.append(echo_floor(chunk, 64, 2.0))
    rate, note = median(rates), f"{median(grouped):.1f} requests a commit"
    return [
        Figure("publish, one a request, 64 in flight", rate, "msg/s", 20_000, median(journal), "journal", note),
        Figure("publish, one a request, against the loop", rate, "msg/s", None, median(echo), "echo"),
    ]


def measure_read() -> list[Figure]:
    """Stream reads with every value made and every checksum verified."""
    chunk = batch.encode(load.messages(BATCH_MESSAGES))
    count = 3_000_000
    rates, echo = [], []
    with broker() as process, workers(1) as pool:
        topic = filled_topic(process, count, partitions=3)
        for _ in range(ROUNDS):
            rates.append(pool.submit(load.read_stream, process.native, topic, count).result().rate)
            echo.append(echo_floor(chunk, BATCHES_IN_FLIGHT, 2.0) * BATCH_MESSAGES)
    return [Figure("stream read, made and verified", median(rates), "msg/s", 1_500_000, median(echo), "echo")]


def measure_poll() -> list[Figure]:
    """Poll + ack in batches of 500 by four consumers of one group, and one by one.

    Stored batches of 500 are handed out as they are; of batches of 600 every poll takes a part, as an extract. The cost
    in CPU time is stated too: it says what the figure would be on a machine with nothing else to do.
    """
    figures = []
    with broker() as process, workers(4) as pool:
        for stored, goal in ((500, 400_000), (BATCH_MESSAGES, None)):
            topic = filled_topic(process, 2_400_000, 4, stored)
            rates, costs = [], []
            for number in range(ROUNDS):
                before = process.cpu_seconds()
                arguments = (process.native, topic, f"many-{number}", 500, 30.0)
                calls = [pool.submit(load.consume_queue, *arguments) for _ in range(4)]
                spans = [call.result() for call in calls if call.result().count]
                rates.append(load.together(spans))
                costs.append(1e6 * (process.cpu_seconds() - before) / sum(span.count for span in spans))
            note = f"broker {median(costs):.2f} µs of CPU a message"
            name = f"poll 500 + ack, 4 consumers, stored in {stored}s"
            figures.append(Figure(name, median(rates), "msg/s", goal, note=note))
        one = pool.submit(load.consume_queue, process.native, topic, "one", 1, SECONDS).result()
    return [*figures, Figure("poll 1 + ack 1, one consumer", one.rate, "msg/s")]


def measure_latency() -> list[Figure]:
    """1,000 messages a second offered, whatever the broker does; a consumer in another process."""
    rate, seconds = 1_000, 10.0
    published: list[float] = []
    arrived: list[float] = []
    with broker() as process, workers(2) as pool:
        topic = fresh_topic(process, partitions=1)
        for number in range(2):
            count = int(rate * seconds)
            consumer = pool.submit(
                load.consume_latency, process.native, topic, f"latency-{number}", count * (number + 1), seconds + 5
            )
            time.sleep(0.5)
            published += pool.submit(load.publish_at_rate, process.native, topic, rate, seconds).result()
            arrived += consumer.result()[-count:]
        with scratch() as folder:
            _, syncs = journal_floor(Path(folder), b"v" * 300, 1, 2.0)
    floor = percentile(syncs, 50), percentile(syncs, 99)
    return [
        Figure("publish at 1,000/s, p50", percentile(published, 50), "ms", 1.5, floor[0], "sync", lower_is_better=True),
        Figure("publish at 1,000/s, p99", percentile(published, 99), "ms", 5.0, floor[1], "sync", lower_is_better=True),
        Figure("publish to consumer, p50", percentile(arrived, 50), "ms", None, floor[0], "sync", lower_is_better=True),
        Figure("publish to consumer, p99", percentile(arrived, 99), "ms", 10.0, floor[1], "sync", lower_is_better=True),
    ]


def measure_commit() -> list[Figure]:
    """200 partitions with 4 KB each made durable at once, idle and while readers saturate the loop."""
    partitions, size, seconds = 200, 4096, 6.0
    with broker() as process, workers(3) as pool:
        wide = fresh_topic(process, partitions)
        tall = filled_topic(process, 1_200_000, partitions=3)
        alone = pool.submit(load.publish_to_all, process.native, wide, partitions, size, seconds).result()
        readers = [pool.submit(load.read_until, process.native, tall, time.monotonic() + seconds + 2) for _ in range(2)]
        time.sleep(1.0)
        beside = pool.submit(load.publish_to_all, process.native, wide, partitions, size, seconds).result()
        read = sum(reader.result() for reader in readers)
        with scratch() as folder:
            _, syncs = journal_floor(Path(folder), b"v" * size, partitions, 2.0)
    p50, p99 = percentile(syncs, 50), percentile(syncs, 99)
    note = f"readers took {read:,} messages meanwhile"
    return [
        Figure("200 partitions at once, p50", percentile(alone, 50), "ms", None, p50, "journal", "", True),
        Figure("200 partitions at once, p99", percentile(alone, 99), "ms", None, p99, "journal", "", True),
        Figure("… while readers saturate it, p50", percentile(beside, 50), "ms", None, p50, "journal", note, True),
        Figure("… while readers saturate it, p99", percentile(beside, 99), "ms", None, p99, "journal", "", True),
    ]


def measure_decisions() -> list[Figure]:
    """What the leader's pass costs, with a short backlog and a very long one; rounds are interleaved."""
    subjects = partition_decisions.Subject(1_000, 100), partition_decisions.Subject(1_000_000, 100)
    rounds = [tuple(subject.round() for subject in subjects) for _ in range(400)]
    short_us, long_us = (median(times) for times in zip(*rounds, strict=True))
    return [
        Figure("poll + ack of 100, 1,000 batches", short_us, "µs", 150, lower_is_better=True),
        Figure("poll + ack of 100, 1,000,000 batches", long_us, "µs", 1.25 * short_us, lower_is_better=True),
    ]


def measure_footprint() -> list[Figure]:
    return footprint.measure()


PARTS: dict[str, Callable[[], list[Figure]]] = {
    "batch": measure_batch,
    "decisions": measure_decisions,
    "raft": raft_core.measure,
    "publish": measure_publish,
    "single": measure_single,
    "read": measure_read,
    "poll": measure_poll,
    "latency": measure_latency,
    "commit": measure_commit,
    "footprint": measure_footprint,
    "cluster": cluster.measure_batched,
    "cluster_single": cluster.measure_single,
    "cluster_latency": cluster.measure_latency,
    "transactions": transactions.measure_transactions,
    "rebalancing": rebalancing.measure_rebalancing,
    "doors": through_doors.measure_doors,
    "fan_out": through_doors.measure_fan_out,
    "consumers": through_doors.measure_consumers,
    "proxy": through_doors.measure_proxy,
    "cluster_idle": cluster.measure_idle,
    "cluster_soak": cluster.measure_soak,
    "failover": failover.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, one object")
    given = parser.parse_args()
    chosen = [name for name in given.only.split(",") if name] or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    everything: list[Figure] = []
    for name in chosen:
        figures = PARTS[name]()
        if not given.json:
            print_figures(figures, name)
        everything += figures
    kept = keep_figures(everything)
    if given.json:
        print(json.dumps({figure.name: asdict(figure) | {"reached": figure.reached} for figure in everything}))
        return 0
    missed = [figure.name for figure in everything if figure.reached is False]
    print(f"kept in {kept.relative_to(Path.cwd())}; goals missed: {', '.join(missed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
