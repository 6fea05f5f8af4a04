from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lanner.cli import topics
from lanner.client import Queue


class Admin:
    """Of ten topics one can be asked; the leaders of the others are away."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def cluster(self) -> Any:
        part = SimpleNamespace(leader="", replicas=["a", "b", "c"])
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
