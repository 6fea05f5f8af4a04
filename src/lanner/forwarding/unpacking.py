"""Leased batches as single messages, for doors whose callers cannot read batches.

- What a reply holds is bounded in bytes as they are decoded, which may be many times what is stored. What it has no
  room for is given back uncounted; one message always fits.
- A batch that does not decode is made dead as `malformed`, alone: its neighbours are handed out.
- What is to be settled as it is handed out (at most once) is leased first, and settled when it is known what the reply
  holds. So nothing is settled that does not fit or does not decode; and nothing is handed out whose settle may not have
  taken effect, because somebody else may get it.
- Much is decoded in a reader thread, so that the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from lanner import batch, limits
from lanner.calls import Asker, Identity
from lanner.calls.merging import Room
from lanner.errors import LannerError, MalformedBatch
from lanner.forwarding.delivery import DeliveredBatches, Opened, places_of, raw_bytes
from lanner.forwarding.fitting import TAKING_LEASE_MS, reply_bytes_max
from lanner.forwarding.ports import Reader
from lanner.forwarding.values import Delivered, LeasedBatch, Range, leased_batches
from lanner.wire.messages import Poll, Release, Settle, SettleItem

log = logging.getLogger("lanner.forwarding")

MALFORMED: Final = "malformed"  # the reason of dead letters that do not decode
INLINE_BYTES_MAX: Final = 256 * limits.KIB  # so much is decoded faster than a thread can be asked to
INLINE_MESSAGES_MAX: Final = 2_000
_HEADERS_COST: Final = 10  # messages with headers take so much longer
_ACK, _REJECT = 1, 4


class Unpacked(NamedTuple):
    """What became of the leases of a poll."""

    opened: list[Opened]
    kept: list[SettleItem]
    left_out: list[SettleItem]
    malformed: list[SettleItem]


class Handed(NamedTuple):
    """Single messages that a poll hands out; call `unheard` when they cannot be handed over."""

    messages: Sequence[Delivered]
    unheard: Callable[[], None] | None = None  # None: nothing goes back


class Unpacking:
    """Polls for single messages."""

    def __init__(self, asker: Asker, reader: Reader, own: Identity) -> None:
        self._asker = asker
        self._reader = reader
        self._own = own  # gives back what nobody saw
        self._loop = asyncio.get_running_loop()

    async def poll(self, identity: Identity, call: Poll) -> Handed:
        began = self._loop.time()
        wanted = replace(call, auto_ack=False, lease_ms=TAKING_LEASE_MS if call.auto_ack else call.lease_ms)
        while True:
            found = await self._asker.ask(identity, wanted)
            if not found.control.batches:
                return Handed([])
            try:
                messages = await self._hand_out(identity, call, leased_batches(found))
            except BaseException:
                if found.unheard is not None:
                    found.unheard()
                raise
            if messages:
                return Handed(messages, None if call.auto_ack else found.unheard)
            left_ms = max(0, call.wait_ms - round((self._loop.time() - began) * 1_000))
            wanted = replace(wanted, wait_ms=left_ms)  # nothing of it could be handed out

    async def _hand_out(self, identity: Identity, call: Poll, batches: Sequence[LeasedBatch]) -> Sequence[Delivered]:
        room_bytes = reply_bytes_max(call.max_bytes)
        if is_little(batches):
            unpacked = unpack(batches, room_bytes)
        else:
            unpacked = await self._reader.in_reader(lambda: unpack(batches, room_bytes))
        if unpacked.left_out:
            await self._release(call, unpacked.left_out)
        settles = [*unpacked.malformed, *(unpacked.kept if call.auto_ack else ())]
        messages = DeliveredBatches(call.topic, unpacked.opened)
        if not settles:
            return messages
        answer = await self._asker.ask(identity, Settle(call.group, call.topic, settles))
        if unpacked.malformed:
            log.warning(
                "%d batches of %s do not decode: dead letters of group %s",
                len(unpacked.malformed),
                call.topic,
                call.group,
            )
        if not call.auto_ack or not any(result.code for result in answer.control.items):
            return messages
        taken = {
            (item.partition, offset)
            for item, result in zip(settles, answer.control.items, strict=True)
            if result.code == 0
            for offset in range(item.first_offset, item.first_offset + item.count)
        }
        return [one for one in messages if (one.message.partition, one.message.offset) in taken]

    async def _release(self, call: Poll, items: list[SettleItem]) -> None:
        try:
            await self._asker.ask(self._own, Release(call.group, call.topic, items))
        except LannerError as error:
            log.info("leases that nobody saw could not be released: %s", error)  # they end by themselves


def is_little(batches: Iterable[LeasedBatch]) -> bool:
    """Whether decoding all of this takes no time to speak of."""
    bytes_left, messages_left = INLINE_BYTES_MAX, INLINE_MESSAGES_MAX
    for leased in batches:
        bytes_left -= raw_bytes(leased.data)
        messages_left -= sum([item.count for item in leased.ranges]) * _cost(leased.data)
    return bytes_left >= 0 and messages_left >= 0


def _cost(data: bytes | memoryview) -> int:
    try:
        return _HEADERS_COST if batch.read_header(data).flags & batch.FLAG_HEADERS else 1
    except MalformedBatch:
        return 1


def unpack(batches: Sequence[LeasedBatch], bytes_max: int) -> Unpacked:
    """The messages in the order leased, as many as fit; and what is to be said about the leases."""
    room = Room(bytes_max)
    unpacked = Unpacked([], [], [], [])
    for number, leased in enumerate(batches):
        try:
            decoded = batch.decode(leased.data)
        except MalformedBatch:
            unpacked.malformed.extend(replace(item, kind=_REJECT, reason=MALFORMED) for item in _items([leased]))
            continue
        count = _fitting(leased, decoded, room)
        kept, rest = _split(leased, count)
        if count:
            unpacked.opened.append(Opened(kept, decoded))
            unpacked.kept.extend(_items([kept]))
        if rest.ranges:
            unpacked.left_out.extend(_items([rest, *batches[number + 1 :]]))
            break
    return unpacked


def _fitting(leased: LeasedBatch, decoded: batch.Batch, room: Room) -> int:
    """How many of the leased messages go in, in their order."""
    sizes, place_of = decoded.sizes(), places_of(decoded)
    count = sum([item.count for item in leased.ranges])
    if place_of is None and count == len(sizes) and room.has(whole := sum(sizes)):
        room.take(whole)
        return count
    count = 0
    for item in leased.ranges:
        for position in range(
            item.first_offset - leased.base_offset, item.first_offset - leased.base_offset + item.count
        ):
            place = position if place_of is None else place_of.get(position, -1)
            size = sizes[place] if place >= 0 else 0
            if not room.has(size) and not room.is_empty:
                return count
            room.take(size)
            count += 1
    return count


def _split(leased: LeasedBatch, count: int) -> tuple[LeasedBatch, LeasedBatch]:
    kept: list[Range] = []
    rest: list[Range] = []
    for item in leased.ranges:
        mine = min(count, item.count)
        count -= mine
        if mine:
            kept.append(item._replace(count=mine))
        if mine < item.count:
            rest.append(item._replace(first_offset=item.first_offset + mine, count=item.count - mine))
    return leased._replace(ranges=kept), leased._replace(ranges=rest)


def _items(batches: Iterable[LeasedBatch]) -> list[SettleItem]:
    return [
        SettleItem(leased.partition, leased.token, item.first_offset, item.count, _ACK)
        for leased in batches
        for item in leased.ranges
    ]
