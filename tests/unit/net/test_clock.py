"""The clock and the loop."""

from __future__ import annotations

import asyncio
import builtins
import sys
import time
from typing import Any

import pytest

from lanner.net import clock, loop


def test_now_is_milliseconds_of_utc() -> None:
    before = int(time.time() * 1_000)
    assert before <= clock.now_ms() <= before + 1_000


def test_run_gives_the_result_on_the_fastest_loop_there_is() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loop.run(main()).startswith("uvloop" if sys.platform != "win32" else "asyncio")


def test_without_uvloop_the_loop_of_asyncio_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    made = loop.new_event_loop()
    made.close()
    assert isinstance(made, asyncio.SelectorEventLoop)
