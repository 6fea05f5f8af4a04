"""What the commands of pipelines say before any Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lanner.cli.app import app

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_file_that_is_not_there_is_told_with_what_writes_one(command: str, tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    failed = CliRunner().invoke(app, ["pipeline", command, str(file)])
    assert failed.exit_code == 1
    assert failed.stderr == f"NotFoundError: there is no file {file}: `lanner pipeline new {file}` writes an example\n"
