"""What docs/grpc.md shows runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lanner.testing.process import HOST, BrokerProcess, free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (line,) = re.findall(r"^\$ python (.*)$", block("console"), re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LANNER_")}
    subprocess.run([sys.executable, *line.split()], cwd=tmp_path, check=True, timeout=60, env=environment)
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}", "default_partitions": 1}
    with BrokerProcess(tmp_path / "data", settings=settings):
        (tmp_path / "example.py").write_text(block("python").replace("localhost:8000", settings["grpc"]))
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment
        )
    assert (done.stdout, done.stderr) == (block("text"), "")


def test_the_page_names_every_method() -> None:
    service = (ROOT / "proto" / "lanner" / "v1" / "queue.proto").read_text(encoding="utf-8")
    methods = re.findall(r"^  rpc (\w+)", service, re.MULTILINE)
    assert {"Publish", "Subscribe", "Fetch"} <= set(methods)
    assert [name for name in methods if not re.search(rf"\b{name}\b", PAGE)] == []
