"""docs/groups.md tells the truth: its programs run as they are printed, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanner.testing.process import BrokerProcess

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "groups.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data") as process:
        yield process


def test_every_program_is_shown_with_what_it_prints() -> None:
    assert len(PROGRAMS) == TEXT.count("```python") == TEXT.count("```text") == 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_prints_what_is_shown(broker: BrokerProcess, number: int) -> None:
    program, shown = PROGRAMS[number]
    words = [sys.executable, "-W", "error", "-c", program.replace("localhost:7400", broker.native)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr
