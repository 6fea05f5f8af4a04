"""Clients in processes of their own, because a client in the broker's process would measure itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def run_apart(target: Callable[..., Any], *arguments: Any) -> Iterator[int]:
    """Run something in a process of its own, whose id is given, while the block runs; then end it."""
    process = _SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.terminate()
        process.join()


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that have started and imported what they need, so that the first call is not charged for it."""
    with ProcessPoolExecutor(count, mp_context=_SPAWN) as pool:
        warm: list[Future[None]] = [pool.submit(_warm) for _ in range(count)]
        for one in warm:
            one.result()
        yield pool


def _warm() -> None:
    import time

    import lanner  # noqa: F401

    time.sleep(0.2)
