"""Acks of messages in a row are asked for as ranges, and answered message by message."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from lanner import limits
from lanner.api.settling import Target, acknowledge, in_ranges, settle, told_of
from lanner.errors import LeaseLost, ValidationError
from lanner.wire.messages import SettledItem, SettleItem, SettleKind

LOST = LeaseLost().code


class Named(NamedTuple):
    """A target, as callers name it."""

    partition: int
    offset: int
    token: int
    count: int  # type: ignore[assignment]


def ack(offset: int, count: int = 1, *, partition: int = 0, token: int = 7) -> Named:
    return Named(partition, offset, token, count)


class Broker:
    """It has lost some leases, and notes what it is asked."""

    def __init__(self, *lost: int) -> None:
        self.lost = set(lost)
        self.asked: list[list[tuple[int, int]]] = []

    async def settle(self, items: list[SettleItem]) -> list[SettledItem]:
        self.asked.append([(item.first_offset, item.count) for item in items])
        return [self._settled(range(item.first_offset, item.first_offset + item.count)) for item in items]

    def _settled(self, offsets: range) -> SettledItem:
        held = len(set(offsets) - self.lost)
        return SettledItem(0 if held == len(offsets) else LOST, held)


async def results(broker: Broker, *targets: Target) -> list[SettledItem]:
    return told_of(targets, await acknowledge(targets, broker.settle))


async def test_messages_in_a_row_are_one_range_and_each_has_its_answer() -> None:
    broker = Broker()
    assert await results(broker, ack(4), ack(5), ack(6, 3), ack(9, 0)) == [
        SettledItem(0, 1),
        SettledItem(0, 1),
        SettledItem(0, 3),
        SettledItem(0, 1),
    ]
    assert broker.asked == [[(4, 6)]]


@pytest.mark.parametrize(
    "second",
    [ack(6), ack(4), ack(5, token=8), ack(5, partition=1)],
    ids=["a gap", "the same again", "another lease", "another partition"],
)
async def test_what_does_not_belong_together_is_asked_for_by_itself(second: Named) -> None:
    found = in_ranges([ack(4), second])
    assert [(one.targets, one.item.first_offset, one.item.token) for one in found] == [
        (1, 4, 7),
        (1, second.offset, second.token),
    ]


async def test_a_nack_behind_a_nack_stays_by_itself_because_each_may_have_its_own_delay() -> None:
    broker = Broker()
    items = [SettleItem(0, 7, offset, 1, int(SettleKind.NACK), 50 * offset) for offset in range(3)]
    assert await settle(items, broker.settle) == [SettledItem(0, 1)] * 3
    assert broker.asked == [[(0, 1), (1, 1), (2, 1)]]


async def test_only_single_messages_that_all_took_effect_are_told_by_their_offsets() -> None:
    broker = Broker(9)
    singles, counted, lost = [
        outcome.singles
        for outcome in await acknowledge([ack(4), ack(5), ack(7, 2), ack(9, token=8)], broker.settle)
        if outcome.item
    ]
    assert (singles, counted, lost) == (range(4, 6), None, None)


async def test_when_some_of_a_range_is_lost_every_message_of_it_is_asked_for_alone() -> None:
    broker = Broker(5)
    items = [ack(4), ack(5), ack(6), ack(8), ack(9)]
    assert await results(broker, *items) == [
        SettledItem(0, 1),
        SettledItem(LOST, 0),
        SettledItem(0, 1),
        SettledItem(0, 1),
        SettledItem(0, 1),
    ]
    assert broker.asked == [[(4, 3), (8, 2)], [(4, 1), (5, 1), (6, 1)]]


async def test_more_than_a_call_may_name_are_refused_before_anything_is_asked() -> None:
    broker = Broker()
    with pytest.raises(ValidationError, match="10001 ranges in one call"):
        await results(broker, *[ack(offset) for offset in range(limits.SETTLE_RANGES_MAX + 1)])
    assert broker.asked == []
