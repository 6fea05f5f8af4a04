"""`lanner archive`: topics into an archive, step by step.

A step reads some offsets of every partition, writes their files and names them in the manifest. Each step first writes
down what it is going to read; a run that finds such a note does exactly that step again. So a run can be killed at any
moment and started again, and every offset is in the archive once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from lanner import limits, sync
from lanner.errors import StaleIncarnation, TopicNotFound
from lanner.spark.archive import files
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.manifest import Manifest, Planned
from lanner.spark.archive.planning import HeldTopic, check_incarnation, plan_step, progress_of
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store
from lanner.spark.archive.topics import again_when_trimmed, held_topics, topic_frame


class Stepped(NamedTuple):
    """How far a run has come."""

    version: int
    messages: int  # archived by this run
    files: int  # written by this run
    bytes: int  # of these
    holes: int  # offsets that this run found gone
    lag: int  # messages that the topics hold and the archive does not, when last looked at


class Archiver:
    """Archives some topics under one path."""

    def __init__(
        self,
        spark: SparkSession,
        servers: str,
        path: str,
        topics: Sequence[str],
        *,
        group: str | None = None,
        step_messages: int = limits.ARCHIVE_STEP_MESSAGES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._servers = servers
        self._topics = list(dict.fromkeys(topics))
        self._group = group
        self._step_messages = step_messages
        self._clock = clock
        self.store = Store(open_shelf(spark, path))
        self._messages = self._files = self._bytes = self._holes = 0

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def run(self) -> Iterator[Stepped]:
        """Archive everything that the topics hold now. Yields before the first step and after each."""
        held = held_topics(self._servers, self._topics)
        manifest = self._taken_up()
        for topic, found in held.items():
            check_incarnation(manifest, topic, found.incarnation)
        ends = {
            (topic, partition): one.end_offset
            for topic, found in held.items()
            for partition, one in found.partitions.items()
        }
        yield self._stepped(manifest, held)
        while True:
            if not manifest.pending:
                plan = plan_step(manifest, held, ends, self._step_messages)
                if not plan:
                    return
                manifest = self.store.save(manifests.begun(manifest, plan, self._now_ms()))
            manifest = self._finish(manifest)
            held = held_topics(self._servers, self._topics)
            yield self._stepped(manifest, held)

    def _taken_up(self) -> Manifest:
        """The manifest, with a pending step only where its topics are still there."""
        manifest = self.store.load_or_begin()
        gone = []
        for one in manifest.pending:
            try:
                if held_topics(self._servers, [one.topic])[one.topic].incarnation != one.incarnation:
                    gone.append(one.topic)
            except TopicNotFound:
                gone.append(one.topic)
        return self.store.save(manifests.abandoned(manifest, gone, self._now_ms())) if gone else manifest

    def _finish(self, manifest: Manifest) -> Manifest:
        """Do the pending step."""
        topics = list(dict.fromkeys(one.topic for one in manifest.pending))
        with files.staging(self.store.shelf) as folder:
            measured: list[files.Measured] = []
            for number, topic in enumerate(topics):
                inner = f"{folder}/{number}"
                self._stage(topic, [one for one in manifest.pending if one.topic == topic], inner)
                measured += files.measure(self._spark, self.store.shelf, inner)
            held = held_topics(self._servers, topics)
            _check_same(manifest.pending, held)
            placed = files.place(self.store.shelf, measured)
        first = {
            (topic, number): one.first_offset
            for topic, found in held.items()
            for number, one in found.partitions.items()
        }
        done = self.store.save(manifests.finished(manifest, placed, first, self._now_ms()))
        self._messages += sum(one.rows for one in placed)
        self._files += len(placed)
        self._bytes += sum(one.size for one in placed)
        self._holes += sum(one.end - one.start for one in manifest.pending) - sum(one.rows for one in placed)
        self._commit(done, topics)
        return done

    def _stage(self, topic: str, plan: Sequence[Planned], folder: str) -> None:
        spans = {one.partition: (one.start, one.end) for one in plan}
        again_when_trimmed(
            lambda: files.write(topic_frame(self._spark, self._servers, topic, spans), self.store.shelf, folder)
        )

    def _commit(self, manifest: Manifest, topics: Sequence[str]) -> None:
        """Tell the brokers how far the archive is, under the group's name."""
        if self._group is None:
            return
        with sync.connect(self._servers, client_name="lanner-archive") as queue:
            for topic in topics:
                reached = {number: one.next for number, one in manifest.topics[topic].partitions.items()}
                queue.admin.commit(topic, self._group, reached)

    def _stepped(self, manifest: Manifest, held: dict[str, HeldTopic]) -> Stepped:
        lag = 0
        for topic, found in held.items():
            for partition, one in found.partitions.items():
                progress = progress_of(manifest, topic, partition)
                start = one.first_offset if progress is None else max(progress.next, one.first_offset)
                lag += max(0, one.end_offset - start)
        return Stepped(manifest.version, self._messages, self._files, self._bytes, self._holes, lag)


def _check_same(plan: Sequence[Planned], held: dict[str, HeldTopic]) -> None:
    """The topics that were read are the ones that the step was planned for."""
    for one in plan:
        if held[one.topic].incarnation != one.incarnation:
            raise StaleIncarnation(
                f"topic {one.topic!r} was deleted and made again in the middle of a step: archive the new one under "
                "another path",
                topic=one.topic,
            )
