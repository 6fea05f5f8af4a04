"""The tour of docs/spark.md is the example that is shipped, and prints what the document shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from lanner.testing.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "spark_tour.py"
DOCUMENT = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
TOUR = DOCUMENT[DOCUMENT.index("## Tour\n") : DOCUMENT.index("## Settings for low latency\n")]
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", TOUR, flags=re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    """Without empty lines: the tables of Spark end with one."""
    return [line for line in text.splitlines() if line]


def test_the_tour_shows_the_whole_example() -> None:
    assert len(BLOCKS) == TOUR.count("```python\n") > 0
    _, code = SCRIPT.read_text(encoding="utf-8").split('"""\n\n', maxsplit=1)
    assert lines("".join(code for code, _ in BLOCKS)) == lines(code)


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_prints_what_the_tour_shows(tmp_path: Path) -> None:
    """By the interpreter of a venv that nobody activated. Nothing in the environment helps but to start Java faster."""
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        done = subprocess.run(
            [sys.executable, SCRIPT, broker.native, tmp_path / "tour"],
            capture_output=True,
            text=True,
            timeout=280,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]},
        )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == lines("".join(shown for _, shown in BLOCKS))
