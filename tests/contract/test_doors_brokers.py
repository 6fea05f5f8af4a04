"""What brokers tell over each door that cannot serve a caller now: too full, or not in their cluster yet."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from lanner import limits
from lanner.errors import Overloaded, ServiceUnavailable, StorageFull
from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.testing.proxy_process import ProxyProcess
from tests.contract.conftest import doors_of, doors_to, start
from tests.contract.doors.door import Door, New
from tests.contract.doors.grpc import GrpcDoor, as_told
from tests.contract.doors.native import NativeDoor
from tests.contract.doors.parity import DOORS, brings
from tests.contract.doors.rest import RestDoor


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Door]]]:
    """A broker whose disk is below its reserve, and a proxy before it."""
    with (
        start(tmp_path_factory, "full", disk_reserve_bytes=1 << 60) as process,
        ProxyProcess(process.data.parent, process.native) as proxy,
    ):
        for doors, proxied in zip(doors_to(process), doors_of(proxy), strict=True):
            doors["native"].create_topic("full", partitions=1)
            yield {"broker": doors, "proxy": proxied}


@brings(StorageFull)
def test_a_disk_below_its_reserve(full: dict[str, dict[str, Door]], door: Door) -> None:
    same = full[door.place][door.name]
    with pytest.raises(StorageFull):
        same.publish("full", New(b"v"))
    assert same.poll("full", "g") == []


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """A founder that waits for others who never come, and a proxy that waits for it: where their doors are."""
    process = start(tmp_path_factory, "lonely")
    process.settings["seeds"] = (process.native, f"{HOST}:{free_port()}", f"{HOST}:{free_port()}")
    proxy = ProxyProcess(process.data.parent, process.native)
    try:
        addresses = {}
        for place, one, grpc_address in (
            ("broker", process, process.settings["grpc"]),
            ("proxy", proxy, proxy.grpc),
        ):
            one.launch()
            ends = time.monotonic() + 30
            while one.status_of("/healthz") != 200 or not _listens(grpc_address):
                assert one.running and time.monotonic() < ends, one.log_tail()
                time.sleep(0.02)
            addresses[place] = {"native": one.native, "REST": f"{one.host}:{one.http_port}", "gRPC": grpc_address}
        yield addresses
    finally:
        proxy.kill()
        process.kill()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@brings(ServiceUnavailable)
def test_a_broker_that_does_not_belong_to_its_cluster_yet(lonely: dict[str, dict[str, str]], door: Door) -> None:
    with pytest.raises(ServiceUnavailable):
        other = DOORS[door.name](lonely[door.place][door.name])
        try:
            other.list_topics()
        finally:
            other.close()


CONNECTIONS = 8


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> Iterator[dict[str, dict[str, str]]]:
    """A broker and a proxy that may have few connections and hold few unfinished requests: where their doors are."""
    few = {"connections_max": CONNECTIONS, "unfinished_bytes_max": 2 * limits.FRAME_BYTES_MAX}
    flags = {name.replace("_", "-"): str(value) for name, value in few.items()}
    with (
        start(tmp_path_factory, "small", **few) as process,
        ProxyProcess(broker.data.parent, broker.native, flags=flags) as proxy,
    ):
        yield {
            place: {"native": one.native, "REST": f"{one.host}:{one.http_port}", "gRPC": grpc_address}
            for place, one, grpc_address in (
                ("broker", process, process.settings["grpc"]),
                ("proxy", proxy, proxy.grpc),
            )
        }


@brings(Overloaded)
def test_a_broker_that_serves_as_many_as_it_may(small: dict[str, dict[str, str]], door: Door) -> None:
    addresses = small[door.place]
    with contextlib.ExitStack() as opened, pytest.raises(Overloaded):
        if isinstance(door, GrpcDoor):
            fill_with_streams(opened, GrpcDoor(addresses["gRPC"]))
        elif isinstance(door, RestDoor):
            with contextlib.suppress(Overloaded):
                fill_with_connections(opened, addresses["native"])
            other = opened.enter_context(contextlib.closing(RestDoor(addresses["REST"])))
            other.list_topics()
        else:
            fill_with_connections(opened, addresses["native"])


def fill_with_connections(opened: contextlib.ExitStack, address: str) -> None:
    """Connect until that is refused, and raise why."""
    for _ in range(CONNECTIONS + 1):
        opened.enter_context(contextlib.closing(NativeDoor(address)))


def fill_with_streams(opened: contextlib.ExitStack, door: GrpcDoor) -> None:
    """Open streams that say nothing until one is refused, and raise why."""
    opened.callback(door.close)
    silence, ended = threading.Event(), queue.SimpleQueue[grpc.Call]()
    opened.callback(silence.set)

    def nothing() -> Iterator[bytes]:
        silence.wait()
        yield from ()

    publish = door.channel.stream_stream("/lanner.v1.Queue/PublishStream")
    for _ in range(2 * limits.FRAME_BYTES_MAX // limits.MIB + 1):
        publish(nothing(), timeout=60).add_done_callback(ended.put)
    raise as_told(ended.get(timeout=30))
