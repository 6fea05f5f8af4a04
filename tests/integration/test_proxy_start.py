"""A proxy whose list of brokers holds some that tell it nothing: others are asked, and its log says what is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.proxy.server import ProxyServer
from lanner.proxy.settings import ProxySettings
from lanner.testing.process import HOST, BrokerProcess, free_port


def in_order(given: Sequence[Any], count: int) -> list[Any]:
    return list(given)[:count]


async def test_an_address_that_tells_nothing_is_given_up_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy itself is such an address: somebody answers there, and knows of no broker."""
    monkeypatch.setattr("lanner.client.brokers.random.sample", in_order)
    own = f"{HOST}:{free_port()}"
    with BrokerProcess(tmp_path / "broker", settings={"disk_reserve_bytes": 0, "segment_bytes": 4 << 20}) as broker:
        server = ProxyServer(ProxySettings(f"{own},{broker.native}", own, ""))
        await server.start()
        try:
            await asyncio.wait_for(server.until_ready(), 20)
            async with lanner.connect(own) as queue:
                await queue.publish("orders", "refund")
                async with queue.consumer("orders", group="billing") as consumer:  # whose polls wait
                    assert (await asyncio.wait_for(anext(aiter(consumer)), 20)).offset == 0
        finally:
            await server.stop()


async def test_a_proxy_that_knows_no_address_but_its_own_says_so(caplog: pytest.LogCaptureFixture) -> None:
    own = f"{HOST}:{free_port()}"
    server = ProxyServer(ProxySettings(own, own, ""))
    await server.start()
    try:
        async with asyncio.timeout(20):
            while "names this proxy itself" not in caplog.text:
                await asyncio.sleep(0.05)
        assert not server.service.readiness.ready
        assert [record.levelno for record in caplog.records if "itself" in record.message] == [logging.WARNING]
    finally:
        await server.stop()
