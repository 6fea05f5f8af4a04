"""Files that need Spark run in one process, whatever else runs beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = """
import os
import pathlib

def test_here():
    pathlib.Path(__file__).with_suffix(".ran").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
NEEDS_SPARK = "import pytest\npytestmark = pytest.mark.spark\n" + PLAIN


def test_all_files_that_need_spark_run_in_one_process(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(PLAIN if number % 2 else NEEDS_SPARK)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spark: as in the suite\n")
    options = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--rootdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.workers", "-p", "no:cacheprovider", *options, str(tmp_path)],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr
    where = [(tmp_path / f"test_{number}.ran").read_text() for number in range(6)]
    assert len(set(where[::2])) == 1, "those that need Spark share a process"
    assert len(set(where)) == 3, "the others do not wait for it"
