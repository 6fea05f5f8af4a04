"""Whether a broker must ask others for its cluster, and what is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lanner.broker.links.founding import Founding, decode_record, encode_record
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.links.joining import Joining
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.peers import Peers
from lanner.broker.node import Node
from lanner.broker.ports import Result
from lanner.broker.settings import BrokerSettings
from lanner.cluster import Registration
from lanner.errors import DataDirectoryRefused
from lanner.storage import DataDirectory, open_directory
from lanner.testing.flock import Flock

RECORD = Founding("x", (Registration("first", "a" * 32, {}),), 1, name="first")


async def in_saver(work: Callable[[], Result]) -> Result:
    return work()


def joining(
    directory: DataDirectory,
    *,
    data: str = "",
    founding: Founding | None = None,
    **given: Any,
) -> Joining:
    """The way in for a broker without data, or with what broker a of these has stored."""
    flock = Flock(data or "a", found=bool(data))
    engine = flock.brokers["a"].engine
    if not data:
        engine.close_set(0, DataDirectoryRefused())
    settings = BrokerSettings(**given)
    identity = BrokerIdentity(directory.node_id, settings)
    identity.introduce({"native": ("127.0.0.1", 7400)})
    membership = ClusterMembership(identity, engine, settings.seeds, founding)
    peers = Peers(membership, rng=Random(1), snapshot_bytes_per_second=1)
    return Joining(identity, membership, directory, engine.ledger, settings, None, peers, in_saver)


@pytest.fixture
def directory(tmp_path: Path) -> Any:
    found = open_directory(str(tmp_path / "data"))
    yield found
    found.close()


async def test_a_broker_with_a_record_or_data_or_without_others_need_not_ask(directory: DataDirectory) -> None:
    assert joining(directory).needs_nobody
    assert joining(directory, founding=RECORD, seeds=("a:1",)).needs_nobody
    assert not joining(directory, seeds=("a:1",)).needs_nobody
    assert not joining(directory, join="a:1").needs_nobody
    assert joining(directory, data="a", seeds=("a:1",)).needs_nobody


async def test_data_of_one_broker_goes_on_as_a_cluster_of_one(
    directory: DataDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    found = joining(directory, data="a", seeds=("a:1",), name="first")
    with caplog.at_level(logging.WARNING):
        founding = await found.establish()
    assert (founding.cluster_id, founding.replica_id, founding.name) == (directory.cluster_id, 1, "first")
    assert directory.read_founding() == encode_record(founding)
    assert await found.establish() is founding
    assert "goes on as a cluster of one" in caplog.text


async def test_data_of_one_broker_of_several_without_a_record_is_refused(directory: DataDirectory) -> None:
    """Which cluster it is of cannot be guessed: guessing could split one."""
    with pytest.raises(DataDirectoryRefused, match=r"not the founding\.json"):
        await joining(directory, data="bac").establish()


async def test_a_record_that_says_nothing_stops_the_start(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path / "data"))
    directory.write_founding(b"{}")
    with pytest.raises(DataDirectoryRefused):
        decode_record(b"{}", directory.node_id)
    directory.close()
    node = Node(BrokerSettings(data=str(tmp_path / "data")))
    with pytest.raises(DataDirectoryRefused):
        await node.open()
