"""A test that hangs becomes a failure with a stack, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import asyncio
import threading

def test_in_a_thread():
    threading.Event().wait()

async def test_in_a_loop():
    await asyncio.Event().wait()

def test_that_is_behind_them():
    pass
"""


def test_a_test_that_hangs_fails_with_its_stack(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    loops = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    options = (*loops, "--test-seconds", "0.5", "--rootdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.bound", "-p", "no:cacheprovider", *options, str(tmp_path)],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "test_hangs.py::test_in_a_thread took longer than 0.5 s" in ran.stdout
    assert "threading.Event().wait()" in ran.stdout
    assert "most recent call first" in ran.stdout, "what pytest captured shows the other threads"
