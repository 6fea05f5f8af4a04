"""Spark looks for data sources in modules named like this: format("lanner") needs no registering."""

from lanner.spark.source import LannerDataSource as DefaultSource

__all__ = ["DefaultSource"]
