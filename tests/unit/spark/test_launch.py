"""How the session of this process is made."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.launch import cores_of


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", os.cpu_count())]
)
def test_a_shuffle_on_one_machine_has_a_task_for_each_core(master: str, cores: int) -> None:
    assert cores_of(master) == cores
