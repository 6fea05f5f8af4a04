"""Three brokers as people run them: `lanner dev`, a kill -9, the same folder again, brokers that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from lanner.cli.app import app


class Running:
    """A command that says what happens as JSON lines, until it is told to stop."""

    def __init__(self, *words: str, cwd: Path) -> None:
        command = [sys.executable, "-m", "lanner.cli", *words, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd)
        self.events: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put({"event": "the end"})

    def until(self, event: str, seconds: float = 30.0) -> Any:
        """The next event of this name; what comes before it is skipped."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.events.get(timeout=max(0.1, deadline - time.monotonic()))
            if found["event"] == event:
                return found
            assert found["event"] != "the end", f"it ended before {event!r}"

    def stop(self) -> int:
        """Ctrl-C, as the terminal sends it."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(40)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def lanner(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, f"{words}: {done.exit_code}\n{done.stdout}\n{done.stderr}\n{done.exception!r}"
    return done


def documents(*words: str) -> list[Any]:
    return [json.loads(line) for line in lanner(*words, "--json").stdout.splitlines()]


def document(*words: str) -> Any:
    (only,) = documents(*words)
    return only


def values(group: str, count: int) -> list[str]:
    """What a group gets, once there is as much as that."""
    got: list[str] = []
    deadline = time.monotonic() + 15
    while len(got) < count and time.monotonic() < deadline:
        got += [message["value"] for message in documents("consume", "orders", "--group", group)]
    return sorted(got)


def leaders() -> dict[int, str]:
    found = document("partition", "list", "orders")["partitions"]
    return {one["partition"]: one["leader_name"] for one in found}


def pids(event: Any) -> dict[str, int]:
    return {broker["name"]: broker["pid"] for broker in event["brokers"]}


def test_a_cluster_survives_a_kill_and_a_night(tmp_path: Path, dev_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running("dev", "--nodes", "3", "--data", "cluster", "--port", str(dev_port), cwd=tmp_path) as dev:
        ready = dev.until("ready")
        assert [broker["native"] for broker in ready["brokers"]] == [
            f"127.0.0.1:{dev_port + 10 * n}" for n in (1, 2, 3)
        ]
        assert [broker["http"] for broker in ready["brokers"]] == [
            f"http://127.0.0.1:{dev_port + 10 * n + 1}" for n in (1, 2, 3)
        ]
        assert [broker["grpc"] for broker in ready["brokers"]] == [
            f"127.0.0.1:{dev_port + 10 * n + 2}" for n in (1, 2, 3)
        ]
        for broker in ready["brokers"]:
            with grpc.insecure_channel(broker["grpc"]) as channel:
                grpc.channel_ready_future(channel).result(timeout=30)
        monkeypatch.setenv("LANNER_SERVERS", ready["servers"])

        lanner("topic", "create", "orders", "-p", "3")
        lanner("publish", "orders", "one", "two", "three")
        assert set(leaders().values()) <= {"node-1", "node-2", "node-3"}
        assert values("first", 3) == ["one", "three", "two"]

        victim = leaders()[0]
        os.kill(pids(ready)[victim], signal.SIGKILL)
        died = dev.until("died")
        assert (died["name"], died["ending"]) == (victim, "SIGKILL")

        lanner("publish", "orders", "four", "five", "six")
        assert values("first", 3) == ["five", "four", "six"]
        (dead,) = [broker for broker in document("cluster")["brokers"] if not broker["alive"]]
        assert dead["name"] == victim
        assert victim not in leaders().values()
        assert dev.stop() == 0

    with Running("dev", "--data", "cluster", cwd=tmp_path) as dev:
        dev.until("ready")
        assert values("second", 6) == ["five", "four", "one", "six", "three", "two"]
        assert documents("consume", "orders", "--group", "first") == []
        assert all(broker["alive"] for broker in document("cluster")["brokers"])
        assert dev.stop() == 0


def test_brokers_come_and_go(tmp_path: Path, dev_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running("dev", "--nodes", "3", "--data", "cluster", "--port", str(dev_port), cwd=tmp_path) as dev:
        servers = dev.until("ready")["servers"]
        monkeypatch.setenv("LANNER_SERVERS", servers)
        lanner("topic", "create", "orders", "-p", "3")
        lanner("publish", "orders", *(str(number) for number in range(30)))

        target = next(name for name in ("node-1", "node-2", "node-3") if name != leaders()[0])
        assert document("partition", "transfer", "orders/0", target)["leader"] == target
        assert leaders()[0] == target
        assert document("partition", "status", "orders/0")["status"]["term"] >= 1

        with Running("broker", "add", "--name", "node-4", cwd=tmp_path) as added:
            added.until("ready")
            rebalanced = document("cluster", "rebalance")["plan"]
            assert rebalanced["state"] == "done"
            assert rebalanced["moves_done"] >= 1

            drained = document("broker", "drain", "node-1")["plan"]
            assert (drained["state"], drained["moves_failed"]) == ("done", 0)
            brokers = {broker["name"]: broker for broker in document("broker", "list")["brokers"]}
            assert (brokers["node-1"]["replicas"], brokers["node-1"]["leads"]) == (0, 0)
            assert brokers["node-4"]["replicas"] >= 1

            assert document("broker", "remove", "node-1", "--yes") == {"broker": "node-1", "removed": True}
            assert dev.until("removed")["name"] == "node-1"
            lanner("publish", "orders", "after")
            assert values("all", 31) == sorted([*(str(number) for number in range(30)), "after"])
            with Running("broker", "add", "--name", "node-5", cwd=tmp_path) as passing:
                passing.until("ready")
                lanner("broker", "remove", "node-5", "--yes")
                passing.until("removed")
                assert passing.process.wait(30) == 0
            assert added.stop() == 0
        assert dev.stop() == 0


def test_a_taken_port_is_told_in_one_line(tmp_path: Path, dev_port: int) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", dev_port + 21))
        listener.listen()
        done = lanner("dev", "--data", str(tmp_path / "cluster"), "--port", str(dev_port), code=1)
    assert f"127.0.0.1:{dev_port + 21}, the REST port of node-2" in done.stderr
    assert len(done.output.strip().splitlines()) == 1
