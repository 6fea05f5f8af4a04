"""What went wrong with several brokers in the queues that Lanner takes over from: each is a test here.

Brokers are real processes. Most tests share one cluster of three, each with topics of its own; a test that kills a
broker starts it again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.errors import LannerError
from lanner.testing.cluster_process import ClusterProcess

BROKERS = (1, 2, 3)
SETTINGS = {"segment_bytes": 4 << 20}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as cluster:
        yield cluster
        assert all(cluster.brokers[number].stop() == 0 for number in cluster.running)


@pytest.fixture
def cluster(shared: ClusterProcess) -> ClusterProcess:
    """Three brokers that all run; a test before may have left one down."""
    for number in BROKERS:
        if not shared.brokers[number].running:
            shared.restart(number)
    return shared


def publish(cluster: ClusterProcess, number: int, topic: str, message: str, priority: str = "low") -> dict[str, Any]:
    body = {"message": message, "priority": priority}
    status, reply = cluster.ask(number, "POST", f"/topic/{topic}/publish", body)
    assert status == 200, (status, reply)
    return dict(reply)


def consume(cluster: ClusterProcess, number: int, topic: str, consumer: str, batch: int = 100) -> list[str]:
    status, reply = cluster.get(number, f"/topic/{topic}/consume?consumerID={consumer}&batch={batch}")
    assert status == 200, (status, reply)
    return [message["v"] for message in reply["messages"]]


def consume_all(cluster: ClusterProcess, number: int, topic: str, consumer: str) -> list[str]:
    found: list[str] = []
    while page := consume(cluster, number, topic, consumer):
        found += page
    return found


def create(cluster: ClusterProcess, topic: str, **settings: Any) -> None:
    with lanner.sync.connect(cluster.address) as queue:
        queue.admin.create_topic(topic, **settings)


def read_all(cluster: ClusterProcess, topic: str, *, through: int = 0) -> list[tuple[int, int, bytes]]:
    """Everything a topic holds, as (partition, offset, value) in order."""
    address = cluster.native_of(through) if through else cluster.address
    with (
        lanner.sync.connect(address, timeout_ms=20_000) as queue,
        queue.reader(topic, start="earliest", until_end=True) as reader,
    ):
        return sorted((message.partition, message.offset, message.value) for message in reader)


def values(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


# ------------------------------------------------------------------ failover


def test_after_a_failover_offsets_go_on_and_overwrite_nothing(cluster: ClusterProcess) -> None:
    create(cluster, "offsets", partitions=1, replication=3)
    with lanner.sync.connect(cluster.address) as queue:
        before = queue.publish_many("offsets", values(1_201, "before-"))
        leader = cluster.leader("offsets")
        cluster.kill(leader)
        after = queue.publish_many("offsets", values(100, "after-"))
    assert [receipt.offset for receipt in before] == list(range(1_201))
    assert [receipt.offset for receipt in after] == list(range(1_201, 1_301))
    wanted = values(1_201, "before-") + values(100, "after-")
    assert read_all(cluster, "offsets") == [(0, offset, value) for offset, value in enumerate(wanted)]
    cluster.restart(leader)
    assert len(read_all(cluster, "offsets", through=leader)) == 1_301


async def test_a_consumer_beside_publishers_and_a_failover_skips_nothing(cluster: ClusterProcess) -> None:
    await asyncio.to_thread(create, cluster, "beside", partitions=1, replication=3, lease_ms=2_000)
    total, seen = 400, set[bytes]()
    async with lanner.connect(cluster.address) as queue, queue.consumer("beside", group="workers") as consumer:

        async def publish_some(prefix: str) -> None:
            for value in values(total // 2, prefix):
                await queue.publish("beside", value)

        publishing = asyncio.gather(publish_some("a"), publish_some("b"))
        ends = time.monotonic() + 30
        leader = 0
        while len(seen) < total and time.monotonic() < ends:
            for message in await consumer.poll(50, wait_ms=300):
                seen.add(message.value)
                try:
                    await message.ack()
                except LannerError:
                    continue  # it comes again
            if len(seen) > total // 4 and not leader:
                leader = await asyncio.to_thread(cluster.leader, "beside")
                await asyncio.to_thread(cluster.kill, leader)
        await publishing
    assert len(seen) == total


def test_a_consumers_offsets_are_the_clusters_and_not_one_brokers(cluster: ClusterProcess) -> None:
    create(cluster, "progress", partitions=1, replication=3)
    for number in range(10):
        publish(cluster, 1 + number % 3, "progress", f"m{number}")
    leader = cluster.leader("progress")
    first = consume(cluster, leader, "progress", "billing", batch=4)
    cluster.kill(leader)
    other = cluster.running[0]
    rest = consume_all(cluster, other, "progress", "billing")
    assert first == [f"m{number}" for number in range(4)]
    assert rest == [f"m{number}" for number in range(4, 10)]


def test_committed_offsets_of_a_stream_group_survive_a_failover(cluster: ClusterProcess) -> None:
    create(cluster, "committed", partitions=2, replication=3)
    with lanner.sync.connect(cluster.address) as queue:
        for partition in (0, 1):
            queue.publish_many("committed", values(20), partition=partition)
        queue.admin.commit("committed", "readers", {0: 7, 1: 11})
        cluster.kill(cluster.leader("committed", 0))
        assert queue.admin.committed("committed", "readers") == {0: 7, 1: 11}


def test_messages_leased_through_a_broker_that_dies_come_again_and_no_first_one_is_lost(
    cluster: ClusterProcess,
) -> None:
    create(cluster, "redelivery", partitions=1, replication=3, lease_ms=1_500)
    with lanner.sync.connect(cluster.address) as queue:
        queue.publish_many("redelivery", values(5))
        leader = cluster.leader("redelivery")
        path = "/v1/topics/redelivery/groups/workers/poll"
        status, leased = cluster.ask(leader, "POST", path, {"max_messages": 3})
        assert status == 200 and leased["count"] == 3
        cluster.kill(leader)
        queue.publish("redelivery", b"5")
        found: list[bytes] = []
        ends = time.monotonic() + 20
        with queue.consumer("redelivery", group="workers") as consumer:
            while len(found) < 6 and time.monotonic() < ends:
                batch = consumer.poll(10, wait_ms=500)
                found += [message.value for message in batch]
                batch.ack()
    assert sorted(found) == values(6)


# ------------------------------------------------------------------ many replica sets


def test_several_topics_never_cross_and_a_second_one_does_not_stop_elections(cluster: ClusterProcess) -> None:
    topics = [f"crossing-{number}" for number in range(3)]
    with lanner.sync.connect(cluster.address) as queue:
        for topic in topics:
            queue.admin.create_topic(topic, partitions=2, replication=3)
        for number in range(30):
            for topic in topics:
                queue.publish(topic, f"{topic}/{number}", partition=number % 2)
        for number in BROKERS:  # each in turn: those that are left have everything that was acknowledged
            cluster.kill(number)
            for topic in topics:
                for partition in range(2):
                    cluster.leader(topic, partition)
                found = [value.decode() for _, _, value in read_all(cluster, topic)]
                assert sorted(found) == sorted(f"{topic}/{one}" for one in range(30))
            cluster.restart(number)


def test_a_restart_after_a_snapshot_of_eleven_thousand_messages_finds_them_all(tmp_path: Path) -> None:
    settings = {**SETTINGS, "save_interval_ms": 100}
    with ClusterProcess(tmp_path, settings=settings, plants=("tails:100:1048576",)) as cluster:
        create(cluster, "many", partitions=1, replication=3)
        with lanner.sync.connect(cluster.address) as queue:
            cluster.kill(3)  # it will need the snapshot
            for first in range(0, 11_500, 50):
                queue.publish_many("many", values(50, f"{first}-"))
        cluster.restart(3)
        for number in BROKERS:
            cluster.kill(number)
        cluster.start()
        assert len(read_all(cluster, "many", through=3)) == 11_500
        with lanner.sync.connect(cluster.native_of(3), timeout_ms=20_000) as queue:
            assert queue.publish("many", b"one more").offset == 11_500
            assert [message.value for message in queue.admin.peek("many", 1, partition=0)] == [b"0-0"]


def test_topics_are_listed_on_every_broker_after_a_restart_before_anybody_touches_them(
    cluster: ClusterProcess,
) -> None:
    for topic in ("listed-first", "listed-second"):
        create(cluster, topic, partitions=2)
    for number in BROKERS:
        cluster.kill(number)
    cluster.start()
    for number in BROKERS:
        status, reply = cluster.get(number, "/topics")
        assert status == 200 and {"listed-first", "listed-second"} <= set(reply["topics"])
        status, reply = cluster.get(number, "/topics/listed-second/partitions")
        assert status == 200 and [one["id"] for one in reply["partitions"]] == [0, 1]


def test_poison_input_to_any_broker_leaves_nothing_in_a_log_that_breaks_the_next_start(cluster: ClusterProcess) -> None:
    create(cluster, "poison", partitions=1, replication=3)
    before = publish(cluster, 1, "poison", "before")["offset"]
    nowhere = [{"partition": 0, "offset": 99, "token": 99}]
    poison: list[tuple[str, Any]] = [
        ("/topic/poison/publish", {"message": "", "priority": "high"}),
        ("/topic/poison/publish", {"message": "x", "priority": "most urgent"}),
        ("/v1/topics", {"name": "none", "settings": {"partitions": 0}}),
        ("/v1/topics/poison/groups/nobody/ack", {"messages": nowhere}),
        ("/v1/topics/poison/messages", {"messages": [{"value": "", "key": ""}]}),
    ]
    for number in BROKERS:
        for path, body in poison:
            assert 0 < cluster.ask(number, "POST", path, body)[0] < 500, path
    for number in BROKERS:
        cluster.kill(number)
    cluster.start()
    after = [publish(cluster, number, "poison", f"after {number}")["offset"] for number in BROKERS]
    assert after == sorted(after) and after[0] > before


def test_asking_any_broker_for_an_unknown_topic_does_not_make_it(cluster: ClusterProcess) -> None:
    paths = ("/topic/nothing/peek", "/topic/nothing/consume?consumerID=me", "/topics/nothing/partitions")
    for number in BROKERS:
        for path in paths:
            assert cluster.get(number, path)[0] == 404
    for number in BROKERS:
        assert "nothing" not in cluster.get(number, "/topics")[1]["topics"]


# ------------------------------------------------------------------ any broker takes any request


def test_every_broker_answers_for_a_topic_that_it_does_not_host(cluster: ClusterProcess) -> None:
    create(cluster, "elsewhere", partitions=1, replication=1)
    host = cluster.leader("elsewhere")
    for number in BROKERS:
        stored = publish(cluster, number, "elsewhere", f"through {number}", "high")
        assert stored["offset"] == number - 1
    for number in BROKERS:
        status, peeked = cluster.get(number, "/topic/elsewhere/peek?batch=10")
        assert status == 200 and [one["v"] for one in peeked["messages"]] == [f"through {n}" for n in BROKERS]
        status, described = cluster.get(number, "/topics/elsewhere/partitions")
        assert status == 200 and described["partitions"][0]["leader"] == cluster.node_id(host)
        status, stats = cluster.get(number, "/raft/stats?topic=elsewhere&partitionID=0")
        assert status == 200 and stats["state"] == "Leader"
    assert [consume(cluster, number, "elsewhere", "one", 1) for number in BROKERS] == [
        [f"through {number}"] for number in BROKERS
    ]
    with lanner.sync.connect(cluster.native_of(next(n for n in BROKERS if n != host))) as queue:
        assert queue.publish("elsewhere", b"natively").offset == 3


def own_address() -> str:
    """This machine's address in its network; a second loopback address where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation addresses: nothing is sent
            found: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.2"
    return found


