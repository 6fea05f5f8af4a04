"""Callers that take what a broker has and give nothing back: memory, connections. All others are served meanwhile."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import lanner
from lanner import limits
from lanner.testing.process import BrokerProcess
from lanner.wire.messages import Command

HELLO = b"\x01\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03\x91\x91\x01"
PIECE = bytes(limits.MIB)


async def send_most_of_a_frame(broker: BrokerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A caller that says HELLO, announces the largest frame, sends all but a mebibyte of it, and waits."""
    reader, writer = await asyncio.open_connection(broker.host, broker.native_port)
    writer.write(HELLO)
    header = await reader.readexactly(5)
    await reader.readexactly(struct.unpack(">BI", header)[1])
    writer.write(struct.pack(">BI", Command.PUBLISH, limits.FRAME_BYTES_MAX) + struct.pack(">II", 1, 8))
    try:
        for _ in range(limits.FRAME_BYTES_MAX // len(PIECE) - 1):
            writer.write(PIECE)
            await writer.drain()
    except ConnectionError:
        pass  # it was let go before it was done
    return reader, writer


async def test_half_a_frame_from_each_of_many_does_not_take_the_brokers_memory(tmp_path: Path) -> None:
    count = 2 * limits.UNFINISHED_BYTES_MAX // limits.FRAME_BYTES_MAX
    with BrokerProcess(tmp_path / "data") as broker:
        before = broker.anonymous_bytes()
        callers = [await send_most_of_a_frame(broker) for _ in range(count)]
        async with lanner.connect(broker.native) as queue:
            await queue.publish("orders", b"served meanwhile")
        saying = {asyncio.ensure_future(reader.read()) for reader, _ in callers}
        let_go = 0
        async with asyncio.timeout(20):
            while let_go < count // 2 - 2:
                done, saying = await asyncio.wait(saying, return_when=asyncio.FIRST_COMPLETED)
                assert all(b"were the slowest" in one.result() for one in done)
                let_go += len(done)
        assert broker.anonymous_bytes() - before < limits.UNFINISHED_BYTES_MAX + 64 * limits.MIB
        for one in saying:
            one.cancel()
        for _, writer in callers:
            writer.close()


async def say_hello(broker: BrokerProcess) -> tuple[bytes, asyncio.StreamWriter] | None:
    """A connection, and the first byte of the answer to its HELLO; None: it was closed without one."""
    reader, writer = await asyncio.open_connection(broker.host, broker.native_port)
    try:
        writer.write(HELLO)
        return (await reader.readexactly(5))[:1], writer
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()
        return None


async def test_more_connections_than_it_may_open_files_leave_a_broker_publishing(tmp_path: Path) -> None:
    few_files = ("bash", "-c", 'ulimit -n 256; exec "$@"', "-")
    settings = {"segment_bytes": 64 * limits.MIB, "disk_reserve_bytes": 0}
    with BrokerProcess(tmp_path / "data", settings=settings, wrapper=few_files) as broker:
        async with lanner.connect(broker.native) as queue:
            await queue.publish("orders", b"before")
            answers = [await say_hello(broker) for _ in range(400)]
            welcome = [writer for first, writer in filter(None, answers) if first == b"\x81"]
            assert 50 < len(welcome) < 256
            assert any(answer is not None and answer[0] == b"\xff" for answer in answers)  # told why, before the storm
            files_before = len(list((tmp_path / "data" / "journal").iterdir()))
            for _ in range(96):
                await queue.publish("orders", bytes(limits.MIB - 1_000))
            assert len(list((tmp_path / "data" / "journal").iterdir())) > files_before
            for answer in filter(None, answers):
                answer[1].close()
            async with asyncio.timeout(20):
                while (after := await say_hello(broker)) is None or after[0] != b"\x81":
                    if after is not None:
                        after[1].close()  # refused, and told so
                    await asyncio.sleep(0.05)
            after[1].close()
            await queue.publish("orders", b"after")
        assert broker.running
        log = broker.log_path.read_text()
        assert log.count("which is all this broker may have: new ones are refused") == 1
        assert "Traceback" not in log


async def test_a_body_has_as_long_as_the_setting_says(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"body_deadline_ms": 1_000}) as broker:
        reader, writer = await asyncio.open_connection(broker.host, broker.http_port)
        writer.write(b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf")
        async with asyncio.timeout(20):
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 408 ") and b"the body did not arrive within 1000 ms" in said
        writer.close()
