"""The command line as people use it: real processes, a real broker, a real disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lanner.cli.app import app
from lanner.testing.process import BrokerProcess, free_port
from lanner.wire.messages import Command


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests: starting it takes longer than most of them."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def broker(running: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """The broker, with nothing on it."""
    monkeypatch.setenv("LANNER_DISK_RESERVE", "0")
    monkeypatch.setenv("LANNER_SERVERS", running.native)
    yield running
    for topic in document("topic", "list")["topics"]:
        lanner("topic", "delete", topic["name"], "--yes")


def process(*words: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "lanner.cli", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def lanner(*words: str, code: int = 0) -> Result:
    """The same without the second that a process takes to start; the broker is a process of its own all the same."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, f"{words}: {done.exit_code}\n{done.stdout}\n{done.stderr}\n{done.exception!r}"
    return done


def documents(*words: str) -> list[Any]:
    return [json.loads(line) for line in lanner(*words, "--json").stdout.splitlines()]


def document(*words: str) -> Any:
    (only,) = documents(*words)
    return only


def test_a_newcomers_first_five_minutes(broker):
    assert "Lanner is up" in broker.log_tail()
    assert broker.url in broker.log_tail()
    process("topic", "create", "orders", "-p", "1")
    process("publish", "orders", "first", "second", "--priority", "low")
    assert process("publish", "orders", "refund RF001", "--priority", "high").stdout.strip() == "orders/0/2"
    assert process("peek", "orders", "--values").stdout.splitlines() == ["refund RF001", "first", "second"]
    shown = process("consume", "orders", "--group", "billing", "-n", "2").stdout.splitlines()
    assert [line.split()[:2] for line in shown] == [["high", "orders/0/2"], ["low", "orders/0/0"]]

    broker.kill()
    broker.start()

    left = [json.loads(line) for line in process("consume", "orders", "-g", "billing", "--json").stdout.splitlines()]
    assert [(message["id"], message["value"], message["attempt"]) for message in left] == [("orders/0/1", "second", 1)]
    again = documents("consume", "orders", "--group", "audit")
    assert [message["value"] for message in again] == ["refund RF001", "first", "second"]
    assert documents("consume", "orders", "--group", "audit") == []


def test_up_says_what_is_where_and_drains_when_told_to_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("LANNER_HTTP", f"127.0.0.1:{free_port()}")
    command = [sys.executable, "-m", "lanner.cli", "up", "--data", str(tmp_path / "data"), "--native", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--grpc", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        assert ready["http"] == f"http://{os.environ['LANNER_HTTP']}"
        assert not ready["native"].endswith(":0")
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", ready["grpc"])
        lanner("publish", "orders", "x", "-s", ready["native"])
        process.send_signal(signal.SIGTERM)
        assert json.loads(process.stdout.readline()) == {"event": "stopped"}
        assert process.wait(20) == 0


def test_up_suggests_no_command_where_none_can_reach_it(tmp_path):
    command = [sys.executable, "-m", "lanner.cli", "up", "--data", str(tmp_path / "data"), "--disk-reserve", "0"]
    doors = ["--native", "", "--grpc", "", "--http", "127.0.0.1:0"]
    with subprocess.Popen([*command, *doors], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "Ctrl-C stops it; nothing acknowledged is lost.\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert "native  off" in said
    assert "publish" not in said


def test_a_second_broker_on_the_same_data_is_refused_in_one_line(broker):
    words = ["up", "--data", str(broker.data), "--http", "127.0.0.1:0", "--native", "127.0.0.1:0", "--grpc", ""]
    done = process(*words, code=1)
    assert "DataDirectoryRefused" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_taken_port_is_told_in_one_line(broker, tmp_path):
    words = ["up", "--data", str(tmp_path / "other"), "--http", "", "--native", broker.native, "--grpc", ""]
    done = process(*words, code=1)
    assert "in use" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["up", "--native", "127.0.0.1:0", "--http", "", "--grpc", ""], ["dev"]])
