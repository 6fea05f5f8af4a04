"""What commands that run Spark refuse before they start it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from lanner.cli.app import app


@pytest.mark.parametrize(
    "words",
    [
        "archive orders --path x --follow --every inf",
        "archive --path x --compact --grace-minutes inf",
        "replay orders --to again --rate inf",
        "replay orders --to again --rate nan",
    ],
)
def test_a_number_that_never_ends_is_wrong_usage(words: str) -> None:
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == 2
    assert words.split()[-2] in found.output
