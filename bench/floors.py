"""What the machine itself can do, measured beside every figure: the disk under a journal, the loop under a connection.

The journal floor appends the same encoded batches with one `pwritev` and one `fdatasync` at a time, as many batches
in each as the broker put into one commit. The echo floor sends the same frames over one uvloop connection and gets
them back. Neither knows anything of queues: no broker can be faster than both.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import uvloop

from bench.processes import run_apart

SEGMENT_BYTES = 128 * 1024 * 1024


def journal_floor(folder: Path, chunk: bytes, at_a_time: int, seconds: float) -> tuple[float, list[float]]:
    """Chunks a second, and how long each sync took in milliseconds."""
    path = folder / "floor"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    took: list[float] = []
    try:
        os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
        os.fsync(descriptor)
        buffers = [chunk] * max(1, at_a_time)
        size = sum(map(len, buffers))
        position = count = 0
        began = time.perf_counter()
        ends = began + seconds
        while (now := time.perf_counter()) < ends:
            if position + size > SEGMENT_BYTES:
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
                position = 0
            for first in range(0, len(buffers), os.sysconf("SC_IOV_MAX")):
                part = buffers[first : first + os.sysconf("SC_IOV_MAX")]
                position += os.pwritev(descriptor, part, position)
            os.fdatasync(descriptor)
            took.append((time.perf_counter() - now) * 1e3)
            count += len(buffers)
        return count / (time.perf_counter() - began), took
    finally:
        os.close(descriptor)
        path.unlink()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _serve_echo(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def serve_echo(port: int) -> None:
    uvloop.run(_serve_echo(port))


async def _echo(port: int, frame: bytes, in_flight: int, seconds: float) -> float:
    for _ in range(500):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            break
        except OSError:
            await asyncio.sleep(0.01)
    returned = count = 0
    began = time.perf_counter()
    for _ in range(in_flight):
        writer.write(frame)
    sent = in_flight
    while time.perf_counter() - began < seconds:
        returned += len(await reader.read(1 << 20))
        count = returned // len(frame)
        fresh = in_flight - (sent - count)
        if fresh > 0:
            writer.write(frame * fresh)
            sent += fresh
            await writer.drain()
    took = time.perf_counter() - began
    writer.close()
    return count / took


def measure_echo(port: int, frame: bytes, in_flight: int, seconds: float) -> float:
    return uvloop.run(_echo(port, frame, in_flight, seconds))


def echo_floor(frame: bytes, in_flight: int, seconds: float) -> float:
    """Frames a second there and back, server and client in processes of their own."""
    from lanner.testing.process import free_port

    port = free_port()
    with run_apart(serve_echo, port):
        return measure_echo(port, frame, in_flight, seconds)


def scratch(parent: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A folder on the disk that is measured (never a tmpfs by accident: it is made in the working tree)."""
    where = parent or Path.cwd() / ".cache"
    where.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="bench-", dir=where)
