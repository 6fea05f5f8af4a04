"""`python -m lanner.testing.simulate_groups`: members of groups from many seeds, or from one again, to the same end.

    --seeds 10000 --start 0     seeds 0, 1, …, each as a stream group and as a queue group; the first that breaks a rule
                                is printed at once, and the exit code is 1
    --seed 17                   that one again: every broken rule, and where its histories were written

`make sim` runs it before the simulators of brokers, which take thirty times as long. The totals end with a digest of
the source that ran, as theirs do. Bugs are planted in `tests/simulation/test_groups.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import Progress

from lanner.testing.group_simulation import GroupSimulation
from lanner.testing.queue_group_simulation import QueueGroupSimulation
from lanner.testing.queue_model import Violation
from lanner.testing.simulate import source_digest

KINDS: Final[dict[str, type[GroupSimulation]]] = {"stream": GroupSimulation, "queue": QueueGroupSimulation}
_SEEDS_AT_ONCE: Final = 20


class Outcome(NamedTuple):
    """What the groups of one seed came to, small enough to send between processes."""

    seed: int
    counts: Counter[str]
    violations: dict[str, list[Violation]]  # kind → what it broke
    histories: dict[str, list[str]]


def run(seed: int, *, keep: bool = False) -> Outcome:
    """A group of each kind from one seed, in whatever process; their histories are kept when asked for."""
    outcome = Outcome(seed, Counter(), {}, {})
    for name, kind in KINDS.items():
        simulation = kind(seed)
        if violations := simulation.run():
            outcome.violations[name] = violations
        if keep:
            outcome.histories[name] = simulation.history
        outcome.counts.update(simulation.counts)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    console = Console()
    if given.seed is not None:
        return _replay(console, given.seed, Path(given.history))
    started = time.perf_counter()
    totals: Counter[str] = Counter()
    failed = seeds = 0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("simulating groups", total=given.seeds)
        for outcome in _run_many(range(given.start, given.start + given.seeds), given.jobs):
            totals.update(outcome.counts)
            seeds += 1
            progress.advance(task)
            if outcome.violations:
                failed = 1
                _show_failure(console, outcome)
                break
    console.print(f"groups: {seeds} seeds of streams and of queues", highlight=False)
    shown = ", ".join(f"{name} {totals[name]}" for name in sorted(totals))
    took = f"in {time.perf_counter() - started:.1f} s; source {source_digest()}"
    console.print(f"  {shown}\n{took}", highlight=False, soft_wrap=True)
    return failed


def _run_many(seeds: range, processes: int) -> Iterator[Outcome]:
    """Outcomes as they come, not in the order of seeds."""
    if processes == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=_SEEDS_AT_ONCE)


def _replay(console: Console, seed: int, folder: Path) -> int:
    outcome = run(seed, keep=True)
    for name, history in outcome.histories.items():
        path = folder / f"lanner-{name}-group-seed-{seed}.txt"
        path.write_text("\n".join(history) + "\n")
        console.print(f"history: {path}", highlight=False, soft_wrap=True)
    if outcome.violations:
        _show_failure(console, outcome)
    return 1 if outcome.violations else 0


def _show_failure(console: Console, outcome: Outcome) -> None:
    console.print(f"[bold red]group seed {outcome.seed} failed[/]; again: make sim-groups SEED={outcome.seed}")
    for name, violations in outcome.violations.items():
        for violation in violations:
            console.print(f"  {name} group: {violation}", markup=False, highlight=False, soft_wrap=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lanner.testing.simulate_groups", description="Simulate groups from seeds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one again and show everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--history", default=tempfile.gettempdir(), help="where a replay writes its histories")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
