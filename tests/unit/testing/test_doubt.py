"""Calls that nobody heard the answer of, in histories of an observer who knows when they were over."""

from __future__ import annotations

from typing import Any

from lanner.testing.checkers import judge
from lanner.testing.history import (
    Administered,
    Crashed,
    Ended,
    Event,
    Handed,
    History,
    Polled,
    Published,
    Rules,
    Status,
    Stored,
)

GROUP = "workers"


def broken(*events: Event, **rules: Any) -> set[str]:
    history = History({0: Rules(**rules)}, list(events))
    return {violation.rule for violation in judge(history)}


def published(
    called: float, returned: float, offset: int, priority: int = 4, status: Status = Status.OK, **more: int
) -> Event:
    return Published(called, returned, status, 0, offset, (f"m{offset}",), priority, **more)


def polled(called: float, returned: float, token: int, *offsets: int, priority: int = 4, now_ms: int = 100) -> Event:
    messages = tuple(Handed(offset, f"m{offset}", priority, 1) for offset in offsets)
    return Polled(called, returned, Status.OK, GROUP, 0, messages, token, now_ms, now_ms + 1_000)


def unheard(called: float, over: float, auto_ack: bool = False) -> Event:
    return Polled(called, over, Status.UNKNOWN, GROUP, 0, auto_ack=auto_ack)


FIRST = polled(0.1, 0.2, 0)


def test_while_a_poll_is_in_doubt_nothing_is_demanded() -> None:
    urgent, lazy = published(1, 2, 0, 9), published(1, 2, 1, 1)
    assert broken(FIRST, urgent, lazy, unheard(3, 10), polled(4, 5, 7, 1, priority=1)) == set()


def test_what_came_after_a_poll_was_over_is_certain_again() -> None:
    events = (FIRST, unheard(1, 2), published(3, 4, 0, 9), published(3, 4, 1, 1))
    assert broken(*events, polled(5, 6, 7, 1, priority=1)) == {"priority inversion"}


def test_what_came_while_a_poll_was_in_doubt_may_have_gone_to_it() -> None:
    events = (FIRST, unheard(1, 5), published(3, 4, 0, 9), published(6, 7, 1, 1))
    assert broken(*events, polled(8, 9, 7, 1, priority=1)) == set()


def ended(*offsets: int) -> Event:
    stored = tuple(Stored(offset, f"m{offset}", 4) for offset in offsets)
    return Ended(90, 91, 0, 0, 9, stored, 10_000, (GROUP,))


def test_what_a_poll_in_doubt_may_have_settled_by_itself_need_not_be_accounted_for() -> None:
    taken = (FIRST, unheard(1, 5, auto_ack=True), published(3, 4, 0))
    assert broken(*taken, ended(0)) == set()
    missed = (FIRST, unheard(1, 2, auto_ack=True), published(3, 4, 0))
    assert broken(*missed, ended(0)) == {"message vanished"}


def test_a_seek_in_doubt_may_have_passed_over_what_came_before_it_was_over() -> None:
    seek = Administered(2, 6, Status.UNKNOWN, GROUP, 0, "seek", (9,))
    assert broken(FIRST, seek, published(3, 4, 0), ended(0)) == set()
    assert broken(FIRST, seek, published(7, 8, 0), ended(0)) == {"message vanished"}


def test_a_seek_that_a_crash_left_in_doubt_may_have_ended_a_lease() -> None:
    events = (FIRST, published(1, 2, 0), polled(3, 5, 7, 0), Crashed(6), polled(7, 8, 9, 0))
    assert broken(*events) == {"leased twice", "delivery count went back"}
    assert broken(*events, Administered(4, None, Status.UNKNOWN, GROUP, 0, "seek", (0,))) == set()


def test_while_a_seek_is_under_way_a_message_may_come_twice() -> None:
    events = (FIRST, published(1, 2, 0), polled(4, 5, 7, 0), polled(6, 7, 9, 0))
    assert broken(*events, Administered(3, 8, Status.OK, GROUP, 0, "seek", (0,))) == set()


def test_a_lease_of_after_a_seek_holds() -> None:
    events = (FIRST, published(1, 2, 0), polled(5, 6, 7, 0), polled(7, 8, 9, 0))
    answered = Administered(3, 4, Status.OK, GROUP, 0, "seek", (0,))
    assert broken(*events, answered) == {"leased twice", "delivery count went back"}
    crashed = (Administered(3, None, Status.UNKNOWN, GROUP, 0, "seek", (0,)), Crashed(4))
    assert broken(*events, *crashed) == {"leased twice", "delivery count went back"}


def test_a_seek_does_not_excuse_a_delivery_beyond_the_limit() -> None:
    seek = Administered(3, 4, Status.OK, GROUP, 0, "seek", (0,))
    third = Polled(5, 6, Status.OK, GROUP, 0, (Handed(0, "m0", 4, 3),), 7, 100, 1_100)
    assert broken(FIRST, published(1, 2, 0), seek, third, max_deliveries=2) == {"delivered too often"}
    assert broken(FIRST, published(1, 2, 0), seek, third, max_deliveries=3) == set()


def test_a_redrive_in_doubt_is_forgotten_when_it_is_over() -> None:
    redrive = Administered(2, 3, Status.UNKNOWN, GROUP, 0, "redrive")
    assert broken(FIRST, redrive, published(4, 5, 0, 9), published(4, 5, 1, 1), polled(6, 7, 7, 1, priority=1)) == {
        "priority inversion"
    }


def test_a_delayed_batch_that_may_come_in_at_any_moment_excuses_a_poll_in_vain() -> None:
    waiting = published(1, 2, 0)
    looked = polled(2.1, 2.2, 0, now_ms=50)
    in_vain = polled(5, 6, 0)
    assert broken(FIRST, waiting, looked, in_vain) == {"message withheld"}
    late = published(3, 9, 1, status=Status.UNKNOWN, deliver_at_ms=10)
    assert broken(FIRST, waiting, late, in_vain) == set()


def test_retention_looks_at_when_a_batch_was_first_sent() -> None:
    """It came with the first attempt, before the group; only the second was heard of."""
    first = Published(1, None, Status.UNKNOWN, 0, -1, ("m0",), 4)
    again = published(8, 9, 0)
    group = polled(4, 5, 0)
    assert broken(first, group, again, ended(), retention="acked") == set()
    assert broken(group, again, ended(), retention="acked") == {"lost write"}
