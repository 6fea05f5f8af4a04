"""Messages of the protos from the broker's values, and what is refused on the way in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lanner import batch, limits
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.shapes import (
    bounded,
    dead_letter,
    leased,
    message,
    new_message,
    shaped,
    start_of,
    text_settings,
    topic_settings,
)
from lanner.errors import MessageTooLarge, ValidationError
from lanner.forwarding.values import Delivered, NewMessage
from lanner.model import Message
from lanner.wire.administration import DeadLetter, GroupPartition, ListDead
from lanner.wire.cluster import BrokerState

LETTER = DeadLetter(1, 5, 2, 3, "rejected", 99, 50, 0)
REFUSED: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "has 101 headers": (
        lambda: new_message(
            shapes.NewMessage(headers={str(at): b"" for at in range(limits.HEADER_COUNT_MAX + 1)}), 0, 1
        ),
        MessageTooLarge,
    ),
    "headers exceed": (
        lambda: new_message(shapes.NewMessage(headers={"a": bytes(limits.HEADERS_BYTES_MAX)}), 0, 1),
        MessageTooLarge,
    ),
    "key exceeds": (
        lambda: new_message(shapes.NewMessage(key=bytes(limits.KEY_BYTES_MAX + 1)), 0, 1),
        MessageTooLarge,
    ),
    r"messages\[0\].delay_ms": (
        lambda: new_message(shapes.NewMessage(delay_ms=limits.DELAY_MS_MAX + 1), 0, 1),
        ValidationError,
    ),
    r"messages\[0\].ttl_ms": (
        lambda: new_message(shapes.NewMessage(ttl_ms=limits.DELAY_MS_MAX + 1), 0, 1),
        ValidationError,
    ),
    "partitions is '3.5'": (lambda: topic_settings({"partitions": "3.5"}), ValidationError),
    "give earliest or latest": (lambda: start_of("middle"), ValidationError),
    "limit: Expected `?int": (lambda: bounded(ListDead("orders", "g", limit=-1)), ValidationError),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_beyond_its_bounds_is_refused_by_the_name_of_its_field(why: str) -> None:
    make, error = REFUSED[why]
    with pytest.raises(error, match=why):
        make()


def test_times_of_a_new_message_count_from_now() -> None:
    made = new_message(shapes.NewMessage(value=b"v", delay_ms=5, ttl_ms=9, partition=2), 0, 100)
    assert (made.deliver_at_ms, made.expires_at_ms, made.partition, made.key) == (105, 109, 2, None)
    assert new_message(shapes.NewMessage(value=b"v"), 0, 100) == NewMessage(b"v")


def test_settings_are_text_numbers_and_lists_and_the_same_again() -> None:
    given = {"partitions": "3", "retention": "acked", "hold_for": "a, b,"}
    found = topic_settings(given)
    assert (found["partitions"], found["retention"], found["hold_for"]) == (3, "acked", ["a", "b"])
    assert text_settings(found) == {**given, "hold_for": "a,b"}


def test_a_struct_becomes_the_shape_with_the_fields_of_the_same_names() -> None:
    part = GroupPartition(1, 2, 3, 4, 5, 6, 7, {4: 8}, 9, 10)
    made = shaped(shapes.GroupPartition, part)
    assert (made.partition, made.offset, made.lag, made.ready, made.leased, made.waiting) == (1, 2, 3, 4, 5, 6)
    assert (made.dead, dict(made.depth), made.oldest_age_ms) == (7, {4: 8}, 10)
    found = BrokerState("b1", "n1", "r", "active", {"native": "h:1"}, 1, 2, 3, "voter", True)
    broker = shaped(shapes.Broker, found, id="other")
    assert (broker.id, broker.name, broker.rack, dict(broker.addresses), broker.alive) == (
        "other",
        "b1",
        "r",
        {"native": "h:1"},
        True,
    )


@pytest.mark.parametrize("data", [b"", b"this is no batch"])
def test_a_dead_letter_whose_bytes_are_gone_or_damaged_is_shown_without_them(data: bytes) -> None:
    shown = dead_letter("orders", LETTER, data)
    assert (shown.partition, shown.offset, shown.reason, shown.HasField("message")) == (1, 5, "rejected", False)


def test_a_dead_letter_is_shown_with_its_message() -> None:
    shown = dead_letter("orders", LETTER, batch.encode([b"v"], keys=[b"k"]))
    assert (shown.message.value, shown.message.key, shown.message.offset, shown.attempts) == (b"v", b"k", 5, 3)


@pytest.mark.parametrize(
    "found",
    [
        Message("orders", 0, 0, b"v"),
        Message("orders", 3, 7, b"v", b"k", {"h": b"x"}, 9, 1_000, 900, 2_000, 3_000, attempt=2),
        Message("orders", 3, 7, b"v", b"", {}, 0, 1_000, 0, 0, 3_000),
        Message("orders", 3, 7, b"v", deliver_at_ms=2_000),
    ],
)
def test_a_leased_message_tells_the_same_as_one_without_a_lease(found: Message) -> None:
    (shape,) = leased([Delivered(found, 5, 4_000)]).messages
    assert shape.message == message(found)
    assert (shape.token, shape.attempt, shape.lease_until_ms) == (5, found.attempt, 4_000)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (shapes.NewMessage(), NewMessage(b"")),
        (shapes.NewMessage(value=b"v"), NewMessage(b"v")),
        (shapes.NewMessage(key=b"k"), NewMessage(b"", b"k")),
        (shapes.NewMessage(value=b"v", key=b""), NewMessage(b"v", b"")),
        (shapes.NewMessage(headers={"h": b"x"}), NewMessage(b"", headers={"h": b"x"})),
        (shapes.NewMessage(value=b"v", priority=0), NewMessage(b"v", priority=0)),
        (shapes.NewMessage(value=b"v", priority_name="high"), NewMessage(b"v", priority=9)),
        (shapes.NewMessage(value=b"v", partition=0), NewMessage(b"v", partition=0)),
        (shapes.NewMessage(value=b"v", delay_ms=5), NewMessage(b"v", deliver_at_ms=1_005)),
        (shapes.NewMessage(ttl_ms=5), NewMessage(b"", expires_at_ms=1_005)),
    ],
)
def test_a_message_is_taken_with_all_that_it_says_and_nothing_else(
    shape: shapes.NewMessage, expected: NewMessage
) -> None:
    assert new_message(shape, 0, 1_000) == expected
