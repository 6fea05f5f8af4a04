"""Frames: where one ends and the next begins, whatever way the bytes arrive, and what is refused at which byte."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner import limits
from lanner.errors import ProtocolError
from lanner.wire.frames import Frame, FrameReader, encode_frame
from lanner.wire.messages import Command, Empty, Publish

HELLO_ONLY = {1: "HELLO"}


def raw(command: int, length: int, rest: bytes = b"") -> bytes:
    return struct.pack(">BI", command, length) + rest


def whole(command: int = 0x10, correlation: int = 7, control: bytes = b"\x90", bulk: bytes = b"") -> bytes:
    payload = struct.pack(">II", correlation, len(control)) + control + bulk
    return raw(command, len(payload), payload)


def plain(frames: list[Frame]) -> list[tuple[int, int, bytes, bytes]]:
    return [(frame.command, frame.correlation, bytes(frame.control), bytes(frame.bulk)) for frame in frames]


def test_a_frame_is_command_length_correlation_control_length_control_and_bulk() -> None:
    buffers = encode_frame(Command.PUBLISH, 7, Publish("orders", 2), [b"ab", memoryview(b"cd")])
    control = msgspec.msgpack.encode(["orders", 2, 0])
    assert b"".join(buffers) == (
        b"\x10" + struct.pack(">I", 8 + len(control) + 4) + b"\0\0\0\x07" + struct.pack(">I", len(control)) + control
        + b"abcd"
    )  # fmt: skip


def test_bulk_is_not_copied_when_a_frame_is_encoded() -> None:
    bulk = b"x" * 1_000
    assert encode_frame(Command.PUBLISH, 1, Publish("t", 0), [bulk])[1] is bulk


def test_a_frame_without_bulk_is_one_buffer() -> None:
    assert len(encode_frame(Command.PING, 1, Empty())) == 1


def test_frames_in_one_piece_are_handed_out_as_views_of_it() -> None:
    data = whole(bulk=b"bulk") + whole(correlation=8)
    frames = FrameReader().feed(data)
    assert plain(frames) == [(0x10, 7, b"\x90", b"bulk"), (0x10, 8, b"\x90", b"")]
    assert all(frame.control.obj is data for frame in frames)


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=30), st.binary(max_size=200)),
        max_size=6,
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=50),
)
def test_frames_come_out_the_same_whatever_pieces_they_arrive_in(
    sent: list[tuple[int, int, bytes, bytes]], sizes: list[int]
) -> None:
    data = b"".join(whole(*frame) for frame in sent)
    reader = FrameReader()
    got: list[tuple[int, int, bytes, bytes]] = []
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        got += plain(reader.feed(data[:size]))
        data = data[size:]
        turn += 1
    assert got == sent
    assert reader.pending_bytes == 0


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_arbitrary_bytes_give_frames_or_a_protocol_error_and_are_never_hoarded(pieces: list[bytes]) -> None:
    reader = FrameReader(64)
    for piece in pieces:
        try:
            reader.feed(piece)
        except ProtocolError:
            assert reader.pending_bytes == 0
            return
        assert reader.pending_bytes <= 64 + 5


def test_views_of_a_frame_that_came_in_pieces_stay_valid_while_more_arrives() -> None:
    reader = FrameReader()
    data = whole(bulk=b"first")
    assert reader.feed(data[:9]) == []
    [frame] = reader.feed(data[9:] + whole(bulk=b"second")[:6])
    reader.feed(whole(bulk=b"second")[6:])
    assert bytes(frame.bulk) == b"first"
    assert frame.bulk.readonly


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_length_of_4_gib_is_refused_as_soon_as_the_header_is_there(cut: int) -> None:
    reader = FrameReader()
    header = raw(0x10, 2**32 - 1)
    assert reader.feed(header[:cut]) == []
    with pytest.raises(ProtocolError, match=f"announces 4294967295 bytes: at most {limits.FRAME_BYTES_MAX}"):
        reader.feed(header[cut:])
    assert reader.pending_bytes == 0


def test_a_length_of_4_gib_in_one_piece_with_its_payload_is_refused() -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError, match="4294967295"):
        reader.feed(raw(0x10, 2**32 - 1, b"x" * 1_000))
    assert reader.pending_bytes == 0


def test_three_headers_that_claim_4_gib_take_no_memory() -> None:
    readers = [FrameReader() for _ in range(3)]
    tracemalloc.start()
    try:
        for reader in readers:
            with pytest.raises(ProtocolError):
                reader.feed(raw(0x10, 2**32 - 1))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_memory_follows_the_bytes_that_came_not_the_length_that_was_announced() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.feed(raw(0x10, limits.FRAME_BYTES_MAX, bytes(100)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.pending_bytes == 105


@pytest.mark.parametrize("length", range(8))
def test_a_payload_too_short_for_its_own_prefix_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="alone take 8"):
        FrameReader().feed(raw(0x10, length, b"\0" * length))


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_control_part_longer_than_its_frame_is_refused(in_pieces: bool) -> None:
    data = raw(0x10, 9, struct.pack(">II", 1, 2) + b"x")
    reader = FrameReader()
    with pytest.raises(ProtocolError, match="control part of 2 bytes: it may take 1") as caught:
        if in_pieces:
            reader.feed(data[:10])
            reader.feed(data[10:])
        else:
            reader.feed(data)
    assert caught.value.details["field"] == "control length"


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_control_part_longer_than_allowed_is_refused(in_pieces: bool) -> None:
    data = whole(control=b"x" * 20)
    reader = FrameReader(control_bytes_max=19)
    with pytest.raises(ProtocolError, match="20 bytes: it may take 19"):
        if in_pieces:
            reader.feed(data[:6])
            reader.feed(data[6:])
        else:
            reader.feed(data)


def test_frames_before_a_broken_one_are_handed_out_and_then_nothing_more() -> None:
    reader = FrameReader()
    assert plain(reader.feed(whole() + raw(0x10, 2**32 - 1))) == [(0x10, 7, b"\x90", b"")]
    assert reader.failure is not None
    with pytest.raises(ProtocolError):
        reader.feed(whole())


def test_an_unexpected_command_is_refused_at_its_first_byte() -> None:
    with pytest.raises(ProtocolError, match=r"begins with the byte 0x47: expected HELLO \(0x01\)"):
        FrameReader(100, expected=HELLO_ONLY).feed(b"G")


def test_the_first_byte_of_grpc_is_told_apart() -> None:
    with pytest.raises(ProtocolError, match=r"0x00.*address of gRPC\?"):
        FrameReader(100, expected=HELLO_ONLY).feed(b"\0\0\x18\x04")


def test_an_unexpected_command_in_a_whole_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="0x10: expected HELLO"):
        FrameReader(100, expected=HELLO_ONLY).feed(whole())


def test_a_small_limit_says_that_it_holds_until_hello_is_answered() -> None:
    with pytest.raises(ProtocolError, match="at most 100 are allowed until HELLO is answered"):
        FrameReader(100, expected=HELLO_ONLY).feed(raw(1, 101))


def test_the_limit_may_be_raised_between_frames() -> None:
    reader = FrameReader(20, expected=HELLO_ONLY)
    assert len(reader.feed(whole(command=1))) == 1
    reader.frame_bytes_max, reader.expected = 1_000, None
    assert len(reader.feed(whole(bulk=b"x" * 900))) == 1


def test_an_empty_piece_changes_nothing() -> None:
    reader = FrameReader()
    assert reader.feed(b"") == []
    reader.feed(whole()[:7])
    assert reader.feed(b"") == []
    assert plain(reader.feed(whole()[7:])) == [(0x10, 7, b"\x90", b"")]
