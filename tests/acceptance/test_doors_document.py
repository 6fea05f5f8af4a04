"""What docs/doors.md shows runs as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

from lanner.testing.process import BrokerProcess

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "doors.md").read_text(encoding="utf-8")


def test_a_worker_joins_polls_and_leaves_as_it_stands_there(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        publish = ["curl", "-s", f"{broker.url}/topic/orders/publish", "-d", '{"message": "refund RF001"}']
        subprocess.run(publish, check=True, timeout=30, capture_output=True)
        said = []
        for line in re.findall(r"^\$ (.*)$", shown, re.MULTILINE):
            words = shlex.split(line.replace("localhost:8080", f"{broker.host}:{broker.http_port}"))
            said.append(subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout)
    joined, polled, left = said
    assert json.loads(joined)["assignor"] == "sticky"
    assert [one["value"] for one in json.loads(polled)["messages"]] == ["refund RF001"]  # once partitions are assigned
    assert left == ""
