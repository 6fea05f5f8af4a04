"""A data directory that an older release left after a crash starts with everything in it (see `tools/old_data.py`)."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import lanner
from lanner import features
from lanner.broker.node import Node
from lanner.broker.settings import BrokerSettings
from lanner.errors import LeaseLost
from lanner.net.connector import open_connection
from lanner.server import Server
from lanner.wire.messages import Command, Settle, SettleItem, SettleKind

FIXTURES = Path(__file__).parent.parent / "fixtures"
# the level of a cluster that a release founded
LEVELS = {
    "0.1.0": features.LOWEST,
    "0.2.0": features.IDENTITIES,
    "0.3.0": features.STAGES,
    "0.4.0": features.PRODUCER_FLOORS,
    "0.5.0": features.MEMBERS,
}
LOWER = [release for release, level in LEVELS.items() if level < features.HIGHEST]
SECONDS = 20.0


class Old:
    """A broker of this release on the old data, at the time at which it crashed."""

    def __init__(self, folder: Path, release: str) -> None:
        with tarfile.open(FIXTURES / f"data-{release}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        contents = json.loads((folder / "contents.json").read_text())
        assert contents["release"] == release
        self.level = LEVELS[release]
        self.token: int = contents.get("token", 0)
        self.now_ms: int = contents["moment_ms"]
        self.lease_ms: int = contents["lease_ms"]
        self.settings = BrokerSettings(
            data=str(folder / "data"), http="", native="127.0.0.1:0", name="old", disk_reserve_bytes=0, drain_ms=500
        )
        self.server: Server | None = None

    async def start(self) -> Node:
        self.server = server = Server(self.settings)
        server.node = Node(self.settings, now_ms=lambda: self.now_ms)
        async with asyncio.timeout(SECONDS):
            await server.start()
        return server.node

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

    @property
    def address(self) -> str:
        assert self.server is not None and self.server.native_address is not None
        return "{}:{}".format(*self.server.native_address)


@pytest.fixture(params=sorted(LEVELS))
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Old]:
    old = Old(tmp_path, request.param)
    yield old
    await old.stop()


async def test_everything_that_the_last_release_left_is_there(old: Old, caplog: pytest.LogCaptureFixture) -> None:
    await old.start()
    assert "that a crash left unfinished at the end of the journal" in caplog.text
    async with lanner.connect(old.address) as queue:
        assert await queue.admin.topics() == ["orders"]
        group = (await queue.admin.group("orders", "billing")).partitions[0]
        assert (group.leased, group.waiting, group.dead) == (1, 1, 1)
        (dead,) = (await queue.admin.dead_letters("orders", "billing")).letters
        assert dead.message is not None
        assert (dead.message.value, dead.reason, dead.offset) == (b"message-2", "broken", 2)
        again = await queue.publish("orders", "once, again", dedup_id="only-once")
        assert (again.offset, again.duplicate) == (6, True)
        async with queue.reader("orders", group="audit") as reader:
            values = [(await anext(reader)).value for _ in range(6)]
        assert values == [b"message-3", b"message-4", b"message-5", b"once", b"later", b"last whole one"]
        async with queue.consumer("orders", group="billing") as consumer:
            polled = await consumer.poll(10)
            assert [one.value for one in polled] == [b"message-4", b"once", b"last whole one"]
            await polled.ack()
    await old.stop()
    old.now_ms += old.lease_ms + 1  # a restart takes the new time at once
    await old.start()
    rest: dict[bytes, int] = {}
    async with lanner.connect(old.address) as queue, queue.consumer("orders", group="billing") as consumer:
        async with asyncio.timeout(SECONDS):
            while len(rest) < 3:
                for one in await consumer.poll(10):
                    rest[one.value] = one.attempt
                    await one.ack()
        assert rest == {b"message-1": 2, b"message-3": 2, b"later": 1}
        fresh = await queue.publish("orders", "of the new release")
        assert fresh.offset == 9, "what was torn was never confirmed"


@pytest.mark.parametrize("old", ["0.2.0", "0.3.0", "0.4.0", "0.5.0"], indirect=True)
async def test_settles_that_the_last_release_answered_get_the_same_answers_again(old: Old) -> None:
    await old.start()
    assert old.server is not None and old.server.native_address is not None
    link = await open_connection(*old.server.native_address)
    try:
        wanted = [(0, SettleKind.ACK, 0), (0, SettleKind.NACK, LeaseLost.code), (2, SettleKind.REJECT, 0)]
        for offset, kind, code in wanted:  # acked, and not nacked; rejected with this reason
            reason = "broken" if kind is SettleKind.REJECT else ""
            item = SettleItem(0, old.token, offset, 1, kind, -1, reason)
            (settled,) = (await link.request(Command.SETTLE, Settle("billing", "orders", [item]))).control.items
            assert settled.code == code, (offset, kind)
    finally:
        await link.close()


@pytest.mark.parametrize("old", LOWER, indirect=True)
async def test_its_level_stays_until_somebody_raises_it_and_every_start_says_that_it_could_be(
    old: Old, caplog: pytest.LogCaptureFixture
) -> None:
    node = await old.start()
    cluster = node.engine.cluster
    assert node.engine.feature_level == old.level
    async with asyncio.timeout(SECONDS):
        while cluster.brokers[node.node_id].feature_max != features.HIGHEST:  # it says what it is now
            await asyncio.sleep(0.02)
        while "`lanner cluster upgrade` raises it" not in caplog.text:
            await asyncio.sleep(0.02)
    async with lanner.connect(old.address) as queue:
        found = await queue.admin.describe_cluster()
        assert (found.feature_level, found.feature_level_possible, found.behind) == (old.level, features.HIGHEST, [])
        assert await queue.admin.upgrade() == features.HIGHEST
        assert await queue.admin.upgrade() == features.HIGHEST
    await old.stop()
    caplog.clear()
    node = await old.start()
    assert node.engine.feature_level == features.HIGHEST
    assert "cluster upgrade" not in caplog.text
