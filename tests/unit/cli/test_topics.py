from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from lanner.cli import topics
from lanner.cli.app import app
from lanner.client import Queue
from lanner.errors import NotSupported
from lanner.proxy.topology import told_as_own
from lanner.wire.cluster import DescribePartitions
from lanner.wire.connection import Request
from lanner.wire.messages import BrokerInfo, Control
from tests.unit.cli.conftest import FakeCluster


class Admin:
    """Of ten topics one can be asked; the leaders of the others are away."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def cluster(self) -> Any:
        part = SimpleNamespace(id=0, leader="", replicas=["a", "b", "c"])
        return SimpleNamespace(
            brokers=[], topics=[SimpleNamespace(name=f"topic-{n}", partitions=[part]) for n in range(10)]
        )

    async def describe(self, name: str) -> Any:
        self.asked.append(name)
        if name != "topic-3":
            await asyncio.Event().wait()
        return SimpleNamespace(partitions=[SimpleNamespace(depth={4: 7}, bytes=70)])

    async def groups(self, name: str) -> list[str]:
        return []


async def test_topics_whose_leaders_are_away_do_not_hold_up_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(topics, "broker_names", lambda _: {})
    admin = Admin()
    async with asyncio.timeout(5):
        rows = await topics._rows(cast("Queue", SimpleNamespace(admin=admin)))
    assert sorted(admin.asked) == [row["name"] for row in rows] == [f"topic-{n}" for n in range(10)]
    assert [row["messages"] for row in rows] == [7 if n == 3 else None for n in range(10)]


@pytest.fixture
def proxied(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The same cluster behind a proxy, which tells METADATA as its own."""
    metadata = cluster._metadata
    proxy = BrokerInfo("proxy-1", "127.0.0.1", 1, "proxy")
    monkeypatch.setattr(cluster, "_metadata", lambda: told_as_own(metadata(), proxy))
    return cluster


def shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["topic", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("proxied")
def test_who_leads_a_topic_and_has_copies_is_told_through_a_proxy() -> None:
    (row,) = json.loads(shown("list", "--json"))["topics"]
    assert (row["replicas"], row["leaders"], row["leaderless"]) == (3, {"node-1": 1}, 0)
    assert "node-1:1" in shown("list")
    (part,) = json.loads(shown("show", "orders", "--json"))["partitions"]
    assert (part["leader_name"], part["replicas"]) == ("node-1", ["node-1", "node-2", "node-3"])
    assert "node-1 node-2 node-3" in shown("show", "orders")


def test_a_partition_that_nobody_leads_is_told_through_a_proxy(proxied: FakeCluster) -> None:
    proxied.leader = ""
    (row,) = json.loads(shown("list", "--json"))["topics"]
    assert (row["replicas"], row["leaders"], row["leaderless"]) == (3, {}, 1)


def test_a_list_says_so_when_brokers_behind_a_proxy_do_not_tell_who_leads(
    proxied: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = proxied.answer

    def deaf(request: Request) -> Control:
        if isinstance(request.control, DescribePartitions):
            raise NotSupported("not now")
        return answer(request)

    monkeypatch.setattr(proxied, "answer", deaf)
    (row,) = json.loads(shown("list", "--json"))["topics"]
    assert (row["replicas"], row["leaders"], row["leaderless"], row["messages"]) == (None, {}, 0, 5)
    text = shown("list")
    assert "proxy" not in text and text.count("unknown") == 2
    (part,) = json.loads(shown("show", "orders", "--json"))["partitions"]
    assert part["replicas"] is None
    assert "unknown" in shown("show", "orders")


def test_brokers_are_not_asked_twice_where_no_proxy_stands_between(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cluster.answer

    def deaf(request: Request) -> Control:
        assert not isinstance(request.control, DescribePartitions)
        return answer(request)

    monkeypatch.setattr(cluster, "answer", deaf)
    (row,) = json.loads(shown("list", "--json"))["topics"]
    assert (row["replicas"], row["leaders"]) == (3, {"node-1": 1})
