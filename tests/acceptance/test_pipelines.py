"""Pipeline files run as streaming queries, with a real Spark and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

import lanner
from lanner.spark import letters
from lanner.spark.pipelines.example import example_text
from lanner.spark.pipelines.meaning import validate
from lanner.spark.pipelines.running import Runner
from lanner.spark.pipelines.status import PipelineStatus
from lanner.testing.process import BrokerProcess
from lanner.testing.terminal import Terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("pipelines") / "data"
    with BrokerProcess(folder, settings={"default_partitions": 2, "disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def queue(broker: BrokerProcess) -> Iterator[lanner.sync.Queue]:
    with lanner.sync.connect(broker.native) as queue:
        yield queue


def orders(first: int, count: int) -> list[str]:
    return [
        json.dumps({"id": number, "amount": number % 100, "at": f"2026-01-01T00:{number % 60:02d}:00Z"})
        for number in range(first, first + count)
    ]


def ran(spark: SparkSession, file: Path, text: str) -> tuple[bool, PipelineStatus]:
    file.write_text(text)
    pipeline, mistakes = validate(text, lambda path: (file.parent / path).read_text())
    assert pipeline is not None, mistakes
    runner = Runner(spark, pipeline, file)
    ended = runner.run(lambda _: None)
    return ended, runner.status


def messages(queue: lanner.sync.Queue, topic: str) -> list[Any]:
    with queue.reader(topic, until_end=True) as reader:
        return list(reader)


def values(queue: lanner.sync.Queue, topic: str) -> list[bytes]:
    return [message.value for message in messages(queue, topic)]


ORDERS = """\
name: shop
servers: {servers}
sources:
  orders:
    topic: {topic}
    decode:
      format: json
      columns: {{id: bigint, amount: double, at: timestamp}}
      invalid: {{topic: {topic}-invalid}}
    watermark: {{column: at, delay: 1 minute}}
