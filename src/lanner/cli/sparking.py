"""A Spark session for one command: found or explained, quiet, and with errors as one line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from lanner.cli import parsing
from lanner.cli.screen import Screen

if TYPE_CHECKING:
    from lanner.spark import SparkSession

Result = TypeVar("Result")

Master = Annotated[str, typer.Option("--master", help="Spark's master, such as local[4] or spark://HOST:7077.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark, NAME=VALUE; may be repeated.")]
Package = Annotated[
    list[str] | None, typer.Option("--package", help="A Maven package for Spark, GROUP:NAME:VERSION; may be repeated.")
]
MASTER_DEFAULT: Final = "local[2]"

_OURS: Final = re.compile(r"lanner\.errors\.(\w+): (.+)")
_OF_JAVA: Final = re.compile(r"An error occurred while calling [^\n]*\n: (?:[\w$]+\.)*([\w$]+)(?:: ([^\n]+))?")
_OF_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)  # the end of a traceback
_TRACEBACK: Final = "Traceback (most recent call last)"
_LOG_TAIL_BYTES: Final = 4_000


def need_spark(screen: Screen) -> None:
    """End with the way to install it where Spark is not installed."""
    screen.need("spark", "this command")


def with_spark(
    screen: Screen,
    master: str,
    conf: Sequence[str] | None,
    packages: Sequence[str] | None,
    work: Callable[[SparkSession], Result],
) -> Result:
    """Run something in a session of Spark; what goes wrong becomes one line."""
    need_spark(screen)
    settings: dict[str, object] = {"spark.log.level": "ERROR", "spark.driver.memory": "2g"}
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = 8  # two hundred small tasks would take longer than their work
    settings |= parsing.pairs(conf or (), "--conf")
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
    return screen.guard(lambda: _translated(screen, lambda: _run(master, settings, work)))


def _run(master: str, settings: dict[str, object], work: Callable[[SparkSession], Result]) -> Result:
    import lanner.spark
    from lanner.spark.launch import log_no_errors

    log_no_errors()
    with _aside() as log:
        try:
            spark = lanner.spark.session("lanner", master=master, config=settings)
        except Exception as error:
            raise OSError(f"Spark did not start: {error}\n{_tail(log)}") from error
    try:
        return work(spark)
    finally:
        spark.stop()


@contextlib.contextmanager
def _aside() -> Iterator[Path]:
    """Standard error of the Java that is started meanwhile goes to a file: it says much that concerns nobody."""
    descriptor, name = tempfile.mkstemp(prefix="lanner-spark-", suffix=".log")
    kept = os.dup(2)
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    try:
        yield Path(name)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name)


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", errors="replace")


def _translated(screen: Screen, work: Callable[[], Result]) -> Result:
    """An error that went through Spark carries ours in its text."""
    try:
        return work()
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        kind, said = told(error)
        screen.fail(said, kind=kind)


def told(error: Exception) -> tuple[str, str]:
    """The kind of an error that Spark raised, and what it says: ours, or that of the Python or Java behind it."""
    text = str(error)
    behind = _TRACEBACK in text and _OF_PYTHON.findall(text[text.index(_TRACEBACK) :])
    if found := _OURS.findall(text) or behind:
        kind, message = found[-1]
        return kind, message.strip()
    if (java := _OF_JAVA.match(text)) is not None and java[2]:
        return java[1], java[2].strip()
    return type(error).__name__, _first_line(text)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
