"""One bit of a saved entry flips on the disk of the broker that leads: readers get it from another, and the copy is
replaced there."""

from __future__ import annotations

from pathlib import Path

import lanner
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
