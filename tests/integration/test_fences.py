"""Fences on real brokers: who was silent for too long commits nothing, also when a partition's leader has died since,
and a seek by force takes members along that are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanner
from lanner.errors import GroupInUse, MemberFenced, MemberUnknown
from lanner.testing.cluster_process import ClusterProcess
from lanner.wire.members import ClaimedPartition, ClaimPartitions
from lanner.wire.messages import Command, Commit
from tests.integration.test_members import SECONDS, Caller, Member, until

TOPIC, GROUP = "orders", "billing"
MESSAGES = 20


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, 3) as cluster:
        yield cluster


async def filled(cluster: ClusterProcess) -> list[str]:
    """A topic of one partition; the addresses of all brokers."""
    async with lanner.connect(cluster.address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=1)
        for number in range(MESSAGES):
            await queue.publish(TOPIC, b"%d" % number)
    return [cluster.native_of(number) for number in cluster.brokers]


class Worker(Member):
    """A member that works on what it has, over a connection of its own."""

    def __init__(self, addresses: list[str], first: int = 0) -> None:
        super().__init__(addresses, first)
        self.hands = Caller(addresses, first)

    async def claim(self) -> ClaimedPartition:
        (held,) = self.view.held
        seen = self.view.number, self.view.generation
        call = ClaimPartitions(TOPIC, GROUP, self.id, *seen, held.incarnation, [held.partition])
        (claimed,) = (await self.hands.ask(Command.CLAIM_PARTITIONS, call)).partitions
        assert isinstance(claimed, ClaimedPartition)
        return claimed

    async def commit(self, offset: int, sequence: int) -> None:
        """Under the view that it has seen last."""
        number, generation = self.view.number, self.view.generation
        call = Commit(
            GROUP, TOPIC, {0: offset}, self.id, sequence, member_id=self.id, number=number, generation=generation
        )
        await self.hands.ask(Command.COMMIT, call)


async def committed(cluster: ClusterProcess) -> int:
    async with lanner.connect(cluster.address) as queue:
        (state,) = (await queue.admin.group(TOPIC, GROUP)).partitions
        return state.offset


async def test_a_member_that_slept_through_its_session_commits_nothing_over_its_successor(
    three: ClusterProcess,
) -> None:
    addresses = await filled(three)
    sleeper, successor = Worker(addresses), Worker(addresses, 1)
    await sleeper.join(session_ms=1_000)
    await until(lambda: sleeper.held == {0})
    assert (await sleeper.claim()).offset == 0
    await sleeper.commit(5, 1)
    await successor.join()
    await sleeper.die()  # no call comes from it for longer than its session
    await until(lambda: successor.held == {0})
    claimed = await successor.claim()
    assert (claimed.code, claimed.offset, claimed.committed) == (0, 5, True)
    await successor.commit(9, 1)
    with pytest.raises((MemberUnknown, MemberFenced)):
        await sleeper.commit(6, 2)
    leader = await asyncio.to_thread(three.leader, TOPIC)
    await asyncio.to_thread(three.kill, leader)
    await asyncio.to_thread(three.leader, TOPIC, other_than=leader, timeout_seconds=SECONDS)
    with pytest.raises((MemberUnknown, MemberFenced)):
        await sleeper.commit(7, 3)
    await successor.commit(10, 2)
    assert await committed(three) == 10
    await successor.die()
    await sleeper.hands.close()
    await successor.hands.close()


async def test_a_seek_by_force_takes_members_along_that_are_at_work(three: ClusterProcess) -> None:
    await filled(three)
    async with (
        asyncio.timeout(SECONDS),
        lanner.connect(three.address) as queue,
        queue.reader(TOPIC, group=GROUP, assignor="sticky") as reader,
    ):
        for number in range(MESSAGES):
            assert (await anext(reader)).value == b"%d" % number
        await reader.commit()
        assert await committed(three) == MESSAGES
        with pytest.raises(GroupInUse, match="--force"):
            await queue.admin.seek(TOPIC, GROUP, to="earliest")
        await queue.admin.seek(TOPIC, GROUP, to="earliest", force=True)
        for number in range(MESSAGES):
            assert (await anext(reader)).value == b"%d" % number, "it goes on from there"
        await reader.commit()
        assert await committed(three) == MESSAGES
