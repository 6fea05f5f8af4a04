"""Rewriting file by file, and the power going at every single operation of it."""

from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageDamaged, StorageFull
from lanner.ledger import CommitItem, FileState, read_entry, rewriting
from lanner.ledger.records import FileKind
from lanner.testing.disk import PowerLost, SimDisk
from tests.unit.ledger.miniature import Miniature, payload_of, shortened

BODY = b"b" * 300


def broker_with_dead_files(seed: int = 1, *, every: int = 10, count: int = 200) -> Miniature:
    """Many sealed segments of which only every tenth entry is wanted, some of these only in part."""
    broker = Miniature(SimDisk(), Random(seed))
    broker.commit([], added=[1])
    for index in range(1, count + 1):
        part = [(index - 1, 40)] if index % (3 * every) == 1 and index > 1 else []
        payload = payload_of(keep=index % every == 0, part=part, body=BODY)
        broker.commit([CommitItem(1, None, [broker.entry(1, index, 1, payload)])])
    broker.apply(1, count)
    broker.save()
    broker.rewrite_wanted = lambda: fullest(broker)
    broker.save()
    return broker


def fullest(broker: Miniature) -> int:
    """The oldest sealed segment that still holds something, whatever the bound says."""
    return min(
        info.file_id
        for info in broker.ledger.files().values()
        if info.kind is FileKind.JOURNAL and info.state is FileState.SEALED and info.live
    )


def test_what_is_wanted_moves_and_the_old_file_goes() -> None:
    broker = broker_with_dead_files(every=2)
    source = fullest(broker)
    broker.rewrite()
    assert broker.ledger.files()[source].live == 0
    kept = [info for info in broker.ledger.files().values() if info.kind is FileKind.KEPT and info.live]
    assert len(kept) == 1
    assert kept[0].live > 0.8 * kept[0].size, "a kept file holds hardly anything else"
    assert dict(broker.disk.files.list())[kept[0].file_id] == kept[0].size
    assert source in dict(broker.disk.files.list()), "until a save is durable"
    broker.save()
    assert source not in dict(broker.disk.files.list())
    broker.verify()
    broker.restart()


def test_the_bound_on_disk_holds_while_much_flows_through_and_little_stays() -> None:
    broker = Miniature(SimDisk(), Random(3))
    broker.commit([], added=[1])
    index = 0
    for _ in range(150):
        entries = []
        for _ in range(10):
            index += 1
            release = [index - 20] if (index - 20) % 10 and index > 20 else []
            entries.append(broker.entry(1, index, 1, payload_of(keep=True, release=release, body=BODY)))
        broker.commit([CommitItem(1, None, entries)])
        broker.apply(1, 10)
        broker.save()
        while broker.rewrite():
            broker.save()
        on_disk = sum(size for _, size in broker.disk.files.list())
        assert on_disk <= 1.5 * broker.ledger.live_bytes + 6 * broker.segment_bytes
    assert broker.rewritten_files > 10
    broker.verify()
    assert len(broker.disk.files.list()) < 40, "small kept files are merged"


def test_kept_files_are_rewritten_in_their_turn() -> None:
    broker = broker_with_dead_files(every=3)
    for _ in range(3):
        broker.rewrite()
        broker.save()
    kept = [info for info in broker.ledger.files().values() if info.kind is FileKind.KEPT and info.live]
    broker.rewrite_wanted = lambda: kept[0].file_id
    broker.rewrite()
    broker.save()
    assert kept[0].file_id not in broker.ledger.files()
    broker.verify()
    broker.restart()


