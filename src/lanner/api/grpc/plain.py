"""Messages of the proto as bytes, where there are many that differ in little: read and written without an object each.

To protobuf a message inside another is bytes with a length. So a request is read once more loosely, with its messages
as bytes; where each is a value and nothing else, its value is what follows a tag and a length. A reply is written run
by run: between two messages of a run only numbers change. What is not plain goes the way of the generated code, and
the tests hold both ways against each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import RequestKind
from lanner.api.grpc.shapes import leased, settle_response
from lanner.api.settling import Outcome, told_of
from lanner.forwarding.delivery import DeliveredBatches, Opened, messages_of
from lanner.forwarding.values import Delivered, Placed, Run

_BYTES: Final = 2  # the wire type of what has a length
# From each of these numbers on, an offset takes one more byte: as text, or as a number.
_STEPS: Final = sorted({1, *(10**digits for digits in range(1, 20)), *(1 << bits for bits in range(7, 71, 7))})
_LOW: Final = [bytes([low | 0x80]) for low in range(0x80)]
_VALUE: Final = shapes.NewMessage.DESCRIPTOR.fields_by_name["value"].number << 3 | _BYTES


class Encoded(NamedTuple):
    """A response that is written already."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf named it)
        return self.data


def _loose(kind: type[Message], *opaque: str) -> type[Message]:
    """The same message, with these fields, which are messages, as bytes."""
    found = descriptor_pb2.DescriptorProto()
    kind.DESCRIPTOR.CopyToProto(found)
    for field in found.field:
        if field.name in opaque:
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"loose/{found.name}.proto", package="loose", syntax="proto3", message_type=[found]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"loose.{found.name}"))


class LoosePublish(Protocol):
    """A PublishRequest whose messages are still bytes."""

    topic: str
    idempotency_key: str
    messages: Sequence[bytes]


_LoosePublish: Final = cast("RequestKind[LoosePublish]", _loose(shapes.PublishRequest, "messages"))


class PlainPublish:
    """A PublishRequest whose messages are values and nothing else."""

    __slots__ = ("idempotency_key", "topic", "values")

    def __init__(self, topic: str, idempotency_key: str, values: list[bytes]) -> None:
        self.topic = topic
        self.idempotency_key = idempotency_key
        self.values = values

    DESCRIPTOR: Final = shapes.PublishRequest.DESCRIPTOR

    @staticmethod
    def FromString(data: bytes) -> PlainPublish | shapes.PublishRequest:  # noqa: N802 (protobuf named it)
        """The request as most are, or as any may be."""
        try:
            asked = _LoosePublish.FromString(data)
        except DecodeError:
            return shapes.PublishRequest.FromString(data)
        values = _values(list(asked.messages))
        if values is None:
            return shapes.PublishRequest.FromString(data)
        return PlainPublish(asked.topic, asked.idempotency_key, values)


def _values(messages: Sequence[bytes]) -> list[bytes] | None:
    """The value of each of these encoded messages; None: some hold more than that, or less."""
    values = []
    for message in messages:
        front = _front(len(message))
        if not message.startswith(front):
            return None
        values.append(message[len(front) :])
    return values


@lru_cache(4_096)
def _front(size: int) -> bytes:
    """How an encoded message of that size begins that is one value: the value's tag, and its length."""
    for front in range(2, 7):
        length = size - front
        if length > 0 and len(encoded := varint(length)) == front - 1:
            return bytes([_VALUE]) + encoded
    return b"\xff" * (size + 1)  # none does


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


# ------------------------------------------------------------------ replies


def publish_response(topic: str, placed: Placed) -> Encoded:
    """PublishResponse: where each message went."""
    return Encoded(b"".join([piece for run in placed.runs for piece in _stored(topic, run)]))


def _stored(topic: str, run: Run) -> Iterator[bytes]:
    start = f"{topic}/{run.partition}/".encode("ascii")
    end = _number(4, run.append_ms) + _number(5, run.duplicate)
    for piece in _alike(run.offsets):
        digits, numbers = _texts(piece), _fields(3, piece)
        middle = _number(2, run.partition)
        id_size = len(start) + len(digits[0])
        head = b"\x0a" + varint(id_size) + start
        size = len(head) + len(digits[0]) + len(middle) + len(numbers[0]) + len(end)
        head = b"\x0a" + varint(size) + head
        yield (
            head
            + (end + head).join([text + middle + number for text, number in zip(digits, numbers, strict=True)])
            + end
        )


