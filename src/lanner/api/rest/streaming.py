"""A partition as server-sent events: what is there, then what comes, until somebody ends it.

Nothing is read ahead: the next batches are asked for when the socket has taken the last ones, so a client that does not
read stops the stream, and holds one piece at most. A piece is a page, and smaller when much is held for clients that do
not read: then what is left of a page is read again.

The id of an event is the offset of its message; a client that comes again says the last one it saw (`Last-Event-ID`)
and goes on behind it. What ends a stream, other than the client, is told as its last event.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from operator import itemgetter
from typing import Final

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from lanner import limits
from lanner.api.reading import FETCH_BYTES, Hole, Page, page_of
from lanner.api.rest.operations import Call, Door, Streamed
from lanner.api.rest.problems import answer_to, answer_to_unexpected
from lanner.api.rest.shapes import HoleOut, NoBody, StreamQuery
from lanner.api.rest.topics import lanes_of, shown
from lanner.calls import Answer
from lanner.errors import LannerError, OffsetOutOfRange, Overloaded, ValidationError
from lanner.forwarding.delivery import raw_bytes
from lanner.model import Message
from lanner.net.backoff import Backoff
from lanner.wire.messages import Fetch, Fetched, Offsets

LAST_EVENT_ID: Final = b"last-event-id"
HEARTBEAT_MS: Final = 15_000
INLINE_BYTES_MAX: Final = 64 * limits.KIB
_ID_DIGITS_MAX: Final = 20
_SHARES: Final = 16  # a stream takes so much of what is left
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_BEGINS: Final = b": the stream begins\n\n"  # so that the head leaves at once
_HEARTBEAT: Final = b":\n\n"
_PATH: Final = "/v1/"  # errors are told by the names of the catalogue


async def stream_partition(call: Call[NoBody, StreamQuery]) -> Streamed:
    """The first page is read before anything is answered: what is wrong with the request has its own status."""
    _refuse_one_too_many(call.door)
    asked = Fetch(
        call.topic, call.partition, await _first_offset(call), FETCH_BYTES, lanes=lanes_of(call.query.priorities)
    )
    answer = await call.ask(asked)
    if call.headers.get(LAST_EVENT_ID) and asked.offset > answer.control.end_offset:
        raise OffsetOutOfRange(
            f"event {asked.offset - 1} is none of this stream, which ends before {answer.control.end_offset}: "
            "the topic was made anew; begin without Last-Event-ID",
            offset=asked.offset,
            end_offset=answer.control.end_offset,
        )
    _refuse_one_too_many(call.door)  # others may have begun meanwhile
    return Streamed("text/event-stream; charset=utf-8", _events(call, asked, answer))


def _refuse_one_too_many(door: Door) -> None:
    if door.streams >= limits.REST_STREAMS_MAX:
        raise Overloaded(
            f"{door.streams} streams are open here, and there may be no more: end one, or ask another broker"
        )


async def _first_offset(call: Call[NoBody, StreamQuery]) -> int:
    seen, query = call.headers.get(LAST_EVENT_ID, b""), call.query
    if seen:
        if not (seen.isdigit() and len(seen) <= _ID_DIGITS_MAX and int(seen) < limits.OFFSET_MAX):
            raise ValidationError(
                "Last-Event-ID is none of this stream's: give the id of the last event, a whole number"
            )
        return int(seen) + 1
    if not isinstance(query.offset, UnsetType):
        return query.offset
    if query.start == "earliest":
        return 0
    (found,) = (await call.ask(Offsets(call.topic, partitions=[call.partition]))).control.partitions
    return found.end_offset


async def _events(
    call: Call[NoBody, StreamQuery], asked: Fetch, answer: Answer[Fetched]
) -> AsyncGenerator[bytes, None]:
    ends = not isinstance(call.query.wait_ms, UnsetType)
    silence_s = (HEARTBEAT_MS if isinstance(call.query.wait_ms, UnsetType) else max(1, call.query.wait_ms)) / 1_000
    now, backoff = asyncio.get_running_loop().time, Backoff(_PAUSE_S, _PAUSE_S_MAX)
    leaving = asyncio.ensure_future(call.disconnected())
    call.door.streams += 1
    try:
        yield _BEGINS
        said_at = now()
        while True:
            chunk, next_offset = await _made(call, asked, answer)
            made, size = [chunk], len(chunk)
            is_at_end = next_offset >= answer.control.end_offset
            is_silent = now() - said_at >= silence_s
            del answer  # what it was made of must not wait with it for a client that does not read
            if size:
                del chunk  # nor here, beside the socket's own
                call.door.stream_bytes += size
                try:
                    yield made.pop()
                finally:
                    call.door.stream_bytes -= size
                said_at = now()
                backoff.reset()
            elif is_silent and is_at_end and ends and asked.wait_ms:
                yield _event("end", b'{"reason":"quiet"}')
                return
            elif is_silent and not ends:
                yield _HEARTBEAT
                said_at = now()
            elif is_at_end and asked.wait_ms:  # a broker of whom too many wait answers at once
                pause_s = min(backoff.pause_s(), max(0.0, said_at + silence_s - now()))
                await asyncio.wait({leaving}, timeout=pause_s)
            wait_ms = max(1, math.ceil((said_at + silence_s - now()) * 1_000))
            asked = replace(asked, offset=next_offset, wait_ms=wait_ms, max_bytes=_room(call.door))
            found = await _fetched(call, asked, leaving)
            if found is None:
                return
            answer = found
            del found
    except LannerError as error:  # the topic was deleted, the broker stops
        yield _event("end", answer_to(error, _PATH).body)
    except Exception as error:
        yield _event("end", answer_to_unexpected(error, _PATH).body)
    finally:
        call.door.streams -= 1
        leaving.cancel()


async def _fetched(
    call: Call[NoBody, StreamQuery], asked: Fetch, leaving: asyncio.Future[None]
) -> Answer[Fetched] | None:
    """The next page; None: the client has gone."""
    fetching = asyncio.ensure_future(call.ask(asked))
    fetching.add_done_callback(_look_at)
    either: set[asyncio.Future[Answer[Fetched]] | asyncio.Future[None]] = {fetching, leaving}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not fetching.done():
            fetching.cancel()
    return None if leaving.done() else fetching.result()


def _look_at(fetching: asyncio.Future[Answer[Fetched]]) -> None:
    """An error that comes when the client has just gone is nobody's, and no news for the log."""
    if not fetching.cancelled():
        fetching.exception()


