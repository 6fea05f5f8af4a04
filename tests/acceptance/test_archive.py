"""Topics go into an archive and are judged there, with a real Spark and a real broker.

The topic of most tests has 200,000 messages; with `--chaos`, 5,000,000.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
from lanner.errors import ConflictError, NotFoundError, StaleIncarnation
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive import ranges
from lanner.spark.archive.archiving import Archiver, Stepped
from lanner.spark.archive.auditing import Side, audit_archive, audit_topics
from lanner.spark.archive.compaction import Compactor
from lanner.spark.archive.manifest import ArchivedFile, Manifest
from lanner.spark.archive.replaying import Source, replay
from lanner.spark.archive.shelf import LocalShelf, open_shelf
from lanner.spark.archive.store import Store
from lanner.spark.archive.verdict import ArchiveVerdict
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHORT, LONG = 200_000, 5_000_000
PARTITIONS = 6
CALL = 1_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("archive") / "data"
    with BrokerProcess(folder, settings={"default_partitions": PARTITIONS, "disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def queue(broker: BrokerProcess) -> Iterator[lanner.sync.Queue]:
    with lanner.sync.connect(broker.native) as queue:
        yield queue


def publish(queue: lanner.sync.Queue, topic: str, first: int, count: int) -> None:
    """Everything mixed: keys and none, empty ones, headers and none, priorities."""
    for begin in range(first, first + count, CALL):
        numbers = range(begin, min(begin + CALL, first + count))
        queue.publish_many(
            topic,
            [b"message %d" % number if number % 11 else b"" for number in numbers],
            keys=[(None, b"", b"customer %d" % (number % 999))[number % 3] for number in numbers],
            headers=[{"trace": b"%d" % number} if number % 5 == 0 else None for number in numbers],
            priority=begin // CALL % 10,
        )


def archived(spark: SparkSession, broker: BrokerProcess, path: Path | str, *topics: str, **options: Any) -> Stepped:
    *_, last = Archiver(spark, broker.native, str(path), topics, **options).run()
    return last


def manifest_of(path: Path) -> Manifest:
    return Store(LocalShelf(path)).load()


def parquet_files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*.parquet")}


def judged(spark: SparkSession, broker: BrokerProcess, path: Path | str, **options: Any) -> ArchiveVerdict:
    (found,) = audit_archive(spark, broker.native, str(path), **options)
    return found


@pytest.fixture(scope="module")
def total(request: pytest.FixtureRequest) -> int:
    """How many messages there are."""
    return LONG if request.config.getoption("--chaos") else SHORT


@pytest.fixture(scope="module")
def archive(
    spark: SparkSession,
    broker: BrokerProcess,
    queue: lanner.sync.Queue,
    tmp_path_factory: pytest.TempPathFactory,
    total: int,
) -> Path:
    """All messages, archived in steps while half of them are being published."""
    step = total // 10 if total == SHORT else total // 40
    path = tmp_path_factory.mktemp("archives") / "with a space"
    queue.admin.create_topic("orders", partitions=PARTITIONS)
    publish(queue, "orders", 0, total // 2)
    meanwhile = threading.Thread(target=publish, args=(queue, "orders", total // 2, total // 2))
    meanwhile.start()
    during = archived(spark, broker, path, "orders", step_messages=step)
    meanwhile.join()
    assert during.messages >= total // 2
    after = archived(spark, broker, path, "orders", step_messages=step, group="archive")
    assert during.messages + after.messages == total
    assert after.lag == 0
    return path


@pytest.fixture
def copy(archive: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt: an archive can be moved."""
    return Path(shutil.copytree(archive, tmp_path / "copy"))


def test_an_archive_made_while_its_topic_is_published_is_complete(
    spark: SparkSession, broker: BrokerProcess, archive: Path, total: int
) -> None:
    verdict = judged(spark, broker, archive)
    assert verdict.is_clean
    assert sum(one.messages for one in verdict.partitions) == total
    assert sum(one.compared for one in verdict.partitions) == total
    assert len(verdict.partitions) == PARTITIONS
    assert parquet_files(archive) == {one.path for one in manifest_of(archive).files}
    assert not list((archive / "_lanner").glob("staging*"))


def test_an_archive_reads_as_its_topic_does(
    spark: SparkSession, broker: BrokerProcess, archive: Path, total: int
) -> None:
    read = spark.read.format("lanner").option("servers", broker.native).option("subscribe", "orders")
    topic = read.option("includeHeaders", True).option("includeMetadata", True).load().drop("flags")
    frame = lanner.spark.read_archive(spark, str(archive), "orders")
    assert frame.schema == topic.schema
    assert frame.count() == total
    assert frame.exceptAll(topic).count() == 0
    with pytest.raises(NotFoundError, match="has no topic 'refunds'; it has orders"):
        lanner.spark.read_archive(spark, str(archive), "refunds")


