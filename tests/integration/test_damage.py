"""A saved entry rots on the disk of the only broker that has it: readers are told of a hole, and nothing stops."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.broker.desks.leases import LeaseReader
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.client import Hole
from lanner.errors import NotLeader, StorageDamaged
from lanner.forwarding.values import NewMessage
from lanner.ledger import Location
from lanner.ledger.rows import FORMAT_KEY, set_key
from lanner.server import Server
from lanner.storage import LmdbTable
from lanner.wire.messages import SettleItem
from tests.callers import Here

VALUES = [b"first " + b"a" * 100, b"second " + b"b" * 100, b"third " + b"c" * 100]


def settings_for(path: Path) -> BrokerSettings:
    return BrokerSettings(
        data=str(path / "data"), http="", native="127.0.0.1:0", save_interval_ms=10, disk_reserve_bytes=0
    )


async def started(path: Path) -> Server:
    server = Server(settings_for(path))
    await server.start()
    return server


def flip(path: Path, location: Location) -> None:
    """One bit in the middle of an entry."""
    with open(path / "data" / "journal" / f"{location.file:012d}.journal", "r+b") as file:
        file.seek(location.offset + location.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


async def with_a_rotten_entry(path: Path) -> Server:
    """Three batches, the second of which is damaged on disk and no longer in memory."""
    server = await started(path)
    await server.service.ensure_topic(ANONYMOUS, "orders")
    for value in VALUES:
        await server.service.publish_messages(ANONYMOUS, "orders", [NewMessage(value, partition=0)])
    set_id = server.node.engine.cluster.topics["orders"].set_ids[0]
    refs = server.node.engine.replica(set_id).partition.batches_from(0, 1 << 20)
    location = server.node.engine.ledger.locate(set_id, refs[1].index)
    await server.stop()
    flip(path, location)
    return await started(path)


async def test_stream_readers_are_told_of_a_hole_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = await with_a_rotten_entry(tmp_path)
    assert server.native_address is not None
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found = await Here(server.service).fetch(ANONYMOUS, "orders", 0, 0)
            assert [one.base_offset for one in found.batches] == [0, 2]
            assert (list(found.damaged), found.next_offset) == ([(1, 2)], 3)
    assert len([record for record in caplog.records if "is damaged: " in record.getMessage()]) == 1, "said once"
    holes: list[Hole] = []
    async with (
        lanner.connect("{}:{}".format(*server.native_address)) as queue,
        queue.reader("orders", start="earliest", partitions=[0], on_hole=holes.append) as reader,
    ):
        seen = [(await anext(reader)).value for _ in range(2)]
    assert seen == [VALUES[0], VALUES[2]]
    assert holes == [Hole(0, 1, 2, "damaged")]
    assert [one.value for one in await Here(server.service).peek(ANONYMOUS, "orders", [0], 0, 10)] == seen
    await server.stop()


async def test_queue_workers_get_the_others_and_the_damaged_one_is_dead(tmp_path: Path) -> None:
    server = await with_a_rotten_entry(tmp_path)
    service = Here(server.service)
    seen = []
    for _ in range(4):
        for one in await service.poll_messages(ANONYMOUS, topic="orders", group="billing", member="w", max_messages=1):
            seen.append(one.message.value)
            item = SettleItem(0, one.token, one.message.offset, 1, 1)
            assert [result.code for result in await service.settle(ANONYMOUS, "orders", "billing", [item])] == [0]
    assert seen == [VALUES[0], VALUES[2]]
    letters = (await service.dead_letters(ANONYMOUS, "orders", "billing", None, 0, 10)).letters
    assert [(letter.offset, letter.reason) for letter in letters] == [(1, "damaged")]
    assert server.node.readiness.complete
    await server.stop()


async def test_what_memory_still_has_is_delivered_although_the_disk_is_damaged(tmp_path: Path) -> None:
    server = await started(tmp_path)
    service, engine = Here(server.service), server.node.engine
    await service.ensure_topic(ANONYMOUS, "orders")
    for value in VALUES:
        await service.publish_messages(ANONYMOUS, "orders", [NewMessage(value, partition=0)])
    set_id = engine.cluster.topics["orders"].set_ids[0]
    index = engine.replica(set_id).partition.batches_from(0, 1 << 20)[1].index
    await server.node.saving.save()
    flip(tmp_path, engine.ledger.locate(set_id, index))
    assert (await server.node.scrubbing.scrub()).damaged == 1
    assert engine.payload_from_memory(set_id, index) is not None
    found = await service.poll_messages(ANONYMOUS, topic="orders", group="billing", member="w", max_messages=3)
    assert [one.message.value for one in found] == VALUES
    items = [SettleItem(0, one.token, one.message.offset, 1, 1) for one in found]
    assert [result.code for result in await service.settle(ANONYMOUS, "orders", "billing", items)] == [0, 0, 0]
    assert (await service.dead_letters(ANONYMOUS, "orders", "billing", None, 0, 10)).letters == []
    await server.stop()


@pytest.mark.parametrize("known", [True, False])
async def test_a_poll_that_acks_by_itself_acks_nothing_that_is_damaged(tmp_path: Path, known: bool) -> None:
    server = await with_a_rotten_entry(tmp_path)
    service = Here(server.service)
    if known:
        assert (await server.node.scrubbing.scrub()).damaged == 1
    wanted: dict[str, Any] = {"topic": "orders", "group": "billing", "member": "w", "auto_ack": True}
    found: list[int] = []
    while batches := (await service.poll(ANONYMOUS, **wanted)).batches:
        found += [one.base_offset for one in batches]
    assert found == [0, 2]
    states = (await service.group(ANONYMOUS, "orders", "billing")).partitions
    assert sum(one.leased + one.ready for one in states) == 0
    letters = (await service.dead_letters(ANONYMOUS, "orders", "billing", None, 0, 10)).letters
    assert [(letter.offset, letter.reason) for letter in letters] == [(1, "damaged")]
    await server.stop()


async def test_a_poll_that_acks_by_itself_and_cannot_read_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await started(tmp_path)
    service = Here(server.service)
    await service.ensure_topic(ANONYMOUS, "orders")
    for value in VALUES:
        await service.publish_messages(ANONYMOUS, "orders", [NewMessage(value, partition=0)])
    wanted: dict[str, Any] = {"topic": "orders", "group": "billing", "member": "w", "auto_ack": True, "sequence": 1}

    async def elsewhere(_: object) -> list[bytes | None]:
        raise NotLeader("this copy is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(server.node.reading, "payloads", elsewhere)
        with pytest.raises(NotLeader):
            await service.poll(ANONYMOUS, **wanted)
    found = (await service.poll(ANONYMOUS, wait_ms=5_000, **wanted)).batches
    assert [(one.base_offset, [part.attempt for part in one.ranges]) for one in found] == [(0, [1]), (1, [1]), (2, [1])]
    assert not (await service.poll(ANONYMOUS, **wanted)).batches, "acked"
    await server.stop()


async def test_a_poll_that_acks_by_itself_delivers_nothing_whose_ack_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await started(tmp_path)
    service = Here(server.service)
    await service.ensure_topic(ANONYMOUS, "orders")
    for value in VALUES:
        await service.publish_messages(ANONYMOUS, "orders", [NewMessage(value, partition=0)])
    read = LeaseReader.read

    async def read_slowly(self: LeaseReader, leased: Any, bytes_max: int) -> Any:
        """The lease of the second message ends before it is acked."""
        items = [SettleItem(0, leased[0].token, 1, 1, 1)]
        assert [one.code for one in await service.release(ANONYMOUS, "orders", "billing", items)] == [0]
        return await read(self, leased, bytes_max)

    wanted: dict[str, Any] = {"topic": "orders", "group": "billing", "member": "w", "auto_ack": True}
    with monkeypatch.context() as patch:
        patch.setattr(LeaseReader, "read", read_slowly)
        assert [one.base_offset for one in (await service.poll(ANONYMOUS, **wanted)).batches] == [0, 2]
    assert [one.base_offset for one in (await service.poll(ANONYMOUS, **wanted)).batches] == [1]
    await server.stop()


async def test_the_scrubber_finds_it_before_a_reader_does(tmp_path: Path) -> None:
    server = await with_a_rotten_entry(tmp_path)
    node = server.node
    set_id = node.engine.cluster.topics["orders"].set_ids[0]
    assert not node.engine.damages.sets
    found = await node.scrubbing.scrub()
    assert (found.damaged, list(node.engine.damages.sets)) == (1, [set_id])
    assert found.entries >= len(VALUES)
    assert found.rows > 5
    assert found.read_bytes > sum(map(len, VALUES))
    assert (await node.scrubbing.scrub()).damaged == 1
    assert server.service.disk_figures == {"scrubbed_bytes": node.scrubbing.read_bytes, "scrub_passes": 2, "damaged": 1}
    await server.stop()


async def test_a_scrub_that_an_operator_asks_for_finds_it(tmp_path: Path) -> None:
    server = await with_a_rotten_entry(tmp_path)
    assert server.native_address is not None
    async with lanner.connect("{}:{}".format(*server.native_address)) as queue:
        before = await queue.admin.scrub_progress(server.node.node_id)
        assert (before.running, before.passes, before.entries) == (False, 0, 0)
        begun = await queue.admin.scrub(server.node.identity.name)
        assert (begun.running, begun.passes, begun.expected_bytes > 0) == (True, 0, True)
        async with asyncio.timeout(20):
            while (found := await queue.admin.scrub_progress(server.node.identity.name)).running:
                await asyncio.sleep(0.01)
    assert (found.passes, found.damaged) == (1, 1)
    assert found.entries >= len(VALUES) and found.rows > 5 and found.read_bytes > sum(map(len, VALUES))
    assert len(server.node.engine.damages.sets) == 1
    await server.stop()


@pytest.mark.parametrize("whose", ["a partition", "the table itself"])
async def test_the_scrubber_finds_a_row_that_rots_while_the_broker_runs(tmp_path: Path, whose: str) -> None:
    server = Server(replace(settings_for(tmp_path), save_interval_ms=3_600_000))  # a save would write the row anew
    await server.start()
    await server.service.ensure_topic(ANONYMOUS, "orders")
    await server.service.publish_messages(ANONYMOUS, "orders", [NewMessage(VALUES[0], partition=0)])
    await server.node.saving.save()
    set_id = server.node.engine.cluster.topics["orders"].set_ids[0]
    table = server.node.directory.table
    key = set_key(set_id) if whose == "a partition" else FORMAT_KEY
    row = table.get(key)
    assert row is not None
    table.commit({key: bytes([row[0] ^ 1]) + row[1:]})
    found = await server.node.scrubbing.scrub()
    assert found.damaged == 1
    if whose == "a partition":
        assert list(server.node.engine.damages.sets) == [set_id]
        table.commit({key: row})
    else:
        assert isinstance(await server.failed(), StorageDamaged)
    await server.stop()


async def test_alone_a_damaged_row_stops_the_broker_and_names_the_repair_command(tmp_path: Path) -> None:
    server = await started(tmp_path)
    await server.service.ensure_topic(ANONYMOUS, "orders")
    await server.service.publish_messages(ANONYMOUS, "orders", [NewMessage(VALUES[0], partition=0)])
    set_id = server.node.engine.cluster.topics["orders"].set_ids[0]
    await server.stop()
    table = LmdbTable(tmp_path / "data" / "table")
    key = set_key(set_id)
    row = table.get(key)
    assert row is not None
    table.commit({key: bytes([row[0] ^ 1]) + row[1:]})
    before = list(table.scan(b"", b"\xff"))
    table.close()
    for _ in range(2):
        with pytest.raises(StorageDamaged, match=f"replica set {set_id} does not match.*lanner broker repair --data"):
            await started(tmp_path)
    table = LmdbTable(tmp_path / "data" / "table")
    assert list(table.scan(b"", b"\xff")) == before, "nothing was changed: it is for the operator to say what is lost"
    table.close()
