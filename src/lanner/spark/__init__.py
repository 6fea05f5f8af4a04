"""Spark reads topics as tables. Needs the extra `spark`; nothing else in lanner imports pyspark or pyarrow.

    import lanner.spark

    spark = lanner.spark.session()
    orders = spark.read.format("lanner").option("servers", "localhost:7400").option("subscribe", "orders").load()

The session is a convenience for one machine: in any other session `format("lanner")` works as well, because Spark
finds the module `pyspark_lanner` by its name; where it does not, as in Spark Connect, `register(spark)` tells it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from lanner.spark.archive.reading import read_archive
from lanner.spark.launch import prepare, register, session
from lanner.spark.source import LannerDataSource

__all__ = ["LannerDataSource", "SparkSession", "prepare", "read_archive", "register", "session"]
