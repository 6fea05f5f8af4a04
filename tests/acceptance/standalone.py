"""A Spark master with two workers on this machine, as processes of their own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from lanner.testing.process import free_port

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def standalone(folder: Path, environment: dict[str, str], cores: int = 1) -> Iterator[tuple[str, list[Path]]]:
    """A master and two workers; its address, and where the workers keep what executors have. To Spark the workers are
    two hosts: it runs no two attempts of a task on one."""
    master = f"spark://127.0.0.1:{free_port()}"
    places = [folder / "worker-1", folder / "worker-2"]
    with ExitStack() as running:
        port = master.rpartition(":")[2]
        words = ["master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        log = running.enter_context(daemon(folder / "master.log", words, environment))
        until(log, "New state: ALIVE", 1)
        for number, place in enumerate(places, 1):
            words = ["worker.Worker", "--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", str(cores)]
            words += ["--memory", "1g", "--work-dir", str(place), master]
            running.enter_context(daemon(folder / f"worker-{number}.log", words, environment))
        until(log, "Registering worker", 2)
        yield master, places


@contextmanager
def daemon(log: Path, words: Sequence[str], environment: dict[str, str]) -> Iterator[Path]:
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def until(log: Path, text: str, count: int) -> None:
    ends = time.monotonic() + 90
    while log.read_text(errors="replace").count(text) < count:
        assert time.monotonic() < ends, log.read_text(errors="replace")
        time.sleep(0.05)
