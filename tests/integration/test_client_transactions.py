"""Transactions against real brokers: all or nothing, once, also when brokers die and leaders move."""

from __future__ import annotations

import asyncio
import pickle
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner import features
from lanner.broker.settings import BrokerSettings
from lanner.errors import FenceConflict, LannerError, NotSupported, SequencePassed, StageExpired, TransactionAborted
from lanner.server import Server
from lanner.wire.staging import CommitPhase
from tests.integration.test_client_cluster import Trio

NAMES = ("billing", "nightly")


class Alone:
    """One broker, with the face of three."""

    def __init__(self, folder: Path) -> None:
        self._settings = BrokerSettings(data=str(folder / "alone"), http="", native="127.0.0.1:0", disk_reserve_bytes=0)
        self.servers: dict[str, Server] = {}
        self.seeds: tuple[str, ...] = ()

    async def start(self) -> None:
        server = self.servers["a"] = Server(self._settings)
        await server.start()
        host, port = server.service.addresses["native"]
        self.seeds = (f"{host}:{port}",)

    async def stop(self) -> None:
        await self.servers["a"].stop()


@pytest.fixture(params=[Alone, Trio], ids=["one broker", "three brokers"])
async def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    found = request.param(tmp_path)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
async def queue(brokers: Any) -> AsyncIterator[lanner.Queue]:
    async with lanner.connect(list(brokers.seeds)) as queue:
        await queue.admin.create_topic("invoices", partitions=3)
        await queue.admin.create_topic("audit", partitions=2)
        yield queue


async def values(queue: lanner.Queue, topic: str) -> list[bytes]:
    async with queue.reader(topic, until_end=True) as reader:
        return sorted([message.value async for message in reader])


async def test_a_transaction_over_two_topics_shows_all_or_nothing(queue: lanner.Queue) -> None:
    async with queue.transaction(*NAMES, sequence=1) as transaction:
        for number in range(30):
            await transaction.publish("invoices", b"%02d" % number, key=b"customer-%d" % number)
        await transaction.publish_many("audit", [b"a", b"b"], priority="low")
        assert await values(queue, "invoices") == await values(queue, "audit") == []
    assert await values(queue, "invoices") == [b"%02d" % number for number in range(30)]
    assert await values(queue, "audit") == [b"a", b"b"]
    with pytest.raises(KeyError):
        async with queue.transaction(*NAMES, sequence=2) as transaction:
            await transaction.publish("invoices", b"never")
            raise KeyError
    async with queue.transaction(*NAMES, sequence=3) as transaction:
        await transaction.publish("audit", b"c")
    assert b"never" not in await values(queue, "invoices")
    assert await values(queue, "audit") == [b"a", b"b", b"c"]


async def test_a_repeated_sequence_publishes_nothing_again(queue: lanner.Queue) -> None:
    for turn in range(3):
        async with queue.transaction(*NAMES, sequence=1) as transaction:
            await transaction.publish("invoices", b"turn %d" % turn)
        assert transaction.repeated == (turn > 0)
    assert await values(queue, "invoices") == [b"turn 0"]


async def test_two_who_do_the_same_work_commit_it_once(queue: lanner.Queue) -> None:
    writers = [await queue.stage(*NAMES, 1) for _ in range(2)]
    for number, writer in enumerate(writers):
        await writer.publish("invoices", b"writer %d" % number)
    staged = [await writer.finish() for writer in writers]
    outcomes = await asyncio.gather(*(queue.commit_staged(*NAMES, 1, [one]) for one in staged), return_exceptions=True)
    # The second supersedes the first if that is not decided yet; then the first may hear of it as an abort.
    assert sum(isinstance(one, lanner.Committed) for one in outcomes) >= 1, outcomes
    assert all(isinstance(one, lanner.Committed | TransactionAborted) for one in outcomes), outcomes
    assert len(await values(queue, "invoices")) == 1


async def test_an_owner_is_fenced_by_the_next_and_a_passed_sequence_is_not_called_committed(
    queue: lanner.Queue,
) -> None:
    async with queue.transaction(*NAMES, sequence=5):
        pass
    with pytest.raises(SequencePassed):
        async with queue.transaction(*NAMES, sequence=4):
            pass
    with pytest.raises(FenceConflict, match="nightly"):
        async with queue.transaction("billing", "weekly", 6):
            pass
    writer = await queue.stage(*NAMES, 6)
    await writer.publish("invoices", b"late")
    staged = await writer.finish()
    assert (await queue.claim_transaction("billing", "weekly")) == lanner.Claimed("billing", "weekly", "nightly", 5)
    with pytest.raises(FenceConflict) as caught:
        await queue.commit_staged(*NAMES, 6, [staged])
    assert caught.value.details["outcome"] == "not begun"
    async with queue.transaction("billing", "weekly", 6):
        pass
    assert await values(queue, "invoices") == []


async def test_tasks_stage_and_another_process_commits_in_the_order_of_tasks(queue: lanner.Queue, brokers: Any) -> None:
    parts = []
    for task in (2, 0, 1):
        async with lanner.connect(list(brokers.seeds)) as other:
            writer = await other.stage(*NAMES, 1, task=task, batch_messages=2)
            await writer.publish_many("audit", [b"%d-%d" % (task, number) for number in range(5)], partition=0)
            parts.append(pickle.dumps(await writer.finish()))
    await queue.commit_staged(*NAMES, 1, [pickle.loads(one) for one in parts])
    async with queue.reader("audit", until_end=True) as reader:
        found = [message.value async for message in reader]
    assert found == [b"%d-%d" % (task, number) for task in range(3) for number in range(5)]


