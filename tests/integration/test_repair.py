"""One bit of the last journal record flips while everything is down: nothing that was confirmed is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lanner
from lanner.cli.screen import EXIT_DAMAGED
from lanner.ledger.records import HEADER_BYTES, RecordHead, RecordReader
from lanner.ledger.replay import read_header
from lanner.storage import DiskFiles
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import BrokerProcess

NEVER_SAVED = {"save_interval_ms": 3_600_000}  # so that a start replays everything
PROGRAM = [sys.executable, "-c", "from lanner.cli import main; main()"]


def last_record(data: Path) -> tuple[int, RecordHead]:
    """The last record of a journal that nobody writes to, and its file."""
    files = DiskFiles(data / "journal")
    try:
        found: tuple[int, RecordHead] | None = None
        for file_id, size in files.list():
            header = read_header(files, file_id)
            if header is None:
                continue
            reader = RecordReader(files, file_id, size, header.salt)
            offset = HEADER_BYTES
            while (record := reader.head_at(offset)) is not None:
                found, offset = (file_id, record), record.end_offset
        assert found is not None
        return found
    finally:
        files.close()


def flip_last_record(data: Path) -> None:
    file_id, record = last_record(data)
    with open(data / "journal" / f"{file_id:012d}.journal", "r+b") as journal:
        at = record.end_offset - 20
        journal.seek(at)
        byte = journal.read(1)[0]
        journal.seek(at)
        journal.write(bytes([byte ^ 16]))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def up(broker: BrokerProcess, *more: str) -> subprocess.CompletedProcess[str]:
    """`lanner up` as a user runs it, where it is expected to end by itself."""
    doors = ("--native", broker.native, "--http", f"{broker.host}:{broker.http_port}", "--grpc", "")
    return command("up", "--data", str(broker.data), *doors, *more)


def assert_stops_with_damage(shown: subprocess.CompletedProcess[str], data: Path) -> None:
    assert shown.returncode == EXIT_DAMAGED, shown.stderr
    assert "its last record was written whole, and does not match its checksum" in shown.stderr
    assert f"To repair it: lanner broker repair --data {data}" in shown.stderr


def test_a_broker_whose_last_record_is_damaged_stops_is_repaired_rejoins_and_nothing_is_lost(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, settings=NEVER_SAVED) as cluster:
        with lanner.sync.connect(cluster.address) as queue:
            queue.admin.create_topic("orders", partitions=1)
            queue.publish("orders", b"before")
        cluster.kill(3)
        with lanner.sync.connect(cluster.address) as queue:
            confirmed = [queue.publish("orders", b"confirmed %d" % number).offset for number in range(5)]
        for number in (1, 2):
            cluster.kill(number)
        broker = cluster.brokers[1]
        flip_last_record(broker.data)
        before = cluster.node_id(1)

        seeds = ",".join(broker.settings["seeds"])
        assert_stops_with_damage(up(broker, "--seeds", seeds, "--name", "broker-1"), broker.data)
        repaired = command("broker", "repair", "--data", str(broker.data), "--json")
        assert repaired.returncode == 0, repaired.stderr
        told = json.loads(repaired.stdout)
        assert (told["action"], told["broker"]) == ("set aside", "broker-1")
        assert Path(told["aside"], "journal").is_dir()
        assert len(told["peers"]) == 2

        cluster.brokers[3].launch()
        broker.launch()
        assert not broker.is_ready()
        cluster.start()
        assert cluster.node_id(1) != before
        assert not (broker.data / "rejoin.json").exists()
        with lanner.sync.connect(cluster.address) as queue:
            after = queue.publish("orders", b"after").offset
            assert after == confirmed[-1] + 1, "no offset is given twice"
            with queue.reader("orders", until_end=True) as reader:
                values = [message.value for message in reader]
        assert values == [b"before", *(b"confirmed %d" % number for number in range(5)), b"after"]
        cluster.until(lambda: _all_whole(cluster), 60, "broker-1 did not get its replicas back")


def _all_whole(cluster: ClusterProcess) -> bool:
    """Whether the broker that came back holds what the one before it held."""
    status, told = cluster.get(2, "/v1/partitions")
    node_id = cluster.node_id(1)
    try:
        return status == 200 and all(
            any(replica["node_id"] == node_id and replica["role"] == "voter" for replica in one["replicas"])
            for one in told["partitions"]
        )
    except (KeyError, TypeError) as error:
        raise AssertionError(told) from error


def test_a_table_that_does_not_open_stops_the_broker_and_names_the_repair_command(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0})
    with broker:
        pass
    (broker.data / "table" / "data.mdb").write_bytes(b"no table" * 1_000)
    shown = up(broker)
    assert shown.returncode == EXIT_DAMAGED, shown.stderr
    (line,) = shown.stderr.splitlines()
    assert line.startswith(f"StorageDamaged: the table in {broker.data / 'table'} cannot be read: ")
    assert line.endswith(f"To repair it: lanner broker repair --data {broker.data}")


def test_a_lone_broker_is_cut_where_it_is_damaged_when_the_loss_is_accepted(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={**NEVER_SAVED, "disk_reserve_bytes": 0})
    with broker, lanner.sync.connect(broker.native) as queue:
        queue.admin.create_topic("orders", partitions=1)
        queue.publish("orders", b"kept")
        queue.publish("orders", b"damaged")
        in_use = command("broker", "repair", "--data", str(broker.data))
        assert in_use.returncode == 1
        assert "in use by another broker" in in_use.stderr
    flip_last_record(broker.data)
    assert_stops_with_damage(up(broker), broker.data)
    refused = command("broker", "repair", "--data", str(broker.data))
    assert refused.returncode == 1
    assert "stands alone" in refused.stderr and "of orders/0 (" in refused.stderr
    done = command("broker", "repair", "--data", str(broker.data), "--accept-loss")
    assert done.returncode == 0, done.stderr
    assert "The journal was cut at" in done.stdout
    with (
        broker,
        lanner.sync.connect(broker.native) as queue,
        queue.reader("orders", until_end=True) as reader,
    ):
        assert [message.value for message in reader] == [b"kept"]
