"""A proxy in a process of its own: `lanner proxy`, started, watched, killed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from lanner.testing.process import HOST, BrokerProcess, free_port


class ProxyProcess(BrokerProcess):
    """One proxy as a child process; a context manager. It has no data: the folder is for its log alone."""

    def __init__(self, folder: Path | str, servers: str, *, flags: Mapping[str, str] | None = None) -> None:
        self.number = free_port()  # the port of gRPC, and what tells it from others in the same folder
        super().__init__(Path(folder) / f"proxy-{self.number}")
        self.servers = servers
        self.flags = dict(flags or {})

    @property
    def grpc(self) -> str:
        return f"{HOST}:{self.number}"

    def command(self) -> list[str]:
        given = {"servers": self.servers, "native": self.native, "grpc": self.grpc, **self.flags}
        given["http"] = f"{self.host}:{self.http_port}"
        flags = [part for name, value in given.items() for part in (f"--{name}", value)]
        return [sys.executable, "-c", "from lanner.cli import main; main()", "proxy", *flags]


__all__ = ["ProxyProcess"]