async def test_discarded_stages_cannot_be_committed(queue: lanner.Queue) -> None:
    writer = await queue.stage(*NAMES, 1)
    await writer.publish("invoices", b"x")
    staged = await writer.finish()
    assert await queue.discard_staged(*NAMES, 1, [staged]) is None
    with pytest.raises(TransactionAborted) as caught:
        await queue.commit_staged(*NAMES, 1, [staged])
    assert caught.value.details["reason"] == "operator"
    other = await queue.stage(*NAMES, 1, task=1)
    await other.publish("audit", b"y")
    with pytest.raises(StageExpired) as expired:
        await queue.commit_staged(*NAMES, 1, [staged, await other.finish()])
    assert expired.value.details["outcome"] == "aborted"
    assert await values(queue, "invoices") == await values(queue, "audit") == []


CHILD = """
    import asyncio, os, sys, lanner
    from lanner.client.commits import plan_commit

    async def main():
        async with lanner.connect(sys.argv[1]) as queue:
            writer = await queue.stage("billing", "nightly", 1)
            for number in range(10):
                await writer.publish("invoices", b"%d" % number, partition=number % 3)
            await writer.publish("audit", b"x")
            plan = plan_commit("billing", "nightly", 1, [await writer.finish()])
            commits = queue._transactions.commits
            state = await commits._begin(plan, int(sys.argv[3]))
            if sys.argv[2] == "prepared":
                await commits._prepare(plan, state.token, asyncio.get_running_loop().time() + 30)
            print(plan.commit_id.hex(), flush=True)
            os._exit(9)

    asyncio.run(main())
"""


async def die_after(brokers: Any, what: str, timeout_ms: int) -> bytes:
    """A process that stages and begins a commit, and is gone; the id of its commit."""
    command = (sys.executable, "-c", textwrap.dedent(CHILD), ",".join(brokers.seeds), what, str(timeout_ms))
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 9
    return bytes.fromhex(out.decode())


async def until_no_try(queue: lanner.Queue) -> Any:
    async with asyncio.timeout(30):
        while (found := await queue.admin.transaction("billing")).open is not None:
            await asyncio.sleep(0.05)
    return found


async def test_a_process_killed_before_it_prepares_leaves_nothing(queue: lanner.Queue, brokers: Any) -> None:
    commit_id = await die_after(brokers, "begun", 1_500)
    row = await until_no_try(queue)
    assert [(one.commit_id, one.phase, one.reason) for one in row.ended] == [
        (commit_id, CommitPhase.ABORTED, "deadline")
    ]
    assert await values(queue, "invoices") == await values(queue, "audit") == []


async def test_a_restarted_process_supersedes_its_dead_one_at_once(queue: lanner.Queue, brokers: Any) -> None:
    await die_after(brokers, "begun", 600_000)
    async with asyncio.timeout(20):
        async with queue.transaction(*NAMES, sequence=1) as transaction:
            await transaction.publish("audit", b"again")
    assert await values(queue, "audit") == [b"again"]
    assert await values(queue, "invoices") == []


async def test_a_process_killed_after_all_are_prepared_is_committed_without_it(
    queue: lanner.Queue, brokers: Any
) -> None:
    await die_after(brokers, "prepared", 600_000)
    row = await until_no_try(queue)
    assert row.committed == [(1, 1)]
    assert await values(queue, "invoices") == [b"%d" % number for number in range(10)]
    assert await values(queue, "audit") == [b"x"]


async def test_a_try_that_an_operator_aborts_shows_who_was_awaited(queue: lanner.Queue, brokers: Any) -> None:
    await die_after(brokers, "begun", 600_000)
    found = await queue.admin.transaction("billing")
    assert found.open is not None
    assert {one.state for one in found.open.partitions} == {"awaited"}
    assert {one.topic for one in found.open.partitions} == {"invoices", "audit"}
    assert (await queue.admin.abort_transaction("billing")).reason == "operator"
    await queue.admin.forget_transaction("billing")
    with pytest.raises(LannerError, match="forgotten"):
        await queue.admin.transaction("billing")


async def test_transactions_go_on_while_leaders_move_and_a_broker_restarts(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    await trio.start()
    try:
        async with lanner.connect(list(trio.seeds)) as queue:
            await queue.admin.create_topic("invoices", partitions=6)
            restarting = asyncio.create_task(trio.restart("b", 1.0))
            sequence = 0
            while not restarting.done() or sequence < 10:
                async with queue.transaction(*NAMES, sequence=sequence) as transaction:
                    for partition in range(6):
                        await transaction.publish("invoices", b"%d" % sequence, partition=partition)
                sequence += 1
            await restarting
            async with queue.transaction(*NAMES, sequence=sequence):
                pass
            found = await values(queue, "invoices")
        assert sorted(found) == sorted(b"%d" % one for one in range(sequence) for _ in range(6))
    finally:
        await trio.stop()


async def test_below_its_level_a_transaction_names_the_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "HIGHEST", features.STAGES - 1)
    alone = Alone(tmp_path)
    await alone.start()
    try:
        async with lanner.connect(list(alone.seeds)) as queue:
            with pytest.raises(NotSupported, match="lanner cluster upgrade"):
                async with queue.transaction(*NAMES, sequence=1):
                    pass
    finally:
        await alone.stop()
