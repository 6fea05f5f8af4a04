"""Members of groups over real brokers: partitions are shared, handed over, taken from the dead; callbacks in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.broker.coordination import coordination
from lanner.broker.desks import memberships
from lanner.client.member_ports import Callback
from lanner.cluster.assignors import ASSIGNORS, Answer, Question
from lanner.errors import AssignorConflict, InstanceFenced, MemberFenced, ValidationError
from lanner.testing.cluster_process import ClusterProcess
from tests.brokers import native_address, native_server

__all__ = ["native_address", "native_server"]

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 6
METADATA = -1
PATIENCE_S = 60.0  # with a slow machine


@pytest.fixture
async def queue(address: str) -> AsyncIterator[lanner.Queue]:
    async with lanner.connect(address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=PARTITIONS, lease_ms=2_000)
        yield queue


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def fill(queue: lanner.Queue, count: int, first: int = 0, topic: str = TOPIC) -> set[bytes]:
    """Messages on all partitions."""
    values = [b"%d" % number for number in range(first, first + count)]
    await queue.publish_many(topic, values, keys=values)
    return set(values)


def numbers(places: Sequence[lanner.TopicPartition]) -> list[int]:
    return [place.partition for place in places]


class Log:
    """What the callbacks of several members were told, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, list[int]]] = []

    def callbacks(self, name: str) -> dict[str, Callback]:
        def note(what: str) -> Callback:
            return lambda places: self.lines.append((name, what, numbers(places)))

        return {f"on_{what}": note(what) for what in ("assigned", "revoked", "lost")}

    def of(self, name: str, what: str) -> list[list[int]]:
        return [places for who, said, places in self.lines if (who, said) == (name, what)]


class Worker:
    """Runs a consumer in a task of its own: takes messages, writes them down and acks them."""

    def __init__(
        self, queue: lanner.Queue, name: str, log: Log, topics: str | list[str] = TOPIC, **options: Any
    ) -> None:
        self.consumer = queue.consumer(topics, GROUP, **{"session_ms": 2_000, **log.callbacks(name), **options})
        self.taken: list[tuple[str, int, bytes]] = []
        self.error: BaseException | None = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self.consumer:
                while True:
                    batch = await self.consumer.poll(wait_ms=5_000)
                    for message in batch:
                        self.taken.append((message.topic, message.partition, message.value))
                    await batch.ack()
        except Exception as error:
            self.error = error

    @property
    def held(self) -> list[int]:
        return numbers(self.consumer.assignment)

    @property
    def values(self) -> Counter[bytes]:
        return Counter(value for _, _, value in self.taken)

    async def stop(self) -> None:
        """Leave in good order."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def workers(queue: lanner.Queue, log: Log, *names: str, **options: Any) -> AsyncIterator[list[Worker]]:
    found = [Worker(queue, name, log, **{"assignor": "sticky", **options}) for name in names]
    try:
        yield found
    finally:
        for one in found:
            await one.stop()


def acked_once(expected: set[bytes], *workers: Worker) -> bool:
    counts = sum((one.values for one in workers), Counter[bytes]())
    assert not [value for value, count in counts.items() if count > 1], "something was handed out twice"
    return set(counts) == expected


# ------------------------------------------------------------------ queue groups


async def test_two_consumers_have_half_of_the_partitions_each_and_every_message_is_acked_once(
    queue: lanner.Queue,
) -> None:
    async with workers(queue, Log(), "a", "b") as (a, b):
        await until(lambda: len(a.held) == len(b.held) == 3)
        values = await fill(queue, 300)
        await until(lambda: acked_once(values, a, b))
        assert {partition for _, partition, _ in a.taken} == set(a.held)
        assert {partition for _, partition, _ in b.taken} == set(b.held)
        assert a.consumer.generation == b.consumer.generation > 0


async def test_one_that_joins_gets_its_share_and_what_one_leaves_goes_to_the_others(queue: lanner.Queue) -> None:
    log = Log()
    async with workers(queue, log, "a", "b") as (a, b):
        await until(lambda: len(a.held) == len(b.held) == 3)
        async with workers(queue, log, "c") as (c,):
            values = await fill(queue, 200)
            await until(lambda: len(a.held) == len(b.held) == len(c.held) == 2)
            values |= await fill(queue, 200, 200)
            await until(lambda: acked_once(values, a, b, c))
            assert {partition for _, partition, _ in c.taken} >= set(c.held)
        values |= await fill(queue, 200, 400)
        await until(lambda: len(a.held) == len(b.held) == 3)
        await until(lambda: acked_once(values, a, b, c))
    assert sum(map(len, log.of("c", "revoked"))) == 2, "a member that leaves is told what it gives up"
    assert not log.of("a", "lost") and not log.of("b", "lost")


CHILD = """
import asyncio, sys, lanner

