"""`python -m lanner.testing.simulate`: many seeds with a progress bar, or one seed again, to the same end.

    --seeds 10000 --start 0     seeds 0, 1, …; the first one that fails is printed at once, and the exit code is 1
    --seed 17                   that one again: every broken rule, and where its history was written
    --nodes 5                   only clusters of so many brokers; 1: only single brokers. Else each seed is both: one
                                broker, and a cluster of three (even seeds) or five (odd ones)
    --plant skipped-sync        with a bug on purpose: the run ends well when the bug is caught

Seeds run in as many processes as there are cores. A seed's outcome does not depend on which process ran it. Each runs
once. The totals end with a digest of the source of every module of Lanner that was loaded: two commits that print the
same one run the same code.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import lanner
from lanner.testing.cluster_simulation import CLUSTER_TOTALS, simulate_cluster
from lanner.testing.planted import BROKER_PLANTS, PLANTS, catches, planted
from lanner.testing.planted_cluster import CLUSTER_PLANTS
from lanner.testing.planted_staged import STAGED_CLUSTER_PLANTS
from lanner.testing.queue_model import Violation
from lanner.testing.sim_cluster import size_of
from lanner.testing.simulator import EVENTS, TOTALS, Report, simulate

_SHOWN_MAX: Final = 3
_COLLECTED: Final = (50_000, 50, 50)  # a seed leaves few cycles behind, and looking for them took a third of its time


class Outcome(NamedTuple):
    """What one seed came to, small enough to send between processes."""

    seed: int
    events: int
    totals: Counter[str]
    violations: list[Violation]
    digest: str
    nodes: int = 1


class Job(NamedTuple):
    seed: int
    events: int
    plant: str
    nodes: int = 1


def run(job: Job) -> Outcome:
    """One seed, in whatever process."""
    report = _report(job)
    digest = hashlib.sha256()
    for line in report.history.lines():
        digest.update(line.encode())
    return Outcome(job.seed, report.events, report.totals, report.violations, digest.hexdigest()[:16], job.nodes)


def _report(job: Job) -> Report:
    with _few_collections(), _no_logging(), planted(job.plant):
        return simulate(job.seed, job.events) if job.nodes == 1 else simulate_cluster(job.seed, job.events, job.nodes)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let Python look for cycles rarely while a seed runs."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _no_logging() -> Iterator[None]:
    """What brokers say about damage that was done on purpose is for nobody."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def source_digest() -> str:
    """A digest of the source of all modules of Lanner that this process has loaded, by path and content."""
    package = Path(lanner.__file__).parent
    paths = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_relative_to(package)):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run_many(jobs: list[Job], processes: int) -> Iterator[Outcome]:
    """Outcomes as they come, not in the order of seeds."""
    if processes == 1 or len(jobs) == 1:
        yield from map(run, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, initializer=gc.freeze) as pool:
        yield from pool.imap_unordered(run, jobs)


def main(arguments: list[str] | None = None) -> int:
    given = _parse(arguments)
    console = Console()
    if given.seed is not None:
        jobs = _jobs(given, [given.seed])
        return max(_replay(console, job, Path(given.history)) for job in jobs)
    jobs = _jobs(given, range(given.start, given.start + given.seeds))
    started = time.perf_counter()
    totals: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    failed: Outcome | None = None
    with _progress(console) as progress:
        task = progress.add_task("simulating", total=len(jobs))
        for outcome in run_many(jobs, given.jobs):
            totals[outcome.nodes == 1].update({**outcome.totals, "seeds": 1})
            progress.advance(task)
            if outcome.violations:
                failed = outcome
                break
    if failed is not None:
        _show_failure(console, failed, given.plant)
    for alone in (True, False):
        if totals[alone]:
            _show_totals(console, totals[alone], alone)
    took = f"in {time.perf_counter() - started:.1f} s; source {source_digest()}"
    console.print(took, highlight=False)
    if given.plant:
        return _judge_plant(console, given.plant, failed)
    return 1 if failed is not None else 0


def _jobs(given: argparse.Namespace, seeds: Iterable[int]) -> list[Job]:
    """What to run: a planted bug only where it can be made."""
    alone = given.nodes == 1 if given.nodes else given.plant not in {**CLUSTER_PLANTS, **STAGED_CLUSTER_PLANTS}
    together = given.nodes != 1 if given.nodes else given.plant not in BROKER_PLANTS
    jobs = []
    for seed in seeds:
        if alone:
            jobs.append(Job(seed, given.events, given.plant, 1))
        if together:
            jobs.append(Job(seed, given.events, given.plant, given.nodes or size_of(seed)))
    return jobs


def _replay(console: Console, job: Job, folder: Path) -> int:
    report = _report(job)
    path = folder / f"lanner-seed-{job.seed}-of-{job.nodes}.jsonl"
    report.history.save(path)
    if report.failed:
        outcome = Outcome(job.seed, report.events, report.totals, report.violations, "", job.nodes)
        _show_failure(console, outcome, job.plant)
    _show_totals(console, Counter({**report.totals, "seeds": 1}), job.nodes == 1)
    console.print(f"history: {path}", highlight=False, soft_wrap=True)
    return 1 if report.failed else 0


def _show_failure(console: Console, outcome: Outcome, plant: str) -> None:
    again = f"make sim SEED={outcome.seed} NODES={outcome.nodes}" + (f" PLANT={plant}" if plant else "")
    console.print(f"[bold red]seed {outcome.seed} failed[/]; again: {again}", soft_wrap=True)
    by_rule: dict[str, list[Violation]] = {}
    for violation in outcome.violations:
        by_rule.setdefault(violation.rule, []).append(violation)
    for violations in by_rule.values():
        for violation in violations[:_SHOWN_MAX]:
            console.print(f"  {violation}", markup=False, highlight=False, soft_wrap=True)
        if len(violations) > _SHOWN_MAX:
            console.print(f"  … and {len(violations) - _SHOWN_MAX} more of these", highlight=False)


def _show_totals(console: Console, totals: Counter[str], alone: bool) -> None:
    names = TOTALS if alone else CLUSTER_TOTALS
    kind = "one broker" if alone else "clusters"
    console.print(f"{kind}: {totals['seeds']} seeds, {totals['events']} events", highlight=False)
    shown = ", ".join(f"{name.replace('_', ' ')} {totals[name]}" for name in names)
    console.print(f"  {shown}", highlight=False, soft_wrap=True)
    rest = ", ".join(f"{name} {totals[name]}" for name in sorted(totals) if name not in (*names, "events", "seeds"))
    console.print(f"  {rest}", highlight=False, soft_wrap=True)


def _judge_plant(console: Console, plant: str, failed: Outcome | None) -> int:
    """A bug that was put in must be found, and for the right reason."""
    if failed is None:
        console.print(f"[bold red]{plant} was not caught[/]")
        return 1
    if not catches(plant, failed.violations):
        console.print(f"[bold red]{plant} was not caught as it should be[/]: by {PLANTS[plant].caught_by}")
        return 1
    console.print(f"[green]{plant} was caught[/]: {PLANTS[plant].says}")
    return 0


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lanner.testing.simulate", description="Simulate brokers from seeds.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one again and show everything")
    parser.add_argument("--nodes", type=int, default=0, choices=(0, 1, *range(3, 8)), metavar="N", help="1, or 3 to 7")
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="put a bug in; it must be caught")
    parser.add_argument("--events", type=int, default=EVENTS, help="events in each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--history", default=tempfile.gettempdir(), help="where a replay writes its history")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
