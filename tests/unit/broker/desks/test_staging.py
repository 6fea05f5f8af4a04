"""Staged publish as callers see it, through any of three brokers: what is kept, what a commit's phases are, what an
operator is shown, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lanner import batch
from lanner.calls import Identity
from lanner.errors import NotLeader, NotSupported, ServiceUnavailable, StageExpired, TopicNotFound, ValidationError
from lanner.wire.messages import Call, Fetch
from lanner.wire.staging import (
    Begin,
    Claim,
    CommitPhase,
    CommitState,
    Discard,
    DiscardStages,
    End,
    Forget,
    ListTransactions,
    Look,
    Manifest,
    Participant,
    Prepare,
    Stage,
)
from tests.unit.broker.offices import Offices, opened

ALICE = Identity("alice", "rest")
ATTEMPT, COMMIT = b"a" * 16, b"c" * 16


class Writer:
    """One owner of the transaction `billing`, who asks whichever broker a test names."""

    def __init__(self, offices: Offices) -> None:
        self.offices = offices
        self.set_ids = offices.topic("orders", 3)
        self.incarnation = offices["a"].engine.cluster.topics["orders"].incarnation

    async def ask(self, call: Call[Any], *bulk: bytes, at: str = "a") -> Any:
        return (await self.offices[at].service.ask(ALICE, call, list(bulk))).control

    async def stage(self, partition: int, *, attempt: bytes = ATTEMPT, number: int = 0, at: str = "a") -> Any:
        call = Stage("orders", partition, self.incarnation, "billing", "nightly", 1, 0, attempt, number)
        return await self.ask(call, batch.encode([b"staged"]), at=at)

    async def begin(self, *, sequence: int = 1, commit_id: bytes = COMMIT, owner: str = "nightly") -> CommitState:
        participants = [Participant("orders", self.incarnation, [0, 1])]
        found: CommitState = await self.ask(Begin("billing", owner, sequence, commit_id, participants, 60_000))
        return found

    async def prepare(self, token: int, *partitions: int, attempt: bytes = ATTEMPT) -> Any:
        """Ask the leader of each partition, as committers do."""
        found = []
        for partition in partitions:
            manifest = Manifest("orders", partition, self.incarnation, [(0, attempt, 1)])
            found += (await self.ask(Prepare(token, [manifest]), at=self.leader_of(partition))).items
        return found

    def leader_of(self, partition: int) -> str:
        return self.offices.leader(self.set_ids[partition]).name

    async def look(self, *, phase: CommitPhase = CommitPhase.UNKNOWN, at: str = "c", **asked: Any) -> Any:
        given = {"commit_id": COMMIT, "owner": "nightly", "sequence": 1, **asked}
        return await self.ask(Look("billing", phase=int(phase), wait_ms=5_000 if phase else 0, **given), at=at)

    async def stored(self, partition: int) -> int:
        found: int = (await self.ask(Fetch("orders", partition, 0))).end_offset
        return found


@pytest.fixture
async def writer() -> AsyncIterator[Writer]:
    async with opened() as offices:
        yield Writer(offices)


async def commit(writer: Writer) -> CommitState:
    for partition in (0, 1):
        await writer.stage(partition)
    begun = await writer.begin()
    assert begun.phase == CommitPhase.PREPARING
    assert [one.code for one in await writer.prepare(begun.token, 0, 1)] == [0, 0]
    seen = await writer.look(phase=CommitPhase.VISIBLE, token=begun.token)
    assert seen.state == CommitState(CommitPhase.VISIBLE, begun.token)
    return begun


async def test_what_was_staged_through_any_broker_becomes_visible_at_once(writer: Writer) -> None:
    assert await writer.stored(0) == 0
    begun = await commit(writer)
    assert [await writer.stored(partition) for partition in range(3)] == [1, 1, 0]
    seen = await writer.look()
    assert (seen.owner, seen.committed, seen.latest) == ("nightly", True, 1)
    assert (await writer.look(commit_id=None, token=begun.token)).state.phase == CommitPhase.VISIBLE
    assert (await writer.begin()).phase in (CommitPhase.VISIBLE, CommitPhase.REPEATED)
    assert (await writer.begin(commit_id=b"d" * 16)).phase == CommitPhase.REPEATED, "under another id of the same work"
    ended = await writer.ask(End("billing", "nightly", COMMIT))
    assert ended.phase == CommitPhase.VISIBLE, "too late to give it up"


async def test_a_stage_that_is_sent_again_is_kept_once(writer: Writer) -> None:
    assert not (await writer.stage(0, at="b")).duplicate
    assert (await writer.stage(0, at="c")).duplicate


async def test_a_commit_that_was_given_up_is_aborted_and_shows_nothing(writer: Writer) -> None:
    await writer.stage(0)
    begun = await writer.begin()
    assert await writer.ask(End("billing", "nightly", COMMIT)) == CommitState(
        CommitPhase.ABORTED, begun.token, "operator"
    )
    seen = await writer.look()
    assert seen.state.phase == CommitPhase.ABORTED and not seen.committed
    assert await writer.stored(0) == 0
    assert (await writer.begin()).phase == CommitPhase.ABORTED, "its id stays what it was"


async def test_a_partition_that_lacks_a_stage_refuses_and_names_it(writer: Writer) -> None:
    begun = await writer.begin()
    (first,) = await writer.prepare(begun.token, 0)
    assert (first.topic, first.partition, first.code) == ("orders", 0, StageExpired.code)
    assert first.attempts == [ATTEMPT]


async def test_stages_that_nobody_will_commit_are_let_go(writer: Writer) -> None:
    await writer.stage(0)
    items = [Discard("orders", 0, writer.incarnation, [ATTEMPT]), Discard("nowhere", 0, 0, [ATTEMPT])]
    found, missing = (await writer.ask(DiscardStages(items), at=writer.leader_of(0))).items
    assert (found.topic, found.code) == ("orders", 0)
    assert (missing.topic, missing.code) == ("nowhere", TopicNotFound.code)
    other = next(name for name in "abc" if name != writer.leader_of(0))
    (elsewhere,) = (await writer.ask(DiscardStages(items[:1]), at=other)).items
    assert elsewhere.code == NotLeader.code, "its caller goes to the leader"
    assert not (await writer.stage(0)).duplicate, "it is new again"


async def test_of_what_was_never_begun_nothing_is_known(writer: Writer) -> None:
    assert (await writer.look()).state == CommitState(CommitPhase.UNKNOWN)
    assert (await writer.look(commit_id=None)).state == CommitState(CommitPhase.UNKNOWN)
    await writer.begin()
    other = await writer.look(commit_id=b"x" * 16)
    assert (other.state.phase, other.owner, other.committed) == (CommitPhase.UNKNOWN, "nightly", False)


async def test_another_owner_takes_over_and_a_restart_forgets_what_was_committed(writer: Writer) -> None:
    await commit(writer)
    claimed = await writer.ask(Claim("billing", "weekly"), at="b")
    assert (claimed.owner_before, claimed.latest) == ("nightly", 1)
    restarted = await writer.ask(Claim("billing", "yearly", restart=True))
    assert (restarted.owner_before, restarted.latest) == ("weekly", -1)


async def test_an_operator_sees_tries_under_way_and_who_is_awaited(writer: Writer) -> None:
    for partition in (0, 1):
        await writer.stage(partition)
    begun = await writer.begin()
    await writer.prepare(begun.token, 0)
    shown = await writer.ask(ListTransactions("billing"))
    (row,) = shown.transactions
    assert (row.transaction, row.owner, row.open.token, row.open.participants) == ("billing", "nightly", begun.token, 2)
    assert [(one.topic, one.partition) for one in row.open.partitions] == [("orders", 0), ("orders", 1)]
    (row,) = (await writer.ask(ListTransactions("billing"), at=writer.leader_of(0))).transactions
    assert row.open.partitions[0].leader == f"node-{writer.leader_of(0)}"
    assert row.open.partitions[0].state == "prepared" and row.open.partitions[0].bytes > 0
    (short,) = (await writer.ask(ListTransactions(open_only=True))).transactions
    assert short.open.partitions == [] and short.ended == []
    assert (await writer.ask(ListTransactions("nobody"))).transactions == []


async def test_transactions_are_listed_page_by_page_and_forgotten(writer: Writer) -> None:
    for name in ("one", "two", "three"):
        await writer.ask(Claim(name, "nightly"))
    first = await writer.ask(ListTransactions(limit=2))
    assert ([one.transaction for one in first.transactions], first.next, first.total) == (["one", "three"], "three", 3)
    second = await writer.ask(ListTransactions(limit=2, after=first.next))
    assert ([one.transaction for one in second.transactions], second.next) == (["two"], "")
    assert (await writer.ask(Forget(["nobody"]))).count == 0
    assert (await writer.ask(Forget(["one", "one"]))).count == 1
    assert [one.transaction for one in (await writer.ask(ListTransactions())).transactions] == ["three", "two"]
    assert (await writer.ask(Look("one"))).forgotten


async def test_a_staged_batch_of_a_producer_is_refused(writer: Writer) -> None:
    call = Stage("orders", 0, 0, "billing", "nightly", 1, 0, ATTEMPT, 0)
    with pytest.raises(ValidationError, match="no producer and no dedup id"):
        await writer.ask(call, batch.encode([b"x"], producer_id=3, sequence=0))


async def test_a_try_that_a_broker_has_not_heard_of_is_asked_for_again(writer: Writer) -> None:
    with pytest.raises(ServiceUnavailable, match="has not heard of try"):
        await writer.prepare(1_000_000, 0)


async def test_a_cluster_at_an_older_level_says_what_to_do(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    for office in writer.offices.by_name.values():
        monkeypatch.setattr(type(office.engine.cluster), "knows_stages", False)
    with pytest.raises(NotSupported, match="lanner cluster upgrade"):
        await writer.ask(Claim("billing", "nightly"))
