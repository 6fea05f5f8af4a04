"""schemathesis against a real broker: whatever the OpenAPI document allows or forbids, the door does as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanner.testing.process import BrokerProcess

SEED = 20_260
SECONDS = 30
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
# What a request means beyond its shape, no schema can say: names that exist, offsets that are there, settings that fit
# together. Those answers are fine; a server error never is.
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "416", "429"]
# A value that is too long is refused as such: 413, MessageTooLarge.
negative_data_rejection.expected-statuses = ["400", "404", "405", "409", "413", "415", "429"]

[[operations]]
include-path-regex = "^/v1/(topics(/.topic.)?|groups/.*|topics/.*/messages)$"

[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "416"]

# A stream goes on until somebody ends it: tests/integration/test_rest_streams.py.
[[operations]]
include-path-regex = "/stream$"
enabled = false
"""


@pytest.mark.slow
def test_the_door_does_what_its_document_says(tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            f"--config-file={config}",
            "run",
            f"{broker.url}/openapi.json",
            "--checks=all",
            f"--seed={SEED}",
            "--max-examples=15",
            f"--max-time={SECONDS}",
            "--no-color",
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"seed {SEED}\n{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
        assert broker.is_ready()
        assert "Traceback" not in broker.log_tail(100_000)
