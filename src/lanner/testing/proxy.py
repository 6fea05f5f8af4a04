"""A TCP proxy of ours that stands before each broker, for machines where network namespaces are not allowed.

Every broker advertises its proxy's address, so brokers and clients alike come through it. Who is calling is told by
which process owns the other end of the connection (the kernel knows), so that one way from one broker to another can
be cut, and nothing else. What is cut is not refused: bytes wait, in the kernel first and then at the sender, as if
packets were lost, and go on when the cut is healed. A link can also be made slow.

It runs as a process of its own (`python -m lanner.testing.proxy`), takes one JSON command a line, and answers each
with a line. `ProxyWires` is the other end of that.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lanner.testing.wires import CLIENTS

_PIECE_BYTES: Final = 64 * 1024


# ------------------------------------------------------------------ the process in the middle


class _Middle:
    """Which ways are cut or slow, and who is who."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], asyncio.Event] = {}
        self._delays: dict[tuple[int, int], float] = {}
        self._owners: dict[int, int] = {}  # process id → broker

    def way(self, source: int, target: int) -> asyncio.Event:
        event = self._open.get((source, target))
        if event is None:
            event = self._open[source, target] = asyncio.Event()
            event.set()
        return event

    def delay_seconds(self, source: int, target: int) -> float:
        return self._delays.get((source, target), 0.0)

    def obey(self, command: Mapping[str, Any]) -> None:
        if command["do"] == "cut":
            self.way(command["source"], command["target"]).clear()
        elif command["do"] == "delay":
            self._delays[command["source"], command["target"]] = command["seconds"]
        elif command["do"] == "own":
            self._owners = {int(process): broker for process, broker in command["owners"].items()}
        else:
            self._delays.clear()
            for event in self._open.values():
                event.set()

    def caller(self, peer: tuple[str, int], own: tuple[str, int]) -> int:
        """The broker whose process has the other end of a connection; CLIENTS when it is none of them."""
        inode = _inode_of(peer, own)
        for process, broker in self._owners.items():
            if inode and inode in _sockets_of(process):
                return broker
        return CLIENTS

    async def serve(self, target: int, port: int, upstream: tuple[str, int]) -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                source = self.caller(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
                await self.way(source, target).wait()
                far_reader, far_writer = await asyncio.open_connection(*upstream, limit=_PIECE_BYTES)
            except OSError:
                writer.transport.abort()
                return
            there = self._carry(reader, far_writer, source, target)
            back = self._carry(far_reader, writer, target, source)
            tasks = [asyncio.ensure_future(there), asyncio.ensure_future(back)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self.way(source, target).wait()  # even an end is not seen through a cut
            for task in tasks:
                task.cancel()
            for one in (writer, far_writer):
                one.transport.abort()

        await asyncio.start_server(accepted, "127.0.0.1", port, limit=_PIECE_BYTES)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, target: int
    ) -> None:
        try:
            while True:
                await self.way(source, target).wait()
                piece = await reader.read(_PIECE_BYTES)
                await self.way(source, target).wait()  # it may have been cut while we waited for bytes
                if not piece:
                    return
                delay = self.delay_seconds(source, target)
                if delay:
                    await asyncio.sleep(delay)
                writer.write(piece)
                await writer.drain()
        except OSError:
            return


def _inode_of(local: tuple[str, int], remote: tuple[str, int]) -> str:
    """The socket with this local and this remote end, as the kernel lists it."""
    wanted = f"{_kernel_form(local)} {_kernel_form(remote)}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"{fields[1]} {fields[2]}" == wanted:
            return fields[9]
    return ""


def _kernel_form(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return "".join(f"{int(part):02X}" for part in reversed(host.split("."))) + f":{port:04X}"


def _sockets_of(process: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:  # it has ended, or a descriptor was closed while we looked
        pass
    return found


async def _obey_forever(given: Mapping[str, Any]) -> None:
    middle = _Middle()
    for port, target, upstream in given["listen"]:
        await middle.serve(target, port, ("127.0.0.1", upstream))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := await reader.readline():
        middle.obey(json.loads(line))
        sys.stdout.write("done\n")
        sys.stdout.flush()


# ------------------------------------------------------------------ the test's end


class ProxyWires:
    """The same cuts as `NamespaceWires`, by proxies. Ports are (proxy port, broker, the broker's own port)."""

    def __init__(self, ports: list[tuple[int, int, int]]) -> None:
        command = [sys.executable, "-m", "lanner.testing.proxy", json.dumps({"listen": ports})]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear("ready")

    def owners(self, owners: Mapping[int, int]) -> None:
        """Which process is which broker; to be said again whenever one was started."""
        self._say({"do": "own", "owners": {str(process): broker for process, broker in owners.items()}})

    def cut_one_way(self, source: int, target: int) -> None:
        self._say({"do": "cut", "source": source, "target": target})

    def delay(self, source: int, target: int, seconds: float) -> None:
        """Each piece from one to the other takes so much longer."""
        self._say({"do": "delay", "source": source, "target": target, "seconds": seconds})

    def heal(self) -> None:
        """Undo every cut and every delay."""
        self._say({"do": "heal"})

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _say(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._hear("done")

    def _hear(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == f"{word}\n", f"the proxy said {line!r} instead of {word!r}"


if __name__ == "__main__":
    asyncio.run(_obey_forever(json.loads(sys.argv[1])))
