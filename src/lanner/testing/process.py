"""A broker in a process of its own: started, watched, killed. What integration tests and benchmarks drive.

It knows how to begin and end a real `lanner` process and what the kernel says about it; it knows nothing of queues.
Ports are chosen before the start, so that a restarted broker keeps its address. The child runs `lanner up` when only
addresses and a data directory are asked for, and `lanner.testing.child` when a test wants settings that the command
line does not offer, or a planted fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

POLL_SECONDS = 0.01
HOST = "127.0.0.1"
_PORTS = 20_000, 32_000
_TURN = Path(tempfile.gettempdir()) / f"lanner-ports-{os.getuid()}"
_PAUSE_SECONDS = 5.0
_STILL = {"T", "t", "D", "X", "Z"}


class BrokerNeverReady(Exception):
    """The broker did not become ready; its output says why."""


def free_port(count: int = 1) -> int:
    """Return the first of `count` free ports in a row. No other process is given them soon.

    They lie below those that the kernel gives to outgoing connections: else a client that tries again and again to
    reach a dead broker would one day be given the broker's own port, and talk to itself. Every process takes its turn
    in one file: a port drawn by lot may be that of another test, whose broker starts in a moment or is down for one.
    """
    with _TURN.open("a+b") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        written = turn.read(8)
        port = int(written) if written.isdigit() else random.SystemRandom().randrange(*_PORTS)
        while not all(map(_is_free, range(port, port + count))):
            port = port + 1 if port + 1 in range(*_PORTS) else _PORTS[0]
        turn.truncate(0)
        turn.write(b"%d" % (port + count))
        return port


def _is_free(port: int) -> bool:
    if port not in range(*_PORTS):
        return False
    with socket.socket() as listener:
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


class BrokerProcess:
    """One broker as a child process; a context manager that leaves nothing behind."""

    def __init__(
        self,
        data: Path | str,
        *,
        settings: Mapping[str, Any] | None = None,
        plants: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        host: str = HOST,
    ) -> None:
        self.data = Path(data)
        self.host = host
        self.settings = dict(settings or {})
        self.plants = tuple(plants)
        self.wrapper = tuple(wrapper)
        self.http_port = free_port()
        self.native_port = free_port()
        self.log_path = self.data.parent / f"{self.data.name}.log"
        self.ready_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def native(self) -> str:
        return f"{self.host}:{self.native_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        addresses = {"http": f"{self.host}:{self.http_port}", "native": self.native}
        if self.settings or self.plants:
            settings = {"data": str(self.data), "grpc": "", **addresses, **self.settings}
            given = json.dumps({"settings": settings, "plants": self.plants})
            return [*self.wrapper, sys.executable, "-m", "lanner.testing.child", given]
        flags = [part for name, address in {**addresses, "grpc": ""}.items() for part in (f"--{name}", address)]
        program = "from lanner.cli import main; main()"
        return [*self.wrapper, sys.executable, "-c", program, "up", "--data", str(self.data), *flags]

    def start(self, timeout_seconds: float = 30.0) -> BrokerProcess:
        """Start it and wait until it is ready; how long that took is in ready_seconds."""
        started = time.monotonic()
        self.launch()
        self.wait_ready(timeout_seconds)
        self.ready_seconds = time.monotonic() - started
        return self

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.running, "the broker is running already"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self, timeout_seconds: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if not self.running:
                raise BrokerNeverReady(f"the broker ended with {self.exit_code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerNeverReady(f"not ready after {timeout_seconds} s:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)

    def is_ready(self) -> bool:
        return self.status_of("/readyz") == 200

    def status_of(self, path: str) -> int:
        """The HTTP status of a GET; 0 when nobody listens."""
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=5)
        try:
            connection.request("GET", path)
            with connection.getresponse() as reply:
                return reply.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """kill -9: no drain, no flush, no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """Ask it to drain and end; its exit code."""
        self._end(signal.SIGTERM, timeout_seconds)
        assert self.exit_code is not None
        return self.exit_code

    def pause(self) -> None:
        """SIGSTOP: it stands still, with its connections open, and does not know it.

        Returns when none of its threads can do anything any more. One that the disk keeps waiting counts as well: it
        will stop before it hears the answer.
        """
        os.kill(self.pid, signal.SIGSTOP)
        ends = time.monotonic() + _PAUSE_SECONDS
        while moving := self._thread_states() - _STILL:
            if time.monotonic() > ends:
                raise AssertionError(f"threads of broker {self.pid} still run: {moving}")
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Delete everything it has on disk; it must not be running."""
        assert not self.running, "the broker is running"
        shutil.rmtree(self.data, ignore_errors=True)

    def wait(self, timeout_seconds: float) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def _end(self, number: signal.Signals, timeout_seconds: float = 20.0) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    # ---------------------------------------------------------------- what the kernel says about it

    def anonymous_bytes(self) -> int:
        """RssAnon: memory that is the process's own, without mapped files."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not tell RssAnon")

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.pid)

    def write_calls(self) -> dict[int, tuple[int, int]]:
        """Write calls and bytes of each thread. Sends on sockets do not count as such; the journal's writes do."""
        found = {}
        for folder in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                told = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            except OSError:  # the thread has ended
                continue
            found[int(folder.name)] = int(told["syscw"]), int(told["wchar"])
        return found

    def _thread_states(self) -> set[str]:
        """As in proc(5): R runs, S sleeps, D waits for the disk, T is stopped."""
        found = set()
        for folder in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                found.add((folder / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    def disk_bytes(self) -> int:
        """What the data directory occupies, as the file system counts it."""
        total = 0
        for folder, _, names in os.walk(self.data):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:  # dropped while we looked
                    continue
        return total

    def log_tail(self, bytes_max: int = 4_000) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            return _tail(log, bytes_max)

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


def cpu_seconds_of(pid: int) -> float:
    """The processor time that a process has used, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tail(log: IO[bytes], bytes_max: int) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - bytes_max))
    return log.read().decode("utf-8", errors="replace")
