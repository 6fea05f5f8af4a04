"""docs/spark.md tells the truth: its Python runs as it stands and prints what it shows, and its table is complete."""

from __future__ import annotations

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


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("code", "shown"), BLOCKS, ids=[f"block-{number}" for number in range(len(BLOCKS))])
def test_the_blocks_run_as_they_stand(broker: BrokerProcess, tmp_path: Path, code: str, shown: str) -> None:
    """By the interpreter of a venv that nobody activated, with nothing in the environment that would help."""
    done = subprocess.run(
        [sys.executable, "-c", code.replace("localhost:7400", broker.native)],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_the_table_names_every_option_and_no_other() -> None:
    table = DOCUMENT[DOCUMENT.index("## Options") : DOCUMENT.index("What contradicts")]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(KNOWN)