def test_forwarding_works_between_brokers_that_are_not_on_the_loopback_address(tmp_path: Path) -> None:
    hosts = (own_address(), "127.0.0.2", "127.0.0.3")
    with ClusterProcess(tmp_path, settings=SETTINGS, hosts=hosts) as cluster:
        create(cluster, "far", partitions=3, replication=1)
        for number in BROKERS:
            for message in range(3):
                publish(cluster, number, "far", f"{number}-{message}")
        taken = [consume_all(cluster, number, "far", f"reader-{number}") for number in BROKERS]
        assert all(sorted(one) == sorted(f"{n}-{m}" for n in BROKERS for m in range(3)) for one in taken)


def test_priority_holds_over_partitions_led_by_different_brokers(cluster: ClusterProcess) -> None:
    create(cluster, "urgent", partitions=6, replication=3)
    for partition in range(6):
        with lanner.sync.connect(cluster.address) as queue:
            queue.publish("urgent", f"low-{partition}", priority="low", partition=partition)
            queue.publish("urgent", f"high-{partition}", priority="high", partition=partition)
    for number in BROKERS:
        taken = consume(cluster, number, "urgent", f"reader-{number}", batch=12)
        assert sorted(taken[:6]) == [f"high-{partition}" for partition in range(6)]
        assert sorted(taken[6:]) == [f"low-{partition}" for partition in range(6)]


