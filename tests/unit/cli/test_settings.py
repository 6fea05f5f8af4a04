"""`lanner config show`: each setting, its value and where it comes from; and the page that lists them."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lanner import server
from lanner.cli.app import app
from lanner.cli.config import unread_variables
from lanner.proxy import server as proxy_server
from lanner.testing.terminal import Terminal

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "settings.md").read_text(encoding="utf-8")


def shown(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["config", "show", *arguments, "--json"], env=env)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return {**{row["name"]: row for row in document["settings"]}, "unread": document["unread"]}


def options(name: str = "up") -> dict[str, tuple[str, object]]:
    """Each option of a command that is a setting, with its variable and its default."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return {one.opts[0]: (one.envvar, one.default) for one in command.params if one.envvar}


def test_each_value_is_shown_with_the_place_that_won(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("name: a\n\npartitions: 5\nrack: r1\n")
    found = shown("--config", str(path), "--name", "c", env={"LANNER_NAME": "b", "LANNER_PARTITIONS": "4"})
    assert found["name"] == {"name": "name", "value": "c", "source": "flag", "origin": "--name"}
    assert found["partitions"]["value"] == 4
    assert found["partitions"]["source"] == "environment"
    assert found["partitions"]["origin"] == "the variable LANNER_PARTITIONS"
    assert found["rack"]["source"] == "file"
    assert found["rack"]["origin"] == f"{path}, line 4: 'rack'"
    assert found["data"] == {"name": "data", "value": "data", "source": "default", "origin": "the default"}
    assert found["config"]["value"] == str(path)


def test_every_setting_of_a_broker_is_shown() -> None:
    assert {f"--{name}" for name in shown() if name != "unread"} == set(options())


def test_what_a_broker_would_refuse_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.yml"
    path.write_text("# mine\njoin: nowhere\n")
    result = CliRunner().invoke(app, ["config", "show", "--config", str(path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ValidationError: {path}, line 2: 'join': join is 'nowhere': give HOST:PORT")


def test_variables_that_are_not_read_are_listed_and_the_nearest_is_named() -> None:
    found = shown(env={"LANNER_PARTITONS": "4", "LANNER_PORT_7400_TCP": "tcp://10.0.0.9", "LANNER_SERVERS": "a:1"})
    assert found["unread"]["LANNER_PARTITONS"] == "LANNER_PARTITIONS"
    assert found["unread"]["LANNER_PORT_7400_TCP"] == ""
    assert "LANNER_SERVERS" not in found["unread"]
    result = CliRunner().invoke(app, ["config", "show"], env={"LANNER_PARTITONS": "4", "LANNER_ODD": "1"})
    assert "The variable LANNER_PARTITONS is not read; did you mean LANNER_PARTITIONS?" in result.stdout
    assert "The variable LANNER_ODD is not read.\n" in result.stdout


def test_the_settings_of_a_proxy_are_shown_with_the_place_that_won(tmp_path: Path) -> None:
    path = tmp_path / "proxy.yaml"
    path.write_text("servers:\n  - a:7400\n  - b:7400\nname: gate\nhttp: ''\n")
    found = shown("proxy", "--name", "door", env={"LANNER_CONFIG": str(path), "LANNER_PROXY_NATIVE": "0.0.0.0:7500"})
    assert found["name"] == {"name": "name", "value": "door", "source": "flag", "origin": "--name"}
    assert found["native"]["origin"] == "the variable LANNER_PROXY_NATIVE"
    assert (found["servers"]["value"], found["servers"]["origin"]) == (
        "a:7400,b:7400",
        f"{path}, line 1: 'servers'",
    )
    assert (found["http"]["value"], found["http"]["source"]) == ("", "file")
    assert found["grpc"] == {"name": "grpc", "value": "127.0.0.1:8010", "source": "default", "origin": "the default"}
    assert {f"--{name}" for name in found if name != "unread"} == set(options("proxy"))


def test_variables_that_a_proxy_does_not_read_are_listed() -> None:
    found = shown("proxy", env={"LANNER_PROXY_NATVE": "a:1", "LANNER_PARTITIONS": "many", "LANNER_PROXY_NAME": "gate"})
    assert found["unread"]["LANNER_PROXY_NATVE"] == "LANNER_PROXY_NATIVE"
    assert "LANNER_PARTITIONS" in found["unread"]
    assert "LANNER_PROXY_NAME" not in found["unread"]


def test_what_a_proxy_would_refuse_is_refused_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "proxy.yml"
    path.write_text("# mine\nadvertise: nowhere\n")

    async def serve(settings: object, started: object) -> None: ...

    monkeypatch.setattr(proxy_server, "serve", serve)
    for words in (["config", "show", "proxy"], ["proxy"]):
        result = CliRunner().invoke(app, [*words, "--config", str(path)])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"ValidationError: {path}, line 2: 'advertise': advertise is 'nowhere'")
    path.write_text("partitions: 4\n")
    result = CliRunner().invoke(app, ["config", "show", "proxy", "--config", str(path)])
    assert result.exit_code == 2
    assert "'partitions' is not a setting of this command" in " ".join(result.stderr.split())


def test_which_settings_are_shown_is_said_first_and_not_between_options() -> None:
    result = CliRunner().invoke(app, ["config", "show", "--name", "gate", "proxy"])
    assert result.exit_code == 2
    assert "proxy" in result.stderr
    assert "lanner config show proxy" in CliRunner().invoke(app, ["config", "show", "--help"]).stdout
    usage = CliRunner().invoke(app, ["config", "show", "proxy", "--help"]).stdout
    assert "config show proxy [OPTIONS]" in usage
    assert "LANNER_PROXY_NATIVE" in usage
    assert "LANNER_PARTITIONS" not in usage


@pytest.mark.parametrize(("words", "command"), [((), "up"), (("proxy",), "proxy")])
def test_no_name_of_a_setting_is_torn_on_a_narrow_screen(words: tuple[str, ...], command: str) -> None:
    with Terminal([sys.executable, "-m", "lanner.cli", "config", "show", *words], columns=39) as terminal:
        assert terminal.wait() == 0
        lines = terminal.shown.splitlines()
    assert max(map(len, lines)) <= 39
    names = [line.split()[1] for line in lines if line.startswith("setting ")]
    assert names == [flag.removeprefix("--") for flag in options(command)]
    assert "127.0.0.1:8090" in terminal.shown or command == "up"


def test_only_variables_with_the_prefix_are_looked_at() -> None:
    assert list(unread_variables(["LANNER_DATA"], {"DATA": "x", "QUEUE_DATA": "y", "LANNER_DATA": "z"})) == []


def test_a_broker_warns_of_a_misspelt_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(settings: object, started: object) -> None: ...

    monkeypatch.setattr(server, "serve", serve)
    with caplog.at_level(logging.WARNING):
        result = CliRunner().invoke(app, ["up", "--json"], env={"LANNER_NAEM": "b", "LANNER_SERVICE_HOST": "10.0.0.9"})
    assert json.loads(result.stdout) == {"event": "stopped"}
    assert [record.message for record in caplog.records] == [
        "the variable LANNER_NAEM is not read; did you mean LANNER_NAME?"
    ]


@pytest.mark.parametrize(("command", "page"), [("up", "settings.md"), ("proxy", "proxy.md")])
def test_the_page_lists_every_setting_with_its_variable_and_default(command: str, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `([A-Z_]+)` \| (?:`([^`]*)`|\(empty\)) \|", text, re.MULTILINE)
    written = {flag: (variable, default) for flag, variable, default in rows}
    expected = {
        flag: (variable, str(default).lower() if isinstance(default, bool) else str(default))
        for flag, (variable, default) in options(command).items()
    }
    assert written == expected


def test_the_page_names_no_flag_that_is_not_there() -> None:
    known = {*options(), "--no-auto-create", "--json", "--servers", "--raft"}  # the last is Queue's
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) <= known


def test_the_page_shows_what_the_command_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("lanner.yaml").write_text(example)
    Path("mistaken.yaml").write_text("name: b1\npartitons: 4\n")
    for words, said in re.findall(r"^\$ (.*)\n((?:(?!```).*\n)*)```", PAGE, re.MULTILINE):
        variables = dict(re.findall(r"(LANNER_\w+)=(\S+)", words))
        arguments = words.partition("lanner ")[2].split()
        result = CliRunner().invoke(app, arguments, env=variables)
        lines = {" ".join(line.split()) for line in result.output.splitlines()}
        expected = {" ".join(line.split()) for line in said.splitlines() if set(line.strip()) - {"─", "…"}}
        assert len(expected) > 0
        assert expected <= lines, (words, lines)