def test_a_folder_that_takes_no_bytes_is_named_in_one_line(tmp_path, words):
    folder = tmp_path / "data"
    command = [sys.executable, "-m", "lanner.cli", *words, "--data", str(folder)]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"DataDirectoryRefused: {folder} cannot be used as a data directory: ")
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_topics_are_made_shown_changed_and_deleted(broker):
    made = document("topic", "create", "orders", "partitions=2", "retention=acked")
    assert (len(made["partitions"]), made["settings"]["retention"]) == (2, "acked")
    (listed,) = document("topic", "list")["topics"]
    assert (listed["name"], listed["partitions"], listed["leaderless"]) == ("orders", 2, 0)
    assert "orders" in lanner("topic", "list").stdout
    assert document("topic", "set", "orders", "lease_ms=5000")["settings"]["lease_ms"] == 5000
    assert "acked" in lanner("topic", "show", "orders").stdout
    refused = json.loads(lanner("topic", "create", "orders", "--json", code=1).stderr)
    assert refused["type"] == "TopicExists"
    wrong = lanner("topic", "set", "orders", "colour=red", code=1)
    assert "colour" in wrong.stderr
    lanner("topic", "delete", "orders", code=2)
    assert document("topic", "delete", "orders", "--yes") == {"deleted": "orders"}
    assert "TopicNotFound" in lanner("topic", "show", "orders", code=1).stderr


def test_lines_are_published_from_standard_input(broker):
    lines = "".join(f"line {number}\n" for number in range(5_000)) + "the last has no end"
    published = json.loads(process("publish", "lines", "-p", "7", "--json", stdin=lines).stdout)
    assert published["published"] == 5_001
    values = lanner("consume", "lines", "--values").stdout.splitlines()
    assert sorted(values) == sorted(lines.split("\n"))


