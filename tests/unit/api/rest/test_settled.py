"""Replies of acks that are written range by range, held against their shape, over REST and gRPC."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.plain import acked_response
from lanner.api.grpc.shapes import settle_response
from lanner.api.rest.group_shapes import PlainTarget
from lanner.api.rest.settled import acked_reply, settled_reply
from lanner.api.settling import acknowledge, told_of
from lanner.errors import LeaseLost
from lanner.wire.messages import SettledItem, SettleItem

TARGETS = st.lists(
    st.builds(
        PlainTarget,
        partition=st.integers(0, 1),
        offset=st.one_of(st.integers(0, 12), st.integers(125, 130)),
        token=st.integers(1, 2),
        count=st.sampled_from([1, 1, 1, 2]),
    ),
    min_size=1,
    max_size=20,
)


@given(TARGETS, st.sets(st.integers(0, 12), max_size=2), st.booleans())
async def test_an_ack_is_answered_in_the_bytes_of_its_shape(
    targets: list[PlainTarget], lost: set[int], in_order: bool
) -> None:
    if in_order:
        targets.sort(key=lambda one: (one.partition, one.token, one.offset))

    async def ask(items: list[SettleItem]) -> list[SettledItem]:
        held = [(item, set(range(item.first_offset, item.first_offset + item.count)) - lost) for item in items]
        return [SettledItem(0 if len(has) == item.count else LeaseLost().code, len(has)) for item, has in held]

    outcomes = await acknowledge(targets, ask)
    told = told_of(targets, outcomes)
    single = await ask([SettleItem(one.partition, one.token, one.offset, one.count, 1) for one in targets])
    assert told == single
    assert acked_reply(targets, outcomes) == msgspec.json.encode(settled_reply(targets, told))
    leases = [shapes.Lease(partition=one.partition, offset=one.offset, count=one.count) for one in targets]
    assert acked_response(leases, outcomes).SerializeToString() == settle_response(leases, told).SerializeToString()
