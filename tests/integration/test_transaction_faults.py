"""Transactions over three real brokers, of which some are killed or stand still: all of each shows, once, or nothing.

Writers commit pieces of work one after the other and repeat whatever they are not told the outcome of, as a program
does that was restarted. In the end every piece shows on every partition exactly once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import lanner
from lanner.client.commits import plan_commit
from lanner.client.queue import Queue
from lanner.client.stages import Staged
from lanner.errors import DeadlineExceeded, FenceConflict, LannerError, TransactionAborted
from lanner.testing.cluster_process import ClusterProcess
from lanner.wire.messages import Command
from lanner.wire.staging import Begin, CommitPhase, PartitionOutcomes, Prepare

PARTITIONS = 3
SECONDS = 60.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), settings={"segment_bytes": 4 << 20}) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared: ClusterProcess) -> AsyncIterator[ClusterProcess]:
    yield shared
    for number in shared.brokers:
        if number not in shared.running:
            await asyncio.to_thread(shared.restart, number)


def connect(cluster: ClusterProcess) -> Queue:
    return lanner.connect([cluster.native_of(number) for number in cluster.brokers])


def conductor(cluster: ClusterProcess) -> int:
    """The broker that leads the metadata, once the running ones agree."""
    found: set[str] = set()

    def known() -> bool:
        nonlocal found
        answers = [cluster.get(number, "/v1/cluster") for number in cluster.running]
        found = {body["metadata_leader"] for status, body in answers if status == 200}
        return len(found) == 1 and found != {""} and len(answers) == len(cluster.running)

    cluster.until(known, SECONDS, "nobody leads the metadata")
    return cluster.number_of(found.pop())


async def make_topics(queue: Queue, *names: str) -> None:
    for name in names:
        await queue.admin.create_topic(name, partitions=PARTITIONS, replication=3)


async def shown(queue: Queue, *topics: str) -> Counter[str]:
    """Every message of some topics, and how often it shows."""
    found: Counter[str] = Counter()
    for topic in topics:
        async for message in queue.reader(topic, until_end=True):
            found[f"{topic}:{message.partition}:{message.value.decode()}"] += 1
    return found


def expected(topics: tuple[str, ...], pieces: list[str]) -> Counter[str]:
    places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    return Counter(f"{topic}:{partition}:{piece}" for topic, partition in places for piece in pieces)


class Writer:
    """One transaction's owner: commits one sequence after the other, each until it is told that it is committed."""

    def __init__(self, queue: Queue, name: str, topics: tuple[str, ...]) -> None:
        self.queue, self.name, self.topics = queue, name, topics
        self.done = 0  # pieces that are committed, by what it was told
        self.failures: Counter[str] = Counter()
        self.stopping = False

    @property
    def pieces(self) -> list[str]:
        return [f"{self.name}/{sequence}" for sequence in range(self.done)]

    async def work(self) -> None:
        while not self.stopping:
            try:
                await self._commit(self.done)
                self.done += 1
            except LannerError as error:
                assert error.details.get("outcome") != "committed" or isinstance(error, DeadlineExceeded)
                self.failures[error.name] += 1
                await asyncio.sleep(0.1)

    async def _commit(self, sequence: int) -> None:
        async with self.queue.transaction(self.name, "writer", sequence, timeout=5) as transaction:
            for topic in self.topics:
                for partition in range(PARTITIONS):
                    await transaction.publish(topic, f"{self.name}/{sequence}", partition=partition)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def disturbed(cluster: ClusterProcess, prefix: str, disturb: Callable[[], None]) -> list[Writer]:
    """Writers that go on while something happens; then everything that they were told shows once, and nothing else."""
    topics = (f"{prefix}-orders", f"{prefix}-audit")
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        writers = [Writer(queue, f"{prefix}-{number}", topics) for number in range(4)]
        tasks = [asyncio.create_task(writer.work()) for writer in writers]
        await until(lambda: all(writer.done >= 3 for writer in writers))
        await asyncio.to_thread(disturb)
        reached = [writer.done for writer in writers]
        await until(lambda: all(one.done >= before + 3 for one, before in zip(writers, reached, strict=True)))
        for writer in writers:
            writer.stopping = True
        await asyncio.gather(*tasks)
        await quiet(queue, [writer.name for writer in writers])
        found = await shown(queue, *topics)
        assert found == expected(topics, [piece for writer in writers for piece in writer.pieces])
        return writers


