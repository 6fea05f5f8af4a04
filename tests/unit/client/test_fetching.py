"""Who is asked for a page: a follower while that brings the reader on, the leader for the rest."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import lanner
from lanner.batch import encode
from lanner.client.arguments import moment_ms, moment_ms_from
from lanner.client.brokers import Brokers
from lanner.client.fetching import Fetches, lane_mask
from lanner.client.routing import Routing
from lanner.errors import NotLeader, NotSupported, ServiceUnavailable, ValidationError
from lanner.wire.messages import Command, Fetch, Fetched, FetchedBatch, OffsetsReply, PartitionOffsets

END = 60


def log(asked: Fetch, end: int) -> Fetched | tuple[Fetched, list[bytes]]:
    """Batches of ten as a broker has them that knows the log up to `end`; priorities 0 and 9 by turns."""
    told: dict[str, Any] = {"incarnation": 1, "lanes": asked.lanes, "time_ms": 5}
    if asked.offset >= end:
        return Fetched(0, end, asked.offset, [], **told)
    base = asked.offset // 10 * 10
    priority = 0 if base % 20 else 9
    if asked.lanes and not asked.lanes >> priority & 1:
        return Fetched(0, end, base + 10, [], **told)
    data = encode([b"%d" % number for number in range(base, base + 10)], priority=priority)
    return Fetched(0, end, base + 10, [FetchedBatch(base, 10, 77, len(data))], **told), [data]


@pytest.fixture(autouse=True)
def holds_logs(cluster: Any) -> dict[str, Any]:
    """n1 leads everything; what the others do about a fetch is for the test to say."""
    cluster.leaders = ["n1"]
    others: dict[str, Any] = {"n2": log_up_to(30), "n3": log_up_to(30)}
    for node_id, broker in cluster.brokers.items():
        broker.answers[Command.FETCH] = lambda asked, request, node_id=node_id: (
            (None if asked.offset >= END else log(asked, END)) if node_id == "n1" else others[node_id](asked)
        )
        broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, END)], 1)
    return others


def log_up_to(end: int) -> Any:
    def answer(asked: Fetch) -> Any:
        if not asked.follower:
            return NotLeader()
        found = log(asked, end)
        control, bulk = found if isinstance(found, tuple) else (found, [])
        return msgspec.structs.replace(control, follower=True), bulk

    return answer


def refuse(error: Exception) -> Any:
    return lambda asked: error


async def connected(queue: lanner.Queue) -> None:
    """Until the client is connected to every broker: before, the leader is asked."""
    await queue._routing.route("t")
    while any(queue._brokers.to(node_id) is None or not queue._brokers.to(node_id).is_up for node_id in ("n2", "n3")):
        await asyncio.sleep(0.001)


async def read_all(cluster: Any, **options: Any) -> list[int]:
    async with lanner.connect(cluster.address) as queue:
        await connected(queue)
        async with queue.reader("t", until_end=True, **options) as reader, asyncio.timeout(10):
            return [int(message.value) async for message in reader]


def asked_of(cluster: Any, *node_ids: str) -> list[int]:
    return sorted(asked.offset for node_id in node_ids for asked in cluster.of(Command.FETCH)[node_id])


async def test_followers_are_read_as_far_as_they_are_and_the_leader_for_the_rest(cluster: Any) -> None:
    assert await read_all(cluster, from_followers=True) == list(range(END))
    assert set(asked_of(cluster, "n2", "n3")) >= {0, 10, 20}
    assert set(asked_of(cluster, "n1")) == {30, 40, 50}


async def test_a_reader_that_does_not_allow_it_asks_no_follower(cluster: Any) -> None:
    assert await read_all(cluster) == list(range(END))
    assert asked_of(cluster, "n2", "n3") == []


@pytest.mark.parametrize("error", [NotLeader(), ServiceUnavailable("it stops"), ValidationError("what is that?")])
async def test_whatever_a_follower_refuses_the_leader_is_asked(cluster: Any, holds_logs: Any, error: Any) -> None:
    holds_logs.update(n2=refuse(error), n3=refuse(error))
    assert await read_all(cluster, from_followers=True) == list(range(END))
    assert set(asked_of(cluster, "n1")) >= {0, 10, 20, 30, 40, 50}


async def test_only_some_priorities_are_asked_for_and_other_offsets_are_no_holes(cluster: Any) -> None:
    chosen = {"until_end": True, "priorities": ["high"]}
    async with lanner.connect(cluster.address) as queue, queue.reader("t", **chosen) as reader:
        found = [int(message.value) async for message in reader]
        assert found == [*range(10), *range(20, 30), *range(40, 50)]
        assert not reader.holes and reader.positions() == {0: END}
    assert {asked.lanes for asked in cluster.of(Command.FETCH)["n1"]} == {1 << 9}


async def test_a_broker_that_overlooks_the_priorities_is_an_error_and_not_an_unfiltered_read(cluster: Any) -> None:
    cluster.brokers["n1"].answers[Command.FETCH] = lambda asked, request: log(
        msgspec.structs.replace(asked, lanes=0), END
    )
    with pytest.raises(NotSupported, match=r"upgrade it to 0\.3\.0"):
        await read_all(cluster, priorities=9)


async def test_page_after_page_from_followers_then_from_the_leader(cluster: Any) -> None:
    brokers = Brokers(cluster.address)
    await brokers.open()
    routing = Routing(brokers)
    try:
        await routing.route("t")
        while routing.follower("t", 0) is None:
            await asyncio.sleep(0.001)
        fetches = Fetches(brokers, routing)
        offset, pages = 0, []
        while offset < END:
            fetched, _ = await fetches.fetch(Fetch("t", 0, offset, follower=True))
            pages.append((offset, fetched.follower))
            offset = fetched.next_offset
    finally:
        await routing.close()
        await brokers.close()
    assert pages == [(0, True), (10, True), (20, True), (30, False), (40, False), (50, False)]


def test_priorities_are_numbers_or_names_and_all_of_them_are_no_choice() -> None:
    assert lane_mask(None) == 0 == lane_mask(list(range(10)))
    assert lane_mask("high") == lane_mask([9]) == lane_mask(9) == 1 << 9
    assert lane_mask(["low", 4]) == 0b10001
    for wrong in ([], [10], ["urgent"], [True]):
        with pytest.raises(ValidationError):
            lane_mask(wrong)


def test_a_start_in_time_is_exact_to_the_millisecond() -> None:
    for ms in range(1_700_000_000_000, 1_700_000_002_000, 7):
        exact = datetime.fromtimestamp(0, UTC).replace(microsecond=0)
        moment = exact + (datetime.fromtimestamp(1, UTC) - exact) * (ms // 1_000)
        moment = moment.replace(microsecond=ms % 1_000 * 1_000)
        assert moment_ms(moment, "start") == ms == moment_ms_from(moment, "start")
        assert moment_ms_from(moment.replace(microsecond=moment.microsecond + 1), "start") == ms + 1
