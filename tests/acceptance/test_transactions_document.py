"""docs/transactions.md tells the truth: its programs run and print what it shows, and so do its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanner.testing.process import BrokerProcess

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "transactions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text|console)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("transactions") / "data") as process:
        yield process


def run(words: list[str], broker: BrokerProcess) -> str:
    environment = {"PATH": "/usr/bin:/bin", "LANNER_SERVERS": broker.native, "COLUMNS": "200"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


def matches(answer: str, shown: str) -> bool:
    parts = map(re.escape, squeezed(shown).split("…"))
    return re.fullmatch(".*?".join(parts), squeezed(answer)) is not None


def test_every_block_does_what_it_shows(broker: BrokerProcess) -> None:
    printed = ""
    assert [kind for kind, _ in BLOCKS].count("python") == 4
    for kind, block in BLOCKS:
        if kind == "python":
            printed = run([sys.executable, "-W", "error", "-c", block.replace("localhost:7400", broker.native)], broker)
        elif kind == "text":
            assert printed == block
        else:
            for command, shown in re.findall(r"^\$ lanner (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
                answer = run([sys.executable, "-m", "lanner.cli", *command.split()], broker)
                assert matches(answer, shown), f"{command}\nsays  {answer}\nshown {shown}"
