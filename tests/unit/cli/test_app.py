from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lanner.cli.app import app, run

NOBODY = "127.0.0.1:1"
COMMANDS = [
    ["topic", "list"],
    ["topic", "show", "orders"],
    ["publish", "orders", "x"],
    ["consume", "orders"],
    ["peek", "orders"],
    ["group", "list", "orders"],
    ["group", "members", "billing"],
    ["group", "alter", "billing", "--assignor", "range"],
    ["group", "evict", "billing", "web-1"],
    ["client", "list"],
    ["dlq", "list", "orders", "billing"],
    ["bench"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_broker_a_command_says_so_and_what_to_do(command):
    result = CliRunner().invoke(app, [*command, "-s", NOBODY])
    assert result.exit_code == 1
    assert "lanner up" in result.output
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_speaks_json(command):
    result = CliRunner().invoke(app, [*command, "-s", NOBODY, "--json"])
    assert json.loads(result.stderr)["type"] == "ServiceUnavailable"


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *rest):
        if name == "lanner.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from lanner.cli import main
main()
"""


def test_ctrl_c_while_a_command_is_loaded_leaves_no_traceback():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_address_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("LANNER_SERVERS", "127.0.0.1:2")
    result = CliRunner().invoke(app, ["topic", "list"])
    assert "127.0.0.1:2" in result.output


def test_a_flag_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("LANNER_SERVERS", "127.0.0.1:2")
    result = CliRunner().invoke(app, ["topic", "list", "-s", NOBODY])
    assert NOBODY in result.output


@pytest.mark.parametrize("before", [None, "127.0.0.1:3"])
def test_the_address_may_stand_before_the_command(monkeypatch, before):
    monkeypatch.delenv("LANNER_SERVERS", raising=False)
    if before is not None:
        monkeypatch.setenv("LANNER_SERVERS", before)
    assert "127.0.0.1:2" in CliRunner().invoke(app, ["-s", "127.0.0.1:2", "topic", "list"]).output
    assert NOBODY in CliRunner().invoke(app, ["-s", "127.0.0.1:2", "topic", "list", "-s", NOBODY]).output
    assert os.environ.get("LANNER_SERVERS") == before


@pytest.mark.parametrize(
    "command",
    [
        ["nope"],
        ["topic", "create"],
        ["topic", "create", "orders", "partitions"],
        ["group", "seek", "orders", "billing"],
        ["group", "seek", "orders", "billing", "--to", "latest", "--time", "5"],
        ["dlq", "redrive", "orders", "billing"],
        ["dlq", "redrive", "orders", "billing", "0/1", "--all"],
        ["peek", "orders", "-n", "0"],
        ["topic", "delete", "orders", "--json"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(command):
    assert CliRunner().invoke(app, command).exit_code == 2


def test_wrong_usage_is_told_as_json_where_json_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lanner", "topic", "lit", "--json"])
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 2
    assert json.loads(capsys.readouterr().err)["type"] == "UsageError"


@pytest.mark.parametrize("words", [["--http", "nowhere"], ["--native", "127.0.0.1:99999"], ["--data", ""]])
def test_a_broker_with_impossible_settings_does_not_start(words, tmp_path):
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), *words])
    assert result.exit_code == 1
    assert "ValidationError" in result.output


def test_help_answers_without_loading_a_client_or_a_broker():
    program = (
        "import sys\n"
        "sys.argv = ['lanner', '--help']\n"
        "from lanner.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'asyncio', 'starlette', 'uvicorn', 'msgspec', 'lmdb', 'lanner.client', 'lanner.broker'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert "publish" in done.stdout
    assert "LOADED []" in done.stdout


def test_the_version_is_told_as_any_program_does():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == CliRunner().invoke(app, ["version"]).output
