"""What a running pipeline tells of itself, and the file through which another terminal learns of it.

The file lies in the user's cache folder, under a name that follows from the pipeline file's own path. It is replaced in
one step twice a second; one that was not replaced for a while, or whose process is gone, is of a pipeline that ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from lanner.spark.java import cache_folder

State = Literal["starting", "running", "waiting to restart", "ended", "failed", "stopped"]
STALE_SECONDS: Final = 30


class QueryStatus(msgspec.Struct):
    """One query. Rates are of its last batch."""

    name: str
    state: State = "starting"
    batch: int = -1
    rows: int = 0  # of all batches since the start
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: dict[str, int] = {}  # messages to come, by source
    restarts: int = 0
    error: str = ""


class PipelineStatus(msgspec.Struct):
    """The pipeline as a whole."""

    name: str
    file: str
    process: int
    started_s: float
    updated_s: float
    queries: list[QueryStatus]

    def is_alive(self, now_s: float) -> bool:
        return now_s - self.updated_s < STALE_SECONDS


def status_path(file: Path, environment: Mapping[str, str]) -> Path:
    """Where the pipeline of this file tells its status."""
    name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
    return cache_folder(environment) / "pipelines" / f"{file.stem}-{name}.json"


def write_status(path: Path, status: PipelineStatus) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(msgspec.json.encode(status))
    os.replace(beside, path)


def read_status(path: Path) -> PipelineStatus | None:
    """The last status; None where there was none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PipelineStatus)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def lag_of(source: Mapping[str, Any]) -> tuple[str, int] | None:
    """What is still to come of a source, by Spark's own report of it: a short name, and a number of messages."""
    latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or end is None:
        return None
    count = 0
    for topic, offsets in latest.items():
        reached = end.get(topic, {})
        count += sum(max(0, offset - reached.get(partition, 0)) for partition, offset in offsets.items())
    return ",".join(latest) or "nothing", count


def _offsets(given: Any) -> dict[str, dict[str, int]] | None:
    """Offsets by topic and partition, where they are those of `format("lanner")`."""
    try:
        value = json.loads(given) if isinstance(given, str) else given
        return {topic: dict(one["offsets"]) for topic, one in value["topics"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
