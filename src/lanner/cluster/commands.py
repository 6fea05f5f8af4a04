"""The commands of the metadata machine as bytes: a kind, a version, then a msgpack array.

Encoding bounds what it is given, because it speaks for a caller. Decoding trusts nothing: whatever lies in the log,
it answers with a command or with an error of the catalogue, and never with anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from lanner import limits
from lanner.errors import NotSupported, ValidationError
from lanner.model import TopicSettings, check_name

VERSION: Final = 1
_PREFIX_BYTES: Final = 2
COMMAND_BYTES_MAX: Final = 64 * limits.KIB
PRODUCERS_PER_COMMAND_MAX: Final = 1_000_000


class Kind(IntEnum):
    CREATE_TOPIC = 1
    DELETE_TOPIC = 2
    ALTER_TOPIC = 3
    ALLOCATE_PRODUCERS = 4


class CreateTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    settings: dict[str, Any]
    created_ms: int


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str


class AlterTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    settings: dict[str, Any]


class AllocateProducers(msgspec.Struct, array_like=True, frozen=True):
    count: int


Command = CreateTopic | DeleteTopic | AlterTopic | AllocateProducers

_DECODERS: Final[Mapping[int, Callable[[bytes], Command]]] = {
    Kind.CREATE_TOPIC: msgspec.msgpack.Decoder(CreateTopic).decode,
    Kind.DELETE_TOPIC: msgspec.msgpack.Decoder(DeleteTopic).decode,
    Kind.ALTER_TOPIC: msgspec.msgpack.Decoder(AlterTopic).decode,
    Kind.ALLOCATE_PRODUCERS: msgspec.msgpack.Decoder(AllocateProducers).decode,
}


def encode_create_topic(name: str, settings: TopicSettings, created_ms: int) -> bytes:
    if not 0 <= created_ms <= limits.TIME_MS_MAX:
        raise ValidationError(
            f"created_ms is {created_ms}: it must lie in 0 to {limits.TIME_MS_MAX}", field="created_ms"
        )
    return _encode(Kind.CREATE_TOPIC, CreateTopic(check_name(name, "topic"), settings.to_dict(), created_ms))


def encode_delete_topic(name: str) -> bytes:
    return _encode(Kind.DELETE_TOPIC, DeleteTopic(check_name(name, "topic")))


def encode_alter_topic(name: str, settings: Mapping[str, Any]) -> bytes:
    """Only what changes is given; it is merged with what the topic has when the command applies."""
    return _encode(Kind.ALTER_TOPIC, AlterTopic(check_name(name, "topic"), dict(settings)))


def encode_allocate_producers(count: int) -> bytes:
    if not 1 <= count <= PRODUCERS_PER_COMMAND_MAX:
        raise ValidationError(
            f"{count} producer ids cannot be had at once: ask for 1 to {PRODUCERS_PER_COMMAND_MAX}", field="count"
        )
    return _encode(Kind.ALLOCATE_PRODUCERS, AllocateProducers(count))


def decode(payload: bytes) -> Command:
    """The command in a log entry, or a catalogue error that says why it is none."""
    if not _PREFIX_BYTES < len(payload) <= COMMAND_BYTES_MAX:
        raise ValidationError(f"a command of {len(payload)} bytes is too short or too long")
    kind, version = payload[0], payload[1]
    decoder = _DECODERS.get(kind)
    if decoder is None or version != VERSION:
        raise NotSupported(f"command {kind} in version {version} is not known to this broker")
    try:
        return decoder(payload[_PREFIX_BYTES:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise ValidationError(f"the command does not decode: {error}") from None


def _encode(kind: Kind, command: Command) -> bytes:
    try:
        body = msgspec.msgpack.encode(command)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValidationError(f"the settings cannot be stored: {error}", field="settings") from None
    if len(body) + _PREFIX_BYTES > COMMAND_BYTES_MAX:
        raise ValidationError(f"the settings take {len(body)} bytes, more than can be stored", field="settings")
    return bytes((kind, VERSION)) + body
