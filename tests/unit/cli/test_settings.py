"""`lanner config show`: each setting, its value and where it comes from; and the page that lists them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lanner import server
from lanner.cli.app import app
from lanner.cli.config import unread_variables

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")


def shown(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["config", "show", "--json", *arguments], env=env)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return {**{row["name"]: row for row in document["settings"]}, "unread": document["unread"]}


def options() -> dict[str, tuple[str, object]]:
    """Each option of `lanner up` that is a setting, with its variable and its default."""
    command = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]
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


def test_the_page_lists_every_setting_with_its_variable_and_default() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `([A-Z_]+)` \| (?:`([^`]*)`|\(empty\)) \|", PAGE, re.MULTILINE)
    written = {flag: (variable, default) for flag, variable, default in rows}
    expected = {
        flag: (variable, str(default).lower() if isinstance(default, bool) else str(default))
        for flag, (variable, default) in options().items()
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
