"""Every command on a terminal, as people see it: bars, spinners, colours and questions appear only there.

SHOWN has a row for each command there is, in an order in which each finds what it needs: a command without one turns
`test_no_command_is_left_out` red.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import typer

from lanner.cli.app import app
from lanner.testing.process import free_port
from lanner.testing.terminal import Terminal

LANNER = [sys.executable, "-m", "lanner.cli"]


class Shown(NamedTuple):
    """A command line, what it must show, and how it is used. MEMBER is the id of whoever is a member of crew."""

    words: str
    shows: str
    piped: bytes | None = None  # what comes in through a pipe
    answers: str = ""  # what is typed at its question
    runs_on: bool = False  # until Ctrl-C
    stays: bool = False  # for the commands after it
    code: int = 0


LINES = b"".join(b"line %d\n" % number for number in range(1_000))
SHOWN = [
    Shown("up --data alone --http 127.0.0.1:0 --native 127.0.0.1:0 --grpc 127.0.0.1:0", "Lanner is up.", runs_on=True),
    Shown("config show --partitions 6", "127.0.0.1:7400"),
    Shown("config show proxy", "127.0.0.1:7500"),
    Shown("topic create orders partitions=1 max_deliveries=1 backoff_ms=0", "orders"),
    Shown("publish orders", "Published 1,000 messages", piped=LINES),
    Shown("publish orders one two", "orders/0/1000"),
    Shown("peek orders", "orders/0/0"),
    Shown("topic list", "orders"),
    Shown("topic show orders", "1,002"),
    Shown("topic describe orders", "1,002"),
    Shown("topic set orders lease_ms=5000", "lease_ms = 5000"),
    Shown("consume orders --group billing --count 2", "orders/0/1"),
    Shown("consume orders --group billing --count 2 --no-ack", "orders/0/3"),
    Shown("consume orders --group audit --follow", "orders/0/1001", runs_on=True),
    Shown("group list orders", "billing"),
    Shown("group show orders billing", "on orders (queue)"),
    Shown("group members billing", "lanner client list --group billing", code=1),
    Shown("consume orders --group crew --assignor sticky --follow", "orders/0/1001", stays=True),
    Shown("group members crew", "crew: queue, sticky, generation"),
    Shown("group show orders crew", "Who they are: lanner group members crew"),
    Shown("group alter crew --session-ms 20000", "a session has 20,000 ms"),
    Shown("group evict crew nobody", "has no member 'nobody'", code=1),
    Shown("client list --group crew", "crew on orders as"),
    Shown("group evict crew MEMBER", "Evicted"),
    Shown("group seek orders crew --to latest --force", "Moved crew"),
    Shown("dlq list orders billing", "0/3"),
    Shown("dlq show orders billing 0/3", "line 3"),
    Shown("dead-letters orders", "dead letters."),
    Shown("dlq redrive orders billing 0/2", "1"),
    Shown("dlq discard orders billing --all", "1", answers="y\n"),
    Shown("group seek orders billing --to latest", "Moved billing"),
    Shown("group drop orders billing", "Dropped billing", answers="y\n"),
    Shown("transaction claim billing --owner nightly", "nightly has billing"),
    Shown("transaction list", "billing"),
    Shown("transaction show billing", "No commit is under way"),
    Shown("transaction abort billing --yes", "NotFoundError", code=1),
    Shown("transaction forget billing", "Forgot billing", answers="y\n"),
    Shown("transaction clear", "Cleared 1 forgotten transactions", answers="y\n"),
    Shown("bench --messages 200", "poll and ack"),
    Shown("partition list", "orders/0"),
    Shown("partition status orders/0", "term"),
    Shown("partition transfer orders/0 node-2", "node-2 leads orders/0"),
    Shown("cluster", "led by"),
    Shown("cluster status", "led by"),
    Shown("proxy --native 127.0.0.1:0 --http 127.0.0.1:0 --grpc 127.0.0.1:0", "The proxy is up.", runs_on=True),
    Shown("cluster upgrade", "The cluster is at feature level"),
    Shown("broker add --name node-4", "node-4 is active", stays=True),
    Shown("broker list", "node-4"),
    Shown("broker scrub", "node-3: "),
    Shown("partition move orders/0 node-3 node-4", "moved from node-3 to node-4"),
    Shown("cluster rebalance", "Nothing to move"),
    Shown("cluster cancel 99", "NotFoundError", code=1),
    Shown("broker drain node-4", "node-4 is drained"),
    Shown("broker undrain node-4", "takes partitions again"),
    Shown("broker remove node-4", "node-4 is removed", answers="y\n"),
    Shown("broker repair --data nothing", "nothing", code=1),
    Shown("archive orders --path ../kept", "Archived 1,002 messages"),
    Shown("audit --path ../kept", "Complete: 1,002 messages"),
    Shown("replay orders --to orders-again --path ../kept", "Published 1,002 messages into orders-again"),
    Shown("report orders --path ../kept --out ../report", "report.parquet: 1,002 messages"),
    Shown("pipeline new ../shop.yaml", "Next: lanner pipeline validate"),
    Shown("pipeline validate ../shop.yaml", "is in order: 1 source, 2 queries"),
    Shown("pipeline status ../shop.yaml", "was never run here", code=1),
    Shown("pipeline run ../shop.yaml", "orders__invalid", runs_on=True),
    Shown("pipeline package --without pyarrow", "--conf spark.archives=lanner-executors.tar.gz#lanner-packages"),
    Shown("topic delete orders", "Deleted orders", answers="y\n"),
    Shown("version", "lanner "),
]


def commands(found: Any = None, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Each command there is, by its words."""
    found = found or typer.main.get_command(app)
    for name, inner in found.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*path, name))
        else:
            yield " ".join((*path, name))


