"""Pages of several brokers as one page, in the order that one broker would have given.

A broker whose page was cut says where it goes on. What the others have behind that place waits for the next page, or
the order would have a gap that nobody could find again.
"""

from __future__ import annotations

from collections.abc import Iterable

from lanner import limits
from lanner.broker.desks.calls import DeadLetterResult, DeadLettersResult
from lanner.broker.desks.fitting import Room
from lanner.model import Looked, LookPlace, Message


def merged_looks(pages: Iterable[Looked], max_messages: int, max_bytes: int) -> Looked:
    """The most urgent first, then by partition; each broker gave its own in this order."""
    pages = list(pages)
    found = sorted((message for page in pages for message in page), key=_order)
    merged, room = Looked(), Room(max_bytes)
    merged.next = min((page.next for page in pages if page.next is not None), key=_place_order, default=None)
    for message in found:
        size = _size(message)
        if merged.next is not None and _order(message) > _place_order(merged.next):
            break
        if len(merged) >= max_messages or (not room.has(size) and not room.is_empty):
            merged.next = (message.priority, message.partition, message.offset)
            break
        room.take(size)
        merged.append(message)
    return merged


def merged_letters(pages: Iterable[DeadLettersResult], limit: int) -> DeadLettersResult:
    """By partition and offset."""
    pages = list(pages)
    found = sorted((letter for page in pages for letter in page.letters), key=lambda one: (one.partition, one.offset))
    following = min((page.next for page in pages if page.next is not None), default=None)
    letters: list[DeadLetterResult] = []
    room = Room(limits.LIST_BYTES_MAX)
    for letter in found:
        place = (letter.partition, letter.offset)
        if following is not None and place >= following:
            break
        if len(letters) >= limit or (not room.has(len(letter.data)) and not room.is_empty):
            following = place
            break
        room.take(len(letter.data))
        letters.append(letter)
    return DeadLettersResult(letters, sum(page.total for page in pages), following)


def _order(message: Message) -> tuple[int, int]:
    return -message.priority, message.partition


def _place_order(place: LookPlace) -> tuple[int, int]:
    return -place[0], place[1]


def _size(message: Message) -> int:
    return len(message.value) + len(message.key or b"") + sum(len(value) for value in message.headers.values())
