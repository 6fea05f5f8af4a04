"""A streaming query that kills itself, for the test of exactly-once under fire; run as a program of its own.

It reads a topic, shuffles the rows into another order in each run, and writes them to another topic, through the sink
as it is shipped: `FireWriter` only stands around its calls. At the phase and the batch that its plan names it kills the
driver, Spark's Java processes and itself, all by SIGKILL. Some tasks fail once, after they have staged their rows, so
that Spark runs them again. Some stage everything twice, and one of the two is never heard of: that is what speculation
leaves behind, which Spark does not do with a local master, nor twice on one host. Where it does (`slow`), one task of
each batch waits until Spark has started another attempt of it, and both stage the same rows: see `FireWriter`.

The plan is one JSON object, given as the only argument. What happens is written to the plan's `log`, a line each.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

from pyspark import TaskContext
from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import lanner.spark
from lanner.client.commits import Commit, Commits
from lanner.client.stages import StageWriter
from lanner.spark.sink import BATCH_ID, LannerStreamWriter
from lanner.spark.source import LannerDataSource
from lanner.spark.write_options import WriteOptions, parse_write_options

FAILS_ONE_IN = 10
TWICE_ONE_IN = 4
WAIT_SECONDS = 60
SLOW = ("beaten", "first", "late")  # how the slow task of a batch goes, in turn


class Plan(NamedTuple):
    """What one run of the driver is to do."""

    servers: str
    source: str
    target: str
    checkpoint: str
    log: str
    master: str = "local[2,4]"
    tasks: int = 3  # after the shuffle; another number gives other tasks to the rows
    rows: int = 2_500  # a batch
    phase: str = ""  # in which it dies: stage, prepare, outcome or confirm; empty: it does not
    batch: int = 0  # at the earliest in this batch
    faults: bool = True  # tasks that fail, and tasks that are done twice
    slow: bool = False  # one task of each batch waits for another attempt of it, which speculation starts
    settings: Sequence[tuple[str, str]] = ()  # of the session
    group: int = 0  # the processes to kill

    def note(self, *words: object) -> None:
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def await_note(self, *words: object) -> None:
        """Return when somebody, in whatever process, has noted this."""
        line, ends = " ".join(map(str, words)), time.monotonic() + WAIT_SECONDS
        while line not in Path(self.log).read_text(encoding="utf-8").splitlines():
            if time.monotonic() > ends:
                raise TimeoutError(f"nobody noted {line!r} for {WAIT_SECONDS} seconds")
            time.sleep(0.02)

    def dies_in(self, phase: str, batch_id: int) -> bool:
        return self.phase == phase and batch_id >= self.batch

    def die(self, batch_id: int) -> None:
        self.note("killed", self.phase, batch_id)
        os.killpg(self.group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def draws(self, what: str, batch_id: int, task: int, one_in: int) -> bool:
        """The same for every attempt of a task, and different for other batches, tasks and runs."""
        return self.faults and crc32(f"{what} {batch_id} {task} {self.group}".encode()) % one_in == 0


class FireWriter(LannerStreamWriter):
    """The sink, with a plan around it.

    Of a slow task two attempts, on two hosts, stage the same rows. In turn from batch to batch:
    *beaten*, the first attempt has staged everything, and the other one is done before it; *first*, both have staged
    everything, and the first attempt is done before the other one; *late*, the first attempt begins to stage when the
    batch, with what the other one staged, is committed.
    """

    def __init__(self, options: WriteOptions, plan: Plan) -> None:
        super().__init__(options)
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context, plan = TaskContext.get(), self._plan
        assert context is not None
        batch_id, task = int(context.getLocalProperty(BATCH_ID) or 0), context.partitionId()
        attempt = context.attemptNumber()
        plan.note("task", batch_id, task, attempt, context.stageId())
        if plan.slow and task == batch_id % plan.tasks:
            return self._write_slowly(iterator, batch_id, task, attempt)
        finish = StageWriter.finish

        async def finish_under_fire(writer: StageWriter) -> Any:
            staged = await finish(writer)
            if plan.dies_in("stage", batch_id):
                plan.die(batch_id)
            if attempt == 0 and plan.draws("fails", batch_id, task, FAILS_ONE_IN):
                plan.note("failed", batch_id, task)
                raise OSError("planted: this task fails after it has staged its rows")
            return staged

        with patch.object(StageWriter, "finish", finish_under_fire):
            if not plan.draws("twice", batch_id, task, TWICE_ONE_IN):
                return super().write(iterator)
            plan.note("twice", batch_id, task)
            rows = list(iterator)
            return random.choice([super(FireWriter, self).write(iter(rows)) for _ in range(2)])

    def _write_slowly(self, iterator: Iterator[Any], batch_id: int, task: int, attempt: int) -> WriterCommitMessage:
        plan, how = self._plan, SLOW[batch_id % len(SLOW)]

        def delayed() -> Iterator[Any]:
            plan.await_note("committed", batch_id, plan.group)
            yield from iterator

        late = how == "late" and attempt == 0
        staged = super().write(delayed() if late else iterator)
        plan.note("staged", batch_id, plan.group, how, "again" if attempt else "")
        if how == "first" and attempt == 0:
            plan.await_note("staged", batch_id, plan.group, how, "again")
        elif how == ("first" if attempt else "beaten"):
            plan.await_note("committed", batch_id, plan.group)
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        plan, prepare, look_until = self._plan, Commits._prepare, Commits._look_until

        async def prepare_under_fire(commits: Commits, commit: Commit, token: int, ends: float) -> None:
            if plan.dies_in("prepare", batchId):  # one partition has prepared, and the others have not
                await prepare(commits, commit._replace(manifests=commit.manifests[:1]), token, ends)
                plan.die(batchId)
            await prepare(commits, commit, token, ends)

        async def look_under_fire(commits: Commits, *asked: Any) -> Any:
            if plan.dies_in("outcome", batchId):  # all have prepared, and nobody has heard how it ends
                plan.die(batchId)
            return await look_until(commits, *asked)

        with patch.multiple(Commits, _prepare=prepare_under_fire, _look_until=look_under_fire):
            super().commit(messages, batchId)
        if plan.dies_in("confirm", batchId):  # it is committed; partitions publish, and Spark has not noted it
            plan.die(batchId)
        plan.note("committed", batchId, plan.group)


def source_with(plan: Plan) -> type[LannerDataSource]:
    class FireSource(LannerDataSource):
        """`format("fire")`: lanner's own source and sink, with a plan around the sink."""

        @classmethod
        def name(cls) -> str:
            return "fire"

        def streamWriter(self, schema: StructType, overwrite: bool) -> FireWriter:  # noqa: N802
            super().streamWriter(schema, overwrite)  # which checks what is wrong
            return FireWriter(parse_write_options(self.options, streaming=True), plan)

    return FireSource


def run_query(spark: SparkSession, plan: Plan, sink: str) -> None:
    """Read what there is, give each row another task and another key than in any other run, and write it."""
    reader = spark.readStream.format("lanner").option("servers", plan.servers).option("subscribe", plan.source)
    rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", plan.rows).load()
    value = functions.expr("concat('made of ', cast(value as string))").alias("value")
    shuffled = rows.select(value, functions.rand().alias("r")).repartition(plan.tasks, "r")
    written = shuffled.select("value", functions.expr("cast(cast(r as string) as binary)").alias("key"))
    writer = written.writeStream.format(sink).option("servers", plan.servers).option("topic", plan.target)
    writer = writer.option("transactionalId", "under-fire").option("checkpointLocation", plan.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(plan: Plan) -> None:
    spark = lanner.spark.session("under fire", master=plan.master, config=dict(plan.settings))
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(source_with(plan))
    run_query(spark, plan, "fire")
    spark.stop()


if __name__ == "__main__":
    main(Plan(**{**json.loads(sys.argv[1]), "group": os.getpid()}))
