"""A figure, what it is held against, and how a run is shown and kept."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `floor` is what the machine itself did in the same run; `goal` is what we ask for."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    floor: float | None = None
    floor_name: str = ""
    note: str = ""
    lower_is_better: bool = False

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.lower_is_better else self.value >= self.goal

    @property
    def share(self) -> float | None:
        """How much of the floor is reached, as a fraction; for times, how many floors it takes."""
        return self.value / self.floor if self.floor else None


def percentile(values: Sequence[float], percent: float) -> float:
    """NaN when nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def shown(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def print_figures(figures: Sequence[Figure], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("figure", "measured", "unit", "goal", "floor", "of floor", "note"):
        table.add_column(column, justify="right" if column in ("measured", "goal", "floor", "of floor") else "left")
    for figure in figures:
        style = {True: "green", False: "red", None: ""}[figure.reached]
        goal = "" if figure.goal is None else f"{'≤' if figure.lower_is_better else '≥'} {shown(figure.goal)}"
        table.add_row(
            figure.name,
            f"[{style}]{shown(figure.value)}[/]" if style else shown(figure.value),
            figure.unit,
            goal,
            "" if figure.floor is None else f"{shown(figure.floor)} {figure.floor_name}".strip(),
            ""
            if figure.share is None
            else f"{figure.share:.0%}"
            if not figure.lower_is_better
            else f"{figure.share:.1f}×",
            figure.note,
        )
    Console().print(table)


def keep_figures(figures: Sequence[Figure]) -> Path:
    """Write the run to a file that a later run can be compared with; figures of other parts stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "latest.json"
    known = json.loads(path.read_text())["figures"] if path.exists() else {}
    known.update({figure.name: {**asdict(figure), "at": int(time.time())} for figure in figures})
    about = {"python": platform.python_version(), "machine": platform.machine()}
    path.write_text(json.dumps({"about": about, "figures": known}, indent=1))
    return path
