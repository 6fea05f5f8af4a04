"""docs/pipelines.md tells the truth: its file is in order and its commands print what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.pipelines.meaning import validate
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_commands_print_what_the_document_shows(tmp_path: Path) -> None:
    program = shlex.quote(str(Path(sys.executable).parent / "lanner"))
    with BrokerProcess(tmp_path / "data") as broker:
        (tmp_path / "shop.yaml").write_text(block("yaml").replace("localhost:7400", broker.native))
        export, *steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block("console"), flags=re.MULTILINE)
        assert len(steps) == 6
        for command, shown in steps:
            script = (
                f"{export[0].replace('localhost:7400', broker.native)}; {command.replace('.venv/bin/lanner', program)}"
            )
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            pattern = ".*?".join(map(re.escape, shown.strip().split("…")))
            assert re.fullmatch(pattern, done.stdout.strip()), f"{command}\nsays  {done.stdout}\nshown {shown}"


def test_the_mistakes_shown_are_those_of_the_file_with_these_two_words_changed() -> None:
    text = block("yaml")
    _, found = validate(text.replace("    topic: orders\n", "    topc: orders\n"), lambda _: None)
    _, more = validate(text.replace("from orders", "from order"), lambda _: None)
    shown = [f"shop.yaml:{one.line}: {one.what}" for one in (found[-1], more[0])]
    assert "```\n" + "\n".join(shown) + "\n```" in DOCUMENT
