"""Transactions as a client drives them: what it stages, begins, prepares and looks for, and what its caller hears."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import lanner
from lanner import limits
from lanner.batch import decode
from lanner.client import stages, transactions
from lanner.client.commits import plan_commit
from lanner.client.stages import Staged, StagedPartition
from lanner.errors import (
    DeadlineExceeded,
    FenceConflict,
    LannerError,
    NotLeader,
    NotSupported,
    Overloaded,
    SequencePassed,
    ServiceUnavailable,
    StageExpired,
    StaleIncarnation,
    TopicFull,
    TransactionAborted,
    TransactionBusy,
    TransactionUnknown,
    ValidationError,
)
from lanner.sync_transactions import StageWriter as BlockingWriter
from lanner.sync_transactions import Transaction as BlockingTransaction
from lanner.wire.messages import Command
from lanner.wire.staging import (
    CommitPhase,
    CommitState,
    Looked,
    PartitionOutcome,
    PartitionOutcomes,
)
from lanner.wire.staging import Staged as StagedReply

NAMES = ("billing", "nightly", 42)
TOKEN = 77


class Tries:
    """A broker's half of a commit, with one try."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.owner, self.latest, self.committed = "", -1, False
        self.phase, self.reason = CommitPhase.UNKNOWN, ""
        self.refusals: list[PartitionOutcome] = []
        broker.partitions = 4
        broker.answers[Command.STAGE] = lambda control, _: StagedReply(control.number)
        broker.answers[Command.BEGIN] = self.begin
        broker.answers[Command.PREPARE] = self.prepare
        broker.answers[Command.LOOK] = self.look
        broker.answers[Command.END] = self.end
        broker.answers[Command.DISCARD_STAGES] = lambda control, _: outcomes(control.items)

    def begin(self, control: Any, _: Any) -> CommitState:
        if self.phase is CommitPhase.UNKNOWN:
            self.phase = CommitPhase.PREPARING if control.participants else CommitPhase.VISIBLE
        return CommitState(self.phase, TOKEN, self.reason)

    def prepare(self, control: Any, _: Any) -> PartitionOutcomes:
        if self.refusals:
            return PartitionOutcomes([self.refusals.pop(0)])
        self.phase = CommitPhase.VISIBLE
        return outcomes(control.manifests)

    def look(self, control: Any, _: Any) -> Looked:
        phase = self.phase if control.commit_id else CommitPhase.UNKNOWN
        if control.token and self.phase is CommitPhase.REPEATED:
            phase = CommitPhase.VISIBLE  # the try that was committed before, asked for by its token
        state = CommitState(phase, TOKEN, self.reason)
        return Looked(state, self.owner, self.committed, self.latest)

    def end(self, control: Any, _: Any) -> CommitState:
        if self.phase is not CommitPhase.VISIBLE:
            self.phase, self.reason = CommitPhase.ABORTED, "operator"
        return CommitState(self.phase, TOKEN, self.reason)


def outcomes(items: Any) -> PartitionOutcomes:
    return PartitionOutcomes([PartitionOutcome(one.topic, one.partition) for one in items])


@pytest.fixture
def tries(broker: Any) -> Tries:
    return Tries(broker)


def staged_values(broker: Any) -> list[tuple[str, int, int, list[bytes]]]:
    return [
        (request.control.topic, request.control.partition, request.control.number, decode(request.bulk).values())
        for request in broker.requests
        if request.command is Command.STAGE
    ]


# ------------------------------------------------------------------ the block


