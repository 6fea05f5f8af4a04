"""docs/proxy.md tells the truth: its commands run as printed and print what it shows, and its table is whole."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from lanner.cli.app import app
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import HOST, free_port
from lanner.testing.terminal import Terminal

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "proxy.md").read_text(encoding="utf-8")
START, USE = re.findall(r"^```console\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), settings={"segment_bytes": 4 << 20}) as found:
        yield found


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


def matches(answer: str, shown: str) -> bool:
    parts = map(re.escape, squeezed(shown).split("…"))
    return re.fullmatch(".*?".join(parts), squeezed(answer), flags=re.DOTALL) is not None


def test_the_commands_do_what_they_show(cluster: ClusterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {name: free_port() for name in ("7500", "8090", "8010")}
    places = {f":{told}": f":{port}" for told, port in ports.items()}
    places |= {f"localhost:74{number}0": cluster.native_of(number) for number in cluster.brokers}

    def placed(text: str) -> str:
        for told, place in places.items():
            text = text.replace(told, place)
        return text

    for variable, port in (("NATIVE", "7500"), ("HTTP", "8090"), ("GRPC", "8010")):
        monkeypatch.setenv(f"LANNER_PROXY_{variable}", f"{HOST}:{ports[port]}")  # its defaults may be taken
    first, shown = START.split("\n", 1)
    with subprocess.Popen(
        [*LANNER, *shlex.split(placed(first).removeprefix("$ lanner "))], stdout=subprocess.PIPE, text=True
    ) as proxy:
        try:
            assert proxy.stdout is not None
            told = ""
            while "Ctrl-C" not in told:
                line = proxy.stdout.readline()
                assert line, told
                told += line
            assert matches(told, placed(shown)), told
            commands = re.findall(r"^\$ lanner (.*)\n((?:(?!\$ ).*\n)*)", USE, flags=re.MULTILINE)
            assert len(commands) == 3
            for command, shown in commands:
                words = shlex.split(placed(command))
                done = subprocess.run([*LANNER, *words], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, done.stderr
                assert matches(done.stdout, placed(shown)), f"{command}\nsays  {done.stdout}\nshown {shown}"
        finally:
            proxy.send_signal(signal.SIGTERM)
        assert proxy.wait(30) == 0
        assert "Stopped" in proxy.stdout.read()


def test_the_table_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `--([\w-]+)` \| `(\w+)` \| (?:`(.*?)`|\(empty\)) \|", TEXT, flags=re.MULTILINE)
    command = typer.main.get_command(app).commands["proxy"]  # type: ignore[attr-defined]
    settings = [
        (parameter.opts[0].removeprefix("--"), parameter.envvar, str(parameter.default))
        for parameter in command.params
        if parameter.envvar
    ]
    assert rows == settings


def test_help_names_the_doors_and_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([*LANNER, "proxy", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for word in ("--servers", "--native", "--rest", "--grpc", "LANNER_PROXY_NATIVE", "Example: lanner proxy"):
        assert word in done.stdout


def test_on_a_terminal_it_says_where_it_is_and_ends_by_control_c(cluster: ClusterProcess, tmp_path: Path) -> None:
    doors = [word for door in ("native", "http", "grpc") for word in (f"--{door}", f"{HOST}:0")]
    with Terminal([*LANNER, "proxy", "--servers", cluster.address, *doors], cwd=tmp_path) as terminal:
        terminal.until("Ctrl-C stops it")
        assert "The proxy is up." in terminal.shown
        terminal.interrupt()
        assert terminal.wait() == 0
        assert "Stopped" in terminal.shown
        assert "Traceback" not in terminal.shown


def test_json_gives_one_document_when_it_is_ready_and_one_at_the_end(cluster: ClusterProcess) -> None:
    doors = [word for door in ("native", "http", "grpc") for word in (f"--{door}", f"{HOST}:0")]
    words = [*LANNER, "proxy", "--json", "--servers", cluster.address, *doors]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        ready = json.loads(proxy.stdout.readline())
        proxy.send_signal(signal.SIGINT)
        assert json.loads(proxy.stdout.readline()) == {"event": "stopped"}
        assert proxy.wait(30) == 0
    assert (ready["event"], ready["servers"]) == ("ready", cluster.address)
    assert ready["node_id"].startswith("proxy-") and ready["cluster_id"]
    assert all(ready[door] for door in ("native", "http", "grpc"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--native", "nowhere"], "--native: native is 'nowhere': give HOST:PORT"),
        (["--servers", "http://broker:8080"], "this is no web address"),
        (["--native", "", "--http", "", "--grpc", ""], "every door is off"),
        (["--connections-max", "0"], "connections_max is 0"),
    ],
)
def test_a_mistake_is_told_with_its_place(words: list[str], told: str) -> None:
    done = subprocess.run([*LANNER, "proxy", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told_with_what_to_do(cluster: ClusterProcess) -> None:
    taken = cluster.native_of(1)
    words = ["proxy", "--servers", cluster.address, "--native", taken, "--http", "", "--grpc", ""]
    done = subprocess.run([*LANNER, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on {taken}" in done.stderr
    assert "--native HOST:PORT" in done.stderr