def test_a_line_of_a_slow_pipe_is_published_at_once_and_ctrl_c_ends_the_wait_for_more(broker):
    lanner("topic", "create", "lines", "-p", "1")
    command = [sys.executable, "-m", "lanner.cli", "publish", "lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as slow:
        assert slow.stdin is not None and slow.stderr is not None
        slow.stdin.write(b"first\nhal")
        slow.stdin.flush()
        (first,) = documents("consume", "lines", "--follow", "-n", "1")
        assert first["value"] == "first"
        slow.send_signal(signal.SIGINT)
        assert slow.wait(30) == 130
        assert slow.stderr.read() == b""


class Relay:
    """Passes bytes on between one caller and a broker, and notes the commands of the frames that the caller sends."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.commands: list[int] = []
        self.pinged = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        caller, _ = self._listener.accept()
        with caller, socket.create_connection((self._broker.host, self._broker.native_port)) as broker:
            threading.Thread(target=self._pass_on, args=(broker, caller), daemon=True).start()
            left = b""
            while piece := caller.recv(65_536):
                broker.sendall(piece)
                left += piece
                while len(left) >= 5 and len(left) >= 5 + int.from_bytes(left[1:5], "big"):
                    self.commands.append(left[0])
                    if left[0] == Command.PING:
                        self.pinged.release()
                    left = left[5 + int.from_bytes(left[1:5], "big") :]

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65_536):
                target.sendall(piece)

    def close(self) -> None:
        self._listener.close()


def test_heartbeats_go_on_while_publish_waits_for_more_lines(broker):
    lanner("topic", "create", "lines", "-p", "1")
    relay = Relay(broker)
    quickly = "import lanner.client.session as s; s._PING_MS = 50; from lanner.cli import main; main()"
    command = [sys.executable, "-c", quickly, "publish", "lines", "--servers", relay.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stdin is not None
        for _ in range(3):
            assert relay.pinged.acquire(timeout=30), "nothing was said while it waited"
        assert waiting.poll() is None
        waiting.stdin.write(b"late\n")
        waiting.stdin.close()
        assert waiting.wait(30) == 0
    relay.close()
    assert [one["value"] for one in documents("consume", "lines")] == ["late"]


def test_what_is_not_acknowledged_comes_again(broker):
    lanner("topic", "create", "orders", "-p", "1", "backoff_ms=0")
    lanner("publish", "orders", "x")
    assert [message["attempt"] for message in documents("consume", "orders", "--no-ack", "-n", "1")] == [1]
    assert [message["value"] for message in documents("consume", "orders")] == ["x"]
    assert documents("consume", "orders") == []


def test_consume_follows_what_comes(broker):
    lanner("topic", "create", "orders", "-p", "1")
    command = [sys.executable, "-m", "lanner.cli", "consume", "orders", "--follow", "--values"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for value in ("one", "two"):
                lanner("publish", "orders", value)
                assert process.stdout.readline().strip() == value
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
    deadline = time.monotonic() + 10
    while document("group", "show", "orders", "cli")["lag"]:
        assert time.monotonic() < deadline
    assert documents("consume", "orders") == []


def test_a_pipe_that_is_closed_early_takes_no_more_than_it_read(broker):
    """`head -2` shows two messages: two are acked, the others are there at once, and none of them counts as tried."""
    lanner("topic", "create", "orders", "-p", "1", "backoff_ms=60000")
    lanner("publish", "orders", *(f"message {number}" for number in range(100)))
    command = f"{shlex.quote(sys.executable)} -m lanner.cli consume orders --values | head -2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["message 0", "message 1", "0"]
    assert done.stderr == ""
    left = documents("consume", "orders")
    assert [message["value"] for message in left] == [f"message {number}" for number in range(2, 100)]
    assert {message["attempt"] for message in left} == {1}


@pytest.mark.parametrize(
    "words", ["topic list", "topic list --json", "group list", "client list", "publish orders one two", "peek orders"]
)
def test_a_pipe_that_nobody_reads_is_no_failure_and_a_full_disk_is_one_line(broker, words):
    lanner("topic", "create", "orders", "-p", "1")
    lanner("publish", "orders", "a")
    command = [sys.executable, "-m", "lanner.cli", *words.split()]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "No space left on device" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["topic", "--help"]])
def test_help_that_does_not_fit_on_the_disk_is_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lanner.cli", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "OSError: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("missing", "words"), [(0, ["publish", "orders"]), (1, ["topic", "list"]), (2, ["cluster"])])
def test_a_command_needs_no_standard_streams(broker, missing, words):
    command = ["sh", "-c", f'exec "$@" {missing}>&-', "sh", sys.executable, "-m", "lanner.cli", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_bytes_that_are_no_text_are_published_as_they_are(broker):
    words = [b"publish", b"orders", b"gr\xfcn", b"--key", b"\xff", b"--header", b"h=\xfe"]
    done = subprocess.run([sys.executable, "-m", "lanner.cli", *words], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    (message,) = documents("peek", "orders")
    assert (message["value"], message["encoding"]) == ("Z3L8bg==", "base64")
    assert (message["key"], message["key_encoding"]) == ("/w==", "base64")
    assert message["headers"] == {"h": "/g=="}


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "cancel", "9" * 30],
        ["peek", "orders", "--offset", "9" * 30],
        ["group", "seek", "orders", "g", "--offset", f"0={'9' * 20}"],
        ["dlq", "redrive", "orders", "g", f"0/{'9' * 20}"],
        ["topic", "set", "orders", f"lease_ms={'9' * 20}"],
    ],
    ids=" ".join,
)
def test_a_number_that_no_request_can_hold_is_told_in_one_line(broker, words):
    lanner("publish", "orders", "x")
    (said,) = lanner(*words, code=1).stderr.splitlines()
    assert said.startswith("ValidationError: ")
    assert "2**64" in said


def test_a_consumer_that_is_terminated_leaves_its_group_and_gives_back_what_it_holds(broker):
    lanner("topic", "create", "orders", "-p", "1", "backoff_ms=60000")
    lanner("publish", "orders", "a", "b")
    command = [sys.executable, "-m", "lanner.cli", "consume", "orders", "-g", "crew", "--follow", "--no-ack"]
    with subprocess.Popen([*command, "--assignor", "sticky"], stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        try:
            assert [consumer.stdout.readline().split()[-1] for _ in range(2)] == ["a", "b"]
            (member,) = document("group", "members", "crew")["members"]
            assert member["held"] == [{"topic": "orders", "first": 0, "last": 0}]
            consumer.send_signal(signal.SIGTERM)
            assert consumer.wait(60) == 128 + signal.SIGTERM
        finally:
            consumer.kill()
    assert document("group", "members", "crew")["state"] == "empty"
    assert document("group", "show", "orders", "crew")["leased"] == 0
    assert [message["value"] for message in documents("consume", "orders", "-g", "crew")] == ["a", "b"]


def test_members_are_shown_altered_and_evicted(broker):
    lanner("topic", "create", "orders", "-p", "2")
    command = [sys.executable, "-m", "lanner.cli", "consume", "orders", "-g", "staff", "--follow", "--values"]
    with subprocess.Popen([*command, "--assignor", "sticky"], stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        try:
            lanner("publish", "orders", "a")
            assert consumer.stdout.readline() == "a\n"
            assert "staff: queue, sticky, generation" in lanner("group", "members", "staff").stdout
            assert document("group", "alter", "staff", "--assignor", "range")["assignor"] == "range"
            assert document("group", "show", "orders", "staff")["members"]["count"] == 1
            (before,) = document("group", "members", "staff")["members"]
            clients = document("client", "list", "--group", "staff")
            assert {use["member_id"] for client in clients["clients"] for use in client["uses"]} >= {
                before["member_id"]
            }
            lanner("group", "evict", "staff", before["member_id"][:6], "--reason", "a test")
            deadline = time.monotonic() + 30
            while not (members := document("group", "members", "staff")["members"]):
                assert time.monotonic() < deadline, "its process joins again"
            assert members[0]["member_id"] != before["member_id"]
            lanner("publish", "orders", "b")
            assert consumer.stdout.readline() == "b\n"
        finally:
            consumer.kill()


def test_groups_are_listed_moved_and_dropped(broker):
    lanner("topic", "create", "orders", "-p", "1")
    lanner("publish", "orders", "a", "b", "c")
    lanner("consume", "orders", "--group", "billing", "-n", "2")
    shown = document("group", "show", "orders", "billing")
    assert (shown["kind"], shown["lag"], shown["ready"]) == ("queue", 1, 1)
    assert shown["oldest_age_ms"] >= 0
    assert "billing" in lanner("group", "list", "orders").stdout
    assert [(group["topic"], group["group"]) for group in document("group", "list")["groups"]] == [
        ("orders", "billing")
    ]
    (listed,) = document("topic", "list")["topics"]
    assert (listed["messages"], listed["lag"]) == (3, {"billing": 1})
    assert listed["bytes"] > 0
    lanner("group", "seek", "orders", "billing", "--to", "earliest")
    assert document("group", "list", "orders")["groups"][0]["lag"] == 3
    lanner("group", "seek", "orders", "billing", "--offset", "0=2")
    assert [message["value"] for message in documents("consume", "orders", "--group", "billing")] == ["c"]
    lanner("group", "drop", "orders", "billing", "--yes")
    assert document("group", "list", "orders")["groups"] == []
    assert "GroupNotFound" in lanner("group", "show", "orders", "billing", code=1).stderr


def test_dead_letters_are_listed_shown_redriven_and_discarded(broker):
    lanner("topic", "create", "orders", "-p", "1", "max_deliveries=1", "backoff_ms=0")
    lanner("publish", "orders", "poison", "poison too", "-p", "high")
    lanner("consume", "orders", "--group", "billing", "--no-ack")
    listed = document("dlq", "list", "orders", "billing")
    assert (listed["total"], [letter["value"] for letter in listed["letters"]]) == (2, ["poison", "poison too"])
    assert listed["messages"] == listed["letters"]  # the name over REST, and the one before that
    assert "poison" in lanner("dlq", "list", "orders", "billing").stdout
    shown = document("dlq", "show", "orders", "billing", "0/1")
    assert (shown["id"], shown["priority"], shown["attempts"]) == ("orders/0/1", 9, 1)
    assert "DeadLetterNotFound" in lanner("dlq", "show", "orders", "billing", "0/9", code=1).stderr
    assert document("dlq", "redrive", "orders", "billing", "0/0") == {"redriven": 1}
    assert [message["value"] for message in documents("consume", "orders", "--group", "billing")] == ["poison"]
    assert document("dlq", "discard", "orders", "billing", "--all", "--yes") == {"discarded": 1}
    assert document("dlq", "list", "orders", "billing")["total"] == 0


def test_the_bench_measures_and_cleans_up(broker):
    measured = document("bench", "-n", "2000", "--batch", "100")
    assert [result["messages"] for result in measured["results"]] == [2_000, 100, 2_100, 2_100]
    assert all(result["rate"] > 0 for result in measured["results"])
    assert document("topic", "list") == {"topics": []}


def test_the_version_is_told(broker):
    assert document("version")["version"]


def test_a_taken_grpc_port_is_told_in_one_line_and_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["--data", str(tmp_path / "data"), "--native", f"127.0.0.1:{free_port()}", "--http", ""]
        said = process("up", *words, "--disk-reserve", "0", "--grpc", address, code=1).stderr
    assert re.fullmatch(rf"[^\n]*cannot listen on {address} [^\n]*--grpc[^\n]*\n", said), said
