"""Random operations, random crashes, and a plain model that must agree after every recovery."""

from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageFull
from lanner.ledger import CommitItem, perform, rewriting
from lanner.testing.disk import PowerLost, SimDisk
from tests.unit.ledger.miniature import Miniature, payload_of


def random_items(broker: Miniature, rng: Random, added: list[int], removed: list[int]) -> list[CommitItem]:
    items = []
    sets = [set_id for set_id in [*broker.replicas, *added] if set_id not in removed]
    for set_id in rng.sample(sets, min(len(sets), rng.randint(1, 3))):
        replica = broker.replicas.get(set_id)
        last, applied = (replica.last, replica.machine.applied) if replica else (0, 0)
        wanted = list(replica.machine.wanted) if replica else []
        first = last + 1
        if last > applied and rng.random() < 0.2:
            first = rng.randint(applied + 1, last)  # a new leader replaces what was never applied
        term = (replica.vote[0] if replica else 0) + 1
        entries = []
        for index in range(first, first + rng.randint(0, 6)):
            payload = payload_of(
                keep=rng.random() < 0.6,
                release=rng.sample(wanted, min(len(wanted), rng.choice((0, 0, 1, 3)))),
                part=[(index, rng.randint(1, 200)) for index in wanted if rng.random() < 0.05],
                body=rng.randbytes(rng.choice((0, 10, 100, 400))),
            )
            entries.append(broker.entry(set_id, index, term, payload))
        items.append(CommitItem(set_id, (term, 1) if rng.random() < 0.3 or entries else None, entries))
    return items


def step(broker: Miniature, rng: Random) -> None:
    choice = rng.random()
    if choice < 0.5:
        added, removed = [], []
        if len(broker.replicas) < 2 or rng.random() < 0.05:
            added = [max([0, *broker.replicas]) + 1 + rng.randrange(3)]
        if len(broker.replicas) > 3 and rng.random() < 0.3:
            removed = [rng.choice(list(broker.replicas))]
        broker.commit(random_items(broker, rng, added, removed), added=added, removed=removed)
    elif choice < 0.75:
        broker.apply(rng.choice(list(broker.replicas)), rng.randint(1, 20))
    elif choice < 0.9:
        chosen = None if rng.random() < 0.7 else rng.sample(list(broker.replicas), len(broker.replicas) // 2)
        broker.save(chosen, meanwhile=(lambda: commit_some(broker, rng)) if rng.random() < 0.3 else None)
    elif choice < 0.95:
        broker.prepare()
    else:
        broker.rewrite(between=lambda: between_rounds(broker, rng))


def commit_some(broker: Miniature, rng: Random) -> None:
    broker.commit(random_items(broker, rng, [], []))


def between_rounds(broker: Miniature, rng: Random) -> None:
    chance = rng.random()
    if chance < 0.2:
        commit_some(broker, rng)
    elif chance < 0.4:
        broker.apply(rng.choice(list(broker.replicas)), 10)
    elif chance < 0.6:
        broker.save()


def run(seed: int, steps: int) -> Miniature:
    rng = Random(seed)
    disk = SimDisk()
    broker = Miniature(disk, rng)
    broker.commit([], added=[1, 2])
    for _ in range(steps):
        if rng.random() < 0.08:
            disk.crash_in(rng.randint(1, 60))
        try:
            step(broker, rng)
            if rng.random() < 0.05:
                broker.verify()
        except PowerLost:
            while True:
                disk.crash(rng)
                if rng.random() < 0.3:
                    disk.crash_in(rng.randint(1, 40))
                try:
                    broker.restart()
                    break
                except PowerLost:
                    continue
    disk.crash_in(None)
    disk.crash(rng)
    broker.restart()
    return broker


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "ROUND_ENTRIES_MAX", 10)
    monkeypatch.setattr(rewriting, "ROUND_BYTES_MAX", 3_000)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_nothing_that_was_synced_is_lost_whatever_the_crashes(seed: int, small_rounds: None) -> None:
    broker = run(seed, 400)
    assert broker.disk.counts.crashes > 3


def test_the_crash_runs_reach_every_kind_of_loss_and_rewrites(small_rounds: None) -> None:
    brokers = [run(seed, 400) for seed in range(1_000, 1_010)]
    assert sum(broker.rewritten_files for broker in brokers) > 10
    assert sum(broker.disk.counts.writes_torn for broker in brokers) > 5
    assert sum(broker.disk.counts.writes_lost for broker in brokers) > 5
    assert sum(broker.disk.counts.files_returned + broker.disk.counts.files_vanished for broker in brokers) > 0


def test_a_sync_that_does_nothing_is_noticed() -> None:
    """The checker itself: with the oldest of all bugs planted, the model must disagree soon."""
    caught = 0
    for seed in range(10):
        rng = Random(seed)
        disk = SimDisk()
        broker = Miniature(disk, rng)
        disk.sync_skipped = True
        broker.commit([], added=[1])
        for index in range(1, 6):
            broker.commit([CommitItem(1, None, [broker.entry(1, index, 1, payload_of(body=b"x"))])])
        disk.crash(rng)
        try:
            broker.restart()
        except Exception:
            caught += 1
    assert caught >= 9


def test_a_full_disk_only_delays_a_commit(small_rounds: None) -> None:
    rng = Random(5)
    disk = SimDisk()
    broker = Miniature(disk, rng)
    broker.commit([], added=[1])
    for index in range(1, 200):
        if rng.random() < 0.2:
            disk.write_room_bytes = rng.randint(0, 300)
        ledger = broker.ledger
        commit = ledger.begin_commit([CommitItem(1, None, [broker.entry(1, index, 1, payload_of(body=b"y" * 200))])])
        try:
            perform(commit, disk.files)
        except StorageFull:
            disk.write_room_bytes = None
            perform(commit, disk.files)
        ledger.commit_synced(commit)
    disk.crash(rng)
    assert broker.recover().state(1).last_index == 199


def test_a_start_that_finds_no_room_to_cut_a_torn_tail_may_be_made_again() -> None:
    rng = Random(6)
    disk = SimDisk()
    broker = Miniature(disk, rng)
    broker.commit([], added=[1])
    broker.commit([CommitItem(1, None, [broker.entry(1, 1, 1, payload_of(body=b"kept"))])])
    commit = broker.ledger.begin_commit([CommitItem(1, None, [broker.entry(1, 2, 1, payload_of(body=b"y" * 2_000))])])
    disk.write_room_bytes = 1_500
    with pytest.raises(StorageFull):
        perform(commit, disk.files)
    for room in (0, 300, 800):  # each leaves another part of the tail
        disk.write_room_bytes = room
        with pytest.raises(StorageFull):
            broker.recover()
        disk.crash(rng)
    disk.write_room_bytes = None
    ledger = broker.recover()
    assert ledger.state(1).last_index == 1
    assert ledger.recovery.torn_bytes_cut > 0
    assert broker.recover().recovery.torn_bytes_cut == 0
