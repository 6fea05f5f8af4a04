"""docs/spark.md, Beyond one machine: the package is made as printed; in the long form Connect and flows run, too.

The long form needs what `pip install 'pyspark[connect]'` brings, which `make setup` does not: it is skipped without.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import pyspark

import lanner
from lanner.spark import prepare
from lanner.testing.process import BrokerProcess, free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
SECTION = DOCUMENT[DOCUMENT.index("## Beyond one machine") :]
HOME = Path(pyspark.__file__).parent
PROGRAM = shlex.quote(str(Path(sys.executable).parent / "lanner"))

CONNECTED = """
import lanner.spark
from pyspark.sql import SparkSession

{block}
sales = spark.read.format("lanner").options(servers={servers!r}, subscribe="sales").load()
print(sales.count())
stream = spark.readStream.format("lanner").options(servers={servers!r}, subscribe="sales", startingOffsets="earliest")
copies = stream.option("group", "copier").load().select("value").writeStream.format("lanner")
copies = copies.options(servers={servers!r}, topic="copies", checkpointLocation={checkpoint!r})
copies.trigger(availableNow=True).start().awaitTermination()
"""
SPECIFICATION = """\
name: shop
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""


def blocks(language: str) -> list[str]:
    found = SECTION[: SECTION.find("\n## ", 5)] if "\n## " in SECTION[5:] else SECTION
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", found, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def test_the_package_is_made_as_the_document_shows(tmp_path: Path) -> None:
    (block,) = blocks("console")
    command, shown = block.removeprefix("$ ").split("\n", 1)
    done = subprocess.run(
        shlex.split(command.replace(".venv/bin/lanner", PROGRAM)), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    pattern = ".*?".join(map(re.escape, shown.split("…")))
    assert re.fullmatch(pattern, done.stdout), f"says  {done.stdout}\nshown {shown}"
    settings = re.findall(r"--conf (\S+)=(\S+)", shown)
    assert len(settings) == 2
    for name, value in settings:
        assert f"--conf {name}={value}" in blocks("")[0]


def test_the_commands_for_a_cluster_have_only_options_that_exist() -> None:
    command = next(block for block in blocks("") if "pipeline run" in block)
    shown = subprocess.check_output([sys.executable, "-m", "lanner.cli", "pipeline", "run", "--help"], text=True)
    for option in set(re.findall(r"--[a-z]+", command)):
        assert f"{option} " in shown


@pytest.fixture
def needs_connect(chaos: bool) -> None:
    if not chaos:
        pytest.skip("the long form: --chaos")
    for name in ("grpc", "grpc_status", "pandas"):
        pytest.importorskip(name, reason="pip install 'pyspark[connect]'")


@pytest.fixture
def unpacked(tmp_path: Path) -> dict[str, str]:
    """An environment for Spark: a Python without packages, and beside it the archive, unpacked."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    subprocess.run([sys.executable, "-m", "lanner.cli", "pipeline", "package"], cwd=tmp_path, check=True)
    with tarfile.open(tmp_path / "lanner-executors.tar.gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    prepare(environment)
    return environment | {"PYTHONPATH": str(tmp_path / "unpacked"), "PYSPARK_PYTHON": str(tmp_path / "bare/bin/python")}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as process:
        with lanner.sync.connect(process.native) as queue:
            queue.publish_many("sales", [b"%d" % number for number in range(1_000)])
            queue.admin.create_topic("copies")
        yield process


@contextmanager
def connect_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    port, log = free_port(), folder / "server.log"
    words = ["--wait", "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}"]
    own = {**environment, "SPARK_LOG_DIR": str(folder), "SPARK_PID_DIR": str(folder)}
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [HOME / "sbin/start-connect-server.sh", *words],
            stdout=stream,
            stderr=stream,
            env=own,
            start_new_session=True,
        )
    try:
        ends = time.monotonic() + 120
        while "Spark Connect server started" not in (said := log.read_text(errors="replace")):
            assert server.poll() is None and time.monotonic() < ends, said
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # the script does not pass it on to its Java
        server.wait(60)


def test_spark_connect_reads_and_writes_with_the_package_on_its_server(
    needs_connect: None, unpacked: dict[str, str], broker: BrokerProcess, tmp_path: Path
) -> None:
    (block,) = [one for one in blocks("py") if "remote(" in one]
    with connect_server(tmp_path, unpacked) as address:
        code = CONNECTED.format(
            block=block.replace("sc://HOST:15002", address),
            servers=broker.native,
            checkpoint=str(tmp_path / "checkpoint"),
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1000"
    with lanner.sync.connect(broker.native) as queue:
        with queue.reader("copies", until_end=True) as reader:
            assert sorted(int(message.value) for message in reader) == list(range(1_000))
        assert sum(part.lag for part in queue.admin.group("sales", "copier").partitions) == 0


def test_a_declarative_pipeline_reads_a_topic(
    needs_connect: None, unpacked: dict[str, str], broker: BrokerProcess, tmp_path: Path
) -> None:
    (block,) = [one for one in blocks("py") if "pipelines" in one]
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "sales.py").write_text(block.replace("localhost:7400", broker.native))
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    environment = {**unpacked, "PYSPARK_PYTHON": sys.executable}  # its command line is Python, too, and needs pandas
    done = subprocess.run(
        [HOME / "bin" / "spark-pipelines", "run"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    from pyarrow import parquet

    rows = parquet.read_table(tmp_path / "spark-warehouse" / "sales").to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(1_000))
