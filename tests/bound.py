"""A bound for every test: one that hangs fails, and shows where it hangs, instead of holding up the whole run.

An alarm interrupts whatever the main thread does and fails the test there, so its traceback is the place; all other
threads are printed. It comes again every minute, in case what cleans up hangs as well. The long forms (`--chaos`) have
no bound.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

_AGAIN_SECONDS = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-seconds", type=float, default=300, help="a test that takes longer than this fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seconds = item.config.getoption("--test-seconds")
    if item.config.getoption("--chaos", False) or threading.current_thread() is not threading.main_thread():
        return (yield)

    def hangs(_number: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        pytest.fail(f"{item.nodeid} took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