def test_the_second_member_of_a_group_gets_messages_too_through_another_broker(cluster: ClusterProcess) -> None:
    create(cluster, "members", partitions=3, replication=3)
    with (
        lanner.sync.connect(cluster.native_of(1)) as one,
        lanner.sync.connect(cluster.native_of(2)) as other,
        one.consumer("members", group="workers") as first,
        other.consumer("members", group="workers") as second,
    ):
        for partition in range(3):
            one.publish_many("members", values(10, f"{partition}-"), partition=partition)
        taken: dict[str, list[bytes]] = {"first": [], "second": []}
        ends = time.monotonic() + 20
        while sum(map(len, taken.values())) < 30 and time.monotonic() < ends:
            for name, consumer in (("first", first), ("second", second)):
                batch = consumer.poll(3, wait_ms=200)
                taken[name] += [message.value for message in batch]
                batch.ack()
    assert min(map(len, taken.values())) > 5
    everything = [value for part in taken.values() for value in part]
    assert sorted(everything) == sorted(value for partition in range(3) for value in values(10, f"{partition}-"))


def test_an_ack_through_another_broker_settles_exactly_what_it_names(cluster: ClusterProcess) -> None:
    create(cluster, "acks", partitions=1, replication=3, lease_ms=1_000, backoff_ms=0)
    with lanner.sync.connect(cluster.address) as queue:
        queue.publish_many("acks", values(5))
    path = "/v1/topics/acks/groups/workers"
    status, leased = cluster.ask(1, "POST", f"{path}/poll", {"max_messages": 5})
    assert status == 200 and leased["count"] == 5
    last = leased["messages"][4]
    target = {name: last[name] for name in ("partition", "offset", "token")}
    status, settled = cluster.ask(2, "POST", f"{path}/ack", {"messages": [target, {**target, "offset": 99}]})
    assert status == 200 and (settled["settled"], settled["failed"]) == (1, 1)
    assert settled["messages"][1]["error"]
    found: list[str] = []
    ends = time.monotonic() + 20
    while len(found) < 4 and time.monotonic() < ends:
        status, again = cluster.ask(3, "POST", f"{path}/poll", {"max_messages": 5, "wait_ms": 500, "lease_ms": 30_000})
        assert status == 200, again
        found += [message["value"] for message in again["messages"]]
    assert sorted(found) == ["0", "1", "2", "3"]


