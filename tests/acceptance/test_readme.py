"""The README tells the truth: its curl lines give the answers it shows, its Python runs, its commands exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lanner.testing.process import BrokerProcess

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
ANYTHING = "…"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Each command line that the README shows, with the answer below it."""
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [(line[2:], answer) for line, answer in pairwise(lines) if line.startswith("$ ")]


def matches(answer: str, shown: str) -> bool:
    return re.fullmatch(".*?".join(map(re.escape, shown.split(ANYTHING))), answer.strip()) is not None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("readme") / "data") as process:
        yield process


def addressed(text: str, broker: BrokerProcess) -> str:
    return text.replace("localhost:8080", f"127.0.0.1:{broker.http_port}").replace("localhost:7400", broker.native)


def test_the_curl_lines_give_the_answers_shown(broker: BrokerProcess) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    assert len(steps()) >= 9
    for command, shown in steps():
        done = subprocess.run(shlex.split(addressed(command, broker)), capture_output=True, text=True, timeout=30)
        assert matches(done.stdout, shown), f"{command}\nsays  {done.stdout}\nshown {shown}"


def test_the_python_examples_run_as_they_stand(broker: BrokerProcess, tmp_path: Path) -> None:
    examples = [block for block in blocks("python") if "pyspark" not in block]
    assert len(examples) == 2
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", addressed(example, broker)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr


def test_the_commands_shown_do_what_they_say(broker: BrokerProcess, tmp_path: Path) -> None:
    script = next(block for block in blocks("sh") if "lanner topic create" in block)
    lanner = Path(sys.executable).parent / "lanner"
    done = subprocess.run(
        ["bash", "-euc", script.replace(".venv/bin/lanner", shlex.quote(str(lanner)))],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "LANNER_SERVERS": broker.native},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_shown_answer_can_differ_only_where_it_says_so() -> None:
    assert matches('{"a":1,"b":2}', '{"a":…,"b":2}')
    assert not matches('{"a":1,"b":3}', '{"a":…,"b":2}')
