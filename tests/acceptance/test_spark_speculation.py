"""Tasks of the sink that Spark runs twice at once, by speculation: each output shows exactly once.

Speculation needs a cluster of two hosts, so this is the long form, on a master with two workers. Brokers and the query
itself are killed too, and some tasks fail and are run again. That Spark did speculate is read from its own event log.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from lanner.spark import prepare
from tests.acceptance.fire_driver import SLOW
from tests.acceptance.standalone import standalone
from tests.acceptance.test_spark_under_fire import Fire, Verdict, brokers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.efficiency.enabled": "false",  # the duration alone counts
    "spark.python.task.killTimeout": "30s",  # an attempt that was beaten lives on for a while, and stages late
    "spark.executor.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


class Speculation(NamedTuple):
    """What Spark says of the attempts that it started by speculation, among the tasks of the sink."""

    started: int
    won: int  # done first, so that the original attempt was given up
    beaten: int  # the original attempt was done first


def speculation(events: Path, sink: set[tuple[str, str]]) -> Speculation:
    """From the event logs of all applications. `sink`: stage and number of each task that ran in the sink."""
    started, ends = 0, Counter[bool]()
    for log in events.iterdir():
        for line in log.read_text(encoding="utf-8").splitlines():
            event: dict[str, Any] = json.loads(line) if line.endswith("}") else {}  # the last one of a killed program
            task = event.get("Task Info", {})
            if not task.get("Speculative") or (str(event["Stage ID"]), str(task["Index"])) not in sink:
                continue
            started += event["Event"] == "SparkListenerTaskStart"
            if event["Event"] == "SparkListenerTaskEnd":
                ends[event["Task End Reason"]["Reason"] == "Success"] += 1
    return Speculation(started, ends[True], ends[False])


def test_each_output_shows_once_although_speculation_runs_tasks_of_the_sink_twice_at_once(
    tmp_path: Path, chaos: bool
) -> None:
    if not chaos:
        pytest.skip("it starts a Spark cluster: `make chaos`")
    environment = dict(os.environ)
    prepare(environment)
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    java = environment["SPARK_DAEMON_JAVA_OPTS"] = environment["SPARK_SUBMIT_OPTS"]
    events = tmp_path / "events"
    events.mkdir()
    settings = {**SETTINGS, "spark.eventLog.dir": events.as_uri(), "spark.executor.extraJavaOptions": java}
    rng = random.Random(11)
    with brokers(tmp_path) as cluster, standalone(tmp_path, environment, cores=2) as (master, _):
        fire = Fire(
            cluster, tmp_path, inputs=24_000, rows=2_000, master=master, slow=True, settings=list(settings.items())
        )
        with fire.killing_brokers(rng, 10.0, most=1_000):
            fire.burn(["confirm", "stage", ""], rng)
        verdict = fire.verdict()
        lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        found = speculation(events, {(line[4], line[2]) for line in lines if line[0] == "task"})
        twice = Counter(line[3] for line in lines if line[0] == "staged" and line[4:] == ["again"])
        print(f"{fire.told()}; {found}; slow tasks staged again: {dict(twice)}")
    assert verdict == Verdict([], [], [])
    assert found.won >= 1 and found.beaten >= 1
    assert all(twice[how] >= 1 for how in SLOW), "each way to be run twice was there"
