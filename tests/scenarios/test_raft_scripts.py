"""Every script under raft/ leaves exactly the trace that is written in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.raft_script import FOLDER, RULE, played

SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_leaves_the_trace_that_is_written_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(RULE) >= 2, "a script without a trace proves nothing"
    assert played(text) == text


def test_a_trace_that_is_not_true_is_noticed() -> None:
    text = "nodes 1 2 3\ncampaign 1\nrun\n----\n"
    true = played(text)
    assert "1 is leader of term 1" in true
    assert played(true) == true
    assert played(true.replace("1 is leader", "2 is leader")) == true
