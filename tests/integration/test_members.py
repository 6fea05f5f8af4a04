"""Members of groups on real brokers: they share partitions, inherit them, and outlive the broker that coordinates."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.errors import ConnectionLost, GroupNotFound, LannerError, MemberUnknown
from lanner.net.connector import ClientLink, open_connection
from lanner.testing.cluster_process import ClusterProcess
from lanner.wire.members import (
    AlterGroup,
    EvictMember,
    GrantedPartition,
    GroupMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListMembers,
    MemberView,
)
from lanner.wire.messages import Command, Control

SECONDS = 90.0
PARTITIONS = 6


class Caller:
    """A connection to one broker after the other: the first that answers, from a place of its own on."""

    def __init__(self, addresses: list[str], first: int = 0) -> None:
        self._addresses = addresses
        self._at = first
        self._link: ClientLink | None = None

    async def ask(self, command: Command, control: Control) -> Any:
        """Asked of another broker when one does not answer."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    if self._link is None or not self._link.is_open:
                        host, _, port = self._addresses[self._at % len(self._addresses)].rpartition(":")
                        self._link = await open_connection(host, int(port), timeout_ms=2_000)
                    return (await self._link.request(command, control)).control
                except LannerError as error:
                    if not error.retryable and not isinstance(error, ConnectionLost):
                        raise
                    await self.close()
                    self._at += 1
                    await asyncio.sleep(0.05)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class Member(Caller):
    """It gives up what is revoked as soon as it hears of it."""

    def __init__(self, addresses: list[str], first: int = 0) -> None:
        super().__init__(addresses, first)
        self.id = secrets.token_hex(8)
        self.view: MemberView
        self._life: asyncio.Task[None]
        self._released: dict[GrantedPartition, None] = {}

    async def join(self, session_ms: int = 10_000) -> None:
        call = JoinGroup("billing", "stream", self.id, ["orders"], session_ms=session_ms, client=f"test-{self.id[:4]}")
        self.view = await self.ask(Command.JOIN_GROUP, call)
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            self._released.update(dict.fromkeys(self.view.revoked))
            seen = self.view.number, self.view.generation
            told = await self.ask(
                Command.HEARTBEAT, Heartbeat("billing", self.id, *seen, list(self._released), self.view.session_ms // 4)
            )
            if told.news and (told.number, told.generation) >= seen:
                self.view = told

    async def leave(self) -> None:
        await self.die()
        await self.ask(Command.LEAVE_GROUP, LeaveGroup("billing", self.id))
        await self.close()

    async def die(self) -> None:
        self._life.cancel()
        with suppress(asyncio.CancelledError, LannerError):
            await self._life
        await self.close()

    @property
    def lives(self) -> bool:
        return not self._life.done()

    async def ended(self) -> None:
        await self._life

    @property
    def held(self) -> set[int]:
        return {one.partition for one in self.view.held}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


def is_shared_out(*members: Member) -> bool:
    """Whether every partition has one owner, and they have about the same number."""
    held = [partition for member in members for partition in member.held]
    counts = [len(member.held) for member in members]
    return sorted(held) == list(range(PARTITIONS)) and max(counts) - min(counts) <= 1


@pytest.fixture
def one(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, 1) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, 3) as cluster:
        yield cluster


async def make_topic(cluster: ClusterProcess) -> list[str]:
    """The topic; the addresses of all brokers."""
    async with lanner.connect(cluster.address) as queue:
        await queue.admin.create_topic("orders", partitions=PARTITIONS)
    return [cluster.native_of(number) for number in cluster.brokers]


async def listed(addresses: list[str], first: int = 0) -> GroupMembers:
    caller = Caller(addresses, first)
    try:
        told = await caller.ask(Command.LIST_MEMBERS, ListMembers("billing"))
        assert isinstance(told, GroupMembers)
        return told
    finally:
        await caller.close()


async def settled(addresses: list[str]) -> GroupMembers:
    """Once the leader has seen that its last assignment has applied."""
    async with asyncio.timeout(SECONDS):
        while (told := await listed(addresses)).state != "settled":
            await asyncio.sleep(0.02)
    return told


async def test_two_members_share_the_partitions_and_one_inherits_them_all(one: ClusterProcess) -> None:
    addresses = await make_topic(one)
    with pytest.raises(GroupNotFound):
        await listed(addresses)
    first, second = Member(addresses), Member(addresses)
    await first.join()
    await until(lambda: first.held == set(range(PARTITIONS)))
    await second.join(session_ms=1_000)
    await until(lambda: is_shared_out(first, second))
    told = await settled(addresses)
    assert (told.count, told.unowned, told.assignor) == (2, 0, "sticky")
    assert [member.member_id for member in told.members] == [first.id, second.id]
    assert all(member.home and member.heard_ms >= 0 for member in told.members)
    await second.die()  # it says nothing
    await until(lambda: first.held == set(range(PARTITIONS)))
    assert "silent" in (await listed(addresses)).rebalances[-1].reason
    third = Member(addresses)
    await third.join()
    await until(lambda: is_shared_out(first, third))
    await third.leave()
    await until(lambda: first.held == set(range(PARTITIONS)))
    assert "left" in (await listed(addresses)).rebalances[-1].reason

    operator = Caller(addresses)
    altered = await operator.ask(Command.ALTER_GROUP, AlterGroup("billing"))
    assert altered.generation > first.view.generation
    await operator.ask(Command.EVICT_MEMBER, EvictMember("billing", first.id))
    with pytest.raises(MemberUnknown):
        await first.ended()
    assert (await listed(addresses)).state == "empty"
    await operator.close()
    await first.die()


async def test_members_outlive_the_broker_that_coordinates_them(three: ClusterProcess) -> None:
    addresses = await make_topic(three)
    members = [Member(addresses, at) for at in range(3)]
    for member in members:
        await member.join()
    await until(lambda: is_shared_out(*members))
    numbers = {member.view.member_number for member in members}

    def leader() -> int:
        for number in three.running:
            status, found = three.get(number, "/v1/cluster")
            if status == 200 and found["metadata_leader"]:
                return three.number_of(found["metadata_leader"])
        return 0

    killed = leader()
    assert killed
    await asyncio.to_thread(three.kill, killed)
    await until(lambda: leader() not in (0, killed))
    newcomer = Member(addresses)
    await newcomer.join(session_ms=1_000)  # the new leader takes joins,
    await until(lambda: is_shared_out(*members, newcomer))
    await newcomer.die()
    await until(lambda: is_shared_out(*members))  # and notices who has gone,
    assert all(member.lives for member in members), "and keeps those that have not"
    told = await listed(addresses, killed)
    assert {member.number for member in told.members} == numbers
    await asyncio.to_thread(three.restart, killed)
    told = await listed(addresses, killed - 1)
    assert {member.number for member in told.members} == numbers
    for member in members:
        await member.die()
