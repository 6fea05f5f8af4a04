"""The README tells the truth: its curl lines give the answers it shows, its Python runs, its commands exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import lanner
from lanner.testing.process import BrokerProcess

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
ANYTHING = "…"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Each curl line that the README shows, with the answer below it."""
    lines = [line for block in blocks("console") if "$ curl" in block for line in block.splitlines()]
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
    examples = [block for block in blocks("python") if "lanner.spark" not in block]
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


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("java", ["as the machine has it", "hidden"])
def test_the_spark_example_runs_as_it_stands(broker: BrokerProcess, tmp_path: Path, java: str) -> None:
    """By the interpreter of a venv that nobody activated, with nothing in the environment that would help."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    with lanner.sync.connect(broker.native) as queue:
        queue.publish_many("invoices", ["one", "two"], priority=7)
        count = sum(part.depth.get(7, 0) for part in queue.admin.describe("invoices").partitions)
    (example,) = [block for block in blocks("python") if "lanner.spark" in block]
    (tmp_path / "priorities.py").write_text(addressed(example, broker))
    command = [sys.executable, "priorities.py"]
    if java == "hidden":
        command = without_java(command)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"\|\s*7\|\s*{count}\|", done.stdout), done.stdout
    assert "replaced" not in done.stderr


def without_java(command: list[str]) -> list[str]:
    """The command where the folders of every Java of the machine are empty."""
    found = shutil.which("java", path="/usr/bin:/bin:/usr/local/bin")
    if found is None:
        return command  # nothing to hide
    home = Path(found).resolve().parent.parent
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(home)]
    if not shutil.which("unshare") or subprocess.run([*hide, "true"], capture_output=True).returncode:
        pytest.skip("this kernel does not let us hide the machine's Java")
    return [*hide, *command]


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


class Cluster:
    """`lanner dev` on free ports, and what the README shows in its terms."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        words = ["dev", "--data", str(folder), "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lanner.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = {}
        while said.get("event") != "ready":
            said = json.loads(self.process.stdout.readline())
        self.pids = {broker["name"]: broker["pid"] for broker in said["brokers"]}

    def translated(self, text: str) -> str:
        ports = re.sub(r"127\.0\.0\.1:74(\d\d)", lambda found: f"127.0.0.1:{self.port + int(found[1])}", text)
        return ports.replace("kill -9 4711", f"kill -9 {self.pids['node-1']}")

    def stop(self) -> int:
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(30)


@pytest.fixture
def cluster(tmp_path: Path, dev_port: int) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "dev-data", dev_port)
    yield cluster
    assert cluster.stop() == 0


def squeezed(text: str) -> str:
    """Without what depends on the width of a table."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


def test_three_brokers_do_what_the_readme_shows(cluster: Cluster, tmp_path: Path) -> None:
    (block,) = [block for block in blocks("console") if "LANNER_SERVERS" in block]
    program = shlex.quote(str(Path(sys.executable).parent / "lanner"))
    exported: list[str] = []
    shown_steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", cluster.translated(block), flags=re.MULTILINE)
    assert len(shown_steps) == 6
    for command, shown in shown_steps:
        if command.startswith("export "):
            exported.append(command)
            continue
        script = "; ".join([*exported, command.replace(".venv/bin/lanner", program)])
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=30, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert matches(squeezed(done.stdout), squeezed(shown)), f"{command}\nsays  {done.stdout}\nshown {shown}"


def test_a_shown_answer_can_differ_only_where_it_says_so() -> None:
    assert matches('{"a":1,"b":2}', '{"a":…,"b":2}')
    assert not matches('{"a":1,"b":3}', '{"a":…,"b":2}')