@pytest.mark.parametrize("small", [False, True])
def test_the_power_may_go_at_any_operation_of_a_rewrite(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite, a save, the removal of the old file, and a save: cut at each operation, twice with other dice."""
    if small:
        monkeypatch.setattr(rewriting, "ROUND_ENTRIES_MAX", 3)
    operation, finished = 0, False
    while not finished:
        operation += 1
        for dice in range(3):
            broker = broker_with_dead_files(count=60, every=2)
            broker.disk.crash_in(operation)
            try:
                broker.rewrite()
                broker.save()
                broker.save()
                finished = True
            except PowerLost:
                broker.disk.crash(Random(operation * 10 + dice))
                broker.restart()
                broker.save()
                broker.save()
                known = broker.ledger.files()
                left = [file_id for file_id, _ in broker.disk.files.list() if file_id not in known]
                assert left == [], "nothing is left behind"
                broker.verify()
    assert operation > (15 if small else 9)


def test_an_entry_that_dies_while_it_is_copied_is_dead_in_the_kept_file_too() -> None:
    broker = broker_with_dead_files()
    rewrite = broker.ledger.plan_rewrite(fullest(broker))
    rewrite.read(broker.disk.files)
    rewrite.choose(broker.ledger)
    rewrite.write(broker.disk.files, shortened)
    dying = min(broker.replicas[1].machine.wanted)
    release = payload_of(release=[dying], body=b"")
    broker.commit([CommitItem(1, None, [broker.entry(1, 201, 1, release)])])
    broker.apply(1, 1)
    broker.ledger.rewritten(rewrite)
    with pytest.raises(KeyError):
        broker.ledger.locate(1, dying)
    broker.verify()


def test_a_set_that_goes_while_it_is_copied_leaves_nothing_behind() -> None:
    broker = broker_with_dead_files()
    rewrite = broker.ledger.plan_rewrite(fullest(broker))
    rewrite.read(broker.disk.files)
    rewrite.choose(broker.ledger)
    rewrite.write(broker.disk.files, shortened)
    broker.commit([], removed=[1])
    broker.ledger.rewritten(rewrite)
    assert broker.ledger.live_bytes == 0
    broker.save()
    broker.save()
    assert [info.kind for info in broker.ledger.files().values() if info.size] == [FileKind.JOURNAL]
    broker.restart()


def test_a_set_that_was_gone_before_is_not_copied() -> None:
    broker = broker_with_dead_files()
    rewrite = broker.ledger.plan_rewrite(fullest(broker))
    rewrite.read(broker.disk.files)
    broker.commit([], removed=[1])
    rewrite.choose(broker.ledger)
    assert rewrite.write(broker.disk.files, shortened) == 0
    assert not rewrite.created
    broker.ledger.rewritten(rewrite)
    broker.save()
    broker.save()
    broker.restart()


def test_a_rewrite_without_room_can_be_repeated_or_given_up() -> None:
    broker = broker_with_dead_files()
    source = fullest(broker)
    rewrite = broker.ledger.plan_rewrite(source)
    rewrite.read(broker.disk.files)
    rewrite.choose(broker.ledger)
    broker.disk.capacity_bytes = 0
    with pytest.raises(StorageFull):
        rewrite.write(broker.disk.files, shortened)
    broker.disk.capacity_bytes = 1 << 40
    broker.disk.write_room_bytes = 10
    with pytest.raises(StorageFull):
        rewrite.write(broker.disk.files, shortened)
    broker.disk.write_room_bytes = None
    assert not rewrite.done
    broker.ledger.rewritten(rewrite)
    broker.save()
    broker.verify()
    assert source in dict(broker.disk.files.list())
    assert broker.rewrite(), "another one may begin after the next save"
    broker.save()
    broker.restart()


def test_one_rewrite_at_a_time_and_only_into_a_file_that_the_table_knows_of() -> None:
    broker = Miniature(SimDisk(), Random(1))
    assert broker.ledger.rewrite_candidate() is None
    with pytest.raises(RuntimeError, match="no file is reserved"):
        broker.ledger.plan_rewrite(1)
    broker = broker_with_dead_files()
    broker.ledger.plan_rewrite(fullest(broker))
    with pytest.raises(RuntimeError, match="under way"):
        broker.ledger.plan_rewrite(fullest(broker))
    assert broker.ledger.rewrite_candidate() is None


def test_a_damaged_entry_stays_where_it_is_and_the_others_move() -> None:
    broker = broker_with_dead_files(every=2)
    source = fullest(broker)
    wanted = [index for index in broker.replicas[1].machine.wanted if broker.ledger.locate(1, index).file == source]
    damaged = broker.ledger.locate(1, wanted[3])
    broker.disk.flip_bit(damaged.file, damaged.offset + 5)
    rewrite = broker.ledger.plan_rewrite(source)
    while not rewrite.done:
        assert rewrite.read(broker.disk.files) >= 0
        rewrite.choose(broker.ledger)
        rewrite.write(broker.disk.files, shortened)
    broker.ledger.rewritten(rewrite)
    assert [(set_id, index) for set_id, index, _ in rewrite.damaged] == [(1, wanted[3])]
    assert {broker.ledger.locate(1, index).file for index in wanted if index != wanted[3]} == {rewrite.target}
    with pytest.raises(StorageDamaged):
        read_entry(broker.disk.files, broker.ledger.locate(1, wanted[3]))
    broker.save()
    broker.ledger.check()
    assert broker.ledger.rewrite_candidate() != source, "it is not tried for ever"


def test_a_round_of_nothing_but_damage_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_with_dead_files(every=10)
    source = fullest(broker)
    for index in broker.replicas[1].machine.wanted:
        place = broker.ledger.locate(1, index)
        if place.file == source:
            broker.disk.flip_bit(place.file, place.offset)
    rewrite = broker.ledger.plan_rewrite(source)
    while not rewrite.done:
        rewrite.read(broker.disk.files)
        rewrite.choose(broker.ledger)
        rewrite.write(broker.disk.files, shortened)
    assert rewrite.damaged
    assert not rewrite.created
    broker.ledger.rewritten(rewrite)
    broker.save()
    assert broker.ledger.files()[source].live > 0


def test_a_file_without_a_readable_header_is_left_as_it_is() -> None:
    broker = broker_with_dead_files()
    source = fullest(broker)
    broker.disk.flip_bit(source, 1)
    rewrite = broker.ledger.plan_rewrite(source)
    assert rewrite.read(broker.disk.files) == 0
    assert rewrite.done
    broker.ledger.rewritten(rewrite)
    assert broker.ledger.files()[source].live > 0


def test_many_small_records_make_one_large_one_but_never_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_with_dead_files(every=2)
    source = fullest(broker)
    rewrite = broker.ledger.plan_rewrite(source)
    rewrite.read(broker.disk.files)
    monkeypatch.setattr(rewriting, "ROUND_BYTES_MAX", 1_000)
    rewrite.choose(broker.ledger)
    syncs = broker.disk.counts.syncs
    written = rewrite.write(broker.disk.files, shortened)
    assert written > 2_000
    assert broker.disk.counts.syncs - syncs > 2
    broker.ledger.rewritten(rewrite)
    broker.verify()