async def test_leaving_the_block_stages_begins_prepares_and_waits_for_the_outcome(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        async with queue.transaction("billing", owner="nightly", sequence=42, timeout=30) as transaction:
            await transaction.publish("invoices", b"one", partition=1)
            await transaction.publish("invoices", b"two", partition=1)
            await transaction.publish("audit", b"three", priority="low", partition=2)
            assert broker.of(Command.BEGIN) == []
        assert not transaction.repeated
        assert transaction.committed == lanner.Committed("billing", 42, False, True)
    assert staged_values(broker) == [("invoices", 1, 0, [b"one", b"two"]), ("audit", 2, 0, [b"three"])]
    [begin], [prepare] = broker.of(Command.BEGIN), broker.of(Command.PREPARE)
    assert (begin.transaction, begin.owner, begin.sequence, begin.timeout_ms) == ("billing", "nightly", 42, 30_000)
    assert [(one.topic, one.partitions) for one in begin.participants] == [("audit", [2]), ("invoices", [1])]
    attempt = broker.of(Command.STAGE)[0].attempt
    assert prepare.token == TOKEN
    assert [(one.topic, one.attempts) for one in prepare.manifests] == [
        ("audit", [(0, attempt, 1)]),
        ("invoices", [(0, attempt, 1)]),
    ]


async def test_a_block_inside_its_own_block_is_refused_and_loses_nothing(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue, queue.transaction(*NAMES) as transaction:
        await transaction.publish("invoices", b"one", partition=1)
        with pytest.raises(ValidationError, match="has begun already"):
            async with transaction:
                pass
        await transaction.commit()
    assert staged_values(broker) == [("invoices", 1, 0, [b"one"])]


async def test_an_exception_discards_what_was_staged_and_begins_nothing(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(KeyError):
            async with queue.transaction(*NAMES, batch_messages=1) as transaction:
                await transaction.publish("invoices", b"one", partition=1)
                await broker.until(lambda: broker.of(Command.STAGE) != [])
                raise KeyError
    [discard] = broker.of(Command.DISCARD_STAGES)
    assert [(one.topic, one.partition) for one in discard.items] == [("invoices", 1)]
    assert discard.items[0].attempts == [broker.of(Command.STAGE)[0].attempt]
    assert broker.of(Command.BEGIN) == []


async def test_a_sequence_that_was_committed_before_is_repeated_without_a_stage(broker: Any, tries: Tries) -> None:
    tries.owner, tries.latest, tries.committed, tries.phase = "nightly", 42, True, CommitPhase.REPEATED
    async with lanner.connect(broker.address) as queue:
        async with queue.transaction(*NAMES) as transaction:
            assert transaction.repeated
            await transaction.publish("invoices", b"one")
            await transaction.publish_many("invoices", [b"two", b"three"])
        assert transaction.repeated
    assert broker.of(Command.STAGE) == []


@pytest.mark.parametrize(("owner", "latest", "kind"), [("weekly", 7, FenceConflict), ("nightly", 43, SequencePassed)])
async def test_what_cannot_be_committed_is_said_before_any_work_is_done(
    broker: Any, tries: Tries, owner: str, latest: int, kind: type[LannerError]
) -> None:
    tries.owner, tries.latest = owner, latest
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(kind) as caught:
            async with queue.transaction(*NAMES):
                pytest.fail("the block was entered")
    assert caught.value.details["outcome"] == "not begun"
    assert caught.value.details["latest"] == latest


async def test_a_cluster_below_the_level_says_so_at_once(broker: Any, tries: Tries) -> None:
    broker.answers[Command.LOOK] = lambda *_: NotSupported("run `lanner cluster upgrade`")
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(NotSupported, match="lanner cluster upgrade"):
            async with queue.transaction(*NAMES):
                pytest.fail("the block was entered")


async def test_a_transaction_that_has_ended_takes_nothing_more(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        async with queue.transaction(*NAMES) as transaction:
            await transaction.publish("invoices", b"one")
        with pytest.raises(ServiceUnavailable, match="has ended"):
            await transaction.publish("invoices", b"two")


# ------------------------------------------------------------------ staging


async def test_batches_of_a_partition_are_numbered_and_keep_their_order(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        writer = await queue.stage(*NAMES, task=3, batch_messages=2)
        await writer.publish_many("t", [b"%d" % number for number in range(25)], partition=1)
        await writer.publish("t", b"last", partition=1)
        staged = await writer.finish()
    assert [(number, values[0]) for _, _, number, values in staged_values(broker)] == [
        *((number, b"%d" % (2 * number)) for number in range(13)),
        (13, b"last"),
    ]
    assert staged.partitions == (StagedPartition("t", 1, 1, 14),)
    assert (staged.task, staged.messages) == (3, 26)
    assert all(one.attempt == staged.attempt for one in broker.of(Command.STAGE))


async def test_a_batch_that_is_refused_for_now_goes_again_with_all_behind_it(broker: Any, tries: Tries) -> None:
    refused = [0]

    def answer(control: Any, _: Any) -> Any:
        if control.number == 1 and refused[0] < 2:
            refused[0] += 1
            return Overloaded(retry_after_ms=1)
        return StagedReply(control.number)

    broker.answers[Command.STAGE] = answer
    async with lanner.connect(broker.address) as queue:
        writer = await queue.stage(*NAMES, batch_messages=1)
        await writer.publish_many("t", [b"a", b"b", b"c"], partition=0)
        staged = await writer.finish()
    assert staged.partitions == (StagedPartition("t", 1, 0, 3),)
    assert [one.number for one in broker.of(Command.STAGE)][-2:] == [1, 2]
    assert len({one.attempt for one in broker.of(Command.STAGE)}) == 1


async def test_a_stage_that_fails_for_good_fails_the_writer_and_the_block_discards(broker: Any, tries: Tries) -> None:
    broker.answers[Command.STAGE] = lambda *_: TopicFull("staged_bytes_max")
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(TopicFull, match="staged_bytes_max"):
            async with queue.transaction(*NAMES) as transaction:
                await transaction.publish("t", b"a")
    assert broker.of(Command.BEGIN) == []
    assert len(broker.of(Command.DISCARD_STAGES)) == 1


async def test_messages_without_a_key_go_round_and_those_with_one_stay_together(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        writer = await queue.stage(*NAMES, batch_messages=1)
        for _ in range(8):
            await writer.publish("t", b"x")
        await writer.publish_many("keyed", [b"x"] * 8, keys=[b"customer-7"] * 8)
        await writer.finish()
    spread = [partition for topic, partition, _, _ in staged_values(broker) if topic == "t"]
    assert sorted(spread) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({partition for topic, partition, _, _ in staged_values(broker) if topic == "keyed"}) == 1


async def test_staged_batches_have_no_producer_and_no_dedup_id(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        writer = await queue.stage(*NAMES)
        await writer.publish("t", b"x", priority="high", headers={"a": b"1"}, deliver_at=5_000, expires_at=9_000)
        await writer.finish()
    [request] = [request for request in broker.requests if request.command is Command.STAGE]
    header = decode(request.bulk).header
    assert (header.producer_id, header.sequence, header.dedup_id) == (0, -1, b"")
    assert (header.priority, header.deliver_at_ms, header.expires_at_ms) == (9, 5_000, 9_000)


async def test_what_cannot_be_meant_is_refused_before_anything_is_staged(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        for wrong in ({"sequence": 1.5}, {"sequence": -1}, {"owner": "a b"}, {"timeout": 0.1}, {"wait": "soon"}):
            with pytest.raises(ValidationError, match=next(iter(wrong))):
                queue.transaction(**{"transaction": "billing", "owner": "nightly", "sequence": 1, **wrong})
        writer = await queue.stage(*NAMES)
        with pytest.raises(ValidationError, match="the sequence does its work"):
            await writer.publish("t", b"x", dedup_id="1")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="no option 'colour'"):
            await writer.publish_many("t", [b"x"], colour="red")  # type: ignore[call-arg]
    assert broker.of(Command.STAGE) == []


async def test_no_task_stages_more_batches_on_a_partition_than_a_commit_takes(
    broker: Any, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STAGES_PER_ATTEMPT_MAX", 2)
    async with lanner.connect(broker.address) as queue:
        writer = await queue.stage(*NAMES, batch_messages=1)
        with pytest.raises(ValidationError, match="larger batches, or more tasks"):
            await writer.publish_many("t", [b"a", b"b", b"c"], partition=0)
        await writer.abandon()


# ------------------------------------------------------------------ committing


def part(task: int, *places: tuple[str, int], attempt: bytes = b"", incarnation: int = 1) -> Staged:
    found = tuple(StagedPartition(topic, incarnation, partition, 1) for topic, partition in places)
    return Staged(*NAMES, task, attempt or bytes([task]) * 16, found, 1)


def test_what_was_staged_is_a_plain_value_that_travels() -> None:
    staged = part(3, ("t", 0))
    assert pickle.loads(pickle.dumps(staged)) == staged


def test_a_commit_lists_attempts_by_partition_in_the_order_of_tasks() -> None:
    commit = plan_commit(*NAMES, [part(2, ("t", 0)), part(1, ("t", 0), ("t", 1)), part(0)])
    assert [(one.partition, [task for task, _, _ in one.attempts]) for one in commit.manifests] == [
        (0, [1, 2]),
        (1, [1]),
    ]
    assert commit.participants[0].partitions == [0, 1]


def test_the_commit_id_names_exactly_what_is_committed() -> None:
    parts = [part(0, ("t", 0)), part(1, ("t", 1))]
    first = plan_commit(*NAMES, parts).commit_id
    assert first == plan_commit(*NAMES, parts[::-1]).commit_id
    others = [
        plan_commit(*NAMES, parts[:1]),
        plan_commit(*NAMES, [part(0, ("t", 0), attempt=b"z" * 16), parts[1]]),
        plan_commit("other", "nightly", 42, []),
        plan_commit(*NAMES, []),
    ]
    assert len({first, *(one.commit_id for one in others)}) == 5


def test_what_cannot_be_one_commit_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ValidationError, match="task 1 is there twice"):
        plan_commit(*NAMES, [part(1, ("t", 0)), part(1, ("t", 1))])
    with pytest.raises(ValidationError, match="cannot be committed with"):
        plan_commit("billing", "nightly", 43, [part(0, ("t", 0))])
    with pytest.raises(StaleIncarnation):
        plan_commit(*NAMES, [part(0, ("t", 0)), part(1, ("t", 1), incarnation=2)])
    with pytest.raises(ValidationError, match="1000 partitions"):
        plan_commit(*NAMES, [part(0, *(("t", number) for number in range(1_001)))])


async def test_an_empty_transaction_is_one_call(broker: Any, tries: Tries) -> None:
    async with lanner.connect(broker.address) as queue:
        assert await queue.commit_staged(*NAMES, [part(0)]) == lanner.Committed("billing", 42, False, True)
    assert broker.of(Command.PREPARE) == broker.of(Command.LOOK) == []


async def test_a_partition_that_moves_is_prepared_where_it_is_led_now(broker: Any, tries: Tries) -> None:
    tries.refusals = [PartitionOutcome("t", 0, NotLeader.code, "moved"), PartitionOutcome("t", 0, 73, "not heard yet")]
    async with lanner.connect(broker.address) as queue:
        committed = await queue.commit_staged(*NAMES, [part(0, ("t", 0))])
    assert not committed.repeated
    assert len(broker.of(Command.PREPARE)) == 3
    assert len(broker.of(Command.BEGIN)) == 1


async def test_missing_stages_abort_the_commit_and_say_which(broker: Any, tries: Tries) -> None:
    tries.refusals = [PartitionOutcome("t", 0, StageExpired.code, "gone", [b"a" * 16])]
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(StageExpired, match="gone") as caught:
            await queue.commit_staged(*NAMES, [part(0, ("t", 0))])
    assert caught.value.details["outcome"] == "aborted"
    assert caught.value.details["attempts"] == ["61" * 16]
    assert len(broker.of(Command.END)) == 1
    assert len(broker.of(Command.DISCARD_STAGES)) == 1, "what other partitions hold goes too"


async def test_a_refusal_that_comes_after_the_commit_is_no_failure(broker: Any, tries: Tries) -> None:
    def prepare(*_: Any) -> PartitionOutcomes:
        tries.phase = CommitPhase.VISIBLE
        return PartitionOutcomes([PartitionOutcome("t", 0, StageExpired.code, "gone")])

    broker.answers[Command.PREPARE] = prepare
    async with lanner.connect(broker.address) as queue:
        assert (await queue.commit_staged(*NAMES, [part(0, ("t", 0))])).visible


async def test_a_try_that_has_ended_is_not_prepared_further_but_looked_at(broker: Any, tries: Tries) -> None:
    def prepare(*_: Any) -> PartitionOutcomes:
        tries.phase, tries.reason = CommitPhase.ABORTED, "fenced"
        return PartitionOutcomes([PartitionOutcome("t", 0, TransactionUnknown.code, "ended")])

    broker.answers[Command.PREPARE] = prepare
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(TransactionAborted, match="fenced") as caught:
            await queue.commit_staged(*NAMES, [part(0, ("t", 0))])
    assert caught.value.details["reason"] == "fenced"
    assert caught.value.details["outcome"] == "aborted"


async def test_a_superseded_commit_whose_sequence_is_committed_is_a_repeat(broker: Any, tries: Tries) -> None:
    tries.phase, tries.reason = CommitPhase.ABORTED, "superseded"
    tries.owner, tries.committed = "nightly", True
    async with lanner.connect(broker.address) as queue:
        assert (await queue.commit_staged(*NAMES, [part(0, ("t", 0))])).repeated


async def test_a_busy_transaction_is_waited_for(broker: Any, tries: Tries) -> None:
    busy = [TransactionBusy(), TransactionBusy()]
    broker.answers[Command.BEGIN] = lambda control, request: busy.pop() if busy else tries.begin(control, request)
    async with lanner.connect(broker.address) as queue:
        assert not (await queue.commit_staged(*NAMES, [part(0, ("t", 0))])).repeated
    assert len({one.commit_id for one in broker.of(Command.BEGIN)}) == 1


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda *_: None, "unknown"),
        (lambda *_: TransactionBusy(), "not begun"),
        (lambda *_: FenceConflict(), "not begun"),
    ],
)
async def test_an_error_of_begin_says_what_is_known(
    broker: Any, tries: Tries, answer: Callable[..., Any], outcome: str
) -> None:
    broker.answers[Command.BEGIN] = answer
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(LannerError) as caught:
            await queue.commit_staged(*NAMES, [part(0, ("t", 0))], timeout=1)
    assert caught.value.details["outcome"] == outcome


async def test_a_commit_whose_outcome_does_not_come_is_unknown_and_may_be_asked_again(
    broker: Any, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanner.client.commits._GRACE_S", -0.5)
    broker.answers[Command.PREPARE] = lambda control, _: outcomes(control.manifests)
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(DeadlineExceeded, match="commit again with the same values") as caught:
            await queue.commit_staged(*NAMES, [part(0, ("t", 0))], timeout=1)
        assert caught.value.details["outcome"] == "unknown"
        tries.phase = CommitPhase.REPEATED
        assert (await queue.commit_staged(*NAMES, [part(0, ("t", 0))])).repeated
    first, again = broker.of(Command.BEGIN)
    assert first.commit_id == again.commit_id
    assert broker.of(Command.DISCARD_STAGES) == []


async def test_waiting_for_visible_looks_until_every_partition_shows_it(broker: Any, tries: Tries) -> None:
    phases = [CommitPhase.COMMITTED, CommitPhase.COMMITTED, CommitPhase.VISIBLE]
    broker.answers[Command.LOOK] = lambda *_: Looked(CommitState(phases.pop(0), TOKEN))
    async with lanner.connect(broker.address) as queue:
        assert (await queue.commit_staged(*NAMES, [part(0, ("t", 0))], wait="visible")).visible
        with pytest.raises(ValidationError, match="decided or visible"):
            await queue.commit_staged(*NAMES, [], wait="soon")
    assert {one.token for one in broker.of(Command.LOOK)} == {TOKEN}


async def commits_while_looks_say(
    broker: Any, wait: dict[str, str], *answers: CommitState | LannerError
) -> tuple[lanner.Committed, int]:
    """How a transaction ends, and how many looks it took, when each look gets the next answer (and then the last)."""
    left = list(answers)

    def look(control: Any, _: Any) -> Looked | LannerError:
        if not control.wait_ms:
            return Looked(CommitState(CommitPhase.UNKNOWN))  # whether it was committed before
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer if isinstance(answer, LannerError) else Looked(answer)

    broker.answers[Command.LOOK] = look
    async with lanner.connect(broker.address) as queue, queue.transaction(*NAMES, timeout=1, **wait) as transaction:
        await transaction.publish("t", b"value", partition=0)
    assert transaction.committed is not None
    return transaction.committed, sum(one.wait_ms > 0 for one in broker.of(Command.LOOK))


@pytest.mark.parametrize(
    ("wait", "visible", "looks"), [({}, True, 2), ({"wait": "visible"}, True, 2), ({"wait": "decided"}, False, 1)]
)
async def test_leaving_the_block_waits_until_every_partition_shows_it_unless_told_otherwise(
    broker: Any, tries: Tries, wait: dict[str, str], visible: bool, looks: int
) -> None:
    broker.answers[Command.PREPARE] = lambda control, _: outcomes(control.manifests)
    states = CommitState(CommitPhase.COMMITTED, TOKEN), CommitState(CommitPhase.VISIBLE, TOKEN)
    found = await commits_while_looks_say(broker, wait, *states)
    assert found == (lanner.Committed("billing", 42, False, visible), looks)


@pytest.mark.parametrize("later", [CommitState(CommitPhase.COMMITTED, TOKEN), NotSupported("a look is not known")])
@pytest.mark.parametrize("begun", [CommitPhase.COMMITTED, CommitPhase.REPEATED])
async def test_a_commit_that_is_recorded_and_shows_late_warns_and_is_no_error(
    broker: Any,
    tries: Tries,
    later: CommitState | LannerError,
    begun: CommitPhase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("lanner.client.commits._GRACE_S", -0.5)
    tries.phase = begun
    committed, _ = await commits_while_looks_say(broker, {}, later)
    assert committed == lanner.Committed("billing", 42, begun is CommitPhase.REPEATED, False)
    assert "billing: the transaction is committed, and not every partition shows it yet" in caplog.text


async def test_a_repeat_says_that_it_shows_when_it_does(broker: Any, tries: Tries) -> None:
    tries.phase = CommitPhase.REPEATED
    states = CommitState(CommitPhase.COMMITTED, TOKEN), CommitState(CommitPhase.VISIBLE, TOKEN)
    found = await commits_while_looks_say(broker, {}, *states)
    assert found == (lanner.Committed("billing", 42, True, True), 2)


def test_every_client_waits_until_a_commit_shows() -> None:
    calls = [
        getattr(kind, name) for kind in (lanner.Queue, lanner.sync.Queue) for name in ("transaction", "commit_staged")
    ]
    assert {inspect.signature(call).parameters["wait"].default for call in calls} == {"visible"}


async def test_discarding_aborts_the_same_commit_and_drops_its_stages(broker: Any, tries: Tries) -> None:
    staged = [part(0, ("t", 0))]
    async with lanner.connect(broker.address) as queue:
        assert await queue.discard_staged(*NAMES, staged) is None
        tries.phase = CommitPhase.VISIBLE
        assert await queue.discard_staged(*NAMES, staged) == lanner.Committed("billing", 42, False, True)
    assert {one.commit_id for one in broker.of(Command.END)} == {plan_commit(*NAMES, staged).commit_id}
    assert len(broker.of(Command.DISCARD_STAGES)) == 1


@pytest.mark.parametrize(
    ("kind", "blocking"),
    [(transactions.Transaction, BlockingTransaction), (stages.StageWriter, BlockingWriter)],
)
def test_both_clients_offer_the_same_calls(kind: type, blocking: type) -> None:
    def calls(one: type) -> dict[str, list[str]]:
        found = inspect.getmembers(one, inspect.isfunction)
        return {name: list(inspect.signature(call).parameters) for name, call in found if not name.startswith("_")}

    assert calls(kind) == calls(blocking)
    assert "publish_many" in calls(kind)


# ------------------------------------------------------------------ Spark's writes


async def spark_commits(broker: Any, timeout: str) -> None:
    """Commit as the driver of a Spark job does, in a thread of its own."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    from lanner.spark.sink import LannerWriter, StagedRows
    from lanner.spark.write_options import parse_write_options

    given = {"servers": broker.address, "topic": "t", "commitTimeout": timeout}
    writer = LannerWriter(parse_write_options(given, streaming=False))
    await asyncio.to_thread(writer.commit, [StagedRows(part(0, ("t", 0)), once=True)])


async def test_a_write_of_spark_returns_when_every_partition_shows_it(broker: Any, tries: Tries) -> None:
    phases = [CommitPhase.COMMITTED, CommitPhase.COMMITTED, CommitPhase.VISIBLE]
    broker.answers[Command.LOOK] = lambda *_: Looked(CommitState(phases.pop(0), TOKEN))
    await spark_commits(broker, "30s")
    assert phases == []


async def test_a_write_of_spark_that_is_committed_and_shows_late_does_not_fail(
    broker: Any, tries: Tries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lanner.client.commits._GRACE_S", -0.5)
    broker.answers[Command.LOOK] = lambda *_: Looked(CommitState(CommitPhase.COMMITTED, TOKEN))
    await spark_commits(broker, "1s")
    assert "billing: the transaction is committed, and not every partition shows it yet" in caplog.text


async def test_a_write_of_spark_whose_outcome_is_not_known_fails(
    broker: Any, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanner.client.commits._GRACE_S", -0.5)
    broker.answers[Command.PREPARE] = lambda control, _: outcomes(control.manifests)
    with pytest.raises(DeadlineExceeded, match="commit again with the same values"):
        await spark_commits(broker, "1s")
