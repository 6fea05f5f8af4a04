"""Notices: each once, and then rarely."""

from __future__ import annotations

import logging

import pytest

from lanner.broker.links.notices import REMEMBERED_MAX, Notices


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_same_notice_is_said_once_and_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    notices = Notices(logging.getLogger("test"), again_seconds=30, now_seconds=clock)
    assert notices.say("b", "gone")
    assert not notices.say("b", "gone")
    clock.seconds = 29
    assert not notices.say("b", "gone")
    clock.seconds = 30
    assert notices.say("b", "gone", logging.ERROR)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_news_about_the_same_and_the_same_about_another_are_said_at_once() -> None:
    notices = Notices(logging.getLogger("test"))
    assert notices.say("b", "gone")
    assert notices.say("b", "refused")
    assert notices.say("c", "refused")


def test_only_so_many_are_remembered() -> None:
    notices = Notices(logging.getLogger("test"))
    for number in range(REMEMBERED_MAX + 1):
        notices.say(str(number), "gone")
    assert notices.say("0", "gone")
    assert not notices.say(str(REMEMBERED_MAX), "gone")
