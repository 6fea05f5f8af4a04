"""Messages are replayed once, with all that belongs to them; archives keep times, and older ones stay readable."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import msgspec
from pyarrow import parquet
from pyspark.sql import SparkSession

import lanner
import lanner.spark
from lanner.errors import TopicNotFound
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.archiving import Archiver
from lanner.spark.archive.auditing import Side, audit_archive, audit_topics
from lanner.spark.archive.compaction import Compactor
from lanner.spark.archive.manifest import Manifest
from lanner.spark.archive.replaying import Source, replay
from lanner.spark.archive.shelf import LocalShelf
from lanner.spark.archive.store import Store
from lanner.testing.process import BrokerProcess
from tests.brokers import blocking_queue, broker_process

__all__ = ["blocking_queue", "broker_process"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LANNER = [sys.executable, "-m", "lanner.cli"]
HOUR_MS = 3_600_000
COUNT = 2_000


def alternating(queue: lanner.sync.Queue, topic: str, count: int) -> None:
    """A topic whose priorities alternate from message to message, in each of two partitions."""
    queue.admin.create_topic(topic, partitions=2)
    writer = queue.stage(f"alternating-{topic}", "test", 0)  # keeps the order of batches, whatever their priority
    for number in range(count):
        key = b"k%d" % (number % 5)
        writer.stage_rows(topic, number % 2, number // 2 % 10, 0, 0, [b"%d" % number], [key], None)
    queue.commit_staged(f"alternating-{topic}", "test", 0, [writer.finish()])


def end_of(queue: lanner.sync.Queue, topic: str) -> int:
    try:
        return sum(one.end_offset for one in queue.admin.describe(topic).partitions)
    except TopicNotFound:
        return 0


def test_a_replay_that_is_killed_and_repeated_under_its_id_publishes_every_message_once(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue
) -> None:
    alternating(queue, "victim", COUNT)
    words = ["replay", "victim", "--to", "victim-again", "--id", "monday", "--rate", "1000", "--servers", broker.native]
    killed = subprocess.Popen([*LANNER, *words], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 240
        while end_of(queue, "victim-again") < 200 and killed.poll() is None and time.monotonic() < ends:
            time.sleep(0.02)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    before = end_of(queue, "victim-again")
    assert 200 <= before < COUNT
    source = Source(broker.native, "victim")
    done = replay(spark, source, broker.native, "victim-again", replay_id="monday")
    assert done.resumed
    assert 0 < done.messages <= COUNT - before
    found = audit_topics(spark, Side(broker.native, "victim"), Side(broker.native, "victim-again"))
    assert [(one.is_clean, one.order) for one in found] == [(True, "the same in each priority")] * 2
    assert sum(one.other_messages for one in found) == COUNT
    again = replay(spark, source, broker.native, "victim-again", replay_id="monday")
    assert (again.messages, again.resumed) == (0, True)
    assert replay(spark, source, broker.native, "victim-again").messages == COUNT  # another id is another replay


def timed(queue: lanner.sync.Queue, topic: str, now_ms: int) -> None:
    """Hundreds of each kind of time: none, sent by the producer, delayed, expiring, and over."""
    queue.admin.create_topic(topic, partitions=1)
    kinds: list[tuple[int, int, bool]] = [
        (0, 0, False), (0, 0, True), (now_ms + HOUR_MS, 0, False), (0, now_ms + HOUR_MS, False), (0, now_ms - 1, True),
    ]  # fmt: skip
    writer = queue.stage(f"timed-{topic}", "test", 0)
    for number, (deliver_at_ms, expires_at_ms, sent) in enumerate(kinds):
        values = [b"%d" % value for value in range(100 * number, 100 * number + 100)]
        times = [now_ms - value for value in range(100)] if sent else None
        writer.stage_rows(topic, 0, 4, deliver_at_ms, expires_at_ms, values, None, None, times)
    queue.commit_staged(f"timed-{topic}", "test", 0, [writer.finish()])


def archived(spark: SparkSession, broker: BrokerProcess, path: Path, topic: str) -> None:
    *_, _ = Archiver(spark, broker.native, str(path), [topic]).run()


def times_of(queue: lanner.sync.Queue, topic: str) -> dict[bytes, tuple[int | None, int, int]]:
    with queue.reader(topic, until_end=True) as reader:
        return {one.value: (one.producer_timestamp_ms, one.deliver_at_ms, one.expires_at_ms) for one in reader}


def test_an_archive_keeps_the_times_of_producers_and_a_replay_restores_what_is_not_over(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    now_ms = int(time.time() * 1000)
    timed(queue, "timed", now_ms)
    archived(spark, broker, tmp_path, "timed")
    frame = lanner.spark.read_archive(spark, str(tmp_path), "timed")
    counted = frame.selectExpr("count(producer_timestamp)", "count(deliver_at)", "count(expires_at)").collect()[0]
    assert tuple(counted) == (200, 100, 200)
    (verdict,) = audit_archive(spark, broker.native, str(tmp_path))
    assert verdict.is_clean
    source = Source(broker.native, "timed", str(tmp_path))
    done = replay(spark, source, broker.native, "timed-again")
    assert (done.messages, done.expired) == (400, 100)
    first, second = times_of(queue, "timed"), times_of(queue, "timed-again")
    assert second == {value: times for value, times in first.items() if int(value) < 400}
    done = replay(spark, source, broker.native, "timed-expired", expired_too=True, clock=lambda: now_ms / 1000 + 7_200)
    assert (done.messages, done.expired) == (500, 0)
    assert {times[1:] for times in times_of(queue, "timed-expired").values()} == {(0, 0)}
    # A time that is not the topic's is found.
    (only,) = Store(LocalShelf(tmp_path)).load().files
    table = parquet.read_table(tmp_path / only.path, partitioning=None).to_pylist()
    table[150]["producer_timestamp"] = datetime(2001, 1, 1, tzinfo=UTC)
    table[250]["deliver_at"] = None
    changed(tmp_path, lambda rows: type(rows).from_pylist(table, schema=rows.schema), {})
    (verdict,) = audit_archive(spark, broker.native, str(tmp_path))
    assert verdict.partitions[0].different == [(150, 151), (250, 251)]


def changed(path: Path, change: Any, also: dict[str, Any]) -> Manifest:
    """Change every file of an archive, and let the next version of the manifest vouch for them."""
    manifest = Store(LocalShelf(path)).load()
    files = []
    for one in manifest.files:
        parquet.write_table(change(parquet.read_table(path / one.path, partitioning=None)), path / one.path)
        data = (path / one.path).read_bytes()
        files.append(msgspec.structs.replace(one, size=len(data), sha256=hashlib.sha256(data).hexdigest(), **also))
    made = msgspec.structs.replace(manifest, files=files, version=manifest.version + 1)
    Store(LocalShelf(path)).save(made)
    return made


def test_an_archive_without_times_is_read_audited_continued_and_merged(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    timed(queue, "older", int(time.time() * 1000))
    archived(spark, broker, tmp_path, "older")
    made = changed(tmp_path, lambda rows: rows.drop_columns(["producer_timestamp", "deliver_at", "expires_at"]), {})
    for name in (tmp_path / "_lanner").glob("manifest-*"):
        name.unlink()
    plain = msgspec.to_builtins(made)
    for one in plain["files"]:
        del one["times"]
    body = json.dumps(plain, separators=(",", ":"))
    document = {"format": 1, "sha256": hashlib.sha256(body.encode()).hexdigest()}
    text = json.dumps(document)[:-1] + f', "manifest": {body}}}'
    (tmp_path / "_lanner" / manifests.file_name(made.version)).write_text(text)

    def state() -> tuple[bool, int, list[bool]]:
        (verdict,) = audit_archive(spark, broker.native, str(tmp_path))
        times = [one.times for one in Store(LocalShelf(tmp_path)).load().files]
        return verdict.is_clean, lanner.spark.read_archive(spark, str(tmp_path)).count(), times

    assert state() == (True, 500, [False])
    for turn in range(2):
        queue.publish_many("older", [b"more"] * 10, deliver_at=datetime(2100, 1, 1, tzinfo=UTC))
        archived(spark, broker, tmp_path, "older")
        assert state() == (True, 510 + 10 * turn, [False] + [True] * (turn + 1))
    *_, compacted = Compactor(spark, str(tmp_path), grace_ms=0).run()
    assert (compacted.merged, compacted.made, compacted.strays) == (2, 1, 0)
    assert state() == (True, 520, [False, True])
    frame = lanner.spark.read_archive(spark, str(tmp_path))
    assert frame.where("deliver_at is not null").count() == 20


def test_files_of_a_step_that_was_cut_off_and_of_a_topic_that_is_gone_are_found_and_go_after_the_grace_time(
    spark: SparkSession,
    broker: BrokerProcess,
    queue: lanner.sync.Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for topic in ("stays", "goes"):
        queue.admin.create_topic(topic, partitions=1)
        queue.publish_many(topic, [b"x"] * 100)
    archived(spark, broker, tmp_path, "stays")
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "finished", None)  # dies when the files have their names and no manifest has them
        with pytest.raises(TypeError):
            archived(spark, broker, tmp_path, "goes")
    queue.admin.delete_topic("goes")
    (tmp_path / "_lanner" / "staging-0123").mkdir()  # of a run that was killed
    archived(spark, broker, tmp_path, "stays")
    (stray,) = (tmp_path / "topic=goes").rglob("*.parquet")
    now = [1_000.0]

    def compact() -> tuple[int, int]:
        *_, last = Compactor(spark, str(tmp_path), grace_ms=60_000, clock=lambda: now[0]).run()
        return last.strays, last.deleted

    assert compact() == (2, 0)
    now[0] += 59
    assert compact() == (0, 0)
    assert stray.exists()
    now[0] += 1
    assert compact() == (0, 2)
    assert not stray.exists()
    assert not (tmp_path / "_lanner" / "staging-0123").exists()
    assert lanner.spark.read_archive(spark, str(tmp_path)).count() == 100