def test_no_command_is_left_out() -> None:
    tried = {row.words for row in SHOWN} | {"dev"}
    assert [name for name in commands() if not any(f"{words} ".startswith(f"{name} ") for words in tried)] == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExitStack]:
    """`lanner dev` on a terminal, which it is a test of as well; and what stays while it does."""
    folder = tmp_path_factory.mktemp("terminal")
    with (
        pytest.MonkeyPatch.context() as patch,
        # a pipeline's status outlives this run, and the next run may be given the same folder for its pipeline file
        TemporaryDirectory() as cache,
        Terminal([*LANNER, "dev", "--port", str(free_port(30) - 10)], cwd=folder) as dev,
        ExitStack() as staying,
    ):
        dev.until("Ctrl-C stops all")
        found = re.search(r"export (LANNER_SERVERS)=(\S+)", dev.shown)
        assert found
        patch.setenv(*found.groups())
        patch.setenv("XDG_CACHE_HOME", cache)
        yield staying
        dev.interrupt()
        assert dev.wait() == 0
        assert "Stopped; everything acknowledged is on disk" in dev.shown
        assert "Traceback" not in dev.shown


def member_of(group: str) -> str:
    """The only one, as programs hear of it."""
    done = subprocess.run([*LANNER, "group", "members", group, "--json"], stdout=subprocess.PIPE, check=True)
    (member,) = json.loads(done.stdout)["members"]
    return str(member["member_id"])


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.words)
def test_a_command_on_a_terminal(cluster: ExitStack, tmp_path_factory: pytest.TempPathFactory, row: Shown) -> None:
    words = row.words.replace("MEMBER", member_of("crew")) if "MEMBER" in row.words else row.words
    terminal = Terminal([*LANNER, *words.split()], piped=row.piped, cwd=tmp_path_factory.mktemp("command"))
    if row.stays:
        cluster.enter_context(terminal).until(row.shows)
        return
    with terminal:
        if row.answers:
            terminal.until("[y/N]")
            terminal.press(row.answers)
        if row.runs_on:
            terminal.until(row.shows)
            terminal.interrupt()
        code = terminal.wait()
        assert "Traceback" not in terminal.shown, terminal.shown
        assert row.shows in terminal.shown, terminal.shown
        assert code in ((0, 130) if row.runs_on else (row.code,)), terminal.shown
