"""A pipeline file on a Spark master with two workers, over three brokers; the long form begins it on this machine.

The executors' Python has nothing installed: what they run comes from the archive that `lanner pipeline package` made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyarrow import parquet

import lanner
from lanner.spark import prepare
from lanner.testing.cluster_process import ClusterProcess
from tests.acceptance.standalone import standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LANNER = [sys.executable, "-m", "lanner.cli"]
PARTITIONS = 3

PIPELINE = """\
name: beyond
servers: {servers}
sources:
  orders: {{topic: orders}}
queries:
  places:
    python: places.py:places
    sink: {{parquet: ./places}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
  alerts:
    sql: select value, 9 as priority from orders where offset % 100 = 0
    sink: {{topic: alerts}}
    trigger: {{available_now: true}}
    restart: {{limit: 0}}
"""
PLACES = """\
from pyspark.sql.functions import udf


def place(_):
    import importlib.util, json, os, sys
    import lanner, lanner.spark, pyarrow

    names = ("lmdb", "starlette", "uvicorn", "lanner.broker")
    return json.dumps({
        "folder": os.getcwd(),
        "python": sys.prefix,
        "lanner": lanner.__file__,
        "pyarrow": pyarrow.__file__,
        "broker": [name for name in names if importlib.util.find_spec(name)],
    })


def places(spark, sources):
    placed = udf(place, "string", useArrow=False)  # with Arrow Spark would ask for pandas
    return sources["orders"].select("partition", "offset", placed("value").alias("place"))
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python without any package."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return tmp_path / "bare"


def places(file: Path) -> list[dict[str, Any]]:
    """What the pipeline wrote: the rows, with where they were made."""
    rows = parquet.read_table(file.parent / "places").to_pylist()
    return [{**row, **json.loads(row["place"])} for row in rows]


def values(queue: lanner.sync.Queue, topic: str) -> list[bytes]:
    with queue.reader(topic, until_end=True) as reader:
        return sorted(message.value for message in reader)


def publish(queue: lanner.sync.Queue, first: int, count: int) -> None:
    for partition in range(PARTITIONS):
        queue.publish_many("orders", [b"%d/%d" % (partition, first + n) for n in range(count)], partition=partition)


def run(file: Path, environment: dict[str, str], *words: str) -> None:
    command = [*LANNER, "pipeline", "run", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=file.parent, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pipeline_runs_on_a_master_with_two_workers_that_have_only_the_package(
    bare: Path, tmp_path: Path, chaos: bool
) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    prepare(own)
    java = own["SPARK_SUBMIT_OPTS"]  # the master, the workers and their executors start as fast as the driver
    there = {**own, "PYSPARK_PYTHON": str(bare / "bin" / "python"), "SPARK_DAEMON_MEMORY": "256m"}
    there["SPARK_DAEMON_JAVA_OPTS"] = java
    file = tmp_path / "beyond.yaml"
    (tmp_path / "places.py").write_text(PLACES)
    packaging = subprocess.Popen([*LANNER, "pipeline", "package", "--json"], stdout=subprocess.PIPE, cwd=tmp_path)
    with (
        packaging,
        ClusterProcess(tmp_path / "brokers") as cluster,
        lanner.sync.connect(cluster.address) as queue,
        standalone(tmp_path, there) as (master, workers),
    ):
        queue.admin.create_topic("orders", partitions=PARTITIONS, replication=3)
        queue.admin.create_topic("alerts", partitions=1)
        cluster.until(lambda: len(set(cluster.leaders("orders")) - {0}) == 3, 30, "one broker leads two partitions")
        file.write_text(PIPELINE.format(servers=cluster.address))
        publish(queue, 0, 500)
        if chaos:  # the long form: it begins on this machine, and goes on there from its checkpoints
            run(file, own)
            assert {row["lanner"] for row in places(file)} == {lanner.__file__}
        first = 500 if chaos else 0
        publish(queue, 500, 700)
        made = json.loads(packaging.communicate()[0])
        settings = [f"--conf={name}={value}" for name, value in made["settings"].items()]
        settings.append(f"--conf=spark.executor.extraJavaOptions={java}")
        run(file, there, "--master", master, *settings, "--conf=spark.executor.memory=600m")
        rows = places(file)
        assert sorted((row["partition"], row["offset"]) for row in rows) == [
            (partition, offset) for partition in range(PARTITIONS) for offset in range(1_200)
        ]
        later = [row for row in rows if row["offset"] >= first]
        folders = {Path(row["folder"]) for row in later}
        assert {worker for worker in workers for folder in folders if worker in folder.parents} == set(workers)
        assert {row["python"] for row in later} == {str(bare)}
        assert {Path(row[name]) for row in later for name in ("lanner", "pyarrow")} == {
            folder / "lanner-packages" / name / "__init__.py" for folder in folders for name in ("lanner", "pyarrow")
        }
        assert {name for row in later for name in row["broker"]} == set()
        assert values(queue, "alerts") == sorted(
            b"%d/%d" % (partition, offset) for partition in range(PARTITIONS) for offset in range(0, 1_200, 100)
        )