queries:
  minutes:
    sql: |
      select window.start as minute, count(*) as orders, sum(amount) as revenue
      from orders group by window(at, '1 minute')
    mode: complete
    sink: {{memory: {memory}}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  files:
    sql: select id, amount, priority from orders
    sink: {{parquet: ./files}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  alerts:
    sql: select cast(id as string) as key, id, amount, 9 as priority from orders where amount >= 98
    sink: {{topic: {topic}-alerts}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
"""


def test_a_topic_is_decoded_transformed_and_written_and_what_does_not_decode_is_kept(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.publish_many("shop", orders(0, 6_000), priority=7)
    broken = [b"not json", b'{"id": "seven"}', b"", b"\xff\xfe", b'{"id": 1']
    queue.publish_many("shop", broken, keys=[b"k"] * len(broken), headers=[{"a": b"b"}] * len(broken))
    text = ORDERS.format(servers=broker.native, topic="shop", memory="minutes_first")
    ended, status = ran(spark, tmp_path / "shop.yaml", text)
    assert ended, [(one.name, one.error) for one in status.queries]
    assert {one.name: one.state for one in status.queries} == dict.fromkeys(
        ["minutes", "files", "alerts", "orders__invalid"], "ended"
    )
    assert {one.name: (one.rows, one.lag) for one in status.queries}["files"] == (6_005, {"shop": 0})
    minutes = spark.table("minutes_first").collect()
    assert len(minutes) == 60
    assert sum(row["orders"] for row in minutes) == 6_000
    assert sum(row["revenue"] for row in minutes) == sum(number % 100 for number in range(6_000))
    files = spark.read.parquet(str(tmp_path / "files"))
    assert files.count() == files.where("priority = 7").count() == 6_000
    assert sorted(values(queue, "shop-invalid")) == sorted(broken)
    alerts = [json.loads(value) for value in values(queue, "shop-alerts")]
    assert sorted(one["id"] for one in alerts) == [number for number in range(6_000) if number % 100 >= 98]
    assert set(alerts[0]) == {"id", "amount"}
    with queue.reader("shop-alerts", until_end=True) as reader:
        message = next(reader)
        assert (message.priority, message.key) == (9, b"%d" % json.loads(message.value)["id"])
    with queue.reader("shop-invalid", until_end=True) as reader:
        assert {(message.key, message.headers["a"]) for message in reader} == {(b"k", b"b")}

    queue.publish_many("shop", orders(6_000, 100))
    text = text.replace("minutes:", "others:").replace("minutes_first", "minutes_second")
    ran(spark, tmp_path / "shop.yaml", text)  # goes on from its checkpoints
    assert spark.read.parquet(str(tmp_path / "files")).count() == 6_100
    assert len(values(queue, "shop-invalid")) == len(broken)
    assert len(values(queue, "shop-alerts")) == len(alerts) + 2


ONCE = """\
name: once
servers: {servers}
checkpoints: ./progress
sources:
  numbers: {{topic: {topic}}}
queries:
  copies:
    sql: select key, value, priority, timestamp '2100-01-01 00:00:00Z' as deliver_at from numbers
    sink: {{topic: {topic}-copies, transactional_id: {topic}-copies}}
    checkpoint: ./progress-of-copies
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  counts:
    sql: select key, count(*) as count from numbers group by key
    mode: update
    sink: {{topic: {topic}-counts}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
"""


def test_a_batch_that_is_run_again_is_in_its_topics_once_in_every_mode(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    file, text = tmp_path / "once.yaml", ONCE.format(servers=broker.native, topic="once")
    for turn in range(2):
        queue.publish_many("once", [b"%d" % turn] * 10, keys=[b"k%d" % (number % 2) for number in range(10)])
        ended, status = ran(spark, file, text)
        assert ended, [(one.name, one.error) for one in status.queries]
        for place in ("progress-of-copies", "progress/counts"):
            commits = tmp_path / place / "commits"  # as if Spark had died behind the sink's commit, before it noted it
            assert (commits / str(turn)).exists()
            for name in (str(turn), f".{turn}.crc"):
                (commits / name).unlink(missing_ok=True)
        assert sorted(values(queue, "once-copies")) == sorted([b"%d" % number for number in range(turn + 1)] * 10)
        counts = [(one.key, json.loads(one.value)["count"]) for one in messages(queue, "once-counts")]
        assert sorted(counts) == sorted((key, 5 * (past + 1)) for past in range(turn + 1) for key in (b"k0", b"k1"))
    assert {(one.priority, one.deliver_at_ms) for one in messages(queue, "once-copies")} == {(4, 4_102_444_800_000)}
    assert "once-copies" in {one.transaction for one in queue.admin.transactions().transactions}


def test_files_and_patterns_are_sources_and_a_python_function_is_a_query(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    (tmp_path / "refunds").mkdir()
    (tmp_path / "refunds" / "one.csv").write_text("1,late\n2,broken\n")
    for topic in ("north-sales", "south-sales", "other"):
        queue.publish(topic, "x")
    for value in ("box;3", "box;heavy"):
        queue.publish("parcels", value)
    (tmp_path / "join.py").write_text(
        "def joined(spark, sources):\n    return sources['refunds'].selectExpr('id', 'upper(reason) as reason')\n"
    )
    text = f"""\
name: mixed
servers: {broker.native}
sources:
  refunds: {{format: csv, path: ./refunds, columns: {{id: bigint, reason: string}}}}
  sales: {{pattern: '.*-sales'}}
  parcels:
    topics: [north-sales, parcels]
    options: {{startingOffsets: '{{"north-sales": {{"0": -1, "1": -1}}, "parcels": {{"0": -2, "1": -2}}}}'}}
    decode:
      format: csv
      columns: {{word: string, size: int}}
      options: {{sep: ';'}}
      invalid: {{topic: parcels-invalid}}
  later: {{topic: parcels, starting: latest}}
queries:
  upper:
    python: join.py:joined
    sink: {{memory: upper_refunds}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  names:
    sql: select topic, cast(value as string) as value from sales
    sink: {{memory: sale_topics}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  sizes:
    sql: select word, size, topic from parcels
    sink: {{memory: parcel_sizes}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  latest:
    sql: select value from later
    sink: {{memory: later_parcels}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
"""
    ended, status = ran(spark, tmp_path / "mixed.yaml", text)
    assert ended, [(one.name, one.error) for one in status.queries]
    assert {tuple(row) for row in spark.table("upper_refunds").collect()} == {(1, "LATE"), (2, "BROKEN")}
    assert {row["topic"] for row in spark.table("sale_topics").collect()} == {"north-sales", "south-sales"}
    assert [tuple(row) for row in spark.table("parcel_sizes").collect()] == [("box", 3, "parcels")]
    assert values(queue, "parcels-invalid") == [b"box;heavy"]
    assert spark.table("later_parcels").count() == 0


FAILING = """\
name: failing
sources:
  numbers: {{format: rate, options: {{rowsPerSecond: 10}}}}
queries:
  wrong:
    python: wrong.py:wrong
    sink: {{memory: {table}}}
    trigger: {{available_now: true}}
    restart: {{limit: {limit}, backoff: 10 milliseconds}}
"""
WRONG = """\
from pathlib import Path
def wrong(spark, sources):
    tries = Path(__file__).with_name("tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert len(tries.read_text()) > 2, "not yet"
    return spark.readStream.schema("a int").csv(str(Path(__file__).parent / "csv"))
"""


def test_a_query_that_fails_is_started_again_until_it_works_or_its_limit_is_reached(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("1\n2\n")
    ended, status = ran(spark, tmp_path / "f.yaml", FAILING.format(table="never", limit=1))
    assert not ended
    assert (status.queries[0].state, status.queries[0].restarts) == ("failed", 1)
    assert "not yet" in status.queries[0].error
    (tmp_path / "tries").unlink()
    ended, status = ran(spark, tmp_path / "f.yaml", FAILING.format(table="at_last", limit=2))
    assert ended
    assert (status.queries[0].state, status.queries[0].restarts) == ("ended", 2)
    assert spark.table("at_last").count() == 2


def test_dead_letters_are_counted_by_reason_and_redriven_by_a_condition(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.admin.create_topic("sick", partitions=2)
    queue.publish_many("sick", [b"%d" % number for number in range(30)], keys=[b"%d" % number for number in range(30)])
    with queue.consumer("sick", "clinic", max_messages=30) as consumer:
        seen = 0
        while seen < 30:
            for message in consumer.poll(30):
                seen += 1
                message.reject("flu" if int(message.value) % 3 else "cold")
    found = letters.dead_letters(spark, broker.native, "sick")
    assert [(one.group, one.reason, one.letters) for one in letters.counted(found)] == [
        ("clinic", "cold", 10),
        ("clinic", "flu", 20),
    ]
    chosen = letters.dead_letters(
        spark, broker.native, "sick", ["clinic"], "reason = 'cold' and cast(cast(value as string) as int) > 8"
    )
    assert letters.redrive(chosen, broker.native, "sick") == 7
    assert sum(part.dead for part in queue.admin.group("sick", "clinic").partitions) == 23
    text = example_text("dead-letters").replace("localhost:7400", broker.native)
    text = text.replace("topic: orders, group: billing", "topic: sick, group: clinic")
    text = text.replace("every: 10 seconds", "available_now: true").replace("console: true", "memory: dead_counts")
    ended, status = ran(spark, tmp_path / "dead.yaml", text)
    assert ended, [(one.name, one.error) for one in status.queries]
    assert spark.read.parquet(str(tmp_path / "dead-letters")).where("reason = 'flu'").count() == 20
    assert {row["reason"] for row in spark.table("dead_counts").collect()} >= {"flu"}


def lanner_json(*words: str | Path) -> tuple[int, Any]:
    done = subprocess.run([*LANNER, *map(str, words), "--json"], capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout or done.stderr)


def test_a_pipeline_on_a_terminal_shows_its_progress_there_and_in_another_one_until_it_is_stopped(
    broker: BrokerProcess, queue: lanner.sync.Queue, tmp_path: Path
) -> None:
    queue.publish_many("live", orders(0, 500))
    file = tmp_path / "live.yaml"
    text = ORDERS.format(servers=broker.native, topic="live", memory="m").replace(
        "{available_now: true}", "{every: 1 second}"
    )
    file.write_text(text)
    with Terminal([*LANNER, "pipeline", "run", str(file)], cwd=tmp_path) as terminal:
        terminal.until("live 0", 90)  # the lag of a query
        code, found = lanner_json("pipeline", "status", file)
        assert code == 0
        assert found["running"] is True
        assert {one["query"] for one in found["queries"]} == {"minutes", "files", "alerts", "orders__invalid"}
        terminal.interrupt()
        assert terminal.wait(90) == 0
        assert "Traceback" not in terminal.shown
        assert "stopped" in terminal.shown
    code, found = lanner_json("pipeline", "status", file)
    assert (code, found["running"]) == (1, False)
    assert {one["state"] for one in found["queries"]} == {"stopped"}


def test_what_is_no_terminal_gets_lines_of_json_and_the_mistakes_of_a_file_come_before_spark(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a": 1}\n{"a": 2}\n')
    file = tmp_path / "files.yaml"
    text = """\
name: files
sources:
  rows: {format: json, path: ./in, columns: {a: int}}
queries:
  copy: {sql: select * from rows, sink: {parquet: ./out}, trigger: {available_now: true}}
"""
    file.write_text(text)
    done = subprocess.run(
        [*LANNER, "pipeline", "run", str(file), "--conf", "spark.sql.shuffle.partitions=2"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (lines[-1]["query"], lines[-1]["state"], lines[-1]["rows"]) == ("copy", "ended", 2)
    assert list((tmp_path / "out").glob("*.parquet"))
    file.write_text(text.replace("from rows", "from row"))
    done = subprocess.run([*LANNER, "pipeline", "run", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"{file}:5: there is no source 'row'; there are rows\n"
