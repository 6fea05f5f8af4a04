from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from lanner.cli.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
        os.set_blocking(writing, False)


async def test_what_is_in_a_pipe_has_passed_once_it_was_read(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    stream.write("one\n")
    passing = asyncio.ensure_future(Outlet(stream).passed())
    done, _ = await asyncio.wait([passing], timeout=0.05)
    assert not done
    assert os.read(reading, 100) == b"one\n"
    await passing
    os.close(reading)


async def test_what_nobody_will_read_has_not_passed(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    stream.write("one\n")
    passing = asyncio.ensure_future(Outlet(stream).passed())
    await asyncio.sleep(0)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        await passing


async def test_a_file_has_what_is_written_to_it(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        stream.write("one\n")
        await Outlet(stream).passed()
        Outlet(stream).flush()
        assert (tmp_path / "file").read_text() == "one\n"
