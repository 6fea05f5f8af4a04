"""Members of a group as processes that join, leave, are killed and fall silent, while brokers are killed.

Every message is acked once as the judges see it (delivered again only after its lease has ended or was given back),
and after every single change no partition has moved that could have stayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanner
from lanner.errors import GroupNotFound
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.member_worker import Span, history_of, read_worker
from lanner.testing.proxy_process import ProxyProcess
from lanner.testing.workload import Workload

PARTITIONS = 8
LEASE_MS = 2_000
SESSION_MS = 3_000
SHORT_STEPS = 6
LONG_SECONDS = 300.0
SETTLED_SECONDS = 60.0
MEMBERS_MAX = 6

Owners = dict[int, str]  # partition → member id


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path / "cluster", settings={"segment_bytes": 4 << 20}) as cluster:
        yield cluster


@pytest.fixture
def proxy(cluster: ClusterProcess) -> Iterator[ProxyProcess]:
    with ProxyProcess(cluster.folder, cluster.address) as process:
        yield process


def fewest_moves(before: Owners, members: set[str]) -> int:
    """How many partitions must leave a living owner, so that no two members differ by more than one."""
    counts = sorted((list(before.values()).count(member) for member in members), reverse=True)
    low, extra = divmod(len(before), len(members))
    kept = sum(min(count, low + (place < extra)) for place, count in enumerate(counts))
    return sum(counts) - kept


def moves(before: Owners, after: Owners) -> int:
    living = set(after.values())
    return sum(owner in living and after[partition] != owner for partition, owner in before.items())


class Storm:
    """The members, and what is done to them."""

    def __init__(self, cluster: ClusterProcess, folder: Path, workload: Workload, addresses: list[str]) -> None:
        self.cluster, self.folder, self.workload, self.addresses = cluster, folder, workload, addresses
        self.workers: dict[str, subprocess.Popen[bytes]] = {}  # the living ones
        self.paths: list[Path] = []
        self.disturbed: list[Span] = []
        self.done: Counter[str] = Counter()
        self.moved = 0

    def join(self) -> None:
        name = f"worker-{len(self.paths)}"
        path = self.folder / f"{name}.jsonl"
        given = {
            "address": self.addresses[len(self.paths) % len(self.addresses)],
            "topic": self.workload.topic,
            "partitions": PARTITIONS,
            "lease_ms": LEASE_MS,
            "work_seconds": 0.02,
            "options": {"assignor": "sticky", "session_ms": SESSION_MS},
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [sys.executable, "-m", "lanner.testing.member_worker", str(path), json.dumps(given)],
                stdout=log,
                stderr=log,
            )
        self.paths.append(path)

    def leave(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.terminate()
        assert worker.wait(30) == 0, (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.wait()

    async def settled(self, queue: lanner.Queue, count: int) -> tuple[Owners, list[int]]:
        """Who owns what, once so many members have everything; and when the group's last rebalances began."""
        ends, found = time.monotonic() + SETTLED_SECONDS, None
        while time.monotonic() < ends:
            with contextlib.suppress(GroupNotFound):  # nobody has joined yet
                found = await queue.admin.group_members(self.workload.group)
            if found and (found.state, found.count, found.unowned) == ("settled", count, 0):
                owners = {
                    partition: member.member_id
                    for member in found.members
                    for held in member.held
                    for partition in range(held.first, held.last + 1)
                }
                if len(owners) == PARTITIONS:
                    return owners, [one.begun_ms for one in found.rebalances]
            await asyncio.sleep(0.05)
        logs = "\n".join(path.read_text()[-1_000:] for path in sorted(self.folder.glob("*.log")))
        raise AssertionError(f"the group never came to rest: {found}\n{logs}\n{self.cluster.log_tails()}")


async def step(storm: Storm, queue: lanner.Queue, rng: random.Random, before: tuple[Owners, list[int]]) -> None:
    """One change of the members."""
    names = sorted(storm.workers)
    choice = rng.choice(["join", "leave", "kill", "silence"])
    if len(names) <= 2 or (choice == "join" and len(names) < MEMBERS_MAX):
        choice = "join"
    elif choice == "join":
        choice = "leave"
    name = rng.choice(names)
    if choice == "silence":
        storm.workers[name].send_signal(signal.SIGSTOP)
        after = await storm.settled(queue, len(names) - 1)
        compare(storm, before, after)
        storm.workers[name].send_signal(signal.SIGCONT)
        before = after
    elif choice == "join":
        storm.join()
    else:
        await asyncio.to_thread(storm.leave if choice == "leave" else storm.kill, name)
    storm.done[choice] += 1
    compare(storm, before, await storm.settled(queue, len(storm.workers)))


def compare(storm: Storm, before: tuple[Owners, list[int]], after: tuple[Owners, list[int]]) -> None:
    """No partition has moved that could have stayed, if nothing but this one change happened."""
    if len(set(after[1]) - set(before[1])) != 1:
        storm.done["rebalances at once"] += 1
        return
    moved = moves(before[0], after[0])
    assert moved == fewest_moves(before[0], set(after[0].values())), (before, after)
    storm.moved += moved
    storm.done["compared"] += 1


async def disturb(storm: Storm, rng: random.Random) -> int:
    number = rng.choice(storm.cluster.running)
    storm.workload.disturb()
    storm.disturbed.append((time.monotonic(), float("inf")))
    await asyncio.to_thread(storm.cluster.kill, number)
    return number


async def calm(storm: Storm, number: int) -> None:
    await asyncio.to_thread(storm.cluster.restart, number)
    await storm.workload.until_published()
    storm.workload.calm()
    storm.disturbed[-1] = storm.disturbed[-1][0], time.monotonic()


async def test_members_come_and_go_while_brokers_die_and_every_message_is_acked_once(
    cluster: ClusterProcess, proxy: ProxyProcess, tmp_path: Path, chaos: bool
) -> None:
    """Every other member comes through a proxy."""
    rng = random.Random(5)
    workload = Workload(cluster.address, "storm", partitions=PARTITIONS, lease_ms=LEASE_MS, pause_seconds=0.02)
    await workload.make_topic()
    storm = Storm(cluster, tmp_path, workload, [cluster.address, proxy.native])
    workload.start(PARTITIONS, 0)
    try:
        async with lanner.connect(cluster.address) as queue:
            for _ in range(3):
                storm.join()
            ends, steps = time.monotonic() + LONG_SECONDS, 0
            while (time.monotonic() < ends) if chaos else (steps < SHORT_STEPS):
                before = await storm.settled(queue, len(storm.workers))
                down = await disturb(storm, rng) if steps % 3 == 2 else 0
                await step(storm, queue, rng, before)
                if down:
                    await calm(storm, down)
                    storm.done["brokers killed"] += 1
                steps += 1
            await workload.stop_publishing()
            await workload.until_drained()
        for name in list(storm.workers):
            await asyncio.to_thread(storm.leave, name)
        failures: Counter[str] = Counter(workload.failures)
        for path in storm.paths:
            rounds, failed = read_worker(path)
            failures.update(failed)
            for event in history_of(rounds, workload.group, PARTITIONS, storm.disturbed):
                workload.history.add(event)
        broken = await workload.broken_promises(drained=True)
    finally:
        storm.close()
        await workload.close()
    print(f"{dict(storm.done)}, {storm.moved} partitions moved; {workload.acknowledged} messages, {dict(failures)}")
    assert broken == []
    assert storm.done["compared"] >= steps / 2
    assert workload.acknowledged > 20 * steps
