"""A pipeline while it runs: its queries are started, watched, started again, and stopped between two batches."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from lanner.spark.pipelines.building import Builder
from lanner.spark.pipelines.plan import Pipeline, Restart
from lanner.spark.pipelines.restarts import Restarts
from lanner.spark.pipelines.status import PipelineStatus, QueryStatus, lag_of

_LOOK_SECONDS: Final = 0.5
_BATCH_SECONDS_MAX: Final = 60.0  # a stop waits so long for a batch that is under way
_ERROR_LENGTH_MAX: Final = 500


class _Running:
    """One query and what became of it."""

    def __init__(self, name: str, policy: Restart) -> None:
        self.handle: Any = None
        self.restarts = Restarts(policy)
        self.restart_at_s = 0.0
        self.status = QueryStatus(name)

    @property
    def is_over(self) -> bool:
        return self.status.state in ("ended", "failed", "stopped")

    def take_in(self) -> None:
        """What Spark says of the batches since the last look."""
        status = self.status
        for one in self.handle.recentProgress:
            progress = json.loads(one.json)
            if progress["batchId"] > status.batch:
                status.rows += progress["numInputRows"]
                status.batch = progress["batchId"]
            if progress["numInputRows"]:  # else it tells of waiting, and not of a batch
                status.rows_per_second = round(progress.get("processedRowsPerSecond") or 0.0, 1)
                status.batch_ms = progress["durationMs"].get("triggerExecution", 0)
            status.lag = dict(found for one in progress["sources"] if (found := lag_of(one)) is not None)


class Runner:
    """Runs one pipeline. `stop` may be called from a signal handler or another thread."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, file: Path) -> None:
        self._builder = Builder(spark, pipeline, file.resolve().parent)
        self._pipeline = pipeline
        self._stopping = threading.Event()
        self._running: list[_Running] = []
        for name in self._builder.names():
            query = pipeline.queries.get(name, next(iter(pipeline.queries.values())))
            self._running.append(_Running(name, query.restart))
        now = time.time()
        queries = [one.status for one in self._running]
        self.status = PipelineStatus(pipeline.name, str(file.resolve()), os.getpid(), now, now, queries)

    def stop(self) -> None:
        """Ask it to end once the batches that are under way are done."""
        self._stopping.set()

    def run(self, tell: Callable[[PipelineStatus], None]) -> bool:
        """Until every query has ended, one is given up, or it is stopped. False: a query failed for good."""
        try:
            while not self._stopping.is_set():
                for one in self._running:
                    self._look_at(one, time.monotonic())
                self._tell(tell)
                if all(one.is_over for one in self._running) or any(
                    one.status.state == "failed" for one in self._running
                ):
                    break
                self._stopping.wait(_LOOK_SECONDS)
        finally:
            self._end()
            self._tell(tell)
        return all(one.status.state != "failed" for one in self._running)

    def _tell(self, tell: Callable[[PipelineStatus], None]) -> None:
        self.status.updated_s = time.time()
        tell(self.status)

    def _look_at(self, one: _Running, now_s: float) -> None:
        if one.is_over:
            return
        if one.handle is None:
            if now_s >= one.restart_at_s:
                self._start(one, now_s)
            return
        one.take_in()
        if one.handle.isActive:
            one.status.state = "running"
            return
        error = one.handle.exception()
        if error is None:
            one.status.state = "ended"
        else:
            self._failed(one, error, now_s)

    def _start(self, one: _Running, now_s: float) -> None:
        try:
            one.handle = self._builder.writer(one.status.name).start()
        except (
            Exception
        ) as error:  # whatever Spark, or a function of the user, says: it counts as a failure of the query
            self._failed(one, error, now_s)

    def _failed(self, one: _Running, error: BaseException, now_s: float) -> None:
        decision = one.restarts.failed(one.status.batch, now_s)
        one.handle = None
        one.status.error = _short(error)
        one.status.restarts = one.restarts.total
        if decision.restart_at_s is None:
            one.status.state = "failed"
        else:
            one.status.state = "waiting to restart"
            one.restart_at_s = decision.restart_at_s

    def _end(self) -> None:
        """Let each batch that is under way end, then stop its query."""
        ends = time.monotonic() + _BATCH_SECONDS_MAX
        for one in self._running:
            if one.handle is not None and one.handle.isActive:
                while one.handle.status["isTriggerActive"] and one.handle.isActive and time.monotonic() < ends:
                    time.sleep(0.05)
                one.take_in()
                one.handle.stop()
            if not one.is_over:
                one.status.state = "stopped"


def _short(error: BaseException) -> str:
    """An error without the page of Java behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("lanner.errors.")]
    chosen = ours[-1].removeprefix("lanner.errors.") if ours else " ".join(lines[:2])
    return (chosen or type(error).__name__)[:_ERROR_LENGTH_MAX]
