"""The short ways to read and write messages of the proto, held against the generated code."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.plain import PlainPublish, publish_response, receive_response
from lanner.api.grpc.shapes import leased
from lanner.forwarding.delivery import DeliveredBatches
from lanner.forwarding.values import Placed, Run
from tests.unit.api.leased import delivered

VALUES = st.binary(min_size=1, max_size=300)
OFFSETS = st.sampled_from([0, 1, 9, 10, 99, 126, 127, 128, 16_383, 16_384, 10**9, 2**35 - 1, 2**53])
RUNS = st.builds(
    lambda partition, first, count, append_ms, duplicate: Run(
        partition, range(first, first + count), append_ms, duplicate
    ),
    st.integers(0, 999),
    OFFSETS,
    st.integers(1, 300),
    st.sampled_from([0, 1, 1_700_000_000_000]),
    st.booleans(),
)


@given(st.lists(VALUES, max_size=5))
@example([b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384])
def test_messages_that_are_values_are_read_without_an_object_each(values: list[bytes]) -> None:
    asked = shapes.PublishRequest(topic="orders", idempotency_key="k", messages=[{"value": one} for one in values])
    found: Any = PlainPublish.FromString(asked.SerializeToString())
    assert isinstance(found, PlainPublish)
    assert (found.topic, found.idempotency_key, found.values) == ("orders", "k", values)


@given(st.lists(VALUES, max_size=3), st.integers(0, 4))
def test_a_message_that_holds_more_or_less_than_a_value_is_read_as_the_proto_says(
    values: list[bytes], which: int
) -> None:
    other: dict[str, Any] = [
        {"value": b"x", "key": b"k"},
        {"value": b"x", "headers": {"a": b"1"}},
        {"value": b"x", "priority": 9},
        {"key": b"x"},
        {},
    ][which]
    asked = shapes.PublishRequest(topic="orders", messages=[*({"value": one} for one in values), other])
    assert PlainPublish.FromString(asked.SerializeToString()) == asked


@given(st.lists(RUNS, min_size=1, max_size=4))
def test_a_publish_is_answered_in_the_bytes_of_the_generated_code(runs: list[Run]) -> None:
    placed = Placed(runs)
    generated = shapes.PublishResponse(
        messages=[
            shapes.StoredMessage(
                id=f"orders/{one.partition}/{one.offset}",
                partition=one.partition,
                offset=one.offset,
                timestamp_ms=one.append_ms,
                duplicate=one.duplicate,
            )
            for one in placed
        ]
    )
    assert publish_response("orders", placed).SerializeToString() == generated.SerializeToString()


@given(delivered(st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"x" * 127, b"x" * 128, b"x" * 20_000]))))
def test_a_poll_is_answered_with_what_the_generated_code_would_say(found: DeliveredBatches) -> None:
    generated = leased(list(found)).SerializeToString(deterministic=True)
    written = receive_response(found).SerializeToString()
    assert shapes.ReceiveMessagesResponse.FromString(written).SerializeToString(deterministic=True) == generated
    assert receive_response(list(found)).SerializeToString() == generated
    assert len(written) == len(generated)
