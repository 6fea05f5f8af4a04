"""The event loop: uvloop where there is one, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows has none
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run, on the fastest loop there is."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
