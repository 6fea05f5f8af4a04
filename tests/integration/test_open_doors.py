"""A broker that listens beyond its machine says so: there are no access rules yet."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lanner.broker.settings import BrokerSettings
from lanner.server import Server


@pytest.mark.parametrize(
    ("http", "native", "grpc", "warned"),
    [
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", []),
        ("0.0.0.0:0", "127.0.0.1:0", "", ["http"]),
        ("", "0.0.0.0:0", "", ["native"]),
        ("", "127.0.0.1:0", "0.0.0.0:0", ["grpc"]),
    ],
)
async def test_listening_beyond_this_machine_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, http: str, native: str, grpc: str, warned: list[str]
) -> None:
    caplog.set_level(logging.WARNING, "lanner.server")
    doors = {"http": http, "native": native, "grpc": grpc}
    server = Server(BrokerSettings(data=str(tmp_path / "data"), disk_reserve_bytes=0, **doors))
    await server.start()
    await server.stop()
    said = [record.getMessage() for record in caplog.records if record.name == "lanner.server"]
    assert [message.split()[1] for message in said] == warned
    assert all("no access rules" in message and "127.0.0.1" in message for message in said)
