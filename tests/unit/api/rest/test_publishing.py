"""Replies of publishes that are written run by run, held against their shape."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lanner.api.rest.publishing import stored_reply
from lanner.api.rest.shapes import PublishManyReply, StoredMessage
from lanner.forwarding.values import Placed, Run

RUNS = st.builds(
    lambda partition, first, count, append_ms, duplicate: Run(
        partition, range(first, first + count), append_ms, duplicate
    ),
    st.integers(0, 999),
    st.integers(0, 2**53),
    st.integers(1, 20),
    st.integers(0, 2**50),
    st.booleans(),
)


@given(st.lists(RUNS, min_size=1, max_size=4))
def test_a_publish_is_answered_in_the_bytes_of_its_shape(runs: list[Run]) -> None:
    placed = Placed(runs)
    messages = [
        StoredMessage(
            id=f"orders.v1_a-b/{one.partition}/{one.offset}",
            partition=one.partition,
            offset=one.offset,
            timestamp_ms=one.append_ms,
            duplicate=one.duplicate,
        )
        for one in placed
    ]
    shape = PublishManyReply(topic="orders.v1_a-b", count=len(messages), messages=messages)
    assert stored_reply("orders.v1_a-b", placed) == msgspec.json.encode(shape)
