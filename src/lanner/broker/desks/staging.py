"""Staged publish: batches kept where partitions are led, and commits, which are decided in the metadata.

Each call takes the request and gives the answer as they travel. A stage goes the way of a publish. What is asked of
partitions (PREPARE, DISCARD_STAGES) is answered partition by partition, so that one that moved does not fail the rest.
The others become commands of the metadata, or are looked up in this broker's copy of it; they may be asked anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from lanner import batch, features
from lanner.broker.desks.publications import Publications, whole
from lanner.calls import Answer, Bulk, Identity
from lanner.cluster import (
    Begun,
    Claimed,
    CommitEnded,
    Repeated,
    Transaction,
    Try,
    encode_abort_commit,
    encode_begin_try,
    encode_claim_transaction,
    encode_forget_transactions,
)
from lanner.errors import (
    DeadlineExceeded,
    LannerError,
    NotLeader,
    NotSupported,
    ServiceUnavailable,
    ValidationError,
)
from lanner.partition import DropStages, Staged, StageNote, encode_stage
from lanner.wire import staging
from lanner.wire.administration import CountReply
from lanner.wire.staging import CommitPhase, CommitState, PartitionOutcome, PartitionOutcomes

_HEARD_MS: Final = 1_000  # so long a token that this copy has not heard of is waited for
_BUSY_MS: Final = 5_000  # so long a commit waits here for the one before it to show everywhere

ItemT = TypeVar("ItemT", staging.Manifest, staging.Discard)


class Staging(Publications):
    """What writers and committers of transactions call."""

    def _check_stages(self) -> None:
        if not self._engine.cluster.knows_stages:
            raise NotSupported(
                f"staged publish needs feature level {features.STAGES}, and the cluster is at "
                f"{self._engine.feature_level}: upgrade every broker, then run `lanner cluster upgrade`"
            )

    # ------------------------------------------------------------------ at the leaders of partitions

    def stage(self, identity: Identity, asked: staging.Stage, data: bytes | memoryview) -> asyncio.Future[Staged]:
        """Check who stages, and keep one encoded batch until its outcome, without a task. What is wrong is raised at
        once; the future tells its outcome."""
        self.check(identity, asked)
        return self._stage(asked, data)

    async def keep(self, asked: staging.Stage, bulk: Bulk = ()) -> Answer[staging.Staged]:
        """The same for somebody who was checked, and waits."""
        number, _, duplicate = await self._stage(asked, whole(bulk))
        return Answer(staging.Staged(number, duplicate))

    def _stage(self, asked: staging.Stage, data: bytes | memoryview) -> asyncio.Future[Staged]:
        self._check_stages()
        found = self._topic(asked.topic, asked.incarnation)
        replica = self._replica(found, asked.partition)
        header = batch.verify(data)
        if header.producer_id or header.dedup_id:
            raise ValidationError("a staged batch has no producer and no dedup id", field="producer_id")
        self._check_room(found.settings, replica, header)
        note = StageNote(
            asked.transaction, asked.owner, asked.sequence, asked.task, asked.attempt, asked.number, asked.hold_ms
        )
        replica.partition.check_stage(note, header.length, found.settings, self._engine.feature_level)
        return self._append(
            found, asked.partition, replica, encode_stage(self._clock.now_ms(), note, data), header, Staged
        )

    async def prepare(self, asked: staging.Prepare) -> Answer[PartitionOutcomes]:
        """Have every partition named promise to publish. One that cannot refuses the try."""
        self._check_stages()
        if asked.token > self._engine.cluster.applied_index:
            try:
                await self._waiting.until(lambda: self._engine.cluster.applied_index >= asked.token, _HEARD_MS)
            except DeadlineExceeded:
                raise ServiceUnavailable(f"this broker has not heard of try {asked.token} yet; ask again") from None
        return await self._each(asked.manifests, lambda one: self._prepare(asked.token, one))

    async def _prepare(self, token: int, manifest: staging.Manifest) -> None:
        topic = self._topic(manifest.topic, manifest.incarnation)
        replica = self._replica(topic, manifest.partition)
        answered: asyncio.Future[object] = self._loop.create_future()

        def told(answer: object, _index: int) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._tries.prepare(replica.set_id, token, manifest.attempts, told)
        self._kick()
        answer = await answered
        if isinstance(answer, NotLeader):
            raise self._lost(topic, manifest.partition)
        if isinstance(answer, LannerError):
            raise answer

    async def discard_stages(self, asked: staging.DiscardStages) -> Answer[PartitionOutcomes]:
        """Let go of attempts that nobody will commit."""
        self._check_stages()
        return await self._each(asked.items, self._discard_one)

    async def _discard_one(self, item: staging.Discard) -> None:
        topic = self._topic(item.topic, item.incarnation)
        while await self._ask(topic, item.partition, DropStages(item.attempts)):
            pass

    async def _each(
        self, items: Sequence[ItemT], call: Callable[[ItemT], Awaitable[None]]
    ) -> Answer[PartitionOutcomes]:
        """What came of each item by itself."""

        async def outcome(item: ItemT) -> PartitionOutcome:
            try:
                await call(item)
            except LannerError as error:
                missing = error.details.get("attempts", ())
                return PartitionOutcome(item.topic, item.partition, error.code, error.message, list(missing))
            return PartitionOutcome(item.topic, item.partition)

        return Answer(PartitionOutcomes(list(await asyncio.gather(*map(outcome, items)))))

    # ------------------------------------------------------------------ commits

    async def begin(self, asked: staging.Begin) -> Answer[CommitState]:
        """Record that a commit is on its way; asked again, it finds the same try, or how it ended."""
        self._check_stages()
        if self._is_busy(asked):
            with contextlib.suppress(DeadlineExceeded):  # then the metadata says that it is
                wait_ms = min(_BUSY_MS, asked.timeout_ms)
                await self._waiting.until(lambda: self._readiness.draining or not self._is_busy(asked), wait_ms)
        command = encode_begin_try(
            asked.transaction,
            asked.owner,
            asked.sequence,
            asked.commit_id,
            [(one.topic, one.incarnation, one.partitions) for one in asked.participants],
            timeout_ms=asked.timeout_ms,
            once=asked.once,
            now_ms=self._clock.now_ms(),
        )
        result = await self._change_cluster(command)
        if isinstance(result, Begun):
            return Answer(CommitState(CommitPhase.PREPARING, result.token))
        if isinstance(result, Repeated):
            self._tries.repeated += 1
            return Answer(CommitState(CommitPhase.REPEATED, result.token))
        assert isinstance(result, CommitEnded)
        return Answer(self._ended(result))

    def _is_busy(self, asked: staging.Begin) -> bool:
        """Whether the metadata would refuse a commit because the one before it is not over, as far as is known here.

        Waiting for that costs nothing. A refusal costs an entry, and a pause until the caller asks again.
        """
        row = self._engine.cluster.transaction(asked.transaction)
        if row is None or row.owner != asked.owner or asked.sequence <= row.latest:
            return False  # whatever it is told, it is told at once
        found = self._engine.cluster.try_of(row.open_token)
        return found is not None and found.sequence != asked.sequence

    async def end(self, asked: staging.End) -> Answer[CommitState]:
        """Give a commit up, begun or not; it may turn out to be committed."""
        self._check_stages()
        command = encode_abort_commit(asked.transaction, asked.owner, asked.commit_id, self._clock.now_ms())
        result = await self._change_cluster(command)
        assert isinstance(result, CommitEnded)
        return Answer(self._ended(result))

    def _ended(self, result: CommitEnded) -> CommitState:
        if result.reason is not None:
            return CommitState(CommitPhase.ABORTED, result.token, result.reason)
        open_still = self._engine.cluster.try_of(result.token) is not None
        return CommitState(CommitPhase.COMMITTED if open_still else CommitPhase.VISIBLE, result.token)

    async def look(self, asked: staging.Look) -> Answer[staging.Looked]:
        """How far a commit is, as this copy of the metadata has it; waits for the phase asked for."""
        self._check_stages()
        if asked.wait_ms and not self._is_reached(asked):
            with contextlib.suppress(DeadlineExceeded):  # then the answer is how far it is
                await self._waiting.until(lambda: self._readiness.draining or self._is_reached(asked), asked.wait_ms)
        cluster = self._engine.cluster
        row = cluster.transaction(asked.transaction)
        if row is None:
            return Answer(staging.Looked(self._state(asked), forgotten=cluster.was_forgotten(asked.transaction)))
        committed = row.owner == asked.owner and asked.sequence >= 0 and row.has_done(asked.sequence)
        return Answer(staging.Looked(self._state(asked), row.owner, committed, row.latest))

    def _is_reached(self, asked: staging.Look) -> bool:
        heard = asked.token <= self._engine.cluster.applied_index
        phase = self._state(asked).phase
        if phase == CommitPhase.UNKNOWN:
            return heard and asked.token > 0  # else its BEGIN may still be under way
        return heard and phase >= asked.phase

    def _state(self, asked: staging.Look) -> CommitState:
        cluster = self._engine.cluster
        row = cluster.transaction(asked.transaction)
        if asked.commit_id is None:
            found = cluster.try_of(asked.token) if asked.token else None
            if asked.token and found is None and asked.token <= cluster.applied_index:
                return CommitState(CommitPhase.VISIBLE, asked.token)
            return CommitState(CommitPhase.UNKNOWN) if found is None else _phase_of(found)
        if row is None:
            return CommitState(CommitPhase.UNKNOWN)
        found = cluster.try_of(row.open_token)
        if found is not None and found.commit_id == asked.commit_id:
            return _phase_of(found)
        ended = row.ended_as(asked.commit_id)
        if ended is None:
            return CommitState(CommitPhase.UNKNOWN)
        if ended.reason is None:
            return CommitState(CommitPhase.VISIBLE, ended.token)
        return CommitState(CommitPhase.ABORTED, ended.token, ended.reason)

    # ------------------------------------------------------------------ transactions

    async def claim(self, asked: staging.Claim) -> Answer[staging.Claimed]:
        """Another owner takes a transaction over."""
        self._check_stages()
        command = encode_claim_transaction(
            asked.transaction, asked.owner, restart=asked.restart, now_ms=self._clock.now_ms()
        )
        result = await self._change_cluster(command)
        assert isinstance(result, Claimed)
        return Answer(staging.Claimed(result.owner_before, result.latest))

    async def forget(self, asked: staging.Forget) -> Answer[CountReply]:
        """Let go of transactions that have no open try; how many went."""
        self._check_stages()
        known = self._engine.cluster.transactions()
        seen = [(name, known[name].used_ms) for name in dict.fromkeys(asked.transactions) if name in known]
        if not seen and not asked.hashes:
            return Answer(CountReply(0))
        count = await self._change_cluster(encode_forget_transactions(seen, hashes_too=asked.hashes))
        assert isinstance(count, int)
        return Answer(CountReply(count))

    async def list_transactions(self, asked: staging.ListTransactions) -> Answer[staging.TransactionList]:
        """One transaction with all that is known of it, or a page of them."""
        self._check_stages()
        cluster = self._engine.cluster
        known, tries = cluster.transactions(), cluster.tries()
        if asked.transaction:
            names = [asked.transaction] if asked.transaction in known else []
            more = False
        else:
            candidates = {one.transaction for one in tries.values()} if asked.open_only else known
            after = (name for name in candidates if name > asked.after)
            names = heapq.nsmallest(asked.limit + 1, after)
            more = len(names) > asked.limit
        shown = [self._shown(known[name], whole=bool(asked.transaction)) for name in names[: asked.limit]]
        following = names[asked.limit - 1] if more else ""
        return Answer(staging.TransactionList(shown, following, len(known), len(tries), cluster.forgotten_count))

    def _shown(self, row: Transaction, *, whole: bool) -> staging.TransactionState:
        found = self._engine.cluster.try_of(row.open_token)
        return staging.TransactionState(
            row.name,
            row.owner,
            row.once,
            row.used_ms,
            [(first, last) for first, last in row.done],
            [
                staging.EndedCommit(
                    one.commit_id,
                    one.token,
                    CommitPhase.COMMITTED if one.committed else CommitPhase.ABORTED,
                    one.reason or "",
                )
                for one in row.ended
            ]
            if whole
            else [],
            None if found is None else self._open(found, whole=whole),
        )

    def _open(self, found: Try, *, whole: bool) -> staging.OpenTry:
        return staging.OpenTry(
            found.token,
            found.sequence,
            found.commit_id,
            _phase_of(found).phase,
            found.begun_ms,
            found.deadline_ms,
            found.decided_ms,
            len(found.set_ids),
            [self._participant(found, set_id) for set_id in found.set_ids] if whole else [],
        )

    def _participant(self, found: Try, set_id: int) -> staging.TryPartition:
        """How far one partition is, by what its leader knows (here) or has told the conductor (here)."""
        place = self._engine.cluster.sets.get(set_id)
        replica = self._engine.replicas.get(set_id)
        size, state = 0, self._tries.vote_of(found.token, set_id)
        if replica is not None and replica.leads:
            prepared = replica.partition.prepared().get(found.token)
            size = 0 if prepared is None else prepared.size
            if prepared is not None and not found.committed:
                state = "prepared"
        return staging.TryPartition(
            "" if place is None else place.topic,
            0 if place is None else place.partition,
            self._leaders.leader_of(set_id),
            state,
            size,
        )


def _phase_of(found: Try) -> CommitState:
    return CommitState(CommitPhase.COMMITTED if found.committed else CommitPhase.PREPARING, found.token)
