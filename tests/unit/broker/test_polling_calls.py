"""Which call of a poll has its leases, when a member asks again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from lanner.broker.desks.polling import Polling


def make_polling() -> Polling:
    anything: Any = SimpleNamespace(now_ms=lambda: 0)
    return Polling(anything, anything, cast(Any, None))


def test_a_poll_that_was_asked_again_belongs_to_the_later_call() -> None:
    polling = make_polling()
    first = polling.called("orders", "g", "m", 5)
    assert not polling.was_repeated("g", "m", 5, first)
    second = polling.called("orders", "g", "m", 5)
    assert polling.was_repeated("g", "m", 5, first)
    assert not polling.was_repeated("g", "m", 5, second)


def test_a_poll_of_another_topic_under_the_same_names_and_sequence_is_no_repetition() -> None:
    """Its leases would be released by nobody, and stay until they end."""
    polling = make_polling()
    first = polling.called("orders", "g", "m", 5)
    polling.called("payments", "g", "m", 5)
    assert not polling.was_repeated("g", "m", 5, first)
