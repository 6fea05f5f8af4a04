"""docs/archive.md tells the truth: its commands print what it shows, its Python runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "archive.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, flags=re.MULTILINE | re.DOTALL)


def squeezed(text: str) -> str:
    """Without what depends on the width of a table."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("document") / "data") as process:
        yield process


def test_the_commands_print_what_the_document_shows_and_its_python_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    (console,) = blocks("console")
    program = shlex.quote(str(Path(sys.executable).parent / "lanner"))
    exported = []
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, flags=re.MULTILINE)
    assert len(steps) == 7
    for command, shown in steps:
        if command.startswith("export "):
            exported.append(command.replace("localhost:7400", broker.native))
            continue
        script = "; ".join([*exported, command.replace(".venv/bin/lanner", program)])
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stderr == "", command
        pattern = ".*?".join(map(re.escape, squeezed(shown).split("…")))
        assert re.fullmatch(pattern, squeezed(done.stdout)), f"{command}\nsays  {done.stdout}\nshown {shown}"
    (python,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(int(count) for count in re.findall(r"\|\s*\d+\|\s*(\d+)\|", done.stdout)) == 20_000
