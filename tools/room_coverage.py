"""The gate of `make test` (pure rooms, 97%) and of `make coverage` (broker, client and doors, 90%), by statements and
branches.

Reads the JSON report of coverage.py and judges the two figures apart, because their sum hides a weak one. A room
that nothing covers is not in the report at all; that is a failure too.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = "src/lanner/"


class Count:
    """Covered and total, of statements and of branches."""

    def __init__(self) -> None:
        self.statements = [0, 0]
        self.branches = [0, 0]

    def add(self, summary: dict[str, int]) -> None:
        self.statements[0] += summary["covered_lines"]
        self.statements[1] += summary["num_statements"]
        self.branches[0] += summary["covered_branches"]
        self.branches[1] += summary["num_branches"]

    def percent(self) -> tuple[float, float]:
        return _percent(*self.statements), _percent(*self.branches)


def _percent(covered: int, total: int) -> float:
    return 100.0 * covered / total if total else 100.0


def main(report: Path, percent_min: float) -> int:
    files = json.loads(report.read_text())["files"]
    rooms: dict[str, Count] = defaultdict(Count)
    everything = Count()
    weak = []
    for name, entry in sorted(files.items()):
        inside = name.removeprefix(SOURCE)
        rooms[inside.split("/")[0].removesuffix(".py")].add(entry["summary"])
        everything.add(entry["summary"])
        one = Count()
        one.add(entry["summary"])
        if min(one.percent()) < percent_min:
            weak.append((name, *one.percent()))
    print(f"{'coverage':32}{'statements':>12}{'branches':>12}")
    for room, count in sorted(rooms.items()):
        print(f"  {room:30}{count.percent()[0]:>11.1f}%{count.percent()[1]:>11.1f}%")
    statements, branches = everything.percent()
    print(f"  {'all':30}{statements:>11.1f}%{branches:>11.1f}%")
    for name, one_statements, one_branches in weak:
        print(f"  below {percent_min:g}%: {name} {one_statements:.1f}% statements, {one_branches:.1f}% branches")
    if not files or min(statements, branches) < percent_min:
        print(f"failed: statements and branches must each reach {percent_min:g}%", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