def test_the_progress_is_told_to_the_brokers_under_the_group(
    queue: lanner.sync.Queue, archive: Path, total: int
) -> None:
    described = queue.admin.group("orders", "archive")
    assert sum(one.lag for one in described.partitions) == 0
    assert sum(one.offset for one in described.partitions) == total


def test_exactly_the_offsets_of_a_damaged_and_of_a_removed_file_are_named(
    spark: SparkSession, broker: BrokerProcess, copy: Path
) -> None:
    removed, damaged = [
        max(manifest_of(copy).files_of("orders", number), key=lambda one: one.rows) for number in (1, 4)
    ]
    (copy / removed.path).unlink()
    with (copy / damaged.path).open("r+b") as file:
        file.seek(damaged.size // 2)
        byte = file.read(1)
        file.seek(damaged.size // 2)
        file.write(bytes([byte[0] ^ 1]))
    verdict = judged(spark, broker, copy)
    assert not verdict.is_clean
    found = {one.partition: (one.missing, one.different, one.doubled) for one in verdict.partitions}
    expected: dict[int, Any] = {number: ([], [], []) for number in range(PARTITIONS)}
    expected[1] = (removed.offsets, [], [])
    expected[4] = ([], damaged.offsets, [])
    assert found == expected
    assert verdict.files.removed == {removed.path}
    assert verdict.files.damaged == {damaged.path}


@pytest.fixture(scope="module")
def small_archive(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("archives") / "small"
    queue.admin.create_topic("few", partitions=1)
    publish(queue, "few", 0, 3_000)
    archived(spark, broker, path, "few", step_messages=700)
    return path


@pytest.fixture
def small(small_archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_archive, tmp_path / "small"))


def rewrite(path: Path, change: Any) -> ArchivedFile:
    """Change the rows of one file, and let the manifest vouch for it."""
    manifest = manifest_of(path)
    chosen = manifest.files[0]
    table = parquet.read_table(path / chosen.path, partitioning=None)
    parquet.write_table(change(table), path / chosen.path)
    data = (path / chosen.path).read_bytes()
    changed = msgspec.structs.replace(chosen, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    files = [changed if one.path == chosen.path else one for one in manifest.files]
    made = msgspec.structs.replace(manifest, files=files, version=manifest.version + 1)
    Store(LocalShelf(path)).save(made)
    return chosen


def test_a_message_with_other_content_is_different_even_in_a_file_that_is_whole(
    spark: SparkSession, broker: BrokerProcess, small: Path
) -> None:
    """Each column counts, and so does the difference between an empty key and none."""
    changes: dict[int, tuple[str, Any]] = {
        3: ("value", b"other"),
        10: ("key", b"other"),
        11: ("priority", 77),
        20: ("headers", [{"key": "a", "value": b"b"}]),
        30: ("timestamp", datetime(2001, 1, 1, tzinfo=UTC)),
    }

    def change(table: Any) -> Any:
        rows = table.to_pylist()
        for place, (column, value) in changes.items():
            rows[place][column] = value
        empty = next(row for row in rows[40:] if row["key"] == b"")
        changes[rows.index(empty)] = ("key", None)
        empty["key"] = None
        return type(table).from_pylist(rows, schema=table.schema)

    first = rewrite(small, change).offsets[0][0]
    verdict = judged(spark, broker, small)
    expected = ranges.joined((first + place, first + place + 1) for place in changes)
    assert [one.different for one in verdict.partitions] == [expected]
    assert [(one.missing, one.doubled) for one in verdict.partitions] == [([], [])]


def test_a_message_that_is_twice_in_a_file_is_doubled_and_one_that_is_not_there_is_missing(
    spark: SparkSession, broker: BrokerProcess, small: Path
) -> None:
    chosen = rewrite(small, lambda table: table.take([*range(5), 3, *range(6, table.num_rows)]))
    first = chosen.offsets[0][0]
    verdict = judged(spark, broker, small).partitions[0]
    assert verdict.doubled == [(first + 3, first + 4)]
    assert verdict.missing == [(first + 5, first + 6)]
    assert verdict.different == []


def test_a_step_that_was_cut_off_is_done_again_and_overwrites_its_own_files(
    spark: SparkSession,
    broker: BrokerProcess,
    queue: lanner.sync.Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.admin.create_topic("cut", partitions=2)
    publish(queue, "cut", 0, 4_000)
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "finished", None)  # dies when the files have their names and no manifest has them
        with pytest.raises(TypeError):
            archived(spark, broker, tmp_path, "cut", step_messages=900)
    (plan,) = [manifest_of(tmp_path).pending]
    left = parquet_files(tmp_path)
    assert left and plan
    publish(queue, "cut", 4_000, 1_000)
    archived(spark, broker, tmp_path, "cut", step_messages=1_700)
    assert left < parquet_files(tmp_path) == {one.path for one in manifest_of(tmp_path).files}
    assert judged(spark, broker, tmp_path).is_clean


def test_small_files_are_merged_and_the_old_ones_go_after_their_grace_time(
    spark: SparkSession, broker: BrokerProcess, copy: Path, total: int
) -> None:
    before = manifest_of(copy)
    now = [1_000_000.0]

    def compact() -> Any:
        *_, last = Compactor(spark, str(copy), grace_ms=60_000, clock=lambda: now[0]).run()
        return last

    done = compact()
    assert (done.merged, done.left, done.deleted) == (len(before.files), 0, 0)
    after = manifest_of(copy)
    assert len(after.files) == done.made < len(before.files)
    assert lanner.spark.read_archive(spark, str(copy), version=before.version).count() == total
    assert lanner.spark.read_archive(spark, str(copy)).count() == total
    assert judged(spark, broker, copy).is_clean
    now[0] += 59
    assert compact().deleted == 0
    now[0] += 2
    assert compact().deleted == len(before.files)
    assert parquet_files(copy) == {one.path for one in after.files}
    assert judged(spark, broker, copy).is_clean


def test_damage_is_not_merged_under_a_new_checksum(spark: SparkSession, small: Path) -> None:
    victim = small / manifest_of(small).files[3].path
    victim.write_bytes(victim.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(lanner.LannerError, match="nothing was merged"):
        list(Compactor(spark, str(small)).run())


def test_an_archive_lies_on_any_file_system_of_hadoop(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.box.link./shelf", f"file://{tmp_path}")
    path = "viewfs://box/shelf/archive"
    queue.admin.create_topic("hadoop", partitions=2)
    publish(queue, "hadoop", 0, 3_000)
    archived(spark, broker, path, "hadoop", step_messages=500)
    verdict = judged(spark, broker, path)
    assert verdict.is_clean
    assert sum(one.compared for one in verdict.partitions) == 3_000
    *_, compacted = Compactor(spark, path, grace_ms=0).run()
    assert compacted.deleted == compacted.merged > 2
    assert judged(spark, broker, path).is_clean
    shelf = open_shelf(spark, path)
    with pytest.raises(ConflictError, match="another run works on the same archive"):
        shelf.put_new("_lanner/manifest-0000000001.json", b"late")
    assert shelf.size("nothing") is None
    assert shelf.names("nothing") == []


def test_what_retention_took_is_a_hole_with_that_reason_and_no_fault(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.admin.create_topic("short", partitions=1)
    publish(queue, "short", 0, 2_000)
    archived(spark, broker, tmp_path, "short", step_messages=500)
    publish(queue, "short", 2_000, 2_000)
    trim(queue, "short")
    first = queue.admin.describe("short").partitions[0].first_offset
    assert first > 2_000
    archived(spark, broker, tmp_path, "short")
    verdict = judged(spark, broker, tmp_path).partitions[0]
    assert verdict.is_clean
    assert verdict.holes == {"retention": [(2_000, first)]}
    assert verdict.messages == 4_000 - (first - 2_000)
    assert verdict.compared == 4_000 - first
    (tmp_path / manifest_of(tmp_path).files[1].path).unlink()  # the topic no longer has these either
    assert judged(spark, broker, tmp_path).partitions[0].missing == [(500, 1_000)]


def trim(queue: lanner.sync.Queue, topic: str) -> None:
    """Let retention take most of a topic."""
    before = queue.admin.describe(topic).partitions[0].first_offset
    queue.admin.alter_topic(topic, retention_bytes=20_000)
    ends = time.monotonic() + 60
    while queue.admin.describe(topic).partitions[0].first_offset == before and time.monotonic() < ends:
        time.sleep(0.1)


def test_a_topic_that_was_made_again_is_not_mixed_with_the_first(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    for _ in range(2):
        queue.admin.create_topic("again", partitions=1)
        publish(queue, "again", 0, 100)
        if not parquet_files(tmp_path):
            archived(spark, broker, tmp_path, "again")
            queue.admin.delete_topic("again")
    with pytest.raises(StaleIncarnation, match="under another path"):
        archived(spark, broker, tmp_path, "again")
    with pytest.raises(StaleIncarnation, match="under another path"):
        judged(spark, broker, tmp_path)


def test_two_topics_are_compared_by_content_and_then_by_order(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue
) -> None:
    for name, partitions in (("left", 2), ("right", 2), ("mixed", 2), ("three", 3)):
        queue.admin.create_topic(name, partitions=partitions)
    for number in range(2):
        values = [b"%d" % (value // 2) for value in range(1_000)]  # each twice: it is the multiset that counts
        queue.publish_many("left", values, partition=number)
        queue.publish_many("right", values, partition=number)
        queue.publish_many("mixed", values if number else values[::-1], partition=number)
        queue.publish_many("three", values, partition=number)

    def compared(other: str) -> Any:
        return audit_topics(spark, Side(broker.native, "left"), Side(broker.native, other))

    assert all(one.is_clean and one.order == "the same" and one.messages == 1_000 for one in compared("right"))
    zero, one = compared("mixed")
    assert (zero.only_here, zero.only_there, zero.first_disorder) == (0, 0, (0, 0))
    assert one.is_clean
    (whole,) = compared("three")
    assert (whole.partition, whole.messages, whole.is_clean, whole.order_compared) == (None, 2_000, True, False)
    queue.publish("right", b"17", partition=1, priority=9)
    queue.publish("left", b"17", partition=1, headers={"a": b"b"})
    zero, one = compared("right")
    assert zero.is_clean
    assert (one.only_here, one.only_there) == (1, 1)
    assert sorted(one.samples) == [("left/1", 1_000), ("right/1", 1_000)]


# Several commands in one program, which starts Java once: each line it is given is a command, and each that it prints
# last for a command is its exit code.
COMMANDS = """
import json, sys
from lanner.cli import main
for line in sys.stdin:
    sys.argv = ["lanner", *json.loads(line)]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    print(json.dumps({"exit": code}), flush=True)
"""


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield program


def begin(program: subprocess.Popen[str], *words: str | Path) -> None:
    assert program.stdin is not None
    program.stdin.write(json.dumps([str(word) for word in words]) + "\n")
    program.stdin.flush()


def printed(program: subprocess.Popen[str]) -> Any:
    assert program.stdout is not None
    return json.loads(program.stdout.readline())


def run(program: subprocess.Popen[str], *words: str | Path) -> tuple[list[Any], int]:
    """What a command printed, and its exit code."""
    begin(program, *words)
    found: list[Any] = []
    while not found or "exit" not in found[-1]:
        found.append(printed(program))
    return found[:-1], found[-1]["exit"]


def test_the_commands_tell_programs_what_they_found_and_by_their_exit_code(
    program: subprocess.Popen[str], broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    """And each option counts; what the work behind them does with it is shown by other tests."""
    queue.admin.create_topic("told", partitions=1)
    publish(queue, "told", 0, 1_000)
    options = ["--path", tmp_path / "archive", "--servers", broker.native, "--json"]
    words = ["archive", "told", *options, "--step-messages", "400", "--group", "keeper"]
    (first, second), code = run(program, *words, "--compact", "--grace-minutes", "0")
    assert code == 0
    assert (first["messages"], first["files"], first["lag"]) == (1_000, 3, 0)
    assert (second["merged"], second["made"], second["deleted"]) == (3, 1, 3)
    assert [one.lag for one in queue.admin.group("told", "keeper").partitions] == [0]
    (only,) = manifest_of(tmp_path / "archive").files
    (tmp_path / "archive" / only.path).unlink()
    queue.publish("told", "expires at once", expires_at=1)
    queue.publish("told", "the last")
    (audited,), code = run(program, "audit", "told", *options, "--to-end")
    assert code == 3
    (topic,) = audited["topics"]
    assert topic["partitions"][0]["missing"] == {"count": 1_002, "ranges": [[0, 1_001]]}
    words = ["replay", "told", "--to", "told-again", "--servers", broker.native, "--json", "--expired"]
    words += ["--start", "0=900", "--end", "0=1001", "--where", "offset % 2 = 1 or offset = 1000"]
    (done,), code = run(program, *words)
    assert (code, done["messages"], done["expired"]) == (0, 51, 0)


def test_replay_and_audit_reach_the_brokers_of_another_cluster(
    program: subprocess.Popen[str], broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.admin.create_topic("here", partitions=2)
    publish(queue, "here", 0, 20)
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as other:
        words = ["replay", "here", "--to", "there", "--servers", broker.native, "--to-servers", other.native, "--json"]
        (done,), code = run(program, *words)
        assert (code, done["messages"]) == (0, 20)
        with lanner.sync.connect(other.native) as elsewhere:
            assert "there" in elsewhere.admin.topics() and "there" not in queue.admin.topics()
            words = ["audit", "here", "--against", "there", "--against-servers", other.native, "--json"]
            assert run(program, *words, "--servers", broker.native)[1] == 0
            elsewhere.publish("there", "one more", partition=0)
            assert run(program, *words, "--servers", broker.native)[1] == 3


def test_dead_letters_that_a_condition_selects_are_redriven_by_a_command(
    program: subprocess.Popen[str], broker: BrokerProcess, queue: lanner.sync.Queue
) -> None:
    queue.admin.create_topic("sick", partitions=1)
    queue.publish_many("sick", [b"%d" % number for number in range(6)])
    with queue.consumer("sick", "clinic") as consumer:
        for message in consumer.poll(6):
            message.reject("flu" if int(message.value) % 3 else "cold")
    words = ["dead-letters", "sick", "--group", "clinic", "--servers", broker.native, "--json"]
    (counted,), code = run(program, *words)
    assert (code, counted["total"], counted["redriven"]) == (0, 6, None)
    (counted,), code = run(program, *words, "--where", "reason = 'cold'", "--redrive")
    assert (code, counted["total"], counted["redriven"]) == (0, 2, 2)
    assert sum(part.dead for part in queue.admin.group("sick", "clinic").partitions) == 4


def test_an_archive_follows_its_topic_until_ctrl_c(
    program: subprocess.Popen[str], broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.admin.create_topic("followed", partitions=1)
    publish(queue, "followed", 0, 10)
    options = ["--path", tmp_path / "archive", "--servers", broker.native, "--json"]
    begin(program, "archive", "followed", *options, "--follow", "--every", "0.2")
    while printed(program)["messages"] != 10:
        pass
    queue.publish("followed", "the last")
    while printed(program)["messages"] != 11:
        pass
    program.send_signal(signal.SIGINT)
    while "exit" not in (found := printed(program)):
        pass
    assert found["exit"] == 130
    assert sum(one.rows for one in manifest_of(tmp_path / "archive").files) == 11


def test_a_replay_gives_the_same_messages_in_the_same_partitions_and_order(
    spark: SparkSession, broker: BrokerProcess, archive: Path, total: int
) -> None:
    done = replay(spark, Source(broker.native, "orders", str(archive)), broker.native, "orders-again")
    assert (done.messages, done.partitions_kept) == (total, True)
    found = audit_topics(spark, Side(broker.native, "orders"), Side(broker.native, "orders-again"))
    assert all(one.is_clean and one.order_compared for one in found), found
    assert sum(one.messages for one in found) == total


def test_a_replay_of_a_part_of_a_topic_goes_by_offsets_and_by_a_condition(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, archive: Path
) -> None:
    ends = {one.id: one.end_offset for one in queue.admin.describe("orders").partitions}
    start = {0: 1_000, **{number: end for number, end in ends.items() if number > 1}}
    queue.admin.create_topic("some", partitions=2)
    for path in (None, str(archive)):
        source = Source(broker.native, "orders", path, start, {0: 3_000, 1: 500}, "priority >= 5 and key is not null")
        done = replay(spark, source, broker.native, "some")
        read = spark.read.format("lanner").option("servers", broker.native).option("subscribe", "orders").load()
        wanted = read.where(
            "priority >= 5 and key is not null and (partition = 0 and offset between 1000 and 2999"
            " or partition = 1 and offset < 500)"
        )
        assert done.messages == wanted.count() > 0
        assert not done.partitions_kept
    assert (
        queue.admin.describe("some").partitions[0].end_offset + queue.admin.describe("some").partitions[1].end_offset
        == 2 * done.messages
    )


def test_a_replay_keeps_to_its_rate(spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue) -> None:
    queue.admin.create_topic("slow", partitions=1)
    queue.publish_many("slow", [b"x"] * 300)
    done = replay(spark, Source(broker.native, "slow"), broker.native, "slower", rate=200)
    assert done.messages == 300
    read = spark.read.format("lanner").option("servers", broker.native).option("subscribe", "slower").load()
    first, last = read.selectExpr("min(unix_millis(timestamp))", "max(unix_millis(timestamp))").collect()[0]
    assert last - first >= 1_300  # 15 parts of 20, a tenth of a second apart
