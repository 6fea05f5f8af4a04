"""`pip install lanner` without an extra: the client and the command line work, and what needs more says what to type.

The environment is a venv of its own. It holds what pyproject.toml declares for a plain install and what that in turn
requires, linked from the environment of the tests, so that nothing is downloaded; and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lanner.testing.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

CLIENT = """
import lanner
for name in lanner.__all__:
    getattr(lanner, name)
with lanner.sync.connect({servers!r}) as queue:
    queue.publish_many("letters", [b"one", b"two"], partition=0)
    with queue.consumer("letters", group="readers") as consumer:
        print(sorted(message.value for message in consumer.poll(2)))
"""
EMBEDDED = """
import lanner
try:
    lanner.embedded("data")
except lanner.errors.NotInstalled as error:
    print(error)
"""
NEED_A_BROKER = ["up --data data", "config show", "dev", "broker add --native 127.0.0.1:0", "broker repair --data data"]
NEED_SPARK = ["pipeline validate a.yaml", "pipeline package", "archive letters --path kept", "dead-letters letters"]


def required(lines: list[str]) -> Iterator[str]:
    """The packages that these lines ask for on this machine, and what they ask for in turn."""
    waiting, seen = [Requirement(line) for line in lines], set()
    while waiting:
        one = waiting.pop()
        if one.name in seen or not (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue
        seen.add(one.name)
        yield one.name
        waiting += map(Requirement, distribution(one.name).requires or ())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with a plain install."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in required(PROJECT["dependencies"]):
        for file in distribution(name).files or ():
            target = packages / file
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(str(file.locate()))
    (packages / "lanner").symlink_to(ROOT / "src" / "lanner")
    own = packages / f"lanner-{PROJECT['version']}.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(f"Metadata-Version: 2.4\nName: lanner\nVersion: {PROJECT['version']}\n")
    program = folder / "bin" / "lanner"
    program.write_text(f"#!{folder}/bin/python\nfrom lanner.cli import main\nmain()\n")
    program.chmod(0o755)
    return folder / "bin"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings={"disk_reserve_bytes": 0}) as process:
        yield process


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LANNER"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)


def test_the_environment_has_nothing_of_a_broker_or_of_spark(plain: Path, tmp_path: Path) -> None:
    names = ["grpc", "google", "httptools", "lmdb", "starlette", "uvicorn", "pyspark", "pyarrow", "yaml", "pytest"]
    code = f"import importlib.util; print([name for name in {names} if importlib.util.find_spec(name)])"
    done = run([plain / "python", "-c", code], tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_client_works(plain: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    done = run([plain / "python", "-W", "error", "-c", CLIENT.format(servers=broker.native)], tmp_path)
    assert (done.stdout, done.stderr) == ("[b'one', b'two']\n", "")


def test_the_command_line_talks_to_a_broker(plain: Path, broker: BrokerProcess, tmp_path: Path) -> None:
    def said(words: str) -> str:
        done = run([plain / "lanner", *words.split()], tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    servers = f"-s {broker.native}"
    assert "lanner up" in said("--help")
    assert said("version") == f"lanner {PROJECT['version']}\n"
    assert "parcels" in said(f"topic create parcels --partitions 2 {servers}")
    assert re.match(r"parcels/\d/0\n", said(f"publish parcels box {servers}"))
    assert "box" in said(f"consume parcels --group couriers --count 1 {servers}")
    assert json.loads(said(f"group show parcels couriers --json {servers}"))["group"] == "couriers"
    assert "led by" in said(f"cluster {servers}")
    assert "parcels" in said(f"topic list {servers}")


@pytest.mark.parametrize("words", NEED_A_BROKER)
def test_what_starts_or_repairs_a_broker_names_the_extra_server(
    plain: Path, broker: BrokerProcess, tmp_path: Path, words: str
) -> None:
    command = [plain / "lanner", *words.split()]
    done = run(command, tmp_path)
    what = f"lanner {words.partition(' --')[0]}"
    missing = "google, grpc, grpc_health, grpc_reflection, httptools, lmdb, starlette, uvicorn, yaml"
    assert done.stderr == (
        f"NotInstalled: {what} needs the extra 'server', and there is no {missing} here. "
        "Type: pip install 'lanner[server]' (in a checkout: make setup)\n"
    )
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])
    done = run([*command, "--json"], tmp_path)
    assert json.loads(done.stderr)["details"]["extra"] == "server"


@pytest.mark.parametrize("words", NEED_SPARK)
def test_what_needs_spark_names_the_extra_spark(plain: Path, tmp_path: Path, words: str) -> None:
    done = run([plain / "lanner", *words.split()], tmp_path)
    assert "Type: pip install 'lanner[spark]'" in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_an_embedded_broker_names_the_extra_server(plain: Path, tmp_path: Path) -> None:
    done = run([plain / "python", "-c", EMBEDDED], tmp_path)
    assert "lanner.embedded needs the extra 'server'" in done.stdout
    assert "pip install 'lanner[server]'" in done.stdout


def test_every_extra_can_be_installed_together() -> None:
    """What the four groups ask for is there in this environment, which `make setup` makes of all of them."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    assert set(PROJECT["optional-dependencies"]) == {"server", "spark", "dev"}
    try:
        assert len(set(required(lines))) > 20
    except PackageNotFoundError as error:
        pytest.fail(f"{error} is declared and not installed: make setup")
