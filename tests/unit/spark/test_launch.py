"""How the session of this process is made."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.launch import cores_of, prepare


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", os.cpu_count())]
)
def test_a_shuffle_on_one_machine_has_a_task_for_each_core(master: str, cores: int) -> None:
    assert cores_of(master) == cores


def test_another_python_for_the_workers_finds_on_this_side_what_this_one_has(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    environment = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": python, "PYTHONPATH": str(tmp_path)}
    prepare(environment)
    assert (environment["PYSPARK_PYTHON"], environment["PYSPARK_DRIVER_PYTHON"]) == (python, sys.executable)
    code = "import sys, lanner, pyarrow, pyspark, py4j; print(sys.prefix, sys.path[1])"
    shown = subprocess.check_output([python, "-c", code], text=True, env=environment, cwd=tmp_path)
    assert shown == f"{tmp_path / 'bare'} {tmp_path}\n"


def test_the_running_python_needs_no_help() -> None:
    environment = {"PATH": os.environ["PATH"]}
    prepare(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert "PYTHONPATH" not in environment
