"""What has begun to arrive and is not whole: how it is counted, and who goes first."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lanner.errors import LannerError
from lanner.net.unfinished import Part, Unfinished, choose_slowest


class Sender:
    """Holds a part, and remembers why it had to let go."""

    def __init__(self, unfinished: Unfinished) -> None:
        self.let_go: asyncio.Future[LannerError] = asyncio.get_running_loop().create_future()
        self.part = unfinished.begin(self)

    def end(self, error: LannerError) -> None:
        self.let_go.set_result(error)


def part(size: int, seconds: float) -> Part:
    made = Part(None, -seconds)  # type: ignore[arg-type]
    made.size = size
    return made


def test_the_slowest_goes_first() -> None:
    fast, slow = part(1_000, 1), part(1_000, 10)
    assert choose_slowest([fast, slow], 0) is slow
    assert choose_slowest([slow, fast], 0) is slow


def test_a_small_frame_over_a_slow_line_does_not_pay_for_large_ones() -> None:
    small, large = part(100, 50), part(1_000_000, 1)
    assert choose_slowest([small, large, part(1_000_000, 0.5)], 0) is large


def test_of_equal_ones_there_is_one_to_choose() -> None:
    assert choose_slowest([part(7, 1)] * 3, 0).size == 7
    assert choose_slowest([part(0, 0)], 0).size == 0


async def test_beyond_the_budget_one_after_the_other_goes_until_the_rest_fits(caplog: pytest.LogCaptureFixture) -> None:
    unfinished = Unfinished(100, 60_000)
    senders = [Sender(unfinished) for _ in range(4)]
    for age, sender in enumerate(senders):
        sender.part.began -= 10 * (4 - age)  # the first one is the slowest
    with caplog.at_level(logging.WARNING, "lanner.net"):
        for sender in senders:
            unfinished.hold(sender.part, 40)
    assert [sender.let_go.done() for sender in senders] == [True, True, False, False]
    assert "40 bytes of this one" in str(senders[0].let_go.result())
    assert (unfinished.held_bytes, unfinished.let_go_total) == (80, 2)
    assert caplog.text.count("the slowest are let go") == 1  # said once for as long as it lasts


async def test_it_is_said_again_once_there_was_room_in_between(caplog: pytest.LogCaptureFixture) -> None:
    unfinished = Unfinished(100, 60_000)
    with caplog.at_level(logging.WARNING, "lanner.net"):
        for _ in range(2):
            senders = [Sender(unfinished) for _ in range(3)]
            for sender in senders:
                unfinished.hold(sender.part, 40)
            for sender in senders:
                unfinished.end(sender.part)
    assert unfinished.held_bytes == 0
    assert caplog.text.count("the slowest are let go") == 2


async def test_what_was_let_go_is_counted_no_more_whatever_its_holder_says() -> None:
    unfinished = Unfinished(100, 60_000)
    sender = Sender(unfinished)
    unfinished.hold(sender.part, 101)
    assert sender.let_go.done()
    unfinished.hold(sender.part, 200)
    unfinished.end(sender.part)
    assert unfinished.held_bytes == 0


async def test_a_part_that_is_not_whole_at_its_deadline_is_let_go() -> None:
    unfinished = Unfinished(100, 50)
    sender, other = Sender(unfinished), Sender(unfinished)
    unfinished.hold(sender.part, 7)
    unfinished.end(other.part)  # whole
    error = await asyncio.wait_for(sender.let_go, 5)
    assert "not whole 0.05 s after its first byte, 7 bytes came" in str(error)
    assert unfinished.held_bytes == 0
    assert not other.let_go.done()


async def test_while_the_broker_does_not_read_the_deadline_stands_still() -> None:
    unfinished = Unfinished(100, 40)
    paused, sender = Sender(unfinished), Sender(unfinished)
    unfinished.stop(paused.part)
    unfinished.stop(paused.part)
    await asyncio.wait_for(sender.let_go, 5)
    later = Sender(unfinished)
    await asyncio.wait_for(later.let_go, 5)  # twice the deadline is over
    assert not paused.let_go.done()
    unfinished.resume(paused.part)
    unfinished.resume(paused.part)
    assert paused.part.seconds(asyncio.get_running_loop().time()) < 0.04
    await asyncio.wait_for(paused.let_go, 5)


async def test_with_nothing_on_its_way_nothing_wakes_up() -> None:
    unfinished = Unfinished(100, 16)
    sender = Sender(unfinished)
    unfinished.end(sender.part)
    for _ in range(200):
        if unfinished._timer is None:
            break
        await asyncio.sleep(0.005)
    assert unfinished._timer is None
