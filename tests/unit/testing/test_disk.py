"""The simulated disk must lose what a disk may lose, keep what it must keep, and do the same twice for one seed."""

from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageFailed, StorageFull
from lanner.testing.disk import SECTOR_BYTES, PowerLost, SimDisk


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.files.create(1, 10_000, b"head")
    return made


def outcomes(prepare: object = None) -> set[bytes]:
    found = set()
    for seed in range(60):
        disk = SimDisk()
        disk.files.create(1, 4_096, b"")
        disk.files.write(1, 100, [b"x" * 2_000])
        disk.crash(Random(seed))
        found.add(disk.files.read(1, 0, 4_096))
    return found


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(50):
        disk = SimDisk()
        disk.files.create(1, 10_000, b"head")
        disk.files.write(1, 64, [b"kept"])
        disk.files.sync(1)
        disk.files.write(1, 5_000, [b"y" * 3_000])
        disk.crash(Random(seed))
        assert disk.files.read(1, 0, 4) == b"head"
        assert disk.files.read(1, 64, 4) == b"kept"
        assert disk.files.list() == [(1, 10_000)]


def test_what_was_not_synced_is_lost_kept_or_torn() -> None:
    found = outcomes()
    whole = bytes(100) + b"x" * 2_000 + bytes(1_996)
    assert whole in found
    assert bytes(4_096) in found
    torn = [content for content in found if content not in (whole, bytes(4_096))]
    assert len(torn) > 5
    lengths = {len(content.replace(b"\x00", b"")) for content in torn}
    assert any((length - (SECTOR_BYTES - 100)) % SECTOR_BYTES and length % SECTOR_BYTES for length in lengths), (
        "some tears are inside a sector"
    )


def test_one_seed_gives_one_outcome() -> None:
    def run(seed: int) -> tuple[bytes, list[tuple[int, int]]]:
        disk = SimDisk()
        disk.files.create(1, 4_096, b"")
        for number in range(8):
            disk.files.write(1, number * 500, [bytes([number + 1]) * 700])
        disk.crash_in(1)
        with pytest.raises(PowerLost):
            disk.files.create(2, 100, b"h")
        disk.crash(Random(seed))
        return disk.files.read(1, 0, 4_096), disk.files.list()

    assert run(5) == run(5)
    assert len({run(seed)[0] for seed in range(10)}) > 5


def test_a_killed_process_loses_nothing_that_it_wrote(disk: SimDisk) -> None:
    disk.files.write(1, 64, [b"written"])
    disk.kill()
    assert disk.files.read(1, 64, 7) == b"written"


def test_the_power_goes_in_the_middle_of_an_operation_and_stays_off(disk: SimDisk) -> None:
    disk.crash_in(2)
    disk.files.write(1, 64, [b"one"])
    with pytest.raises(PowerLost, match="during write"):
        disk.files.write(1, 100, [b"two"])
    with pytest.raises(PowerLost, match="off"):
        disk.files.read(1, 64, 3)
    with pytest.raises(PowerLost):
        disk.table.get(b"k")
    disk.crash(Random(1))
    disk.files.read(1, 64, 3)
    assert disk.counts.crashes == 1


@pytest.mark.parametrize("operation", ["read", "sync", "truncate", "remove", "get", "scan"])
def test_any_operation_may_be_the_last(disk: SimDisk, operation: str) -> None:
    calls = {
        "read": lambda: disk.files.read(1, 0, 1),
        "sync": lambda: disk.files.sync(1),
        "truncate": lambda: disk.files.truncate(1, 10),
        "remove": lambda: disk.files.remove(1),
        "get": lambda: disk.table.get(b"k"),
        "scan": lambda: disk.table.scan(b"", b"z"),
    }
    disk.crash_in(1)
    with pytest.raises(PowerLost, match=operation):
        calls[operation]()


def test_a_file_that_was_being_created_may_vanish_or_be_there_in_part() -> None:
    found = set()
    for seed in range(40):
        disk = SimDisk()
        disk.crash_in(1)
        with pytest.raises(PowerLost):
            disk.files.create(1, 1_000, b"header")
        disk.crash(Random(seed))
        sizes = disk.files.list()
        found.add((tuple(sizes), disk.files.read(1, 0, 6) if sizes else b""))
    assert ((), b"") in found
    assert (((1, 1_000),), b"header") in found
    assert any(sizes and header != b"header" for sizes, header in found)


def test_a_file_that_was_being_removed_may_be_back_but_a_removed_one_is_not() -> None:
    found = set()
    for seed in range(20):
        disk = SimDisk()
        disk.files.create(1, 100, b"")
        disk.files.create(2, 100, b"")
        disk.files.remove(2)
        disk.crash_in(1)
        with pytest.raises(PowerLost):
            disk.files.remove(1)
        disk.crash(Random(seed))
        found.add(tuple(disk.files.list()))
    assert found == {(), ((1, 100),)}