async def quiet(queue: Queue, names: list[str]) -> None:
    """Until none of these transactions has a try."""
    async with asyncio.timeout(SECONDS):
        while any(row.transaction in names for row in (await queue.admin.transactions(open_only=True)).transactions):
            await asyncio.sleep(0.05)


# ------------------------------------------------------------------ while writers go on


async def test_a_conductor_that_is_killed_is_followed_by_another(cluster: ClusterProcess) -> None:
    number = await asyncio.to_thread(conductor, cluster)
    await disturbed(cluster, "conductor", lambda: cluster.kill(number))


async def test_brokers_that_are_killed_one_after_the_other_break_no_transaction(cluster: ClusterProcess) -> None:
    def kill_each() -> None:
        for number in cluster.brokers:
            cluster.kill(number)
            cluster.restart(number)

    await disturbed(cluster, "each", kill_each)


async def test_a_broker_that_stands_still_and_goes_on_breaks_no_transaction(cluster: ClusterProcess) -> None:
    """When it goes on it believes for a moment that it still leads."""

    def pause_each() -> None:
        for number in cluster.brokers:
            cluster.pause(number)
            others = [one for one in cluster.brokers if one != number]
            led_elsewhere = lambda: number not in cluster.leaders("pause-orders", ask=others[0])  # noqa: B023, E731
            cluster.until(led_elsewhere, SECONDS, "nobody takes over")
            cluster.resume(number)

    await disturbed(cluster, "pause", pause_each)


# ------------------------------------------------------------------ step by step


async def staged_on(queue: Queue, name: str, topics: tuple[str, ...]) -> Staged:
    writer = await queue.stage(name, "writer", 1)
    for topic in topics:
        for partition in range(PARTITIONS):
            await writer.publish(topic, f"{name}/1", partition=partition)
    return await writer.finish()


async def begin(queue: Queue, staged: Staged, timeout_ms: int = 60_000) -> int:
    """Only this first step of a commit; the token."""
    plan = plan_commit(staged.transaction, staged.owner, staged.sequence, [staged])
    asked = Begin(plan.transaction, plan.owner, plan.sequence, plan.commit_id, plan.participants, timeout_ms)
    state, _ = await queue._brokers.request(asked)
    assert state.phase == CommitPhase.PREPARING
    return state.token


async def prepare(queue: Queue, staged: Staged, token: int, wanted: Callable[[str, int], bool]) -> int:
    """Have some of the partitions prepare; how many that were."""
    plan = plan_commit(staged.transaction, staged.owner, staged.sequence, [staged])
    manifests = [one for one in plan.manifests if wanted(one.topic, one.partition)]
    for manifest in manifests:
        await queue._routing.route(manifest.topic)
        session = queue._routing.leader(manifest.topic, manifest.partition)
        assert session is not None
        reply = await session.ask(Command.PREPARE, Prepare(token, [manifest]), 5_000)
        assert not isinstance(reply, LannerError) and isinstance(reply.control, PartitionOutcomes)
        assert [one.code for one in reply.control.items] == [0]
    return len(manifests)


async def test_a_leader_killed_after_it_prepared_is_followed_by_one_that_publishes(cluster: ClusterProcess) -> None:
    topics = ("prepared",)
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        staged = await staged_on(queue, "leader-falls", topics)
        token = await begin(queue, staged)
        leaders = [await asyncio.to_thread(cluster.leader, "prepared", one) for one in range(PARTITIONS)]
        victim = leaders[0]
        assert await prepare(queue, staged, token, lambda _, partition: leaders[partition] == victim)
        await asyncio.to_thread(cluster.kill, victim)
        committed = await queue.commit_staged("leader-falls", "writer", 1, [staged], timeout=60)
        assert committed.visible and not committed.repeated
        assert await shown(queue, *topics) == expected(topics, ["leader-falls/1"])
        again = await queue.commit_staged("leader-falls", "writer", 1, [staged])
        assert again.repeated


