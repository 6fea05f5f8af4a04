"""What every suite shares: the switch between the short forms of `make test` and the long ones of `make chaos`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import bound, workers

pytest_runtest_protocol = bound.pytest_runtest_protocol
pytest_xdist_make_scheduler = pytest.hookimpl(optionalhook=True)(workers.pytest_xdist_make_scheduler)

# For Spark's sessions, and those of the programs that tests start: they are short, and two cores have better things to
# do than to compile Java twice, or to load its classes from jars. A Java that did not write this file goes on without.
CLASSES = Path(__file__).parents[1] / ".cache" / "spark-classes.jsa"
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={CLASSES} -Xshare:auto -Xlog:disable",
)

# How fast a machine makes examples says nothing about the code.
settings.register_profile("lanner", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lanner")

# The tests of the pure rooms, which `make test` runs with the tracer that measures their coverage.
COVERED = {
    "batch",
    "calls",
    "cluster",
    "ledger",
    "partition",
    "raft",
    "wire",
    "test_errors.py",
    "test_limits.py",
    "test_model.py",
}
UNIT = Path(__file__).with_name("unit")
LONG = ("simulation", "integration", "acceptance")
REASON_CHARS = 2_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        inside = item.path.is_relative_to(UNIT) and item.path.relative_to(UNIT).parts[0] in COVERED
        if inside and item.get_closest_marker("slow") is None:
            item.add_marker("covered")
    items[:] = _longest_files_first(items)


def _longest_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """The workers take file after file: short ones at the end keep all busy to the end. The files that need Spark are
    one to them (see `workers`), and the longest."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    spark, long, short = [], [], []
    for path, tests in files.items():
        if workers.needs_spark(path):
            spark.append(tests)
        else:
            (long if path.relative_to(UNIT.parent).parts[0] in LONG else short).append(tests)
    return [item for tests in (*spark, *long, *short) for item in tests]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="run the long forms of the integration tests")
    bound.pytest_addoption(parser)
    parser.addoption("--chaos-loops", type=int, default=50, help="how often the long form kills the broker")


def pytest_configure() -> None:
    """Tests send Ctrl-C to programs that they start; a shell that runs this in the background has it ignored, and what
    is ignored is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> bool:
    """Whether the long forms were asked for."""
    return bool(request.config.getoption("--chaos"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say first what failed, and why: the reports that follow are long, and a log of CI may be cut before their end."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for outcome in ("failed", "error") if reporter is not None else ():
        for report in reporter.stats.get(outcome, ()):
            crash = getattr(report.longrepr, "reprcrash", None)
            reporter.write_line(f"\n{outcome}: {report.nodeid}: {crash.message[:REASON_CHARS] if crash else ''}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the totals that tests recorded, also when they ran in other processes."""
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "totals":
                terminalreporter.write_line(f"simulation, {value}")