# ------------------------------------------------------------------ replication and growth


def test_a_replication_factor_is_never_lowered_silently(cluster: ClusterProcess) -> None:
    with lanner.sync.connect(cluster.address) as queue:
        with pytest.raises(LannerError) as refused:
            queue.admin.create_topic("too-many", partitions=1, replication=5)
        assert "replica" in str(refused.value) or "broker" in str(refused.value)
        assert "too-many" not in queue.admin.topics()
        cluster.kill(3)
        try:
            queue.admin.create_topic("three", partitions=2, replication=3)
        except LannerError as error:  # a refusal is not silent
            assert "broker" in str(error)
        else:
            (topic,) = [one for one in queue.admin.cluster().topics if one.name == "three"]
            assert [len(partition.replicas) for partition in topic.partitions] == [3, 3]
            assert queue.admin.describe("three").settings["replication"] == 3
            queue.publish("three", b"on two of three")


def test_adding_a_second_broker_does_not_stall_the_first(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, 1, settings=SETTINGS) as cluster:
        create(cluster, "growing", partitions=3)
        worst, count = 0.0, 0
        with lanner.sync.connect(cluster.native_of(1)) as queue:
            queue.publish("growing", b"warm")
            adding = asyncio.run(_added_beside(cluster, queue))
            worst, count = adding
            assert len(queue.admin.cluster().brokers) == 2
        cluster.kill(2)
        with lanner.sync.connect(cluster.native_of(1)) as queue:
            assert queue.publish("growing", b"what the first holds alone goes on").partition in range(3)
    assert count > 20 and worst < 5.0


async def _added_beside(cluster: ClusterProcess, queue: Any) -> tuple[float, int]:
    """The longest publish while a second broker joins, and how many there were."""
    adding = asyncio.ensure_future(asyncio.to_thread(cluster.add))
    worst, count = 0.0, 0
    settled = time.monotonic() + 60
    while time.monotonic() < settled:
        began = time.monotonic()
        await asyncio.to_thread(queue.publish, "growing", b"value")
        worst, count = max(worst, time.monotonic() - began), count + 1
        if adding.done():
            adding.result()
            settled = min(settled, time.monotonic() + 1.0)
        await asyncio.sleep(0.01)
    return worst, count
