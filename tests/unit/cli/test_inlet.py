"""Lines of standard input: from a pipe and from a terminal, at the pace of those who write and of those who take."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import threading
import tty
from collections.abc import Iterator
from typing import TextIO

import pytest

from lanner.cli.inlet import Inlet
from lanner.errors import MessageTooLarge


@pytest.fixture(params=["pipe", "terminal"])
def line(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """Both ends: a descriptor to write to, and the stream that a command would have as its standard input."""
    if request.param == "pipe":
        reading, writing = os.pipe()
    else:
        writing, reading = pty.openpty()
        tty.setraw(reading)
    with os.fdopen(reading, "r") as stream:
        yield writing, stream
        os.close(writing)  # the thread that waits for more ends by it


async def test_other_tasks_go_on_while_nothing_comes(line: tuple[int, TextIO]) -> None:
    writing, stream = line
    saved = threading.Timer(10, os.write, (writing, b"the loop stood still\n"))  # or a red test would hang
    saved.start()
    found = Inlet(stream).lines()
    first = asyncio.ensure_future(anext(found))
    turns = 0
    while turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert not first.done()
    os.write(writing, b"one\ntwo\nthr")
    assert await first == [b"one", b"two"]
    second = asyncio.ensure_future(anext(found))
    await asyncio.sleep(0)
    os.write(writing, b"ee\n")
    assert await second == [b"three"]
    saved.cancel()


async def test_no_more_is_read_than_is_taken() -> None:
    reading, writing = os.pipe()
    written = threading.Event()

    def write() -> None:
        for _ in range(64):
            os.write(writing, b"x" * 65_535 + b"\n")  # a pipe holds one of them, and each read takes that
        written.set()
        os.close(writing)

    feeder = threading.Thread(target=write)
    feeder.start()
    count = 0
    with os.fdopen(reading, "r") as stream:
        found = Inlet(stream).lines()
        assert (await anext(found))[0][:1] == b"x"
        assert not await asyncio.to_thread(written.wait, 0.2)
        async for lines in found:
            count += len(lines)
    feeder.join()
    assert written.is_set() and count >= 60


async def test_the_last_line_needs_no_end_and_an_endless_one_is_refused() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"one\n\ntwo"))
    assert [lines async for lines in Inlet(stream).lines()] == [[b"one", b""], [b"two"]]
    endless = io.TextIOWrapper(io.BytesIO(b"x" * (5 << 20)))
    with pytest.raises(MessageTooLarge, match="divide it"):
        async for _ in Inlet(endless).lines():
            pass


async def test_what_cannot_be_read_is_raised_where_the_lines_are_taken(tmp_path: object) -> None:
    descriptor = os.open(str(tmp_path), os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            await anext(Inlet(_Directory(descriptor)).lines())
    finally:
        os.close(descriptor)


class _Directory(io.TextIOWrapper):
    """A directory as standard input: `lanner publish t < .`"""

    def __init__(self, descriptor: int) -> None:
        super().__init__(io.BytesIO())
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor
