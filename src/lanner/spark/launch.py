"""A Spark session on this machine that works at the first try: the right Java, the right Python, no guessing of names.

    spark = lanner.spark.session()

Spark takes these from the environment of the process, so this sets what is not set already. It changes nothing for a
session that exists, but that `format("lanner")` is known there: Spark finds it by its name only where the Python that
its Java starts is the running one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from pyspark.sql import SparkSession

from lanner.spark.java import java_home
from lanner.spark.source import LannerDataSource


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
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, str(value))
    known = SparkSession.getActiveSession() is None and os.environ["PYSPARK_PYTHON"] == sys.executable
    made: SparkSession = builder.getOrCreate()
    if not known:  # else Spark warns that it had found it already
        made.dataSource.register(LannerDataSource)
    return made


def prepare(environment: MutableMapping[str, str], *, local: bool = True) -> None:
    """Set what Spark reads from the environment and nobody has set.

    Workers must be of the running interpreter, or they would not find lanner; on one machine Spark binds to loopback
    instead of what the host name happens to resolve to.
    """
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = java_home(environment)
    if home is not None:
        environment["JAVA_HOME"] = str(home)
