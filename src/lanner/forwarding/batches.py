"""Batches out of single messages, for doors whose callers hand in one message at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lanner import batch, limits
from lanner.errors import MessageTooLarge, PartitionNotFound, ValidationError
from lanner.forwarding.values import NewMessage, PlainMessages
from lanner.model import LANES, PRIORITY_NORMAL, TopicSettings


class Router:
    """Round robin for what has neither a partition, a key nor a dedup id."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def turn(self) -> int:
        return next(self._turns)

    def choose(self, message: NewMessage, partitions: int, turn: int, is_led: Callable[[int], bool]) -> int:
        if message.partition is not None:
            if not 0 <= message.partition < partitions:
                raise PartitionNotFound(f"the topic has partitions 0 to {partitions - 1}, not {message.partition}")
            return message.partition
        if message.key is not None:
            return batch.partition_for_key(message.key, partitions)
        if message.dedup_id:
            return batch.partition_for_key(message.dedup_id, partitions)
        # A caller that does not mind where it goes does not wait for a partition that nobody leads.
        led = (number % partitions for number in range(turn, turn + partitions) if is_led(number % partitions))
        return next(led, turn % partitions)


def _everything(partition: int) -> bool:
    return True


class MessageKind(NamedTuple):
    """Messages alike in all of this may share a batch."""

    partition: int
    priority: int
    deliver_at_ms: int
    expires_at_ms: int
    dedup_id: bytes


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """Messages that travel in one batch, and where they stood in the call."""

    kind: MessageKind
    messages: Sequence[NewMessage]
    places: Sequence[int]

    @property
    def partition(self) -> int:
        return self.kind.partition

    @property
    def priority(self) -> int:
        return self.kind.priority

    @property
    def dedup_id(self) -> bytes:
        return self.kind.dedup_id

    def encode(self, producer_id: int = 0, sequence: int = -1) -> bytes:
        """The batch, in its producer's name."""
        kind, messages = self.kind, self.messages
        keys: list[bytes | None] | None = None
        headers: list[Mapping[str, bytes]] | None = None
        if isinstance(messages, PlainMessages):
            values = messages.values
        else:
            values = [message.value for message in messages]
            keys = [message.key for message in messages]
            headers = [message.headers for message in messages]
        return batch.encode(
            values,
            keys=keys if keys and any(key is not None for key in keys) else None,
            headers=headers if headers and any(headers) else None,
            priority=kind.priority,
            producer_id=producer_id,
            sequence=sequence,
            deliver_at_ms=kind.deliver_at_ms,
            expires_at_ms=kind.expires_at_ms,
            dedup_id=kind.dedup_id,
        )


def group_messages(
    messages: Sequence[NewMessage],
    partitions: int,
    settings: TopicSettings,
    router: Router,
    is_led: Callable[[int], bool] = _everything,
) -> list[MessageGroup]:
    """The batches that hold these messages, in the order given within each."""
    if not 1 <= len(messages) <= limits.LIST_ITEMS_MAX:
        raise ValidationError(f"publish 1 to {limits.LIST_ITEMS_MAX} messages a call, not {len(messages)}")
    if isinstance(messages, PlainMessages) and _fit_one_batch(messages.values, settings):
        partition = router.choose(messages[0], partitions, router.turn(), is_led)
        return [MessageGroup(MessageKind(partition, PRIORITY_NORMAL, 0, 0, b""), messages, range(len(messages)))]
    turn, anywhere = router.turn(), -1  # one partition for all of the call that do not mind
    chunks: dict[tuple[int, int, int, int, bytes], list[_Chunk]] = {}
    for place, message in enumerate(messages):
        _check(message, settings)
        size = message.size
        if message.partition is None and message.key is None and not message.dedup_id:
            if anywhere < 0:
                anywhere = router.choose(message, partitions, turn, is_led)
            partition = anywhere
        else:
            partition = router.choose(message, partitions, turn, is_led)
        kind = (partition, message.priority, message.deliver_at_ms, message.expires_at_ms, message.dedup_id)
        found = chunks.get(kind)
        if found is None:
            found = chunks[kind] = [_Chunk()]
        chunk = found[-1]
        if chunk.places and chunk.size + size > limits.BATCH_BYTES_MAX // 2:
            chunk = _Chunk()
            found.append(chunk)
        chunk.places.append(place)
        chunk.messages.append(message)
        chunk.size += size
    return [
        MessageGroup(MessageKind._make(kind), chunk.messages, chunk.places)
        for kind, found in chunks.items()
        for chunk in found
    ]


def _fit_one_batch(values: Sequence[bytes], settings: TopicSettings) -> bool:
    """Whether these values make one batch, so that nothing is asked of a single one but how long it is."""
    sizes = list(map(len, values))
    return max(sizes) <= settings.message_bytes_max and sum(sizes) <= limits.BATCH_BYTES_MAX // 2


class _Chunk:
    """What goes into one batch."""

    __slots__ = ("messages", "places", "size")

    def __init__(self) -> None:
        self.messages: list[NewMessage] = []
        self.places: list[int] = []
        self.size = 0


def _check(message: NewMessage, settings: TopicSettings) -> None:
    size = len(message.value)
    if size > settings.message_bytes_max:
        raise MessageTooLarge(f"the message has {size} bytes; the topic takes up to {settings.message_bytes_max}")
    if not 0 <= message.priority < LANES:
        raise ValidationError(f"priority {message.priority} is not known: give 0 to 9", field="priority")
    if message.deliver_at_ms or message.expires_at_ms:
        for what, time_ms in (("deliver_at", message.deliver_at_ms), ("expires_at", message.expires_at_ms)):
            if not 0 <= time_ms <= limits.TIME_MS_MAX:
                raise ValidationError(f"{what} is {time_ms}: give milliseconds since 1970", field=what)
