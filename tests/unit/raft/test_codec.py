from __future__ import annotations

import random
import struct

import pytest
from msgspec.structs import replace

from lanner import limits
from lanner.errors import ProtocolError
from lanner.raft import Entry, EntryKind, Membership, Message, MessageKind, decode_message, encode_message
from lanner.raft.codec import _HEAD, _ROW

ENTRIES = [Entry(8, 2, EntryKind.NORMAL, b"one"), Entry(9, 3, EntryKind.NOOP, b""), Entry(10, 3, 1, b"x" * 300)]
APPEND = Message(
    kind=MessageKind.APPEND,
    sender=1,
    receiver=2,
    term=3,
    log_index=7,
    log_term=2,
    commit_index=6,
    entries=ENTRIES,
    rejected=False,
    hint=0,
    context=44,
)
MEMBERSHIP = Membership(frozenset({1, 2}), frozenset({9})).encode()
SNAPSHOT = Message(
    kind=MessageKind.SNAPSHOT,
    sender=1,
    receiver=2,
    term=3,
    log_index=7,
    log_term=2,
    entries=[Entry(7, 2, EntryKind.MEMBERSHIP, MEMBERSHIP)],
)


def frame(message: Message) -> bytes:
    return b"".join(encode_message(message))


@pytest.mark.parametrize(
    "message",
    [
        APPEND,
        replace(APPEND, entries=ENTRIES[:1]),
        replace(APPEND, entries=()),
        SNAPSHOT,
        Message(
            kind=MessageKind.APPEND_REPLY,
            sender=2,
            receiver=1,
            term=3,
            log_index=7,
            log_term=2,
            commit_index=6,
            entries=(),
            rejected=True,
            hint=5,
            context=44,
        ),
        *(Message(kind=kind, sender=1, receiver=2, term=3, context=1) for kind in MessageKind),
    ],
)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_a_message_comes_back_as_it_was(message: Message, wrap: type) -> None:
    assert decode_message(wrap(frame(message))) == message


def test_encoding_hands_out_the_payloads_themselves() -> None:
    buffers = encode_message(APPEND)
    assert buffers[1:] == [entry.payload for entry in ENTRIES]
    assert all(one is entry.payload for one, entry in zip(buffers[1:], ENTRIES, strict=True))


def test_every_shorter_or_longer_frame_is_refused() -> None:
    for message in (APPEND, SNAPSHOT, replace(APPEND, entries=())):
        whole = frame(message)
        for size in range(len(whole)):
            with pytest.raises(ProtocolError):
                decode_message(whole[:size])
        with pytest.raises(ProtocolError):
            decode_message(whole + b"\0")


def changed(data: bytes, offset: int, replacement: bytes) -> bytes:
    return data[:offset] + replacement + data[offset + len(replacement) :]


FIRST_ROW = _HEAD.size


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (changed(frame(APPEND), 0, b"\x09"), "version 9"),
        (changed(frame(APPEND), 1, b"\x63"), "kind 99"),
        (changed(frame(APPEND), 2, b"\x02"), "flags 2"),
        (changed(frame(APPEND), 3, b"\x01"), "unknown"),
        (changed(frame(APPEND), 4, struct.pack("<I", limits.RAFT_ENTRIES_PER_MESSAGE_MAX + 1)), "claims"),
        (changed(frame(APPEND), 4, struct.pack("<I", 10_000)), "cut short"),
        (changed(frame(APPEND), 8, bytes(8)), "nobody"),
        (changed(frame(APPEND), 16, bytes(8)), "nobody"),
        (changed(frame(APPEND), 24, b"\xff" * 8), "beyond its bounds"),
        (changed(frame(APPEND), 64, b"\xff" * 8), "beyond its bounds"),
        (changed(frame(APPEND), 32, struct.pack("<Q", 5)), "begins with entry 8"),
        (changed(frame(APPEND), 1, b"\x07"), "do not belong"),
        (changed(frame(SNAPSHOT), 32, struct.pack("<Q", 5)), "do not belong"),
        (changed(frame(APPEND), FIRST_ROW, struct.pack("<Q", 9)), "term after its own"),
        (changed(frame(APPEND), FIRST_ROW, bytes(8)), "term after its own"),
        (changed(frame(APPEND), FIRST_ROW + 8, b"\xff\xff\xff\xff"), "claim"),
        (changed(frame(APPEND), FIRST_ROW + 8, b"\x04"), "claim"),
        (changed(frame(APPEND), FIRST_ROW + _ROW.size - 1, b"\x07"), "unknown kind"),
    ],
)
def test_a_frame_that_nobody_could_have_sent_is_refused_and_the_reason_named(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_message(data)


def test_random_damage_is_refused_or_harmless_and_never_anything_else() -> None:
    rng = random.Random(5)
    whole = frame(APPEND)
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            message = decode_message(data)
        except ProtocolError:
            continue
        assert frame(message) == bytes(data)


def test_a_message_is_built_by_name_so_that_no_field_takes_anothers_place() -> None:
    with pytest.raises(TypeError, match="positional"):
        Message(MessageKind.VOTE, 1, 2, 3)  # type: ignore[call-arg]
