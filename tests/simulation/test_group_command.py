"""`make sim-groups`: totals when all is well, the seed and every broken rule when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanner.testing.planted_groups import GROUP_PLANTS
from lanner.testing.simulate import source_digest
from lanner.testing.simulate_groups import main


def test_seeds_that_pass_end_with_their_totals_and_the_source_that_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--start", "60", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "groups: 3 seeds" in shown and f"; source {source_digest()}" in shown
    for name in ("joins", "kills", "leaves", "sleeps", "claims", "leases"):
        assert f"{name} " in shown


def test_more_processes_come_to_the_same_totals(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for jobs in ("1", "2"):
        assert main(["--seeds", "4", "--jobs", jobs]) == 0
        shown.append(capsys.readouterr().out.split("\nin ")[0].strip())
    assert shown[0] == shown[1] and "joins" in shown[0]


def test_a_seed_that_breaks_a_rule_is_printed_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    GROUP_PLANTS["needless-move"].put(monkeypatch.setattr)
    assert main(["--seeds", "1", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert "make sim-groups SEED=0" in shown and "stream group: " in shown
    assert main(["--seed", "0", "--history", str(tmp_path)]) == 1
    assert "stream group: " in capsys.readouterr().out
    for kind in ("stream", "queue"):
        assert len((tmp_path / f"lanner-{kind}-group-seed-0.txt").read_text().splitlines()) > 100


def test_a_replay_of_a_good_seed_ends_well(tmp_path: Path) -> None:
    assert main(["--seed", "3", "--history", str(tmp_path)]) == 0