async def test_a_writer_that_dies_after_everybody_prepared_is_committed_without_it(cluster: ClusterProcess) -> None:
    topics = ("alone",)
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        staged = await staged_on(queue, "writer-dies", topics)
        token = await begin(queue, staged)
        assert await prepare(queue, staged, token, lambda *_: True) == PARTITIONS
        await quiet(queue, ["writer-dies"])
        assert await shown(queue, *topics) == expected(topics, ["writer-dies/1"])


async def test_a_writer_that_dies_before_is_aborted_by_the_deadline_and_its_bytes_are_given_back(
    cluster: ClusterProcess,
) -> None:
    topics = ("half",)
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        staged = await staged_on(queue, "half-prepared", topics)
        token = await begin(queue, staged, timeout_ms=1_000)
        await prepare(queue, staged, token, lambda _, partition: partition == 0)
        await quiet(queue, ["half-prepared"])
        with pytest.raises(TransactionAborted, match="deadline"):
            await queue.commit_staged("half-prepared", "writer", 1, [staged])
        assert not await shown(queue, *topics)


async def test_without_a_leader_of_the_metadata_outcomes_wait_and_then_come(cluster: ClusterProcess) -> None:
    topics = ("waits",)
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        begun, new = [await staged_on(queue, name, topics) for name in ("waits-begun", "waits-new")]
        token = await begin(queue, begun)
        await prepare(queue, begun, token, lambda _, partition: partition == 0)
        for number in (1, 2):
            await asyncio.to_thread(cluster.kill, number)
        commits = [
            asyncio.create_task(queue.commit_staged(one.transaction, "writer", 1, [one], timeout=SECONDS))
            for one in (begun, new)
        ]
        done, _ = await asyncio.wait(commits, timeout=2)
        assert not done, "one broker of three decides nothing"
        for number in (1, 2):
            await asyncio.to_thread(cluster.restart, number)
        assert [one.visible for one in await asyncio.gather(*commits)] == [True, True]
        assert await shown(queue, *topics) == expected(topics, ["waits-begun/1", "waits-new/1"])


async def test_a_topic_deleted_during_a_try_aborts_it_everywhere(cluster: ClusterProcess) -> None:
    topics = ("stays", "goes")
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        staged = await staged_on(queue, "deleted", topics)
        token = await begin(queue, staged)
        assert await prepare(queue, staged, token, lambda topic, _: topic == "stays") == PARTITIONS
        await queue.admin.delete_topic("goes")
        await quiet(queue, ["deleted"])
        row = await queue.admin.transaction("deleted")
        assert [(one.token, one.phase, one.reason) for one in row.ended] == [(token, CommitPhase.ABORTED, "deleted")]
        assert not await shown(queue, "stays")
        async with queue.transaction("deleted", "writer", 1) as transaction:
            await transaction.publish("stays", "anew", partition=0)
        async with asyncio.timeout(SECONDS):
            while not await shown(queue, "stays"):
                pass  # it is decided, and shows a moment later
        assert sum((await shown(queue, "stays")).values()) == 1


async def test_a_claim_fences_the_writer_before_and_what_it_prepared_never_shows(cluster: ClusterProcess) -> None:
    topics = ("fenced",)
    async with connect(cluster) as queue:
        await make_topics(queue, *topics)
        staged = await staged_on(queue, "fenced", topics)
        token = await begin(queue, staged)
        await prepare(queue, staged, token, lambda _, partition: partition > 0)
        claimed = await queue.claim_transaction("fenced", "successor")
        assert claimed.owner_before == "writer"
        with pytest.raises(FenceConflict):
            await queue.commit_staged("fenced", "writer", 1, [staged])
        await quiet(queue, ["fenced"])
        assert not await shown(queue, *topics)
