"""What the commands that run Spark show: how far they are, and what was wrong in the words of whoever found it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lanner
from lanner.cli import sparking
from lanner.errors import ValidationError
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.pipelines.building import as_messages
from lanner.testing.process import BrokerProcess
from lanner.testing.terminal import Terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        ("s3a://bucket/archive", "RuntimeException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"),
        ("nowhere://host/archive", "UnsupportedFileSystemException", 'No FileSystem for scheme "nowhere"'),
    ],
)
def test_what_java_says_is_told_and_not_which_call_failed(spark: SparkSession, path: str, kind: str, says: str) -> None:
    with pytest.raises(Exception, match="An error occurred while calling") as caught:
        open_shelf(spark, path)
    found, said = sparking.told(caught.value)
    assert found == kind
    assert says in said
    assert "\n" not in said


def test_an_error_in_a_task_is_told_by_what_python_said(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="Traceback") as caught:
        spark.sparkContext.parallelize([0]).map(lambda number: 1 // number).collect()
    kind, said = sparking.told(caught.value)
    assert kind == "ZeroDivisionError"
    assert said.startswith("integer division") and "\n" not in said


def test_an_error_of_ours_and_one_of_spark_keep_their_own_words(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("lanner").option("subscribe", "orders").load()
    assert sparking.told(caught.value)[0] == "ValidationError"
    assert sparking.told(caught.value)[1].startswith("option servers: it is missing")
    with pytest.raises(Exception, match="SYNTAX") as other:
        spark.range(1).where("id is is")
    assert sparking.told(other.value)[0] == "ParseException"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("commands") / "data"
    with BrokerProcess(folder, settings={"default_partitions": 1, "disk_reserve_bytes": 0}) as process:
        with lanner.sync.connect(process.native) as queue:
            queue.publish_many("orders", [b"order %d" % number for number in range(300)])
        yield process


def counts(shown: str, what: str) -> list[tuple[int, int]]:
    """What a bar has counted, in the order in which it was shown: done, and of how many."""
    return [(int(done), int(of)) for done, of in re.findall(rf"{what} +\S* *(\d+)/(\d+)", shown)]


def test_archive_audit_and_replay_show_on_a_terminal_how_far_they_are(broker: BrokerProcess, tmp_path: Path) -> None:
    to = ["--servers", broker.native]
    with Terminal(
        [*LANNER, "archive", "orders", "--path", "kept", "--step-messages", "60", *to], cwd=tmp_path
    ) as first:
        assert first.wait() == 0, first.shown
        steps = dict.fromkeys(counts(first.shown, "archive"))
        assert list(steps) == [(done, 300) for done in range(0, 301, 60)], first.shown
    with Terminal([*LANNER, "audit", "--path", "kept", *to], cwd=tmp_path) as second:
        assert second.wait() == 0, second.shown
        assert (0, 5) in counts(second.shown, "check files"), second.shown
        assert second.shown.index("check files") < second.shown.index("compare orders") < second.shown.index("Complete")
    words = ["replay", "orders", "--path", "kept", "--to", "again", "--rate", "100", *to]
    with Terminal([*LANNER, *words], cwd=tmp_path) as third:
        assert third.wait() == 0, third.shown
        told = [done for done, of in counts(third.shown, "replay") if of == 300]
        assert told == sorted(told)
        assert len({done for done in told if 0 < done < 300}) > 1, third.shown


LOOK = """\
from pathlib import Path
def look(spark, sources):
    jars = spark.sparkContext._jsc.sc().listJars().mkString(" ")
    Path(__file__).with_name("jars").write_text(jars)
    return sources["rows"]
"""
PIPELINE = """\
name: packaged
sources:
  rows: {format: json, path: ./in, columns: {a: int}}
queries:
  copy: {python: "look.py:look", sink: {parquet: ./out}, trigger: {available_now: true}, restart: {limit: 0}}
"""
POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>lanner-tried</artifactId><version>1.0</version></project>
"""


def test_a_package_reaches_the_queries_of_a_pipeline(tmp_path: Path) -> None:
    """One that lies in this user's own Maven repository: nothing is fetched from elsewhere."""
    place = tmp_path / ".m2/repository/org/example/lanner-tried/1.0"
    place.mkdir(parents=True)
    (place / "lanner-tried-1.0.pom").write_text(POM)
    with ZipFile(place / "lanner-tried-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "packaged.yaml").write_text(PIPELINE)
    home = f"spark.driver.extraJavaOptions=-Duser.home={tmp_path}"
    words = ["pipeline", "run", "packaged.yaml", "--package", "org.example:lanner-tried:1.0", "--conf", home]
    done = subprocess.run([*LANNER, *words], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "org.example_lanner-tried-1.0.jar" in (tmp_path / "jars").read_text()


def test_what_is_no_condition_is_told_once_and_leaves_no_topic_behind(broker: BrokerProcess, tmp_path: Path) -> None:
    words = ["replay", "orders", "--to", "nowhere", "--where", "nope > 3", "--servers", broker.native]
    with Terminal([*LANNER, *words], cwd=tmp_path) as terminal:
        assert terminal.wait() == 1
        assert terminal.shown.count("name `nope` cannot be resolved") == 1, terminal.shown
        assert "Logger" not in terminal.shown
    with lanner.sync.connect(broker.native) as queue:
        assert "nowhere" not in queue.admin.topics()


def test_a_query_without_anything_for_a_value_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValidationError, match="it selects no column value, and none to make one of"):
        as_messages(spark.sql("select cast('k' as binary) as key, 9 as priority"))
