"""Replies of polls that are written batch by batch, held against their shape."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from lanner import batch
from lanner.api.rest.group_shapes import LeasedMessage, PollReply
from lanner.api.rest.polled import cost_of, polled_reply
from lanner.api.rest.topics import fields_of
from lanner.forwarding.delivery import DeliveredBatches, Opened
from lanner.forwarding.values import LeasedBatch, Range
from tests.unit.api.leased import delivered

VALUES = st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=12))


def opened(*values: bytes) -> Opened:
    data = batch.encode(values)
    return Opened(LeasedBatch(0, 9, 5, 1, 2, 4, data, [Range(5, len(values), 1)]), batch.decode(data))


@given(delivered(VALUES))
@example(DeliveredBatches("orders", [opened(b'"\\\n\x00\x7f', "\u2028ä\U0001f600".encode(), b"")]))
@example(DeliveredBatches("orders", [opened(b"text", b"\xff"), opened(b"text")]))
def test_a_poll_is_answered_in_the_bytes_of_its_shape(found: DeliveredBatches) -> None:
    messages = [
        LeasedMessage(
            **fields_of(one.message), attempt=one.message.attempt, token=one.token, lease_until_ms=one.deadline_ms
        )
        for one in found
    ]
    shape = PollReply(topic="orders", group="billing", count=len(messages), messages=messages)
    assert polled_reply("orders", "billing", found) == msgspec.json.encode(shape)
    assert polled_reply("orders", "billing", list(found)) == msgspec.json.encode(shape)
    assert len(found) == len(messages) and found[:1] == list(found)[:1]


def test_what_is_written_in_runs_may_be_larger_before_a_thread_makes_it() -> None:
    plain = DeliveredBatches("orders", [opened(*[b"value"] * 100)])
    assert cost_of(plain) < cost_of(list(plain)) / 4
