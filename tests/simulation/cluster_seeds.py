"""Seeds of simulated clusters, one after the other in this process: the test files are what is spread over cores."""

from __future__ import annotations

from collections import Counter

from lanner.testing.cluster_simulation import CLUSTER_CALLS, CLUSTER_EVENTS, CLUSTER_TOTALS
from lanner.testing.simulate import Job, run


def check_seeds(seeds: range, nodes: int) -> str:
    """Fail on the first seed that breaks a rule, or if some trouble was hardly met; else what was met."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(Job(seed, CLUSTER_EVENTS, "", nodes))
        again = f"make sim SEED={seed} NODES={nodes}"
        assert not outcome.violations, f"{again}: {[str(violation) for violation in outcome.violations[:5]]}"
        assert outcome.events >= 5_000, again
        assert outcome.totals["calls"] >= CLUSTER_CALLS >= 200, again
        totals.update(outcome.totals)
    assert {name: totals[name] for name in CLUSTER_TOTALS if totals[name] < len(seeds) / 10} == {}
    shown = ", ".join(f"{name} {totals[name]}" for name in ("events", "calls", *CLUSTER_TOTALS))
    return f"{len(seeds)} seeds of {nodes} brokers: {shown}"
