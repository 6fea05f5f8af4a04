"""A streaming query is killed in every phase of its commits while brokers are killed too: each input's output shows
exactly once.

The query (`fire_driver`) is a program of its own, which dies where its plan says; then it is started again on the same
checkpoint, until it has read everything. Its rows come to other tasks, in another order and under other keys, in every
run, so that nothing but the commits keeps a batch from showing twice. `make chaos` runs the long form.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

import lanner
from lanner.testing.cluster_process import ClusterProcess
from tests.acceptance.fire_driver import Plan, run_query

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = Path(__file__).parent / "fire_driver.py"
PHASES = ("stage", "prepare", "outcome", "confirm")
SETTINGS = {"segment_bytes": 16 << 20}
FAILURES_MAX = 10  # runs that end by themselves, with an error, while brokers are away


class Verdict(NamedTuple):
    """What became of the inputs."""

    missing: list[bytes]
    doubled: list[bytes]
    foreign: list[bytes]


class Fire:
    """One query, its topics and its checkpoint."""

    def __init__(
        self,
        cluster: ClusterProcess,
        folder: Path,
        inputs: int,
        rows: int,
        *,
        master: str = "local[2,4]",
        slow: bool = False,
        settings: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.cluster = cluster
        self.master = master
        self.slow = slow
        self.settings = settings
        self.inputs = inputs
        self.rows = rows
        self.kills: Counter[str] = Counter()
        self.failures: list[str] = []
        self.broker_kills = 0
        self._log = folder / "log"
        self._checkpoint = folder / "checkpoint"
        with lanner.sync.connect(cluster.address) as queue:
            queue.admin.create_topic("in", partitions=3)
            queue.admin.create_topic("out", partitions=3)
            queue.publish_many("in", [b"%d" % number for number in range(inputs)])

    def next_batch(self) -> int:
        """The batch that Spark has not noted as done."""
        noted = self._checkpoint / "commits"
        return 1 + max((int(one.name) for one in noted.glob("[0-9]*")), default=-1) if noted.exists() else 0

    def plan(self, phase: str = "", *, after: int = 0, tasks: int = 3) -> Plan:
        """Read everything, or die in a phase, some batches from now."""
        return Plan(
            servers=self.cluster.address,
            source="in",
            target="out",
            checkpoint=str(self._checkpoint),
            log=str(self._log),
            master=self.master,
            tasks=tasks,
            rows=self.rows,
            phase=phase,
            batch=self.next_batch() + after,
            slow=self.slow,
            settings=self.settings,
        )

    def run(self, plan: Plan) -> int:
        """Run the query as a program of its own; its exit code."""
        errors = self._log.with_suffix(".errors")
        with errors.open("wb") as told:
            driver = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(plan._asdict())],
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )
            try:
                code = driver.wait()
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()
        if code == -signal.SIGKILL:
            assert f"killed {plan.phase} " in self._log.read_text(), "it was not its plan that killed it"
            self.kills[plan.phase] += 1
        elif code:
            self.failures.append(errors.read_text(errors="replace")[-2_000:])
        return code

    def burn(self, phases: Sequence[str], rng: random.Random) -> None:
        """Die once in each of these phases (empty: read to the end). A run that fails by itself is started again."""
        for phase in phases:
            while True:
                code = self.run(self.plan(phase, after=rng.randrange(2), tasks=rng.randrange(2, 5)))
                if code == (-signal.SIGKILL if phase else 0):
                    break
                assert code != 0, f"everything was read before the query could die in {phase!r}"
                assert len(self.failures) <= FAILURES_MAX, self.failures[-1]

    @contextmanager
    def killing_brokers(self, rng: random.Random, pause_seconds: float, most: int) -> Iterator[None]:
        """Kill one broker after the other, each back before the next, until the block ends; the first as soon as the
        query is at work."""
        over = threading.Event()

        def kill() -> None:
            while not self._log.exists() and not over.wait(0.05):
                pass
            while not over.is_set() and self.broker_kills < most:
                number = rng.choice(self.cluster.running)
                self.cluster.kill(number)
                self.broker_kills += 1
                over.wait(rng.random())
                self.cluster.restart(number)
                over.wait(pause_seconds * (0.5 + rng.random()))

        killer = threading.Thread(target=kill, name="kills brokers")
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()

    def verdict(self) -> Verdict:
        with (
            lanner.sync.connect(self.cluster.address) as queue,
            queue.reader("out", until_end=True) as reader,
        ):
            found = Counter(message.value for message in reader)
        expected = {b"made of %d" % number for number in range(self.inputs)}
        return Verdict(
            sorted(expected - found.keys()),
            sorted(value for value, count in found.items() if count > 1),
            sorted(found.keys() - expected),
        )

    def told(self) -> str:
        """What happened, in one line."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        again = sum(line[0] == "task" and line[3] != "0" for line in lines)
        twice = sum(line[0] == "twice" for line in lines)
        kills = ", ".join(f"{self.kills[phase]} in {phase}" for phase in PHASES)
        return (
            f"{self.inputs} inputs in {self.next_batch()} batches; the query killed {sum(self.kills.values())} times "
            f"({kills}) and {len(self.failures)} times failed by itself; {self.broker_kills} brokers killed; "
            f"{again} tasks run again, {twice} done twice"
        )


@contextmanager
def brokers(folder: Path, *plants: str) -> Iterator[ClusterProcess]:
    with ClusterProcess(folder / "brokers", settings=SETTINGS, plants=plants) as cluster:
        yield cluster


def test_each_output_shows_once_although_query_and_brokers_are_killed(tmp_path: Path, spark: SparkSession) -> None:
    with brokers(tmp_path) as cluster:
        fire = Fire(cluster, tmp_path, inputs=2_000, rows=1_000)
        with fire.killing_brokers(random.Random(5), 0.0, most=1):
            assert fire.run(fire.plan("prepare", tasks=2)) == -signal.SIGKILL, fire.failures
            run_query(spark, fire.plan(tasks=3), "lanner")
        verdict = fire.verdict()
        print(fire.told())
    assert verdict == Verdict([], [], [])
    assert fire.broker_kills == 1


def test_each_output_shows_once_after_kills_in_every_phase(tmp_path: Path, chaos: bool) -> None:
    if not chaos:
        pytest.skip("it starts Spark a dozen times: `make chaos`")
    rng = random.Random(5)
    phases = [*PHASES, *PHASES, "stage", "prepare", "confirm"]
    with brokers(tmp_path) as cluster:
        fire = Fire(cluster, tmp_path, inputs=100_000, rows=5_000)
        with fire.killing_brokers(rng, 10.0, most=1_000):
            fire.burn([*phases, ""], rng)
        verdict = fire.verdict()
        print(fire.told())
    assert verdict == Verdict([], [], [])
    assert fire.kills == Counter(phases)
    assert fire.broker_kills > 0


def test_with_the_fence_off_an_output_shows_twice(tmp_path: Path, chaos: bool) -> None:
    if not chaos:
        pytest.skip("it starts Spark twice to see a planted bug: `make chaos`")
    with brokers(tmp_path, "fence_off") as cluster:
        fire = Fire(cluster, tmp_path, inputs=2_000, rows=1_000)
        fire.burn(["confirm", ""], random.Random(5))
        verdict = fire.verdict()
        print(fire.told())
    assert len(verdict.doubled) == 1_000, "the batch that was committed when the query died is there twice"
    assert not verdict.missing and not verdict.foreign
