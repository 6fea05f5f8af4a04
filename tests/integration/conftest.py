"""A broker that is asked by itself and, in a second round, through a proxy before it. Each file has its own broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lanner.testing.process import BrokerProcess
from lanner.testing.proxy_process import ProxyProcess


@pytest.fixture(scope="module", params=["broker", "proxy"])
def place(request: pytest.FixtureRequest) -> str:
    """Whether a broker is asked by itself, or through a proxy before it."""
    return str(request.param)


@pytest.fixture(scope="module")
def proxy(broker: BrokerProcess, place: str) -> Iterator[ProxyProcess | None]:
    """The proxy before the broker; None: it is asked by itself."""
    if place == "broker":
        yield None
        return
    with ProxyProcess(broker.data.parent, broker.native) as process:
        yield process
