"""A Spark session on this machine that works at the first try: the right Java, the right Python, no guessing of names.

    spark = lanner.spark.session()

Spark takes these from the environment of the process, so this sets what is not set already. It changes nothing for a
session that exists, but that `format("lanner")` is known there: Spark finds it by its name only where the Python that
its Java starts is the running one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lanner.spark.java import java_home
from lanner.spark.listening import watch
from lanner.spark.source import LannerDataSource

# On a disk of this machine, where renaming is atomic: the one that Spark would choose starts processes.
_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(
    app_name: str = "lanner", *, master: str = "local[2]", config: Mapping[str, object] | None = None
) -> SparkSession:
    """The Spark session of this process, made when there is none. `config` adds to, or replaces, what is set here."""
    prepare(os.environ, local=master.startswith("local"))
    settings: dict[str, object] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A socket in the file system halves the time of a small job: 68 ms a trigger instead of 165.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = cores_of(master)  # 200 tasks would be for a cluster
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINTS
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, str(value))
    known = SparkSession.getActiveSession() is None and os.environ["PYSPARK_PYTHON"] == sys.executable
    made: SparkSession = builder.getOrCreate()
    if not known:  # else Spark warns that it had found it already
        made.dataSource.register(LannerDataSource)
    watch(made)
    return made


def cores_of(master: str) -> int:
    """How many tasks a local master runs at once: `local`, `local[4]`, `local[*]`, `local[2,4]`."""
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def register(spark: SparkSession) -> None:
    """Make `format("lanner")` known where Spark does not find it by itself, as in a session of Spark Connect; and have
    the groups of its queries told of each batch as soon as it is finished."""
    spark.dataSource.register(LannerDataSource)
    watch(spark)


def log_no_errors() -> None:
    """For a command, which tells an error that is raised: Spark's Python writes some of them to standard error, too."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _package_folders() -> list[str]:
    """Where this interpreter finds lanner, Spark and Arrow."""
    found = (importlib.util.find_spec(name) for name in ("lanner", "pyspark", "pyarrow"))
    return [str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin]


def prepare(environment: MutableMapping[str, str], *, local: bool = True) -> None:
    """Set what Spark reads from the environment and nobody has set.

    Workers must be of the running interpreter, or they would not find lanner; on one machine Spark binds to loopback
    instead of what the host name happens to resolve to. Where the workers of a cluster have another Python, this side
    plans with that one as well: it is told where this one finds its packages. Executors are not.
    """
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if environment["PYSPARK_PYTHON"] != sys.executable:
        given = environment.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, given), *_package_folders()]))
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = java_home(environment)
    if home is not None:
        environment["JAVA_HOME"] = str(home)
