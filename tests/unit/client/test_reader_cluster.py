"""The reader over several brokers: each partition from its present leader; new partitions are noticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
from lanner.batch import encode
from lanner.errors import ServiceUnavailable, StaleIncarnation
from lanner.wire.messages import (
    Command,
    CommittedReply,
    Empty,
    Fetch,
    Fetched,
    FetchedBatch,
    OffsetsReply,
    PartitionOffsets,
)

END = 30


def log(control: Fetch) -> Any:
    """30 messages in batches of 10, one batch a page; at the end there is silence."""
    if control.offset >= END:
        return None
    base = control.offset // 10 * 10
    data = encode([b"%d-%d" % (control.partition, number) for number in range(base, base + 10)])
    return Fetched(0, END, base + 10, [FetchedBatch(base, 10, 77, len(data))], 1), [data]


@pytest.fixture(autouse=True)
def holds_logs(cluster: Any) -> None:
    for broker in cluster.brokers.values():
        broker.answers[Command.FETCH] = lambda control, request, broker=broker: (
            cluster.not_led(broker, [control.partition]) or log(control)
        )
        broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply(
            [PartitionOffsets(number, 0, END) for number in range(len(cluster.leaders))], 1
        )
        broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({})


async def test_each_partition_is_read_from_its_leader(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", until_end=True) as reader:
        assert len([message async for message in reader]) == 3 * END
    for place, node_id in enumerate(("n1", "n2", "n3")):
        assert {control.partition for control in cluster.of(Command.FETCH)[node_id]} == {place}


async def test_a_reader_whose_partition_is_gone_with_its_topic_is_told_so(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", partitions=2) as reader:
        for _ in range(END):
            await anext(reader)
        waiting = asyncio.ensure_future(reader.read_batch())
        cluster.leaders, cluster.incarnation = ["n1"], 2
        await cluster.brokers["n3"].stop()
        async with asyncio.timeout(10):
            with pytest.raises(StaleIncarnation, match="created again, and has no partition 2 now"):
                await waiting


@pytest.mark.parametrize("hints", [True, False])
async def test_a_reader_follows_its_partition_and_misses_nothing(cluster: Any, hints: bool) -> None:
    cluster.hints = hints
    async with lanner.connect(cluster.address) as queue, queue.reader("t", partitions=1, until_end=True) as reader:
        found = [(await anext(reader)).value for _ in range(5)]
        cluster.leaders[1] = "n3"
        async with asyncio.timeout(3):
            found += [message.value async for message in reader]
    assert found == [b"1-%d" % number for number in range(END)]


async def test_a_reader_goes_on_as_soon_as_somebody_leads_again(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", partitions=1) as reader:
        await anext(reader)
        cluster.leaders[1] = ""
        await cluster.brokers["n2"].stop()
        await asyncio.sleep(0.3)
        cluster.leaders[1] = "n3"
        async with asyncio.timeout(3):
            for _ in range(END - 1):
                await anext(reader)


async def test_partitions_that_are_added_are_read_from_their_beginning(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", start="latest", group="g") as reader:
        assert await reader.read_batch(wait_ms=50) is None
        for broker in cluster.brokers.values():
            broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({4: 20})
        cluster.leaders += ["n1", "n2"]
        queue._routing.refresh("t")  # as happens in passing, twice a minute
        async with asyncio.timeout(3):
            found = [(await anext(reader)).value for _ in range(END + 10)]
        assert sorted(found) == sorted(
            [*(b"3-%d" % number for number in range(END)), *(b"4-%d" % number for number in range(20, END))]
        )
        assert set(reader.positions()) == {0, 1, 2, 3, 4}


async def test_a_commit_is_repeated_under_the_same_identity_and_the_next_has_a_higher_one(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", group="g") as reader:
        refusals = [ServiceUnavailable("try again"), None, None]
        cluster.brokers["n1"].answers[Command.COMMIT] = lambda control, request: refusals.pop(0) or Empty()
        await reader.commit({0: 5})
        await reader.commit({0: 8})
        asked = [(one.offsets, one.reader, one.sequence) for one in cluster.of(Command.COMMIT)["n1"]]
    identity = asked[0][1]
    assert len(identity) == 16
    assert asked == [({0: 5}, identity, 0), ({0: 5}, identity, 0), ({0: 8}, identity, 1)]


async def test_commits_go_to_the_leaders_and_follow_them(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.reader("t", group="g") as reader:
        await reader.commit({0: 5, 1: 6, 2: 7})
        cluster.leaders[:] = ["n2", "n2", "n2"]
        await reader.commit({0: 8, 1: 9})
        cluster.leaders[:] = ["n1", "n3", "n1"]  # led together a moment ago, and apart now
        await queue.admin.commit("t", "g", {0: 1, 1: 2})
    by_broker = {node_id: [one.offsets for one in asked] for node_id, asked in cluster.of(Command.COMMIT).items()}
    assert {0: 5} in by_broker["n1"]
    assert {1: 6} in by_broker["n2"]
    assert {2: 7} in by_broker["n3"]
    assert {0: 8, 1: 9} in by_broker["n2"] or ({0: 8} in by_broker["n2"] and {1: 9} in by_broker["n2"])
    assert {0: 1} in by_broker["n1"]
    assert {1: 2} in by_broker["n3"]
