"""Tells a query's group how far it is as soon as a batch is finished.

The source itself learns that a batch is finished when Spark asks for the next one, which may be much later, or never:
a trigger every ten minutes, a query that is stopped. Spark's own progress events come at once. They carry the offsets
that a batch ended at; how to reach the brokers and which group it is are in the latest offset that the source reports.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lanner.errors import LannerError
from lanner.spark.log import TopicLog
from lanner.spark.progress import from_json, group_of

_log: Final = logging.getLogger("lanner.spark")
_watched: Final[WeakSet[SparkSession]] = WeakSet()


class ProgressListener(StreamingQueryListener):
    """Commits the end of each finished batch of queries that have a group."""

    def __init__(self) -> None:
        self._logs: dict[str, TopicLog] = {}
        self._running: set[str] = set()
        self._lock = threading.Lock()  # Spark calls from several threads

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._lock:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        for source in event.progress.sources:
            told = finished(source.endOffset, source.latestOffset)
            if told is None:
                continue
            servers, group, ends = told
            with self._lock:
                try:
                    log = self._logs.get(servers) or self._logs.setdefault(servers, TopicLog(servers).__enter__())
                    for topic, offsets in ends.items():
                        _commit_news(log, group, topic, offsets)
                except LannerError as error:
                    _log.warning("the progress of group %s could not be told: %s", group, error.message)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The last one closes the connections."""
        with self._lock:
            self._running.discard(str(event.runId))
            while not self._running and self._logs:
                self._logs.popitem()[1].close()


def _commit_news(log: TopicLog, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Events come late at times, when the source itself has told of a later batch already: a group never goes back."""
    known = log.committed(group, topic)
    news = {partition: offset for partition, offset in offsets.items() if offset > known.get(partition, -1)}
    if news:
        log.commit(group, topic, news)


def finished(end: Any, latest: Any) -> tuple[str, str, dict[str, dict[int, int]]] | None:
    """Servers, group and offsets by topic of what a source finished; None: it is not ours, or has no group."""
    try:
        end, latest = json.loads(end), json.loads(latest)
        servers, group = str(latest["servers"]), group_of(end)
        if not group or end.get("deadLettersOf"):
            return None
        return servers, group, {topic: dict(one.offsets) for topic, one in from_json(end).items()}
    except (TypeError, ValueError, KeyError, AttributeError, LannerError):
        return None


def watch(spark: SparkSession) -> None:
    """Listen to the queries of a session; once."""
    if spark in _watched:
        return
    _watched.add(spark)
    if getattr(spark, "_jvm", None) is None:
        _listen_aside(spark)
    else:
        spark.streams.addListener(ProgressListener())


def _listen_aside(spark: SparkSession) -> None:
    """In a session of Spark Connect, which listens in a thread of its own for as long as it can.

    A program must not wait for that thread when it ends; a thread that a daemon starts is one, too.
    """
    problems: list[BaseException] = []

    def listen() -> None:
        try:
            spark.streams.addListener(ProgressListener())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
