"""The table of commands, and what it says of a control part that does not fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lanner import limits
from lanner.wire import administration, messages
from lanner.wire.exchanges import DECODE_ERRORS, EXCHANGES, explain
from lanner.wire.messages import Command, Control


def complaint(kind: type[Control], control: Any) -> tuple[str, str]:
    data = control if isinstance(control, bytes) else msgspec.msgpack.encode(control)
    with pytest.raises(DECODE_ERRORS) as caught:
        msgspec.msgpack.decode(data, type=kind)
    error = explain("CMD", kind, caught.value)
    assert error.details["command"] == "CMD"
    return error.details["field"], error.message


def test_every_command_has_its_exchange() -> None:
    assert set(EXCHANGES) == set(Command)


def test_replies_have_the_high_bit_and_no_command_collides_with_error() -> None:
    assert all(0 < command < messages.REPLY for command in Command)
    assert messages.ERROR not in {command | messages.REPLY for command in Command}


@pytest.mark.parametrize(
    ("kind", "control", "field"),
    [
        (messages.Publish, ["orders", "one"], "partition"),
        (messages.Publish, ["orders"], "partition"),
        (messages.Publish, [], "topic"),
        (messages.Publish, ["orders", -1], "partition"),
        (messages.Publish, ["orders", limits.PARTITIONS_MAX], "partition"),
        (messages.Publish, ["x" * 201, 0], "topic"),
        (messages.Publish, ["orders", True], "partition"),
        (messages.Publish, ["orders", 1.5], "partition"),
        (messages.Fetch, ["orders", 0, -5], "offset"),
        (messages.Fetch, ["orders", 0, 2**63], "offset"),
        (messages.Settle, ["g", "t", [[0, 1, 2, 3, 1], [0, 1, "two", 3, 1]]], "items.first_offset"),
        (messages.Settle, ["g", "t", [[0, 1]]], "items.first_offset"),
        (messages.Settle, ["g", "t", [[0, 0, 0, 0, 1]] * (limits.SETTLE_RANGES_MAX + 1)], "items"),
        (messages.Poll, ["g", "t", "m", 0, [0, "x"]], "partitions"),
        (messages.Poll, ["g", "t", "m", 0, None, 1, 1, 0, -1, False, "earliest", [[0, 0, 0]]], "settles.count"),
        (messages.Commit, ["g", "t", {"zero": 1}], "offsets"),
        (messages.Commit, ["g", "t", {0: -1}], "offsets"),
        (administration.Seek, ["t", "g", {0: "x"}], "offsets"),
        (messages.Metadata, [[1]], "topics"),
        (administration.CreateTopic, ["t", 3], "settings"),
        (messages.Publish, 3, "control"),
        (messages.Publish, {"topic": "t"}, "control"),
        (messages.Publish, b"", "control"),
        (messages.Publish, b"\xc1", "control"),
        (messages.Publish, b"\x92\xa2\xff\xff\x00", "control"),
        (messages.Publish, b"\x92\xa1t\x00junk", "control"),
        (administration.CreateTopic, b"\x92\xa1t\x81\xa1a" + b"\x91" * 20_000, "control"),
    ],
)
def test_a_control_part_that_does_not_fit_is_told_by_command_and_field(
    kind: type[Control], control: Any, field: str
) -> None:
    named, message = complaint(kind, control)
    assert named == field
    assert message.startswith(f"CMD: {field} is not valid: ")
    assert "$" not in message


def test_a_newer_peer_may_send_more_fields_and_an_older_one_fewer() -> None:
    longer = msgspec.msgpack.encode(["orders", 1, 0, "something new"])
    assert msgspec.msgpack.decode(longer, type=messages.Publish) == messages.Publish("orders", 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["orders", 1]), type=messages.Publish).incarnation == 0


def test_control_parts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        messages.Publish("t", 0).partition = 1
