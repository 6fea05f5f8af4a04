"""`lanner up` refuses a setting that makes no sense before it starts, and names the place where it was given."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lanner.cli.app import app


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(app, ["up", "--json", *arguments], env=env)
    assert result.exit_code == 1, result.output
    problem = json.loads(result.stderr)
    assert problem["type"] == "ValidationError"
    return str(problem["message"])


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("partitions", 5_000, "default_partitions is 5000: it must be a whole number from 1 to 1000"),
        ("http", "nonsense", "http is 'nonsense': give HOST:PORT"),
        ("join", "a:1,b", "join is 'b'"),
        ("connections-max", 0, "connections_max is 0"),
        ("unfinished-bytes-max", 1, "unfinished_bytes_max is 1: it must be a whole number from 33554432"),
        ("frame-deadline-ms", 5, "frame_deadline_ms is 5"),
        ("body-deadline-ms", 5, "body_deadline_ms is 5"),
        ("control-bytes-max", 1, "control_bytes_max is 1"),
        ("stop-ms", -1, "stop_ms is -1"),
    ],
)
def test_a_refused_value_is_blamed_on_the_flag_the_variable_or_the_line_of_the_file(
    tmp_path: Path, setting: str, value: str | int, said: str
) -> None:
    flag, variable = f"--{setting}", "LANNER_" + setting.upper().replace("-", "_")
    assert refused(flag, str(value)).startswith(f"{flag}: {said}")
    assert refused(env={variable: str(value)}).startswith(f"the variable {variable}: {said}")
    toml, plain = tmp_path / "broker.toml", tmp_path / "broker.json"
    toml.write_text(f"# a broker\nname = 'b1'\n{setting} = {value!r}\n")
    assert refused("--config", str(toml)).startswith(f"{toml}, line 3: '{setting}': {said}")
    underscored = setting.replace("-", "_")
    plain.write_text(json.dumps({"name": "b1", underscored: value}, indent=1))
    assert refused("--config", str(plain)).startswith(f"{plain}, line 3: '{underscored}': {said}")


def test_the_place_that_won_is_blamed(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("seeds = ['a:1', 'a:1']\n")
    env = {"LANNER_SEEDS": "b"}
    assert refused("--config", str(path)).startswith(f"{path}, line 1: 'seeds': seeds must be")
    assert refused("--config", str(path), env=env).startswith("the variable LANNER_SEEDS: seeds is 'b'")
    assert refused("--config", str(path), "--seeds", "c", env=env).startswith("--seeds: seeds is 'c'")


def test_an_address_that_is_taken_is_blamed_on_where_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(f"native = '{address}'\ndata = '{tmp_path / 'data'}'\nhttp = ''\ndisk-reserve = 0\n")
        assert refused("--config", str(path)).startswith(f"{path}, line 1: 'native': cannot listen on {address}")


def test_the_document_shows_such_a_refusal_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broker.toml").write_text("name = 'b1'\nframe-deadline-ms = 5\n")
    result = CliRunner().invoke(app, ["up", "--config", "broker.toml"])
    document = Path(__file__).parents[3] / "docs" / "operations.md"
    assert f"```text\n{result.stderr}```" in document.read_text()


@pytest.mark.parametrize("door", ["native", "http", "grpc"])
@pytest.mark.parametrize("host", ["nothing.invalid", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_not_said_to_be_taken(tmp_path: Path, door: str, host: str) -> None:
    doors = {"native": "", "http": "", "grpc": "", door: f"{host}:7400"}
    flags = [word for name, address in doors.items() for word in (f"--{name}", address)]
    said = refused(*flags, "--data", str(tmp_path / "data"), "--disk-reserve", "0")
    begins, why, ends = re.split(r"[()]", said)
    assert begins == f"--{door}: cannot listen on {host}:7400 "
    assert ends == f": choose another address with --{door} HOST:PORT"
    if host == "nothing.invalid":  # the resolver's words differ from place to place
        assert not why.startswith("Unknown")
    else:
        assert why == "this machine does not have that address"
