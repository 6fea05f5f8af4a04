"""Fixtures of running brokers that several modules share: import those that a module needs, and name them in `__all__`.

Each has one name for its tests, given by `name`, and one to be imported by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import lanner
from lanner.broker.settings import BrokerSettings
from lanner.server import Server
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import BrokerProcess

SMALL_SEGMENTS = {"segment_bytes": 4 << 20}


@pytest.fixture(scope="module", name="broker")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker, a process of its own, for all tests of a module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings={"disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module", name="queue")
def blocking_queue(broker: BrokerProcess) -> Iterator[lanner.sync.Queue]:
    with lanner.sync.connect(broker.native) as queue:
        yield queue


@pytest.fixture(name="server")
async def native_server(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker in this process, with no door but the native one."""
    server = Server(
        BrokerSettings(data=str(tmp_path / "data"), http="", grpc="", native="127.0.0.1:0", disk_reserve_bytes=0)
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(name="address")
def native_address(server: Server) -> str:
    assert server.native_address is not None
    host, port = server.native_address
    return f"{host}:{port}"


@pytest.fixture(scope="module", name="shared")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), settings=SMALL_SEGMENTS) as cluster:
        yield cluster


@pytest.fixture(name="cluster")
def running_cluster(shared: ClusterProcess) -> ClusterProcess:
    """Three brokers that all run; each test has a topic of its own."""
    for number in shared.brokers:
        if number not in shared.running:
            shared.restart(number)
    return shared
