"""How test files are spread over processes: all that need Spark go to one of them, the others file by file.

Most tests wait for brokers that start, stop and elect leaders, so one process more than there are cores keeps the cores
busy. Spark does not wait: two sessions at a time are no faster than one after the other, and each needs a Java of its
own.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK = "needs Spark"


class SparkInOneProcess(LoadFileScheduling):
    """As `--dist loadfile`, but for the files that need Spark: they are one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return SPARK if needs_spark(self.config.rootpath / file) else file


@lru_cache
def needs_spark(path: Path) -> bool:
    """Whether a file holds a test with the mark. The process that hands out the work imports no tests, so it reads."""
    return "pytest.mark.spark" in path.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return SparkInOneProcess(config, log) if config.getvalue("dist") == "loadfile" else None
