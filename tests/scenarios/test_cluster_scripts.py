"""Every script under cluster/ leaves exactly the trace that is written in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.cluster_script import FOLDER, RULE, played

SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_leaves_the_trace_that_is_written_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(RULE) >= 2, "a script without a trace proves nothing"
    assert played(text) == text


def test_a_trace_that_is_not_true_is_noticed() -> None:
    text = "brokers 3\ntopic orders\npublish orders a\n----\n"
    true = played(text)
    assert "a is acknowledged at 0" in true
    assert played(true.replace("at 0", "at 1")) == true
