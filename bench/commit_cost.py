"""What a commit costs in the loop and in the writer: `python bench/commit_cost.py [SRC...]`.

Each SRC is the `src` folder of a checkout; they take turns, a round each, in processes of their own, so that a noisy
machine treats them alike. Figures are medians in microseconds, the best round of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROUNDS = 7
SHAPES = {
    "1 entry of 100 B": (1, 100, 2_000),
    "1 entry of 60 KB": (1, 60_000, 600),
    "200 sets, 4 KB each": (200, 4_096, 60),
}


def measure() -> dict[str, list[float]]:
    """One round: for every shape the time in the loop (`begin_commit`, `commit_synced`), and with write and sync."""
    from lanner.ledger import CommitItem, EntryIn, Ledger, perform
    from lanner.storage import DiskFiles, MemoryTable

    told = {}
    for shape, (sets, size, count) in SHAPES.items():
        with tempfile.TemporaryDirectory(dir=".") as folder:
            files = DiskFiles(Path(folder) / "journal")
            ledger = Ledger.recover(files, MemoryTable(), random_bytes=lambda length: b"\x07" * length)
            for set_id in range(1, sets + 1):
                ledger.add_set(set_id)
            payload = b"x" * size
            loop: list[float] = []
            whole: list[float] = []
            for index in range(1, count + 1):
                began = time.perf_counter()
                items = [CommitItem(set_id, None, [EntryIn(index, 1, 1, payload)]) for set_id in range(1, sets + 1)]
                commit = ledger.begin_commit(items)
                begun = time.perf_counter()
                perform(commit, files)
                written = time.perf_counter()
                ledger.commit_synced(commit)
                ended = time.perf_counter()
                loop.append(ended - began - (written - begun))
                whole.append(ended - began)
            files.close()
            told[shape] = [median(loop) * 1e6, median(whole) * 1e6]
    return told


def main(sources: list[str]) -> None:
    best: dict[str, dict[str, list[float]]] = {}
    for _ in range(ROUNDS):
        for source in sources:
            shown = subprocess.run(
                [sys.executable, __file__, "--round"], env={"PYTHONPATH": source}, capture_output=True, check=True
            )
            for shape, figures in json.loads(shown.stdout).items():
                known = best.setdefault(shape, {}).setdefault(source, figures)
                best[shape][source] = [min(pair) for pair in zip(known, figures, strict=True)]
    for shape, found in best.items():
        for source, (loop, whole) in found.items():
            print(f"{shape:20}  {source:40}  in the loop {loop:8.1f} µs   with write and sync {whole:8.1f} µs")


if __name__ == "__main__":
    if sys.argv[1:] == ["--round"]:
        print(json.dumps(measure()))
    else:
        main(sys.argv[1:] or ["src"])
