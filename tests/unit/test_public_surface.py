"""What `import lanner` offers, and what it must not drag in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lanner

SURFACE = [
    "Admin",
    "Claimed",
    "Committed",
    "Consumer",
    "DeadMessage",
    "DeadMessages",
    "Hole",
    "LannerError",
    "Message",
    "MessageBatch",
    "Producer",
    "Queue",
    "ReadBatch",
    "Reader",
    "Receipt",
    "Receipts",
    "Sending",
    "Settling",
    "StageWriter",
    "Staged",
    "StoredMessage",
    "TopicPartition",
    "TopicSettings",
    "Transaction",
    "connect",
    "embedded",
    "errors",
    "sync",
]
HEAVY = ("starlette", "uvicorn", "lmdb", "typer", "rich", "pyspark", "pyarrow", "httptools")


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after this."""
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(found.stdout.split())


def test_the_public_names_are_these_and_each_of_them_is_there() -> None:
    assert lanner.__all__ == SURFACE
    for name in SURFACE:
        assert getattr(lanner, name) is not None
        assert name in dir(lanner)


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'broker_inside'"):
        lanner.broker_inside  # noqa: B018


def test_importing_the_package_loads_nothing_but_itself() -> None:
    loaded = modules_after("import lanner")
    assert not {name for name in loaded if name.startswith("lanner.")}


@pytest.mark.parametrize("statement", ["import lanner; lanner.connect", "import lanner; lanner.sync.connect"])
def test_the_client_comes_without_the_dependencies_of_a_broker(statement: str) -> None:
    loaded = modules_after(statement)
    assert "lanner.client" in loaded
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith(("lanner.broker", "lanner.storage", "lanner.api"))}


def test_an_embedded_broker_that_is_not_used_for_http_comes_without_a_web_framework(tmp_path: Path) -> None:
    loaded = modules_after(f"import lanner\nwith lanner.embedded({str(tmp_path)!r}, disk_reserve_bytes=0): pass")
    assert "lmdb" in loaded
    assert not loaded & {"starlette", "uvicorn", "typer", "rich", "pyspark"}