def tell(what):
    return lambda places: print(what, *(place.partition for place in places), flush=True)

async def main(address, topic, group, session_ms):
    async with lanner.connect(address) as queue:
        async with queue.consumer(topic, group, assignor="sticky", session_ms=int(session_ms),
                                  on_assigned=tell("assigned"), on_revoked=tell("revoked"), on_lost=tell("lost")) as it:
            async for message in it:
                print("took", message.text(), flush=True)
                if message.text() == "keep":
                    await asyncio.sleep(3600)
                await message.ack()

asyncio.run(main(*sys.argv[1:]))
"""


class Child:
    """A consumer in a process of its own, which says what happens to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self, what: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(what):
                    return line.removeprefix(what).strip()
        raise AssertionError(f"it ended and never said {what!r}")


@contextlib.asynccontextmanager
async def child(address: str, session_ms: int = 1_000) -> AsyncIterator[Child]:
    words = [sys.executable, "-c", CHILD, address, TOPIC, GROUP, str(session_ms)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        yield Child(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def test_the_partitions_and_messages_of_a_process_that_is_killed_go_to_the_others(
    queue: lanner.Queue, address: str
) -> None:
    async with child(address) as doomed:
        await doomed.says("assigned")
        async with workers(queue, Log(), "a") as (a,):
            await until(lambda: len(a.held) == 3)
            others = sorted(set(range(PARTITIONS)) - set(a.held))
            await queue.publish(TOPIC, b"keep", partition=others[0])
            await doomed.says("took keep")
            doomed.process.kill()
            await until(lambda: len(a.held) == PARTITIONS)
            values = await fill(queue, 100) | {b"keep"}
            await until(lambda: acked_once(values, a))


async def test_a_process_that_was_paused_for_longer_than_its_session_is_told_that_it_lost_everything_and_joins_again(
    queue: lanner.Queue, address: str
) -> None:
    async with child(address) as paused, workers(queue, Log(), "a") as (a,):
        await paused.says("assigned")
        await until(lambda: len(a.held) == 3)
        paused.process.send_signal(signal.SIGSTOP)
        await until(lambda: len(a.held) == PARTITIONS)
        paused.process.send_signal(signal.SIGCONT)
        assert len((await paused.says("lost")).split()) == 3
        assert len((await paused.says("assigned")).split()) == 3
        await until(lambda: len(a.held) == 3)


async def test_a_static_member_that_restarts_has_the_same_partitions_and_nobody_else_notices(
    queue: lanner.Queue,
) -> None:
    log = Log()
    async with workers(queue, log, "a") as (a,):
        first = queue.consumer(TOPIC, GROUP, assignor="sticky", instance="web-1", session_ms=30_000)
        await first.poll(wait_ms=0)
        await until(lambda: len(a.held) == 3)
        while len(first.assignment) != 3:
            await first.poll(wait_ms=50)
        held, told = first.assignment, len(log.lines)
        await first.close(keep=True)
        async with queue.consumer(
            TOPIC, GROUP, assignor="sticky", instance="web-1", session_ms=30_000, **log.callbacks("again")
        ) as second:
            while not second.assignment:
                await second.poll(wait_ms=50)
            assert second.assignment == held
            assert log.lines[told:] == [("again", "assigned", numbers(held))]
            members = await queue.admin.group_members(GROUP)
            assert (members.count, members.unowned) == (2, 0)


async def test_of_two_processes_of_one_instance_the_older_ends(queue: lanner.Queue) -> None:
    log = Log()
    older = queue.consumer(TOPIC, GROUP, assignor="sticky", instance="web-1", **log.callbacks("older"))
    while not older.assignment:
        await older.poll(wait_ms=50)
    async with queue.consumer(TOPIC, GROUP, assignor="sticky", instance="web-1") as newer:
        with pytest.raises(InstanceFenced, match="newer process"):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await older.poll(wait_ms=50)
        assert log.of("older", "lost") == [list(range(PARTITIONS))]
        await older.close()
        while len(newer.assignment) != PARTITIONS:
            await newer.poll(wait_ms=50)


async def test_consumers_that_share_become_members_when_one_joins_and_share_again_when_the_group_is_altered(
    queue: lanner.Queue,
) -> None:
    """shared → sticky → shared → sticky, under running consumers."""
    log = Log()
    async with workers(queue, log, "a", "b", assignor=None) as (a, b):
        values = await fill(queue, 100)
        await until(lambda: acked_once(values, a, b))
        assert a.held == b.held == [] and a.consumer.generation == 0
        async with workers(queue, log, "c") as (c,):
            await until(lambda: len(a.held) == len(b.held) == len(c.held) == 2)
            values |= await fill(queue, 100, 100)
            await until(lambda: acked_once(values, a, b, c))
            await queue.admin.alter_group(GROUP, assignor="shared")
            await until(lambda: a.held == b.held == c.held == [])
            values |= await fill(queue, 100, 200)
            await until(lambda: acked_once(values, a, b, c))
            await queue.admin.alter_group(GROUP, assignor="sticky")
            await until(lambda: len(a.held) == len(b.held) == len(c.held) == 2)
            values |= await fill(queue, 100, 300)
            await until(lambda: acked_once(values, a, b, c))
    assert not [line for line in log.lines if line[1] == "lost"]
    assert a.error is b.error is c.error is None


async def test_an_assignor_that_is_not_the_group_s_is_refused_while_it_has_members(queue: lanner.Queue) -> None:
    async with queue.consumer(TOPIC, GROUP, assignor="sticky"):
        with pytest.raises(AssignorConflict, match="range"):
            async with queue.consumer(TOPIC, GROUP, assignor="range"):
                pass


async def test_an_assignor_that_only_the_broker_knows_is_joined_with_and_others_are_refused_with_the_list(
    queue: lanner.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newest(question: Question) -> Answer:
        return dict.fromkeys(question.partition_ids(), max(one.number for one in question.subscribers))

    for module in (coordination, memberships):
        monkeypatch.setattr(module, "ASSIGNORS", {**ASSIGNORS, "newest": newest})
    async with workers(queue, Log(), "a", assignor="newest") as (a,):
        await until(lambda: len(a.held) == PARTITIONS)
        async with workers(queue, Log(), "b", assignor="newest") as (b,):
            await until(lambda: (len(a.held), len(b.held)) == (0, PARTITIONS))
    with pytest.raises(ValidationError, match="use one of newest, range, round_robin, shared, sticky"):
        async with queue.reader(TOPIC, group="audit", assignor="oldest"):
            pass


async def test_a_registered_consumer_of_a_shared_group_is_listed_and_polls_everything(queue: lanner.Queue) -> None:
    async with workers(queue, Log(), "a", "b", assignor=None, register=True) as (a, b):
        await until(lambda: a.consumer.generation > 0 and b.consumer.generation > 0)
        assert (await queue.admin.group_members(GROUP)).count == 2
        values = await fill(queue, 100)
        await until(lambda: acked_once(values, a, b))
        assert a.held == b.held == []


async def test_a_pattern_finds_topics_that_are_made_later(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("refunds.eu", partitions=2)
    async with workers(queue, Log(), "a", "b", topics=[TOPIC, "refunds.*"]) as (a, b):
        await until(lambda: len(a.held) + len(b.held) == PARTITIONS + 2)
        await queue.admin.create_topic("refunds.us", partitions=2)
        await until(lambda: len(a.held) + len(b.held) == PARTITIONS + 4)
        values: set[bytes] = set()
        for place, topic in enumerate((TOPIC, "refunds.eu", "refunds.us")):
            values |= await fill(queue, 50, place * 1_000, topic)
        await until(lambda: acked_once(values, a, b))
        assert {topic for topic, _, _ in a.taken + b.taken} == {TOPIC, "refunds.eu", "refunds.us"}


async def test_several_topics_are_shared_without_joining_and_the_most_urgent_message_comes_first(
    queue: lanner.Queue,
) -> None:
    await queue.admin.create_topic("refunds", partitions=2)
    await queue.publish(TOPIC, b"normal")
    await queue.publish("refunds", b"urgent", priority=9)
    await queue.publish("refunds", b"low", priority=0)
    async with queue.consumer([TOPIC, "refunds"], GROUP) as consumer:
        found = [await consumer.poll(10, wait_ms=5_000) for _ in range(3)]
        assert [[message.value for message in batch] for batch in found] == [[b"urgent"], [b"normal"], [b"low"]]
        assert [batch[0].topic for batch in found] == ["refunds", TOPIC, "refunds"]
        for batch in found:
            await batch.ack()
        assert not await consumer.poll(wait_ms=0)
        waiting = asyncio.create_task(consumer.poll(wait_ms=30_000))
        await asyncio.sleep(0)
        await queue.publish("refunds", b"later")
        assert (await waiting).values() == [b"later"]


# ------------------------------------------------------------------ stream groups


class Follower:
    """Runs a reader in a task of its own, and writes down what it read."""

    def __init__(self, queue: lanner.Queue, name: str, log: Log, read: list[tuple[str, bytes]], **options: Any) -> None:
        self.reader = queue.reader(
            TOPIC, group="audit", assignor="sticky", **{"session_ms": 2_000, **log.callbacks(name), **options}
        )
        self.name = name
        self._read = read
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.reader as reader:
            while not self._stopping:
                if (batch := await reader.read_batch(wait_ms=50)) is not None:
                    await asyncio.sleep(0)  # its work
                    self._read.extend((self.name, value) for value in batch.values())

    @property
    def held(self) -> list[int]:
        return numbers(self.reader.assignment)

    async def stop(self) -> None:
        self._stopping = True
        await self._task


async def test_readers_that_come_and_go_in_good_order_read_everything_once(queue: lanner.Queue) -> None:
    read: list[tuple[str, bytes]] = []
    log = Log()
    sent: set[bytes] = set()
    publishing = True

    async def publish() -> None:
        while publishing:
            sent.update(await fill(queue, 50, len(sent)))
            await asyncio.sleep(0.005)

    publisher = asyncio.create_task(publish())
    a = Follower(queue, "a", log, read)
    await until(lambda: len(a.held) == PARTITIONS)
    b = Follower(queue, "b", log, read)
    await until(lambda: len(a.held) == len(b.held) == 3)
    c = Follower(queue, "c", log, read)
    await until(lambda: len(a.held) == len(b.held) == len(c.held) == 2)
    await a.stop()
    await until(lambda: len(b.held) == len(c.held) == 3)
    a = Follower(queue, "d", log, read)
    await until(lambda: len(a.held) == len(b.held) == len(c.held) == 2)
    publishing = False
    await publisher
    await until(lambda: len(read) >= len(sent))
    for one in (a, b, c):
        await one.stop()
    counts = Counter(value for _, value in read)
    assert [value for value, count in counts.items() if count > 1] == [], "read twice in an orderly move"
    assert set(counts) == sent, "something was lost"
    assert len({name for name, _ in read}) == 4
    assert not [line for line in log.lines if line[1] == "lost"]


async def test_a_partition_is_revoked_committed_and_only_then_assigned_to_its_heir(queue: lanner.Queue) -> None:
    await fill(queue, 120)
    story: list[tuple[str, str, list[int]]] = []
    log = Log()
    log.lines = story
    async with queue.reader(TOPIC, group="audit", assignor="sticky", **log.callbacks("a")) as a:
        seen: Counter[int] = Counter()
        while sum(seen.values()) < 120:
            batch = await a.read_batch()
            assert batch is not None
            seen[batch.partition] += len(batch)
        async with queue.reader(TOPIC, group="audit", assignor="sticky", **log.callbacks("b")) as b:
            while len(a.assignment) != 3:
                await a.read_batch(wait_ms=20)
            while len(b.assignment) != 3:
                await b.read_batch(wait_ms=20)
            moved = numbers(b.assignment)
            assert b.positions() == {partition: seen[partition] for partition in moved}, "it begins where a stopped"
            assert story == [
                ("a", "assigned", list(range(PARTITIONS))),
                ("a", "revoked", moved),
                ("b", "assigned", moved),
            ]


async def test_what_a_reader_that_fails_had_in_hand_is_read_again_from_its_last_commit(queue: lanner.Queue) -> None:
    values = await fill(queue, 60)
    with pytest.raises(RuntimeError, match="failed"):
        async with queue.reader(TOPIC, group="audit", assignor="sticky") as reader:
            done = set()
            async for message in reader:
                if len(done) == 20:
                    raise RuntimeError("the handler failed")
                done.add(message.value)
                await reader.commit()
    async with queue.reader(TOPIC, group="audit", assignor="sticky") as reader:
        rest = set()
        async with asyncio.timeout(PATIENCE_S):
            async for message in reader:
                rest.add(message.value)
                if len(rest) == 40:
                    break
    assert rest == values - done


async def test_a_commit_of_what_is_another_s_by_now_is_refused_and_reading_goes_on(queue: lanner.Queue) -> None:
    await fill(queue, 60)
    log = Log()
    async with queue.reader(TOPIC, group="audit", assignor="sticky", **log.callbacks("a")) as reader:
        assert (await reader.read_batch()) is not None
        (member,) = (await queue.admin.group_members("audit")).members
        await queue.admin.evict_member("audit", member.member_id)
        with pytest.raises(MemberFenced, match="another member"):
            await reader.commit()
        async with asyncio.timeout(PATIENCE_S):
            while (await reader.read_batch(wait_ms=50)) is None:
                pass
        assert [line[1] for line in log.lines] == ["assigned", "lost", "assigned"]
        await reader.commit()


async def test_a_reader_whose_application_stays_away_leaves_and_joins_again_when_it_is_back(
    queue: lanner.Queue,
) -> None:
    log = Log()
    read: list[tuple[str, bytes]] = []
    values = await fill(queue, 60)
    async with queue.reader(
        TOPIC, group="audit", assignor="sticky", session_ms=1_000, stall_ms=300, **log.callbacks("away")
    ) as away:
        while not away.assignment:
            await away.read_batch(wait_ms=20)
        other = Follower(queue, "b", log, read)
        await until(lambda: len(other.held) == PARTITIONS)
        while len(away.assignment) != 3:
            await away.read_batch(wait_ms=20)
        assert log.of("away", "lost"), "it was told, once it was back"
        await until(lambda: len(other.held) == 3)
        await other.stop()
    assert {value for _, value in read} <= values


# ------------------------------------------------------------------ the blocking client


def test_callbacks_of_the_blocking_client_run_in_the_thread_that_asks_for_messages(tmp_path: Path) -> None:
    with lanner.embedded(tmp_path / "data", disk_reserve_bytes=0) as queue:
        queue.admin.create_topic(TOPIC, partitions=2)
        queue.publish_many(TOPIC, [b"%d" % number for number in range(20)])
        threads: set[int] = set()
        told: list[tuple[str, list[int]]] = []

        def tell(what: str) -> Callback:
            def callback(places: list[lanner.TopicPartition]) -> None:
                threads.add(threading.get_ident())
                told.append((what, numbers(places)))
                if what == "revoked":
                    reader.commit()

            return callback

        with queue.consumer(TOPIC, GROUP, assignor="sticky", on_assigned=tell("consumes")) as consumer:
            taken = [message.value for _, message in zip(range(20), consumer, strict=False) if message.ack() is None]
            assert len(taken) == 20 and numbers(consumer.assignment) == [0, 1] and consumer.generation > 0
        with queue.reader(
            TOPIC, group="audit", assignor="range", on_assigned=tell("reads"), on_revoked=tell("revoked")
        ) as reader:
            read = [message.value for _, message in zip(range(20), reader, strict=False)]
            assert len(set(read)) == 20 and numbers(reader.assignment) == [0, 1]
        assert told == [("consumes", [0, 1]), ("reads", [0, 1]), ("revoked", [0, 1])]
        assert threads == {threading.get_ident()}
        with queue.reader(TOPIC, group="audit", assignor="range") as reader:
            assert reader.read_batch(wait_ms=500) is None, "everything was committed when the first one left"


def test_a_blocking_connection_that_is_closed_calls_the_last_callbacks_of_its_consumers(tmp_path: Path) -> None:
    told: list[tuple[int, list[int]]] = []

    def on_revoked(places: list[lanner.TopicPartition]) -> None:
        told.append((threading.get_ident(), numbers(places)))
        with pytest.raises(lanner.errors.ValidationError, match="return from it first"):
            queue.close()

    def work() -> None:
        with queue:
            queue.admin.create_topic(TOPIC, partitions=2)
            consumer = queue.consumer(TOPIC, GROUP, assignor="sticky", on_revoked=on_revoked)
            while len(consumer.assignment) < 2:
                consumer.poll(wait_ms=50)

    queue = lanner.embedded(tmp_path / "data", disk_reserve_bytes=0)
    closing = threading.Thread(target=work, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "it waits for a callback that no thread runs"
    assert told == [(closing.ident, [0, 1])]


# ------------------------------------------------------------------ brokers that die


async def test_members_of_three_brokers_go_on_when_leaders_are_killed(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, 3) as cluster:
        await asyncio.to_thread(cluster.start)
        async with lanner.connect(cluster.address) as queue:
            await queue.admin.create_topic(TOPIC, partitions=PARTITIONS, lease_ms=2_000)
            read: list[tuple[str, bytes]] = []
            log = Log()
            async with workers(queue, log, "a", "b", session_ms=10_000) as (a, b):
                c, d = (Follower(queue, name, log, read, session_ms=10_000) for name in "cd")
                await until(lambda: all(len(one.held) == 3 for one in (a, b, c, d)))
                values = await fill(queue, 100)
                for place, victim_of in enumerate((0, 3, METADATA), start=1):
                    if victim_of == METADATA:
                        victim = cluster.number_of((await queue.admin.describe_cluster()).metadata_leader)
                    else:
                        victim = await asyncio.to_thread(cluster.leader, TOPIC, victim_of)
                    await asyncio.to_thread(cluster.kill, victim)
                    values.update(await fill(queue, 100, 100 * place))
                    await until(lambda: set(a.values + b.values) >= values and {one for _, one in read} >= values)
                    await asyncio.to_thread(cluster.restart, victim)
                assert all(len(one.held) == 3 for one in (a, b, c, d))
                for one in (c, d):
                    await one.stop()
            assert not [line for line in log.lines if line[1] == "lost"], "nobody was evicted"
            assert max(Counter(value for _, value in read).values()) == 1
