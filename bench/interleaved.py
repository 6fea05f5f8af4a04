"""Runs the benchmarks of two checkouts in turns: `python -m bench.interleaved BEFORE AFTER --only latency`.

Figures of two runs differ by what else the machine does. So each round runs one, then the other, and the next round
the other way round; what is printed for each figure is the median of each side and every value. The same checkout
twice shows the noise. Both need `make setup`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def run(checkout: Path, only: str) -> dict[str, float]:
    """Return each figure of one run by its name."""
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python), "-m", "bench.main", "--json", *(["--only", only] if only else [])]
    printed = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: figure["value"] for name, figure in json.loads(printed.splitlines()[-1]).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="names of benchmarks, with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sides = {"before": given.before.resolve(), "after": given.after.resolve()}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "after": []})
    for number in range(given.rounds):
        for side in sorted(sides, reverse=number % 2 == 0):
            print(f"round {number + 1}: {side}", file=sys.stderr, flush=True)
            for label, value in run(sides[side], given.only).items():
                values[label][side].append(value)
    for label, by_side in values.items():
        medians = {side: statistics.median(found) for side, found in by_side.items() if found}
        if len(medians) < 2:
            continue
        change = 100 * (medians["after"] / medians["before"] - 1) if medians["before"] else 0.0
        print(f"{label}: {medians['before']:g} -> {medians['after']:g} ({change:+.1f}%)  {by_side}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
