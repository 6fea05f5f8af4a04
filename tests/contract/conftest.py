"""The brokers of the contract suite, one of each kind for a module, and the doors to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.testing.proxy_process import ProxyProcess
from tests.contract.doors.door import Door
from tests.contract.doors.parity import DOORS, Case

DEADLINE_MS = 1_000  # for a request to arrive whole: the least that may be set


def start(folder: pytest.TempPathFactory, name: str, **settings: Any) -> BrokerProcess:
    chosen = {
        "disk_reserve_bytes": 0,
        "default_partitions": 1,
        "segment_bytes": 4 << 20,
        "grpc": f"{HOST}:{free_port()}",
        **settings,
    }
    return BrokerProcess(folder.mktemp(name) / "data", settings=chosen)


def doors_to(broker: BrokerProcess) -> Iterator[dict[str, Door]]:
    yield from doors_at(broker.native, f"{broker.host}:{broker.http_port}", broker.settings["grpc"])


def doors_of(proxy: ProxyProcess) -> Iterator[dict[str, Door]]:
    for doors in doors_at(proxy.native, f"{proxy.host}:{proxy.http_port}", proxy.grpc):
        for door in doors.values():
            door.place = "proxy"
        yield doors


def doors_at(native: str, rest: str, grpc: str) -> Iterator[dict[str, Door]]:
    addresses = {"native": native, "REST": rest, "gRPC": grpc}
    opened: dict[str, Door] = {}
    try:
        for name, kind in DOORS.items():
            opened[name] = kind(addresses[name])
        yield opened
    finally:
        for door in opened.values():
            door.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    deadlines = {"body_deadline_ms": DEADLINE_MS, "frame_deadline_ms": DEADLINE_MS}
    with start(tmp_path_factory, "broker", **deadlines) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="module")
def doors(broker: BrokerProcess) -> Iterator[dict[str, Door]]:
    yield from doors_to(broker)


@pytest.fixture(scope="module")
def proxied(broker: BrokerProcess) -> Iterator[dict[str, Door]]:
    """The doors of a proxy in front of the same broker."""
    deadlines = {"body-deadline-ms": str(DEADLINE_MS), "frame-deadline-ms": str(DEADLINE_MS)}
    with ProxyProcess(broker.data.parent, broker.native, flags=deadlines) as proxy:
        yield from doors_of(proxy)
        assert proxy.stop() == 0


@pytest.fixture
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """The door of a case; after it, what the case shows must have been asked for."""
    case: Case = request.param
    door = request.getfixturevalue("proxied" if case.place == "proxy" else "doors")[case.door]
    door.asked.clear()
    yield door
    missing = {door.served[call] for call in case.shown} - door.asked
    assert not missing, f"the case did not ask {door.name} for {sorted(missing)}"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other case has."""
    name = request.node.name.removeprefix("test_")
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:150] + str(time.monotonic_ns())
