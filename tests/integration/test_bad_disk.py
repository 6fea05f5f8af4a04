"""A disk that is full, and a disk that fails: the first pauses publishing, the second ends the broker."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import lanner
from lanner.broker.settings import BrokerSettings
from lanner.errors import StorageFull
from lanner.ledger import Ledger
from lanner.server import Server
from lanner.testing.process import BrokerProcess

MIB = 1 << 20
DISK_BYTES = 96 * MIB
RESERVE_BYTES = 32 * MIB
SEGMENT_BYTES = 4 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a disk of limited size needs root and mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "lanner-test", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of limited size cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_publishes_lets_acks_go_on_and_recovers_by_itself(small_disk: Path, tmp_path: Path) -> None:
    settings = {"segment_bytes": SEGMENT_BYTES, "disk_reserve_bytes": RESERVE_BYTES}
    broker = BrokerProcess(small_disk / "data", settings=settings)
    broker.log_path = tmp_path / "broker.log"
    values = [b"v" * 10_000] * 50
    with broker, lanner.sync.connect(broker.native, timeout_ms=3_000) as queue:
        queue.admin.create_topic("orders", partitions=1, retention="acked")
        published = 0
        with pytest.raises(StorageFull) as refused:
            while published < DISK_BYTES // 10_000:
                queue.publish_many("orders", values)
                published += len(values)
        assert refused.value.retryable
        assert broker.is_ready(), "reading and acking go on"
        with queue.consumer("orders", group="workers") as consumer:
            acked = 0
            while acked < published:
                messages = consumer.poll(200, wait_ms=5_000)
                assert messages, f"{acked} of {published} could be consumed"
                consumer.ack(messages)
                acked += len(messages)
        deadline = time.monotonic() + 30
        while True:
            try:
                queue.publish("orders", b"there is room again")
                break
            except StorageFull:
                assert time.monotonic() < deadline, broker.log_tail()
                time.sleep(0.2)


def test_a_fresh_broker_on_a_small_disk_serves(small_disk: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(small_disk / "data")
    broker.log_path = tmp_path / "broker.log"
    with broker, lanner.sync.connect(broker.native) as queue:
        queue.publish("orders", b"on a disk of 96 MiB")
    assert broker.log_path.read_text().count("possible again") == 0


def test_a_fresh_broker_without_room_for_a_segment_says_once_what_is_missing(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(DISK_BYTES - 3 * MIB))
    broker = BrokerProcess(small_disk / "data", settings={"disk_reserve_bytes": 0})
    broker.log_path = tmp_path / "broker.log"
    broker.launch()
    try:
        told = ""
        deadline = time.monotonic() + 20
        while "a new segment takes 4 MiB" not in told:
            assert time.monotonic() < deadline, broker.log_tail() + told
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=5)
                connection.request("GET", "/readyz")
                told = connection.getresponse().read().decode()
                connection.close()
            time.sleep(0.05)
        for _ in range(3):  # some rounds of the watch over the disk
            time.sleep(1)
        assert broker.log_path.read_text().count("\n") == 1, broker.log_tail()
        filler.unlink()
        broker.wait_ready(20)
        assert broker.log_path.read_text().count("publishing is possible again") == 1
    finally:
        broker.kill()


def test_a_data_directory_with_large_segments_stays_usable_where_small_ones_are_made(tmp_path: Path) -> None:
    for segment_bytes in (128 * MIB, 4 * MIB, 128 * MIB):
        settings = {"segment_bytes": segment_bytes, "disk_reserve_bytes": 0}
        with BrokerProcess(tmp_path / "data", settings=settings) as broker:
            with lanner.sync.connect(broker.native) as queue:
                for _ in range(6):
                    queue.publish("orders", bytes(MIB - 1_000))
                for _ in range(3):
                    queue.publish("orders", b"small")
            broker.stop()
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        with lanner.sync.connect(broker.native) as queue, queue.consumer("orders", group="g") as consumer:
            found = 0
            while found < 27:
                found += len(consumer.poll(100, wait_ms=5_000))
        assert found == 27


def publish_until_it_ends(broker: BrokerProcess) -> int:
    """How many publishes were acknowledged before the broker ended."""
    acknowledged = 0
    try:
        with lanner.sync.connect(broker.native, timeout_ms=2_000) as queue:
            for number in range(100_000):
                queue.publish("orders", str(number).encode())
                acknowledged += 1
    except lanner.LannerError:
        return acknowledged
    raise AssertionError("the broker went on after a failed sync")


def stored(broker: BrokerProcess) -> int:
    with lanner.sync.connect(broker.native) as queue:
        return sum(partition.end_offset for partition in queue.admin.offsets("orders"))


def test_a_failed_sync_ends_the_broker_with_a_clear_message_and_loses_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", plants=("fail_sync_after:100",), settings={"disk_reserve_bytes": 0})
    with broker:
        acknowledged = publish_until_it_ends(broker)
        assert broker.wait(20) != 0
    assert acknowledged > 10
    assert "StorageFailed" in broker.log_tail()
    assert "Traceback" not in broker.log_tail()
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as again:
        assert stored(again) >= acknowledged


def test_a_sync_that_the_kernel_fails_ends_the_broker(tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed; the planted form of this test ran all the same")
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        with lanner.sync.connect(broker.native) as queue:
            queue.publish("orders", b"before")
        injected = [
            "strace",
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            "trace=fdatasync",
            "-e",
            "inject=fdatasync:error=EIO",
        ]
        tracer = subprocess.Popen([*injected, "-p", str(broker.pid)])
        try:
            time.sleep(0.5)
            if tracer.poll() is not None and broker.running:
                pytest.skip("strace may not attach to a process here; the planted form of this test ran all the same")
            if broker.running:
                publish_until_it_ends(broker)
            assert broker.wait(20) != 0
        finally:
            tracer.terminate()
            tracer.wait()
        assert "StorageFailed" in broker.log_tail()


async def test_a_start_that_finds_no_room_lets_go_of_its_folder_for_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BrokerSettings(data=str(tmp_path / "data"), http="", native="", disk_reserve_bytes=0)

    def no_room(*_given: object, **_named: object) -> Ledger:
        raise StorageFull("cutting a torn tail: no room")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "recover", no_room)
        with pytest.raises(StorageFull):
            await Server(settings).start()
    server = Server(settings)
    await server.start()
    await server.stop()
