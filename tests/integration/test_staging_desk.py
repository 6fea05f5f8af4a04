"""What a broker answers about stages, commits and transactions: the desk of a whole broker, without a door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lanner import batch, features, limits
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.errors import (
    FenceConflict,
    NotSupported,
    PartitionNotFound,
    SequenceGap,
    ServiceUnavailable,
    StageExpired,
    StaleIncarnation,
    TopicFull,
    TopicNotFound,
    TransactionBusy,
    TransactionUnknown,
    ValidationError,
)
from lanner.server import Server
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
    PartitionOutcome,
    Prepare,
    Stage,
    TryPartition,
)
from tests.callers import Here

ATTEMPT, COMMIT = b"a" * 16, b"c" * 16
NAMES = ("billing", "nightly", 42)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(
        BrokerSettings(
            data=str(tmp_path / "data"), http="", native="", disk_reserve_bytes=0, segment_bytes=4 * limits.MIB
        )
    )
    await server.start()
    await Here(server.service).create_topic(ANONYMOUS, "t", {"partitions": 2})
    yield server
    await server.stop()


@pytest.fixture
def service(server: Server) -> Here:
    return Here(server.service)


def stage(number: int = 0, **changes: Any) -> Stage:
    fields = {"topic": "t", "partition": 1, "incarnation": 0, "task": 0, "attempt": ATTEMPT, **changes}
    named = {"transaction": NAMES[0], "owner": NAMES[1], "sequence": NAMES[2], **fields}
    return Stage(number=number, **named)


def begin(service: Here, *partitions: int, **changes: Any) -> Begin:
    incarnation = service.find_topic("t").incarnation
    named = [Participant("t", incarnation, list(partitions))] if partitions else []
    fields = {"transaction": NAMES[0], "owner": NAMES[1], "sequence": NAMES[2], "commit_id": COMMIT, **changes}
    return Begin(participants=named, **fields)


async def prepare(service: Here, token: int, *partitions: int, stages: int = 1) -> list[PartitionOutcome]:
    incarnation = service.find_topic("t").incarnation
    manifests = [Manifest("t", partition, incarnation, [(0, ATTEMPT, stages)]) for partition in partitions]
    return (await service.prepare(ANONYMOUS, Prepare(token, manifests))).items


async def test_a_stage_is_kept_once_and_shows_nowhere(service: Here) -> None:
    data = batch.encode([b"one", b"two"])
    assert (await service.stage(ANONYMOUS, stage(), data))[:] == (0, 2, False)
    assert (await service.stage(ANONYMOUS, stage(), data)).duplicate
    [state] = (await service.topic(ANONYMOUS, "t", [1])).partitions
    assert (state.end_offset, state.bytes) == (0, 0)
    with pytest.raises(SequenceGap):
        await service.stage(ANONYMOUS, stage(2), data)
    with pytest.raises(StageExpired):
        await service.stage(ANONYMOUS, stage(1, attempt=b"b" * 16), data)


async def test_what_is_wrong_with_a_stage_is_said_at_once(service: Here) -> None:
    plain = batch.encode([b"one"])
    for asked, data, kind in (
        (stage(topic="other"), plain, TopicNotFound),
        (stage(partition=7), plain, PartitionNotFound),
        (stage(incarnation=99), plain, StaleIncarnation),
        (stage(owner="a b"), plain, ValidationError),
        (stage(), batch.encode([b"one"], producer_id=1, sequence=0), ValidationError),
        (stage(), batch.encode([b"one"], dedup_id=b"x"), ValidationError),
    ):
        with pytest.raises(kind):
            service.stage(ANONYMOUS, asked, data)


async def test_stages_are_bounded_by_the_topics_setting_and_stop_no_plain_publish(service: Here) -> None:
    data = batch.encode([b"x" * 1_000])
    await service.alter_topic(ANONYMOUS, "t", {"staged_bytes_max": 1_500})
    await service.stage(ANONYMOUS, stage(), data)
    with pytest.raises(TopicFull, match="staged_bytes_max"):
        service.stage(ANONYMOUS, stage(1), data)
    await service.publish(ANONYMOUS, "t", 1, data)


async def test_staged_and_prepared_bytes_are_told(service: Here) -> None:
    data = batch.encode([b"x" * 1_000])
    await service.stage(ANONYMOUS, stage(), data)
    status = await service.raft_status(ANONYMOUS, "t", 1)
    assert (status["staged_bytes"], status["prepared_bytes"]) == (len(data), 0)
    token = (await service.begin(ANONYMOUS, begin(service, 0, 1))).token
    await prepare(service, token, 1)
    figures = service.transaction_figures
    assert (figures.open, figures.staged_bytes, figures.prepared_bytes) == (1, 0, len(data))
    await service.end(ANONYMOUS, End("billing", "nightly", COMMIT))
    await service.begin(ANONYMOUS, begin(service, commit_id=b"d" * 16))
    await service.begin(ANONYMOUS, begin(service, commit_id=b"e" * 16))
    figures = service.transaction_figures
    assert (figures.open, figures.aborted["operator"], figures.repeated, figures.remembered) == (0, 1, 1, 1)


async def test_discarded_stages_are_gone_and_what_is_elsewhere_does_not_fail_the_rest(service: Here) -> None:
    await service.stage(ANONYMOUS, stage(), batch.encode([b"one"]))
    asked = DiscardStages([Discard("t", 1, 0, [ATTEMPT, b"b" * 16]), Discard("gone", 0, 0, [ATTEMPT])])
    found = (await service.discard_stages(ANONYMOUS, asked)).items
    assert [(one.topic, one.code) for one in found] == [("t", 0), ("gone", TopicNotFound.code)]
    with pytest.raises(StageExpired):
        await service.stage(ANONYMOUS, stage(1), batch.encode([b"two"]))
    for _ in range(2):
        figures = service.transaction_figures
        assert (figures.stages_expired, figures.stages_dropped) == (0, 1)


async def test_a_commit_begins_once_and_is_found_again(service: Here) -> None:
    first = await service.begin(ANONYMOUS, begin(service, 1))
    assert first.phase == CommitPhase.PREPARING
    assert await service.begin(ANONYMOUS, begin(service, 1)) == first
    found = await service.look(ANONYMOUS, Look("billing", COMMIT, "nightly", 42))
    assert (found.state, found.owner, found.committed, found.latest) == (first, "nightly", False, -1)
    with pytest.raises(FenceConflict) as caught:
        await service.begin(ANONYMOUS, begin(service, 1, owner="weekly"))
    assert caught.value.details["owner"] == "nightly"


async def test_a_commit_waits_for_the_one_before_it_and_is_refused_only_when_that_takes_long(service: Here) -> None:
    await service.stage(ANONYMOUS, stage(), batch.encode([b"one"]))
    first = await service.begin(ANONYMOUS, begin(service, 1))
    later = {"sequence": 43, "commit_id": b"d" * 16}
    with pytest.raises(TransactionBusy):
        await service.begin(ANONYMOUS, begin(service, 1, timeout_ms=limits.COMMIT_TIMEOUT_MS_MIN, **later))
    next_one = asyncio.create_task(service.begin(ANONYMOUS, begin(service, 1, **later)))
    await asyncio.sleep(0)  # it has asked
    assert [one.code for one in await prepare(service, first.token, 1)] == [0]
    assert (await next_one).phase == CommitPhase.PREPARING
    looked = await service.look(ANONYMOUS, Look(*NAMES[:1], COMMIT, *NAMES[1:]))
    assert looked.state.phase == CommitPhase.VISIBLE


async def test_an_empty_commit_is_visible_at_once_and_repeated_after(service: Here) -> None:
    assert (await service.begin(ANONYMOUS, begin(service))).phase == CommitPhase.VISIBLE
    again = await service.begin(ANONYMOUS, begin(service, commit_id=b"d" * 16))
    assert again == CommitState(CommitPhase.REPEATED)
    found = await service.look(ANONYMOUS, Look("billing", COMMIT, "nightly", 42))
    assert (found.state.phase, found.committed, found.latest) == (CommitPhase.VISIBLE, True, 42)
    assert not (await service.look(ANONYMOUS, Look("billing", None, "weekly", 42))).committed


async def test_prepare_names_what_is_missing_and_knows_only_open_tries(service: Here) -> None:
    await service.stage(ANONYMOUS, stage(), batch.encode([b"one"]))
    token = (await service.begin(ANONYMOUS, begin(service, 1))).token
    [elsewhere] = await prepare(service, token, 0)
    assert elsewhere.code == ValidationError.code
    [missing] = await prepare(service, token, 1, stages=2)
    assert (missing.code, missing.attempts) == (StageExpired.code, [ATTEMPT])
    asked = Look("billing", COMMIT, phase=CommitPhase.COMMITTED, wait_ms=5_000)
    assert (await service.look(ANONYMOUS, asked)).state == CommitState(CommitPhase.ABORTED, token, "refused")
    [ended] = await prepare(service, token, 1)
    assert ended.code == TransactionUnknown.code
    with pytest.raises(ServiceUnavailable, match="not heard of try"):
        await prepare(service, token + 1_000, 1)


async def test_a_look_waits_for_the_outcome_and_one_that_does_not_wait_says_how_far_it_is(service: Here) -> None:
    begun = await service.begin(ANONYMOUS, begin(service, 1))
    asked = Look("billing", COMMIT, phase=CommitPhase.COMMITTED, wait_ms=30_000, token=begun.token)
    looking = asyncio.ensure_future(service.look(ANONYMOUS, asked))
    assert (await service.look(ANONYMOUS, Look("billing", COMMIT))).state == begun
    await asyncio.sleep(0)
    assert not looking.done()
    await service.end(ANONYMOUS, End("billing", "nightly", COMMIT))
    async with asyncio.timeout(10):
        assert (await looking).state.phase == CommitPhase.ABORTED


async def test_a_commit_that_was_given_up_never_begins(service: Here) -> None:
    ended = await service.end(ANONYMOUS, End("billing", "nightly", COMMIT))
    assert (ended.phase, ended.reason) == (CommitPhase.ABORTED, "operator")
    assert (await service.begin(ANONYMOUS, begin(service, 1))).phase == CommitPhase.ABORTED


async def test_a_claim_fences_the_owner_before_and_keeps_what_is_committed(service: Here) -> None:
    await service.begin(ANONYMOUS, begin(service))
    assert (await service.claim(ANONYMOUS, Claim("billing", "weekly"))).owner_before == "nightly"
    with pytest.raises(FenceConflict):
        await service.begin(ANONYMOUS, begin(service, sequence=43))
    assert (await service.look(ANONYMOUS, Look("billing", None, "weekly", 42))).committed
    assert (await service.claim(ANONYMOUS, Claim("billing", "monthly", restart=True))).latest == -1


async def test_transactions_are_listed_by_name_page_by_page(service: Here) -> None:
    for name in ("c", "a", "b"):
        await service.begin(ANONYMOUS, begin(service, transaction=name))
    token = (
        await service.begin(ANONYMOUS, begin(service, 0, 1, transaction="b", sequence=43, commit_id=ATTEMPT))
    ).token
    page = await service.list_transactions(ANONYMOUS, ListTransactions(limit=2))
    assert ([one.transaction for one in page.transactions], page.next, page.total, page.open) == (["a", "b"], "b", 3, 1)
    rest = await service.list_transactions(ANONYMOUS, ListTransactions(after=page.next, limit=2))
    assert ([one.transaction for one in rest.transactions], rest.next) == (["c"], "")
    [only] = (await service.list_transactions(ANONYMOUS, ListTransactions(open_only=True))).transactions
    assert only.open is not None
    assert (only.transaction, only.open.token, only.open.participants, only.open.partitions) == ("b", token, 2, [])
    [shown] = (await service.list_transactions(ANONYMOUS, ListTransactions("b"))).transactions
    assert shown.open is not None
    assert (shown.committed, [one.phase for one in shown.ended]) == ([(42, 42)], [CommitPhase.COMMITTED])
    assert [(one.topic, one.partition, one.leader) for one in shown.open.partitions] == [
        ("t", 0, service.node_id),
        ("t", 1, service.node_id),
    ]
    assert isinstance(shown.open.partitions[0], TryPartition)


async def test_what_is_forgotten_is_refused_until_it_is_claimed_anew(service: Here) -> None:
    await service.begin(ANONYMOUS, begin(service))
    assert (await service.forget(ANONYMOUS, Forget(["billing", "never"]))).count == 1
    assert (await service.look(ANONYMOUS, Look("billing", None, "nightly", 42))).forgotten
    with pytest.raises(TransactionUnknown):
        await service.begin(ANONYMOUS, begin(service))
    assert (await service.forget(ANONYMOUS, Forget([], hashes=True))).count == 1
    assert (await service.begin(ANONYMOUS, begin(service))).phase == CommitPhase.VISIBLE, "as if it were new"


async def test_below_its_level_every_call_is_refused_and_names_the_upgrade(
    service: Here, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = server.node.engine.cluster
    monkeypatch.setattr(cluster._state.counters, "feature_level", features.STAGES - 1)
    calls = (
        lambda: service.prepare(ANONYMOUS, Prepare(1, [])),
        lambda: service.discard_stages(ANONYMOUS, DiscardStages([])),
        lambda: service.begin(ANONYMOUS, begin(service, 1)),
        lambda: service.end(ANONYMOUS, End("billing", "nightly", COMMIT)),
        lambda: service.look(ANONYMOUS, Look("billing")),
        lambda: service.claim(ANONYMOUS, Claim("billing", "weekly")),
        lambda: service.list_transactions(ANONYMOUS, ListTransactions()),
        lambda: service.forget(ANONYMOUS, Forget([])),
    )
    for call in calls:
        with pytest.raises(NotSupported, match="lanner cluster upgrade"):
            await call()
    with pytest.raises(NotSupported, match="lanner cluster upgrade"):
        service.stage(ANONYMOUS, stage(), batch.encode([b"one"]))
