"""docs/spark.md tells the truth: its Python runs as it stands and prints what it shows, and its table is complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from lanner.spark.options import KNOWN
from lanner.testing.process import BrokerProcess

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
TOUR = DOCUMENT[DOCUMENT.index("## Tour\n") : DOCUMENT.index("## Settings for low latency\n")]  # see test_spark_tour
APART = DOCUMENT.replace(TOUR, "")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", APART, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("document") / "data") as process:
        yield process


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == APART.count("```python\n") > 0


# Each block has names of its own, as if it were a program. They share one Spark, which each of them asks for.
PROGRAM = """
import json, sys
for number, code in enumerate(json.load(sys.stdin)):
    print("block", number, flush=True)
    exec(compile(code, f"block {number}", "exec"), {"__name__": "__main__"})
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_blocks_run_as_they_stand(broker: BrokerProcess, tmp_path: Path) -> None:
    """By the interpreter of a venv that nobody activated. Nothing in the environment helps but to start Java faster."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([code.replace("localhost:7400", broker.native) for code, _ in BLOCKS]),
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]},
    )
    assert done.returncode == 0, done.stderr
    printed = re.split(r"^block \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(printed) == len(BLOCKS)
    for (_, shown), found in zip(BLOCKS, printed, strict=True):
        assert shown in found


def test_the_table_names_every_option_and_no_other() -> None:
    table = DOCUMENT[DOCUMENT.index("## Options") : DOCUMENT.index("What contradicts")]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(KNOWN)
