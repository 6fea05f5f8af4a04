"""Whose clocks a broker goes by: those of the brokers that it knows, heard or not, and of nobody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lanner.broker.node import Node
from lanner.broker.settings import BrokerSettings
from lanner.wire.peers import Pulse


@pytest.fixture
def node(tmp_path: Path) -> Any:
    made: Any = Node(BrokerSettings(data=str(tmp_path / "data")), now_ms=lambda: 1_000)
    made.peers = SimpleNamespace(known=["b", "c"], heard=lambda *_: None)
    made.engine = SimpleNamespace(cluster=SimpleNamespace(sets={}))
    return made


def test_a_broker_that_is_only_silent_still_tells_the_time(node: Any) -> None:
    node.heard("b", Pulse(now_ms=1_000))
    node._silent("b")
    assert node.clock.known() == 2


def test_a_broker_that_was_removed_does_not(node: Any) -> None:
    node.heard("b", Pulse(now_ms=1_000))
    node.heard("c", Pulse(now_ms=1_000))
    node.peers.known.remove("b")
    node._silent("b")
    assert node.clock.known() == 2
    node.heard("b", Pulse(now_ms=1_000))
    assert node.clock.known() == 2
