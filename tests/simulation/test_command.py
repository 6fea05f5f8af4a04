from __future__ import annotations

from pathlib import Path

import pytest

import lanner
from lanner.testing import simulator
from lanner.testing.history import History
from lanner.testing.simulate import main, source_digest


def test_seeds_that_pass_end_with_their_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--start", "40", "--events", "400", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "one broker: 2 seeds, 80" in shown
    assert "clusters: 2 seeds, " in shown
    for name in ("crashes", "torn tails", "expiries", "retries", "dead", "trims", "rewritten segments"):
        assert f"{name} " in shown
    for name in ("elections", "splits", "snapshots", "moves", "forwards"):
        assert f"{name} " in shown


def test_the_totals_name_the_source_that_ran(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--seeds", "1", "--events", "20", "--jobs", "1", "--nodes", "1"]) == 0
    assert f"; source {source_digest()}" in capsys.readouterr().out
    before = source_digest()
    path = Path(simulator.__file__)
    (tmp_path / "__init__.py").touch()
    changed = tmp_path / "simulator.py"
    changed.write_text(path.read_text() + "\n# one line more\n")
    package, lanner.__file__ = lanner.__file__, str(tmp_path / "__init__.py")
    simulator.__file__ = str(changed)
    try:
        other = source_digest()
        changed.write_text(path.read_text())
        assert other != source_digest(), "the content counts"
    finally:
        lanner.__file__, simulator.__file__ = package, str(path)
    assert source_digest() == before


def test_only_clusters_of_one_size_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--events", "300", "--jobs", "1", "--nodes", "5"]) == 0
    shown = capsys.readouterr().out
    assert "clusters: 1 seeds" in shown
    assert "one broker" not in shown


def test_a_bug_of_clusters_is_planted_in_clusters_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--jobs", "1", "--plant", "ack-before-followers-sync"]) == 0
    shown = capsys.readouterr().out
    assert "make sim SEED=0 NODES=3 PLANT=ack-before-followers-sync" in shown.strip().splitlines()[0]
    assert "one broker" not in shown


def test_a_planted_bug_that_is_caught_ends_well_and_prints_the_seed_first(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "3", "--events", "1500", "--jobs", "1", "--plant", "skipped-sync"]
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "make sim SEED=0 NODES=1 PLANT=skipped-sync" in shown.strip().splitlines()[0]
    assert "skipped-sync was caught" in shown


def test_a_planted_bug_that_is_not_caught_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--events", "20", "--jobs", "1", "--plant", "live-segment-dropped"]) == 1
    assert "was not caught" in capsys.readouterr().out


def test_a_replay_shows_what_was_broken_and_keeps_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--seed", "0", "--events", "1500", "--plant", "stale-lease-accepted", "--history", str(tmp_path)]
    assert main(given) == 1
    assert "stale lease accepted" in capsys.readouterr().out
    assert len(History.load(tmp_path / "lanner-seed-0-of-1.jsonl").events) > 500


def test_a_replay_of_a_good_seed_ends_well(tmp_path: Path) -> None:
    assert main(["--seed", "3", "--events", "300", "--history", str(tmp_path)]) == 0


def test_an_unknown_plant_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--plant", "weeds"])
