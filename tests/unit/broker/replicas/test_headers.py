"""A batch's header is read once on the broker that took it, and never taken for another's."""

from __future__ import annotations

import pytest

from lanner import batch
from lanner.broker.replicas import headers as headers_module
from lanner.broker.replicas.headers import KnownHeaders
from lanner.calls import ANONYMOUS
from lanner.errors import LannerError
from lanner.partition import batch_start, encode_append
from lanner.wire.messages import Publish
from tests.unit.broker.offices import opened


def test_only_the_very_same_bytes_are_known() -> None:
    known = KnownHeaders()
    data = batch.encode([b"x"], priority=9)
    payload, twin = encode_append(1, data), encode_append(1, data)
    header = batch.verify(data)
    known.know(payload, header)
    assert known.read(memoryview(payload)[batch_start(payload) :]) is header
    other = known.read(memoryview(twin)[batch_start(twin) :])
    assert other is not header and other == header
    known.forget(payload)
    assert known.read(memoryview(payload)[batch_start(payload) :]) is not header


async def test_the_header_of_a_publish_is_read_once_and_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        service = offices["a"].service
        monkeypatch.setattr(headers_module.batch, "read_header", lambda data: pytest.fail("it was read again"))
        for _ in range(3):
            await service.publish(ANONYMOUS, Publish("orders", 0), batch.encode([b"x"]))
        assert len(offices["a"].engine.headers) == 0


async def test_headers_of_publishes_that_never_applied_are_forgotten() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        offices.flock.cut.add(leader.node_id)
        publishing = [leader.service.publish(ANONYMOUS, Publish("orders", 0), batch.encode([b"x"])) for _ in range(5)]
        assert len(leader.engine.headers) == 5
        for future in publishing:
            with pytest.raises(LannerError):
                await future
        assert len(leader.engine.headers) == 0
        offices.flock.cut.clear()
