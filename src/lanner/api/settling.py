"""Settles as doors take them, message by message, and as partitions like them, range by range.

A caller that was handed five hundred messages in a row acks five hundred. Where they are of one lease they are asked
for as one range, which costs a partition no more than one message. A range has one answer: when it says that not all
of it took effect, its messages are asked for one by one. What took effect says so again when it is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lanner import limits
from lanner.errors import ValidationError
from lanner.wire.messages import SettledItem, SettleItem, SettleKind

_ACK = int(SettleKind.ACK)


async def settle(
    items: Sequence[SettleItem], ask: Callable[[list[SettleItem]], Awaitable[list[SettledItem]]]
) -> list[SettledItem]:
    """Ask for these settles in as few ranges as they make; what became of each, in the order given."""
    if len(items) > limits.SETTLE_RANGES_MAX:
        raise ValidationError(f"{len(items)} ranges in one call; {limits.SETTLE_RANGES_MAX} are allowed")
    ranges = in_ranges(items)
    results: list[SettledItem] = []
    unclear: list[int] = []
    for (whole, parts), told in zip(ranges, await ask([whole for whole, _ in ranges]), strict=True):
        if len(parts) == 1:
            results.append(told)
            continue
        if told.code or told.count != whole.count:
            unclear += range(len(results), len(results) + len(parts))
        results += [SettledItem(0, part.count) for part in parts]
    if unclear:
        for place, told in zip(unclear, await ask([items[place] for place in unclear]), strict=True):
            results[place] = told
    return results


def in_ranges(items: Sequence[SettleItem]) -> list[tuple[SettleItem, list[SettleItem]]]:
    """Ranges, each with the items that it stands for. Only acks are put together: others are few."""
    ranges: list[tuple[SettleItem, list[SettleItem]]] = []
    parts: list[SettleItem] = []
    end = -1
    for item in items:
        last = parts[-1] if parts else None
        if (
            last is not None
            and item.first_offset == end
            and item.kind == last.kind == _ACK
            and item.token == last.token
            and item.partition == last.partition
            and item.count > 0 < last.count
        ):
            parts.append(item)
        else:
            if parts:
                ranges.append((_joined(parts, end), parts))
            parts = [item]
        end = item.first_offset + item.count
    if parts:
        ranges.append((_joined(parts, end), parts))
    return ranges


def _joined(parts: Sequence[SettleItem], end: int) -> SettleItem:
    first = parts[0]
    if len(parts) == 1:
        return first
    return SettleItem(first.partition, first.token, first.first_offset, end - first.first_offset, _ACK)
