"""A reader that is a member: what it hands out, commits and gives up, against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
from lanner.errors import InstanceFenced, MemberFenced, MemberUnknown, NotLeader, ServiceUnavailable, ValidationError
from lanner.wire.messages import Command
from tests.unit.client.scripted_group import NUMBER, SESSION_MS, ScriptedGroup, granted


@pytest.fixture
def group(broker: Any) -> ScriptedGroup:
    broker.partitions = 3
    return ScriptedGroup(broker)


def tell(log: list[str], *, but: str = "") -> dict[str, Any]:
    def teller(what: str) -> Any:
        return lambda places: log.append(f"{what} {[place.partition for place in places]}")

    return {f"on_{what}": teller(what) for what in ("assigned", "revoked", "lost") if what != but}


def reader_of(queue: lanner.Queue, topic: Any = "t", **options: Any) -> lanner.Reader:
    return queue.reader(topic, group="g", assignor="sticky", **options)


async def test_reading_begins_where_the_claim_says_and_every_call_says_what_was_seen(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(1, 2))
    group.begins = {1: 7}
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        assert [(await anext(reader)).value for _ in range(3)] == [b"1:7", b"1:8", b"1:9"]
        assert reader.assignment == [lanner.TopicPartition("t", 1)] and reader.generation == 2
        await reader.commit()
        await reader.commit()
    (join,) = group.of(Command.JOIN_GROUP)
    assert (join.kind, join.topics, join.assignor, join.start) == ("stream", ["t"], "sticky", "earliest")
    (commit,) = group.commits  # what was committed is not committed again
    said = (commit.member_id, commit.reader, commit.number, commit.generation, commit.incarnation)
    assert said == (join.member_id, join.member_id, NUMBER, 2, 1)
    assert commit.offsets == {1: 10}
    fetch = group.of(Command.FETCH)[0]
    assert (fetch.group, fetch.member_id, fetch.number, fetch.generation) == ("g", join.member_id, NUMBER, 2)
    assert group.log[-1] == "leave"


async def test_what_is_revoked_is_committed_as_far_as_it_was_handed_out_and_then_released(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2), granted(1, 2))
    async with (
        lanner.connect(broker.address) as queue,
        reader_of(queue, **tell(group.log)) as reader,
    ):
        first = await anext(reader)
        await anext(reader)
        kept, moved = 1 - first.partition, first.partition
        group.show(granted(kept, 2), revoked=(granted(moved, 2),))
        await broker.until(lambda: reader.generation == 3)
        assert (await anext(reader)).partition == kept, "nothing more of it is handed out, also not of a batch in hand"
        await broker.until(lambda: group.released == {(moved, 2)})
        assert reader.positions() == {kept: 1}
    said = [line for line in group.log if not line.startswith("join")]
    assert said[:4] == [
        "assigned [0, 1]",
        f"revoked [{moved}]",
        f"commit {{{moved}: 2}}",
        f"release {moved}",
    ]


async def test_nothing_is_released_before_the_commit_is_answered(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        await anext(reader)
        group.commit_error = NotLeader("nobody leads it")
        group.show(revoked=(granted(0, 2),))
        await broker.until(lambda: reader.generation == 3)
        reading = asyncio.create_task(anext(reader))
        await broker.until(lambda: len(group.commits) >= 2)
        assert group.released == set()
        group.commit_error = None
        await broker.until(lambda: group.released == {(0, 2)})
        assert group.log.index("commit {0: 1}") < group.log.index("release 0")
        assert len({(commit.reader, commit.sequence) for commit in group.commits}) == 1, "it is one commit, repeated"
        reading.cancel()


async def test_a_new_grant_begins_at_its_claim_and_not_where_the_old_one_was(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue, **tell(group.log)) as reader:
        assert [(await anext(reader)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        group.begins = {0: 2}
        group.show(granted(0, 3))
        await broker.until(lambda: reader.generation == 3)
        assert (await anext(reader)).offset == 2
        assert [line for line in group.log if line[:2] in ("as", "lo")] == ["assigned [0]", "lost [0]", "assigned [0]"]
    assert [commit.offsets for commit in group.commits] == [{0: 3}]


async def test_a_move_that_is_called_off_goes_on_in_the_middle_of_a_batch(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        found = [(await anext(reader)).offset for _ in range(4)]
        group.show(revoked=(granted(0, 2),))
        await broker.until(lambda: reader.generation == 3)
        group.show(granted(0, 2))
        await broker.until(lambda: reader.generation == 4)
        found += [(await anext(reader)).offset for _ in range(6)]
        assert found == list(range(10)), "each message once"
    assert group.released == set()


async def test_a_fetch_that_is_refused_ends_that_grant_and_it_is_released(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2), granted(1, 2))
    fetch = broker.answers[Command.FETCH]
    broker.answers[Command.FETCH] = lambda call, request: (
        MemberFenced("another's", partition=0) if call.partition == 0 else fetch(call, request)
    )
    async with lanner.connect(broker.address) as queue, reader_of(queue, **tell(group.log)) as reader:
        assert (await anext(reader)).partition == 1
        await broker.until(lambda: group.released == {(0, 2)})
        await anext(reader)
        assert "lost [0]" in group.log and reader.positions() == {1: 2}
        assert reader.assignment == [lanner.TopicPartition("t", 1)]


async def test_a_commit_that_is_refused_for_one_partition_is_made_for_the_others(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2), granted(1, 2))
    commit = broker.answers[Command.COMMIT]
    broker.answers[Command.COMMIT] = lambda call, request: (
        MemberFenced("another's", partition=0) if 0 in call.offsets else commit(call, request)
    )
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        for _ in range(2):
            await reader.read_batch()
        with pytest.raises(MemberFenced, match="t/0 went to another member"):
            await reader.commit()
        assert [call.offsets for call in group.commits] == [{1: 10}]
        with pytest.raises(MemberFenced, match="t/2"):
            await reader.commit({2: 5})
        with pytest.raises(MemberFenced, match="t/0"):
            await reader.commit({0: 5})
        await reader.commit({1: 5})
        assert group.commits[-1].offsets == {1: 5}


async def test_progress_under_a_grant_that_was_taken_away_is_not_committed_under_the_next_one(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    refused: list[MemberFenced] = []
    async with lanner.connect(broker.address) as queue:

        async def on_revoked(places: list[lanner.TopicPartition]) -> None:
            if refused:
                return
            group.show(granted(0, 4))  # forced away, had by another, and back: while this callback was at work
            await broker.until(lambda: reader.generation == 4)
            with pytest.raises(MemberFenced) as caught:
                await reader.commit()
            refused.append(caught.value)

        async with reader_of(queue, on_revoked=on_revoked) as reader:
            for _ in range(5):
                await anext(reader)
            group.begins = {0: 8}
            group.show(revoked=(granted(0, 2),))
            await broker.until(lambda: reader.generation == 3)
            assert (await anext(reader)).offset == 8
    assert len(refused) == 1
    assert [call.offsets for call in group.commits] == [{0: 9}]


async def test_an_evicted_reader_is_told_and_joins_again_and_its_old_progress_is_refused(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue, **tell(group.log)) as reader:
        await anext(reader)
        group.refusal = MemberUnknown("evicted")
        group.show()
        await broker.until(lambda: not reader.assignment)
        with pytest.raises(MemberFenced, match="t/0 went to another"):
            await reader.commit()
        group.refusal = None
        group.show(granted(0, 9))
        await broker.until(lambda: len(group.of(Command.JOIN_GROUP)) >= 2)
        assert (await anext(reader)).offset == 0
        assert "lost [0]" in group.log
        ids = [call.member_id for call in group.of(Command.JOIN_GROUP)]
        assert len(set(ids)) == len(ids)
    assert [(call.member_id, call.offsets) for call in group.commits] == [(ids[-1], {0: 1})]


async def test_a_newer_process_of_the_instance_ends_the_reader(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        reader = reader_of(queue, instance="web-1", **tell(group.log))
        await anext(reader)
        group.refusal = InstanceFenced("a newer process has joined")
        with pytest.raises(InstanceFenced, match="newer"):
            while True:
                await reader.read_batch(wait_ms=20)
        assert "lost [0]" in group.log
        await reader.close()
    assert group.commits == [] and "leave" not in group.log


async def test_nothing_is_handed_out_while_no_broker_answers_for_a_session(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        await anext(reader)
        heartbeat = broker.answers.pop(Command.HEARTBEAT)
        broker.answers[Command.HEARTBEAT] = lambda call, request: None
        await asyncio.sleep(2 * SESSION_MS / 1000)
        reading = asyncio.create_task(anext(reader))
        await asyncio.sleep(SESSION_MS / 1000)
        assert not reading.done()
        broker.answers[Command.HEARTBEAT] = heartbeat
        assert (await reading).offset == 1


async def test_a_wait_ends_in_time_also_while_no_broker_answers(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
        await reader.read_batch()
        broker.answers[Command.HEARTBEAT] = lambda call, request: None
        await asyncio.sleep(2 * SESSION_MS / 1000)
        async with asyncio.timeout(1):
            assert await reader.read_batch(wait_ms=50) is None
        broker.answers[Command.HEARTBEAT] = group.heartbeat


async def test_a_reader_that_is_closed_cannot_be_entered_or_read_again(broker: Any, group: ScriptedGroup) -> None:
    async with lanner.connect(broker.address) as queue:
        reader = reader_of(queue)
        await reader.close()
        for again in (reader.open(), reader.__aenter__(), reader.read_batch(wait_ms=0)):
            with pytest.raises(ServiceUnavailable, match="closed, and cannot be opened again: make a new one"):
                await again
    assert group.log == []


async def test_a_reader_that_is_left_without_an_error_commits_and_one_that_failed_does_not(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(RuntimeError):
            async with reader_of(queue, **tell(group.log)) as reader:
                await anext(reader)
                raise RuntimeError
        assert group.commits == [] and group.log[-1] == "leave"
        async with reader_of(queue, **tell(group.log)) as reader:
            await anext(reader)
        assert group.log[-3:] == ["revoked [0]", "commit {0: 1}", "leave"]
        async with reader_of(queue, instance="web-1") as reader:
            await anext(reader)
            await reader.close(keep=True)
        assert group.log[-1] == "commit {0: 1}", "its place is kept"


async def test_a_reader_that_is_stopped_while_it_waits_commits_and_one_that_is_stopped_at_work_does_not(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    read: list[int] = []
    working = asyncio.Event()

    async def run(stop_at: int) -> None:
        async with lanner.connect(broker.address) as queue, reader_of(queue) as reader:
            async for message in reader:
                if message.offset == stop_at:
                    working.set()
                    await asyncio.Event().wait()
                read.append(message.offset)

    for stop_at, commits in ((4, []), (99, [{0: 10}])):
        read.clear()
        task = asyncio.create_task(run(stop_at))
        await broker.until(lambda: working.is_set() or len(read) == 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        working.clear()
        assert [call.offsets for call in group.commits] == commits and group.log[-1] == "leave"


async def test_a_callback_must_not_read(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:

        async def on_assigned(places: list[lanner.TopicPartition]) -> None:
            await reader.read_batch()

        async with reader_of(queue, on_assigned=on_assigned) as reader:
            with pytest.raises(ValidationError, match="must not ask for messages"):
                await reader.read_batch()


async def test_several_topics_are_told_apart(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2, "t"), granted(0, 2, "u"))
    async with lanner.connect(broker.address) as queue, reader_of(queue, ["t", "u*"]) as reader:
        for _ in range(2):
            await reader.read_batch()
        t, u = lanner.TopicPartition("t", 0), lanner.TopicPartition("u", 0)
        assert reader.positions() == {t: 10, u: 10}
        await reader.commit({t: 3})
        with pytest.raises(ValidationError, match="TopicPartition"):
            await reader.commit({0: 3})
        with pytest.raises(ValidationError, match="one topic"):
            await reader.seek("earliest")
        with pytest.raises(ValidationError, match="one topic"):
            await reader.lag()
    (join,) = group.of(Command.JOIN_GROUP)
    assert (join.topics, join.patterns) == (["t"], ["u*"])
    assert [(call.topic, call.offsets) for call in group.commits] == [("t", {0: 3}), ("t", {0: 10}), ("u", {0: 10})]


async def test_what_makes_no_sense_for_a_member_is_refused(broker: Any, group: ScriptedGroup) -> None:
    async with lanner.connect(broker.address) as queue:
        for options, why in (
            ({"assignor": "sticky"}, "no group"),
            ({"group": "g", "assignor": "shared"}, "readers need partitions of their own"),
            ({"group": "g", "assignor": "sticky", "partitions": [1]}, "partitions"),
            ({"group": "g", "assignor": "sticky", "until_end": True}, "until_end"),
            ({"group": "g", "assignor": "sticky", "start": 5}, "earliest or latest"),
            ({"group": "g", "on_revoked": print}, 'on_revoked is for readers .* assignor="sticky"'),
        ):
            with pytest.raises(ValidationError, match=why):
                queue.reader("t", **options)
        for topic in (["t", "u"], "t*"):
            with pytest.raises(ValidationError, match='assignor="sticky"'):
                queue.reader(topic, group="g")
