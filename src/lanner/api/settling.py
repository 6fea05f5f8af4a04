"""Settles as doors take them, message by message, and as partitions like them, range by range.

A caller that was handed five hundred messages in a row acks five hundred. Where they are of one lease they are asked
for as one range, which costs a partition no more than one message. A range has one answer: when it says that not all
of it took effect, its messages are asked for one by one. What took effect says so again when it is asked again. Only
acks are put together: others are few.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from lanner import limits
from lanner.errors import ValidationError
from lanner.wire.messages import SettledItem, SettleItem, SettleKind

Ask = Callable[[list[SettleItem]], Awaitable[list[SettledItem]]]
_ACK = int(SettleKind.ACK)


class Target(Protocol):
    """What a caller names: a message that was leased to it, and how many behind it."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def count(self) -> int:
        """0: 1."""


class Outcome(NamedTuple):
    """What became of targets that stand one behind the other."""

    item: SettleItem
    targets: int  # how many
    told: SettledItem | None = None  # None: all of it took effect

    @property
    def singles(self) -> range | None:
        """The offsets, where each target was one message and all took effect."""
        if self.told is not None or self.targets != self.item.count:
            return None
        return range(self.item.first_offset, self.item.first_offset + self.item.count)


async def acknowledge(targets: Sequence[Target], ask: Ask) -> list[Outcome]:
    """Ack these in as few ranges as they make; what became of each, in the order given."""
    _check_count(len(targets))
    ranges = in_ranges(targets)
    outcomes: list[Outcome] = []
    unclear: list[int] = []  # places among the outcomes
    begin = 0
    for one, told in zip(ranges, await ask([one.item for one in ranges]), strict=True):
        if one.targets == 1:
            outcomes.append(one._replace(told=told))
        elif told.code == 0 and told.count == one.item.count:
            outcomes.append(one)
        else:
            unclear += range(len(outcomes), len(outcomes) + one.targets)
            outcomes += [Outcome(_ack(target), 1) for target in targets[begin : begin + one.targets]]
        begin += one.targets
    if unclear:
        answers = await ask([outcomes[place].item for place in unclear])
        for place, told in zip(unclear, answers, strict=True):
            outcomes[place] = outcomes[place]._replace(told=told)
    return outcomes


async def settle(items: list[SettleItem], ask: Ask) -> list[SettledItem]:
    """Ask for these settles as they are."""
    _check_count(len(items))
    return await ask(items)


def told_of(targets: Sequence[Target], outcomes: Sequence[Outcome]) -> list[SettledItem]:
    """What became of each target."""
    found: list[SettledItem] = []
    for one in outcomes:
        if one.told is not None:
            found.append(one.told)
        else:
            behind = targets[len(found) : len(found) + one.targets]
            found += [SettledItem(0, target.count or 1) for target in behind]
    return found


def in_ranges(targets: Sequence[Target]) -> list[Outcome]:
    """Ranges, each with how many targets it stands for."""
    ranges: list[Outcome] = []
    partition = token = first = end = -1
    held = 0
    for one in targets:
        offset = one.offset
        if offset == end and one.token == token and one.partition == partition:
            held += 1
        else:
            if held:
                ranges.append(Outcome(SettleItem(partition, token, first, end - first, _ACK), held))
            partition, token, first, held = one.partition, one.token, offset, 1
        end = offset + (one.count or 1)
    if held:
        ranges.append(Outcome(SettleItem(partition, token, first, end - first, _ACK), held))
    return ranges


def _ack(target: Target) -> SettleItem:
    return SettleItem(target.partition, target.token, target.offset, target.count or 1, _ACK)


def _check_count(count: int) -> None:
    if count > limits.SETTLE_RANGES_MAX:
        raise ValidationError(f"{count} ranges in one call; {limits.SETTLE_RANGES_MAX} are allowed")
