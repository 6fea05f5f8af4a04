"""Every script under cluster/ and raft/ leaves exactly the trace that is written in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import cluster_script, raft_script
from tests.scenarios.playing import RULE

PLAYED = {script.FOLDER: script.played for script in (cluster_script, raft_script)}
SCRIPTS = [path for folder in PLAYED for path in sorted(folder.glob("*.txt"))]


@pytest.mark.parametrize("path", SCRIPTS, ids=[f"{path.parent.name}/{path.stem}" for path in SCRIPTS])
def test_a_script_leaves_the_trace_that_is_written_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(RULE) >= 2, "a script without a trace proves nothing"
    assert PLAYED[path.parent](text) == text


def test_a_trace_of_a_cluster_that_is_not_true_is_noticed() -> None:
    true = cluster_script.played("brokers 3\ntopic orders\npublish orders a\n----\n")
    assert "a is acknowledged at 0" in true
    assert cluster_script.played(true.replace("at 0", "at 1")) == true


def test_a_trace_of_a_replica_set_that_is_not_true_is_noticed() -> None:
    true = raft_script.played("nodes 1 2 3\ncampaign 1\nrun\n----\n")
    assert "1 is leader of term 1" in true
    assert raft_script.played(true.replace("1 is leader", "2 is leader")) == true