def test_a_cut_that_was_not_synced_may_not_have_happened() -> None:
    found = set()
    for seed in range(20):
        disk = SimDisk()
        disk.files.create(1, 100, b"")
        disk.files.truncate(1, 10)
        disk.crash(Random(seed))
        found.add(disk.files.list()[0][1])
    assert found == {10, 100}


def test_a_table_commit_is_there_when_it_returned_and_all_or_nothing_when_the_power_went() -> None:
    found = set()
    for seed in range(20):
        disk = SimDisk()
        disk.table.commit({b"a": b"1", b"b": b"1"})
        disk.crash_in(1)
        with pytest.raises(PowerLost, match="commit"):
            disk.table.commit({b"a": b"2", b"b": None})
        disk.crash(Random(seed))
        found.add((disk.table.get(b"a"), disk.table.get(b"b")))
    assert found == {(b"1", b"1"), (b"2", None)}


def test_a_failed_sync_is_final_and_what_it_should_have_kept_is_lost(disk: SimDisk) -> None:
    disk.files.write(1, 64, [b"gone"])
    disk.sync_failures = 1
    with pytest.raises(StorageFailed):
        disk.files.sync(1)
    with pytest.raises(StorageFailed):
        disk.files.write(1, 64, [b"more"])
    with pytest.raises(StorageFailed):
        disk.table.commit({})
    disk.kill()
    disk.files.sync(1)  # succeeds, and proves nothing
    disk.crash(Random(1))
    assert disk.files.read(1, 64, 4) == bytes(4)


def test_a_full_disk_takes_no_new_files_and_says_what_is_free() -> None:
    disk = SimDisk(capacity_bytes=1_000)
    disk.files.create(1, 600, b"")
    with pytest.raises(StorageFull):
        disk.files.create(2, 600, b"")
    assert disk.files.free_bytes() == (400, 1_000)
    disk.files.remove(1)
    disk.files.create(2, 600, b"")


def test_room_for_writes_can_end_in_the_middle_of_one_with_a_sector(disk: SimDisk) -> None:
    disk.write_room_bytes = 5
    with pytest.raises(StorageFull):
        disk.files.write(1, 510, [b"abc", b"defg"])
    assert disk.files.read(1, 510, 7) == b"ab\x00\x00\x00\x00\x00"
    with pytest.raises(StorageFull):
        disk.files.create(2, 64, b"")
    disk.write_room_bytes = None
    disk.files.write(1, 64, [b"abc", b"defg"])
    assert disk.files.read(1, 64, 7) == b"abcdefg"
    disk.write_room_bytes = 10
    disk.files.write(1, 64, [b"x"])
    assert disk.write_room_bytes == 9


def test_a_full_table_refuses_and_keeps_what_it_has(disk: SimDisk) -> None:
    disk.table.commit({b"a": b"1"})
    disk.table_full = True
    with pytest.raises(StorageFull):
        disk.table.commit({b"a": b"2"})
    assert disk.table.get(b"a") == b"1"


def test_a_flipped_bit_is_flipped_for_good(disk: SimDisk) -> None:
    disk.flip_bit(1, 0, 3)
    assert disk.files.read(1, 0, 4) == bytes([ord("h") ^ 8]) + b"ead"
    disk.crash(Random(1))
    assert disk.files.read(1, 0, 1) == bytes([ord("h") ^ 8])
    disk.flip_bit(1, 1_000_000)
    assert disk.files.list() == [(1, 10_000)]


def test_a_skipped_sync_is_a_bug_that_a_crash_shows() -> None:
    lost = 0
    for seed in range(20):
        disk = SimDisk()
        disk.files.create(1, 1_000, b"")
        disk.sync_skipped = True
        disk.files.write(1, 64, [b"acknowledged"])
        disk.files.sync(1)
        disk.crash(Random(seed))
        lost += disk.files.read(1, 64, 12) != b"acknowledged"
    assert lost > 5


def test_a_slow_disk_says_how_long_it_took(disk: SimDisk) -> None:
    disk.delay_ms = lambda operation, size: 2.0 if operation == "sync" else size / 1_000
    disk.files.write(1, 64, [b"x" * 500])
    disk.files.sync(1)
    disk.table.commit({b"k": b"v" * 250})
    assert disk.busy_ms == pytest.approx(2.75)


def test_a_snapshot_holds_what_is_durable_and_nothing_else(disk: SimDisk) -> None:
    disk.files.write(1, 64, [b"pending"])
    disk.table.commit({b"k": b"v"})
    other = disk.snapshot()
    assert other.files.read(1, 0, 4) == b"head"
    assert other.files.read(1, 64, 7) == bytes(7)
    assert other.table.get(b"k") == b"v"
    other.files.write(1, 0, [b"HEAD"])
    assert disk.files.read(1, 0, 4) == b"head"


def test_closing_keeps_everything(disk: SimDisk) -> None:
    disk.files.close()
    disk.table.close()
    assert disk.files.list() == [(1, 10_000)]
