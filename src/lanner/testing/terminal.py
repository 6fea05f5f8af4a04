"""A command on a terminal of its own: what people see, colours and moving lines included.

Programs behave differently where somebody watches: bars, spinners and questions appear only there. `Terminal` starts a
command whose output is a pseudo-terminal, so that a test sees what a person would. Its input is the same terminal, or a
pipe where the command reads lines from one. `shown` is everything that was written so far, with the control sequences
taken out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

_ROWS, _COLUMNS = 50, 200
_STOP_SECONDS: Final = 30.0
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\r")


class Terminal:
    """One command as a child process on a pseudo-terminal; a context manager that leaves nothing behind."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        piped: bytes | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        columns: int = _COLUMNS,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        self._seen = threading.Condition()
        self._text = ""
        self._process = subprocess.Popen(
            command,
            stdin=slave if piped is None else subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**_without_size(os.environ), "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if piped is not None:
            assert self._process.stdin is not None
            self._feeder = threading.Thread(target=_feed, args=(self._process.stdin, piped), daemon=True)
            self._feeder.start()

    @property
    def shown(self) -> str:
        """Everything so far, without control sequences."""
        return _CONTROL.sub("", self._text)

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def until(self, text: str, seconds: float = 120.0) -> None:
        """Wait until this is on the screen."""
        ends = time.monotonic() + seconds
        with self._seen:
            while text not in self.shown:
                left = ends - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise AssertionError(f"{text!r} was never shown:\n{self.shown}")
                self._seen.wait(min(left, 0.5))

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it."""
        self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float = 180.0) -> int:
        """Wait until the command has ended and all of its output was read; its exit code."""
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        return code

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # EIO: the last process that had it open is gone
                data = b""
            with self._seen:
                self._text += data.decode("utf-8", errors="replace")
                self._seen.notify_all()
            if not data:
                return

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_SECONDS)
        os.close(self._master)


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(data)
        pipe.close()


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the size of another terminal, which some programs believe more than their own."""
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
