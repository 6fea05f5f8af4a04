from __future__ import annotations

import contextlib
import sys

import pytest

from lanner.cli import messages
from lanner.cli.screen import Screen
from lanner.model import Message

EVIL = Message(topic="orders", partition=0, offset=7, value=b"\x1b]0;title\x07", timestamp_ms=1, attempt=1)


def test_a_value_is_shown_to_people_without_what_drives_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    messages._show(Screen(as_json=False), EVIL, values=False)
    assert capsys.readouterr().out == "normal  orders/0/7  \\x1b]0;title\\x07\n"


@pytest.mark.parametrize(("watched", "shown"), [(True, "\\x1b]0;title\\x07\n"), (False, "\x1b]0;title\x07\n")])
def test_values_alone_are_as_they_are_unless_somebody_watches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, watched: bool, shown: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched)
    messages._show(Screen(as_json=False), EVIL, values=True)
    assert capsys.readouterr().out == shown


def test_a_publish_that_is_cut_short_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with contextlib.suppress(KeyboardInterrupt), messages._Progress(as_json=False) as progress:
        progress.show(465_262, 1.0)
        raise KeyboardInterrupt
    assert "Stopped; at least 465,262 published." in capsys.readouterr().err
