"""Stopping in the middle of background work: what was begun is finished, and the next start finds everything."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.forwarding.values import NewMessage
from lanner.server import Server, serve
from tests.callers import Here


def settings_for(path: Path) -> BrokerSettings:
    return BrokerSettings(data=str(path / "data"), http="", native="", save_interval_ms=10, disk_reserve_bytes=0)


async def test_a_broker_told_to_stop_while_it_saves_finishes_the_save_first(tmp_path: Path) -> None:
    server = Server(settings_for(tmp_path))
    await server.start()
    table = server.node.directory.table
    commit, begun, may_go_on = table.commit, threading.Event(), threading.Event()

    def slow_commit(puts: Mapping[bytes, bytes | None]) -> None:
        begun.set()
        assert may_go_on.wait(10)
        commit(puts)

    table.commit = slow_commit  # type: ignore[method-assign]
    await server.service.ensure_topic(ANONYMOUS, "orders")
    await server.service.publish_messages(ANONYMOUS, "orders", [NewMessage(b"kept", partition=0)])
    assert await asyncio.to_thread(begun.wait, 10)
    stopping = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    may_go_on.set()
    await stopping
    again = Server(settings_for(tmp_path))
    await again.start()
    assert [message.value for message in await Here(again.service).peek(ANONYMOUS, "orders", [0], 0, 1)] == [b"kept"]
    await again.stop()


async def test_what_a_broker_has_recovered_is_not_looked_through_for_garbage_again_and_again(tmp_path: Path) -> None:
    before, frozen = gc.get_freeze_count(), 0

    def started(server: Server) -> None:
        nonlocal frozen
        frozen = gc.get_freeze_count()
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        assert await serve(settings_for(tmp_path), started) is None
    finally:
        gc.unfreeze()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
    assert frozen > before