async def _made(call: Call[NoBody, StreamQuery], asked: Fetch, answer: Answer[Fetched]) -> tuple[bytes, int]:
    bytes_max = _room(call.door)
    if sum([raw_bytes(data) for data in answer.bulk]) <= INLINE_BYTES_MAX:
        return _written(asked, answer, bytes_max)
    return await call.service.in_reader(lambda: _written(asked, answer, bytes_max))


def _room(door: Door) -> int:
    """How many bytes of events a stream may hold next: the fewer the more is held, so that many find room."""
    left = limits.REST_STREAMS_BYTES_MAX - door.stream_bytes
    return max(limits.REST_STREAM_BYTES_MIN, min(FETCH_BYTES, left // _SHARES))


def _written(asked: Fetch, answer: Answer[Fetched], bytes_max: int) -> tuple[bytes, int]:
    """The events of a page in the order of their offsets, as far as there is room, and where to go on."""
    page: Page = page_of(asked, answer, limits.LIST_ITEMS_MAX)
    found: list[tuple[int, Message | Hole]] = [(one.offset, one) for one in page.messages]
    found += [(hole.first_offset, hole) for hole in page.holes]
    events: list[bytes] = []
    size = 0
    for first_offset, one in sorted(found, key=itemgetter(0)):
        event = _event_of(one)
        size += len(event)
        if events and size > bytes_max:
            return b"".join(events), first_offset
        events.append(event)
    return b"".join(events), page.next_offset


def _event_of(one: Message | Hole) -> bytes:
    if isinstance(one, Hole):
        return _event("hole", msgspec.json.encode(HoleOut(**one._asdict())), one.next_offset - 1)
    return _event("", msgspec.json.encode(shown(one)), one.offset)


def _event(name: str, data: bytes, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + (b"event: %s\n" % name.encode() if name else b"") + b"data: " + data + b"\n\n"
