"""Settings from a file: which value wins, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from lanner import extras
from lanner.cli.config import FILE_BYTES_MAX, Config

app = typer.Typer(rich_markup_mode=None, add_completion=False)
Seeds = Annotated[str, typer.Option(envvar="SEEDS_HERE")]
Reserve = Annotated[int, typer.Option("--disk-reserve", envvar="RESERVE_HERE")]
Create = Annotated[bool, typer.Option("--auto-create/--no-auto-create")]


@app.command()
def show(seeds: Seeds = "default", reserve: Reserve = -1, create: Create = True, config: Config = "") -> None:
    typer.echo(f"{seeds} {reserve} {create}")


def run(tmp_path: Path, text: str | bytes, *flags: str, name: str = "lanner.toml", env: dict[str, str] | None = None):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return CliRunner().invoke(app, ["--config", str(path), *flags], env=env)


def test_a_file_sets_what_nobody_else_sets(tmp_path: Path) -> None:
    result = run(tmp_path, 'seeds = ["a:1", "b:2"]\ndisk_reserve = 5\nauto-create = false\n')
    assert result.output == "a:1,b:2 5 False\n"


def test_json_says_the_same(tmp_path: Path) -> None:
    assert run(tmp_path, '{"seeds": "a:1", "disk-reserve": 0}', name="lanner.json").output == "a:1 0 True\n"


def test_yaml_says_the_same_and_takes_text_as_it_is_written(tmp_path: Path) -> None:
    text = "# mine\nseeds:\n  - a:1\n  - b:2\ndisk_reserve: 5\nauto-create: no\n"
    assert run(tmp_path, text, name="lanner.yaml").output == "a:1,b:2 5 False\n"
    assert run(tmp_path, "seeds: no\nauto-create: yes", name="lanner.yml").output == "no -1 True\n"
    assert run(tmp_path, "seeds: 010\n", name="lanner.yml").output == "010 -1 True\n"
    assert run(tmp_path, "seeds: ''\n", name="lanner.yml").output == " -1 True\n"
    assert run(tmp_path, "# nothing\n", name="lanner.yml").output == "default -1 True\n"


def test_yaml_needs_the_extra_server_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "yaml" else object())
    result = run(tmp_path, "seeds: a:1", name="lanner.yaml")
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "a settings file in YAML needs the extra 'server'" in said
    assert "pip install 'lanner[server]'" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", "disk-reserve = 7\n"), ("a.json", '{"disk-reserve": 7}'), ("a.yaml", "disk-reserve: 7\n")],
)
def test_a_file_may_begin_with_the_mark_that_editors_put_there(tmp_path: Path, name: str, text: str) -> None:
    assert "default 7 True" in run(tmp_path, f"\ufeff{text}", name=name).output


def test_the_environment_wins_over_the_file_and_a_flag_over_both(tmp_path: Path) -> None:
    text, env = 'seeds = "file"\ndisk-reserve = 1\n', {"SEEDS_HERE": "environment", "RESERVE_HERE": "2"}
    assert run(tmp_path, text, env=env).output == "environment 2 True\n"
    assert run(tmp_path, text, "--seeds", "flag", env=env).output == "flag 2 True\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("lanner.toml", "sedes = 'a:1'", "did you mean 'seeds'?"),
        ("lanner.toml", "colour = 'red'", "it knows auto-create, disk-reserve, seeds"),
        ("lanner.toml", "config = 'other.toml'", "'config' is not a setting"),
        ("lanner.toml", "seeds = {a = 1}", "must be text"),
        ("lanner.toml", "seeds = [1]", "must be text"),
        ("lanner.toml", "seeds = ", "does not parse"),
        ("lanner.toml", b"\xff", "does not parse"),
        ("lanner.toml", "disk-reserve = 'much'", "lanner.toml, line 1: 'disk-reserve': "),
        ("lanner.toml", "# first\n\nauto_create = 'perhaps'", "lanner.toml, line 3: 'auto_create': "),
        ("lanner.json", '{"seeds": "a:1",\n "auto-create": 7}', "lanner.json, line 2: 'auto-create': "),
        ("lanner.json", "[1]", "it must hold one object"),
        ("lanner.json", "[" * 100_000, "does not parse"),
        ("lanner.json", '{"seeds": {"a": 1}}', "must be text"),
        ("lanner.json", '{"seeds": "a",\n"seeds": "b"}', "'seeds' is given twice"),
        ("lanner.toml", "seeds = 'a'\nauto-create = true\nauto_create = true", "line 3: 'auto_create' is given twice"),
        ("lanner.toml", "seeds = true", "line 1: 'seeds' is true, and no switch: write text in quotes"),
        ("lanner.toml", "disk-reserve = true", "line 1: 'disk-reserve' is true, and no switch"),
        ("lanner.yaml", "a: 1\nsedes: x", "lanner.yaml, line 1: 'a' is not a setting"),
        (
            "lanner.yaml",
            "disk-reserve: 1\nsedes: x",
            "lanner.yaml, line 2: 'sedes' is not a setting of this command; did",
        ),
        ("lanner.yaml", "seeds: a\n\nseeds: b", "lanner.yaml, line 3: 'seeds' is given twice"),
        ("lanner.yaml", "seeds: a\ndisk-reserve: much", "lanner.yaml, line 2: 'disk-reserve': "),
        ("lanner.yaml", "seeds:", "line 1: 'seeds' must be text"),
        ("lanner.yaml", "seeds: {a: 1}", "line 1: 'seeds' must be text"),
        ("lanner.yaml", "seeds: [[a]]", "line 1: 'seeds' must be text"),
        ("lanner.yaml", "- a", "does not parse: it must hold names and values"),
        (
            "lanner.yaml",
            "seeds: a\ndisk-reserve: [1",
            "does not parse: expected ',' or ']', but got '<stream end>' (line 2)",
        ),
        ("lanner.yaml", "seeds: a\n---\nseeds: b", "does not parse: but found another document (line 2)"),
        ("lanner.yaml", "seeds: *a", "does not parse: found undefined alias 'a' (line 1)"),
        ("lanner.yaml", "seeds: \x00", "does not parse: "),
        ("lanner.yaml", "seeds: " + "[" * 50_000, "does not parse"),
        ("lanner.yaml", "seeds: !!python/object/apply:os.system [true]", "line 1: 'seeds' must be text"),
        ("lanner.ini", "seeds = a", "name the file .yaml, .toml or .json"),
        ("lanner.toml", b"#" * (FILE_BYTES_MAX + 1), "it is no settings file"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    tmp_path: Path, name: str, text: str | bytes, said: str
) -> None:
    result = run(tmp_path, text, name=name)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_file_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(app, ["--config", "nowhere.toml"])
    assert result.exit_code == 2
    assert "nowhere.toml cannot be read: No such file" in " ".join(result.output.split())
