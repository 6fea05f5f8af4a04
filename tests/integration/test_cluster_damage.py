"""One bit of a saved entry, or of a row, flips on the disk of a broker: the others serve it, and the copy is replaced
there."""

from __future__ import annotations

from pathlib import Path

import lanner
from lanner.ledger.rows import set_of_key
from lanner.storage import LmdbTable
from lanner.testing.cluster_process import ClusterProcess

ROTTEN = b"rotten-" + bytes(range(65, 91)) * 4
WHOLE = [b"whole %d" % number for number in range(20)]


def flip(journal: Path) -> int:
    """One bit of the value, wherever it lies in these files; how often it was found."""
    found = 0
    for path in sorted(journal.glob("*.journal")):
        data = path.read_bytes()
        place = data.find(ROTTEN)
        if place >= 0:
            found += 1
            with open(path, "r+b") as file:
                file.seek(place + 40)
                file.write(bytes([data[place + 40] ^ 4]))
    return found


async def test_a_rotten_entry_is_read_from_another_broker_and_the_copy_is_replaced(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, settings={"segment_bytes": 4 << 20}) as cluster:
        async with lanner.connect(cluster.address) as queue:
            await queue.admin.create_topic("orders", partitions=1, replication=3)
            for value in (*WHOLE, ROTTEN):
                await queue.publish("orders", value)
        number = cluster.leader("orders")
        assert cluster.stop(number) == 0
        data = Path(cluster.brokers[number].data)
        assert flip(data / "journal") == 1
        cluster.restart(number)
        cluster.until(lambda: cluster.leaders("orders", ask=number) == [number], 60.0, "it leads again")
        async with lanner.connect(cluster.address) as queue:
            async with queue.reader("orders", start="earliest", until_end=True) as reader:
                assert [message.value async for message in reader] == [*WHOLE, ROTTEN]

            def repaired() -> bool:
                plans = cluster.get(number, "/v1/cluster")[1]["plans"]
                return [plan["state"] for plan in plans if plan["kind"] == "repair"] == ["done"]

            cluster.until(repaired, 60.0, "the copy is replaced")
            sets = cluster.get(number, "/v1/partitions")[1]["partitions"]
            (replicas,) = [one["replicas"] for one in sets if one["topic"] == "orders"]
            assert len(replicas) == 3
            assert {replica["replica_id"] for replica in replicas} > {4}
            await queue.publish("orders", b"goes on")


def flip_row(data: Path, set_id: int) -> None:
    """One bit of a row of the set's machine, while its broker does not run."""
    table = LmdbTable(data / "table")
    try:
        key, row = next((key, row) for key, row in table.scan(b"s", b"t") if set_of_key(key) == set_id)
        table.commit({key: bytes([row[0] ^ 1]) + row[1:]})
    finally:
        table.close()


async def test_a_broker_with_a_rotten_row_serves_everything_else_and_the_copy_is_replaced(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, settings={"segment_bytes": 4 << 20}) as cluster:
        async with lanner.connect(cluster.address) as queue:
            for topic in ("orders", "whole"):
                await queue.admin.create_topic(topic, partitions=1, replication=3)
                for value in WHOLE:
                    await queue.publish(topic, value)
            found = {one.topic: one.set_id for one in await queue.admin.describe_partitions(None)}
        number = cluster.leader("orders")
        assert cluster.stop(number) == 0
        flip_row(Path(cluster.brokers[number].data), found["orders"])
        cluster.restart(number)  # which waits until it is ready
        async with lanner.connect(cluster.address) as queue:
            await queue.publish("whole", b"goes on")
            await queue.publish("orders", b"goes on")

            def repaired() -> bool:
                plans = cluster.get(number, "/v1/cluster")[1]["plans"]
                return [plan["state"] for plan in plans if plan["kind"] == "repair"] == ["done"]

            cluster.until(repaired, 60.0, "the copy is replaced")
            async with queue.reader("orders", start="earliest", until_end=True) as reader:
                assert [message.value async for message in reader] == [*WHOLE, b"goes on"]
        log = cluster.brokers[number].log_tail()
        assert f"of replica set {found['orders']} is damaged" in log and "is being replaced" in log, log