def _number(field: int, number: int) -> bytes:
    """A field with a number; one that is 0 is left out."""
    return bytes([field << 3]) + varint(number) if number else b""


def _alike(offsets: range) -> Iterator[range]:
    """Ranges of offsets that are equally long, as text and as numbers."""
    first = offsets.start
    while first < offsets.stop:
        stop = min(_STEPS[bisect_right(_STEPS, first)], offsets.stop)
        yield range(first, stop)
        first = stop


def _texts(offsets: range) -> list[bytes]:
    return [b"%d" % offset for offset in offsets]


def _fields(field: int, offsets: range) -> list[bytes]:
    """The same number field for each of these offsets. The seven lowest bits come first, the others change rarely."""
    if offsets.start < 0x80:
        return [_number(field, offset) for offset in offsets]
    tag, found = bytes([field << 3]), []
    first = offsets.start
    while first < offsets.stop:
        stop = min((first | 0x7F) + 1, offsets.stop)
        high = varint(first >> 7)
        low = first & 0x7F
        found += [tag + one + high for one in _LOW[low : low + stop - first]]
        first = stop
    return found


def receive_response(delivered: Sequence[Delivered]) -> Encoded:
    """ReceiveMessagesResponse: messages with their leases. Behind each other, two of them are one of all messages."""
    if not isinstance(delivered, DeliveredBatches):
        return Encoded(leased(delivered).SerializeToString())
    return Encoded(b"".join([piece for one in delivered.batches for piece in _leased(delivered.topic, one)]))


def _leased(topic: str, opened: Opened) -> Iterator[bytes]:
    found, decoded = opened
    if decoded.key_column() or decoded.headers_column() or decoded.timestamp_column():
        yield leased(messages_of(topic, found, decoded)).SerializeToString()
        return
    values, header = decoded.values(), decoded.header
    start = f"{topic}/{found.partition}/".encode("ascii")
    middle = b"\x12" + varint(len(topic)) + topic.encode("ascii") + _number(3, found.partition)
    end = _number(8, header.priority) + _number(9, found.append_ms)
    end += _number(11, header.deliver_at_ms) + _number(12, header.expires_at_ms)
    for attempt, offsets, places in opened.pieces():
        lease = _number(2, found.token) + _number(3, attempt) + _number(4, found.deadline_ms)
        row = iter(places)
        for piece in _alike(offsets) if isinstance(offsets, range) else map(_one, offsets):
            digits, numbers = _texts(piece), _fields(4, piece)
            id_size = len(start) + len(digits[0])
            head = b"\x0a" + varint(id_size) + start
            fixed = len(head) + len(digits[0]) + len(middle) + len(numbers[0]) + len(end)
            sized: dict[int, tuple[bytes, bytes]] = {}  # by the length of the value: what is in front of head, and it
            tail = end + lease
            for text, number, value in zip(
                digits, numbers, [values[place] for place in islice(row, len(piece))], strict=True
            ):
                size = len(value)
                fronts = sized.get(size)
                if fronts is None:
                    before = b"\x2a" + varint(size) if size else b""
                    inner = b"\x0a" + varint(fixed + len(before) + size)
                    outer = b"\x0a" + varint(len(inner) + fixed + len(before) + size + len(lease))
                    fronts = sized[size] = outer + inner + head, before
                yield b"".join((fronts[0], text, middle, number, fronts[1], value, tail))


def _one(offset: int) -> range:
    return range(offset, offset + 1)


def acked_response(targets: Sequence[shapes.Lease], outcomes: Sequence[Outcome]) -> Encoded:
    """SettleResponse."""
    written = [_number(1, sum([one.targets for one in outcomes]))]
    for one in outcomes:
        offsets = one.singles
        if offsets is None:
            return Encoded(settle_response(targets, told_of(targets, outcomes)).SerializeToString())
        start, end = _number(1, one.item.partition), _number(3, 1)
        for piece in _alike(offsets):
            numbers = _fields(2, piece)
            head = b"\x1a" + varint(len(start) + len(numbers[0]) + len(end)) + start
            written.append(head + (end + head).join(numbers) + end)
    return Encoded(b"".join(written))
