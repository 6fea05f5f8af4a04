"""Staged publish on one broker: its attendant, and its conductor while it leads the metadata, over the engine.

The driver of an engine drives this beside it (`node` in a real broker, the simulators in tests):

    tries = Tries(engine)
    tries.follow(now_ms)        after everything that may have changed something: a pump, a commit, a message
    tries.tick()                with every tick of the engine, 50 ms apart
    tries.take_reports()        after both: send them to the broker that leads the metadata, or lose them
    tries.hear(items)           such reports have arrived from another broker
    tries.prepare(...)          a PREPARE has come; its answer is told once it is durable and applied

`now_ms` is the leader's time (`LeaderClock`). A follow that asked or proposed something leaves the engine with work:
pump it once more. Nothing here is saved: after a crash a new `Tries` over the recovered engine does what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from lanner.broker.attendant import Attendant
from lanner.broker.conductor import Conductor
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.replicas.replica import OnAnswer, OnApplied
from lanner.cluster import AbortReason
from lanner.errors import LannerError, ServiceUnavailable, StageExpired, TopicFull, TransactionUnknown, ValidationError
from lanner.partition import Answer, Partition, Prepare, PublishStages, WithdrawStages
from lanner.wire.staging import ReportItem


class Figures(NamedTuple):
    """Figures of the transactions on one broker, since its start. Times are in milliseconds."""

    open: int  # tries, by this broker's copy of the metadata
    remembered: int  # transactions, likewise
    forgotten: int  # of which only a hash is left, likewise
    staged_bytes: int  # where it leads, without what is prepared
    prepared_bytes: int
    stages_expired: int  # where it led when they were counted
    stages_dropped: int
    repeated: int  # commits of a sequence that was committed before, asked of this broker
    reports_again: int
    # While it conducts; elsewhere these stand still.
    committed: int
    aborted: Mapping[str, int]  # by reason
    outcome_ms: int  # from the beginning to the outcome, of all that committed
    visible: int  # tries that every partition has confirmed
    visible_ms: int  # from the outcome to there, of all of these
    undecided_ms: int  # the age of the oldest
    unconfirmed_ms: int


class _OverEngine:
    """The engine as attendant and conductor see it; `worked` says that it has something to pump."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.worked = False

    def held(self) -> Iterable[int]:
        return [set_id for set_id in self._engine.replicas if set_id != CLUSTER_SET]

    def partition(self, set_id: int) -> Partition | None:
        replica = self._engine.replicas.get(set_id)
        return replica.partition if replica is not None and replica.leads else None

    def publish(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        self._ask(set_id, PublishStages(token, metadata_index), told)

    def withdraw(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        self._ask(set_id, WithdrawStages(token, metadata_index), told)

    def _ask(self, set_id: int, request: PublishStages | WithdrawStages, told: Callable[[bool], None]) -> None:
        self.worked = True
        self._engine.ask(set_id, request, lambda answer, _index: told(not isinstance(answer, LannerError)))

    def propose(self, command: bytes, told: OnApplied) -> None:
        self._engine.propose(CLUSTER_SET, command, told)
        self.worked = True


class Tries:
    """The attendant and the conductor of one broker, over its engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._port = _OverEngine(engine)
        self.attendant = Attendant(self._port)
        self.conductor = Conductor(self._port)
        self._conducted_by = (0, 0)  # (term, replica) that was heard to lead the metadata
        self._outbox: list[ReportItem] = []
        self.repeated = 0  # counted where commits begin here
        self._gone: dict[int, tuple[Partition, int, int]] = {}  # set → what its copy had counted when it was looked at
        self._expired = self._dropped = 0

    def tick(self) -> None:
        self.attendant.tick()

    def follow(self, now_ms: int) -> bool:
        """Do what the metadata and the partitions call for; whether the engine has something to pump for it."""
        metadata, copy = self._engine.replicas[CLUSTER_SET], self._engine.cluster
        node = metadata.node
        changed = copy.take_changed_tries()
        if metadata.leads:
            self.conductor.follow(copy, node.term, changed, now_ms)
        else:
            self.conductor.stop()
        if (node.term, node.leader_id) != self._conducted_by and node.leader_id:
            self._conducted_by = (node.term, node.leader_id)
            self.attendant.say_again()
        self.attendant.follow(copy, changed)
        reports = self.attendant.take_reports()
        if node.leader_id == node.node_id:
            self.conductor.hear(reports)  # which keeps them until it may conduct
        else:
            self._outbox += reports
        self.conductor.act(copy, now_ms)
        worked, self._port.worked = self._port.worked, False
        return worked

    def take_reports(self) -> list[ReportItem]:
        """Return the reports for the broker that leads the metadata. Without one they are lost, and come again."""
        reports, self._outbox = self._outbox, []
        return reports

    def hear(self, items: Sequence[ReportItem]) -> None:
        """Take the reports of another broker; without effect unless this one conducts."""
        self.conductor.hear(items)

    def vote_of(self, token: int, set_id: int) -> str:
        """Return what a participant of a try has reported: awaited, prepared or confirmed; empty when unknown."""
        return self.conductor.vote_of(token, set_id)

    def figures(self, now_ms: int) -> Figures:
        copy, counts = self._engine.cluster, self.conductor.counts
        led = [one.partition for set_id, one in self._engine.replicas.items() if set_id != CLUSTER_SET and one.leads]
        undecided_ms, unconfirmed_ms = self.conductor.oldest_ms(now_ms)
        self._count_gone()
        return Figures(
            open=len(copy.tries()),
            remembered=len(copy.transactions()),
            forgotten=copy.forgotten_count,
            staged_bytes=sum(one.staged_bytes for one in led),
            prepared_bytes=sum(one.prepared_bytes for one in led),
            stages_expired=self._expired,
            stages_dropped=self._dropped,
            repeated=self.repeated,
            reports_again=self.attendant.said_again,
            committed=counts["committed"],
            aborted={str(reason): counts[f"aborted_{reason}"] for reason in AbortReason},
            outcome_ms=counts["to_outcome_ms"],
            visible=counts["finished"],
            visible_ms=counts["to_visible_ms"],
            undecided_ms=undecided_ms,
            unconfirmed_ms=unconfirmed_ms,
        )

    def _count_gone(self) -> None:
        """Count the stages that went since the last look. Every copy counts, the leader tells, so each is told once."""
        gone: dict[int, tuple[Partition, int, int]] = {}
        for set_id, replica in self._engine.replicas.items():
            if set_id == CLUSTER_SET:
                continue
            partition = replica.partition
            expired, dropped = partition.stages_gone
            gone[set_id] = partition, expired, dropped
            before = self._gone.get(set_id)
            if before is None or before[0] is not partition:  # a machine of its own, which counts from 0
                before = partition, 0, 0
            if replica.leads:
                self._expired += expired - before[1]
                self._dropped += dropped - before[2]
        self._gone = gone

    def prepare(self, set_id: int, token: int, manifest: Sequence[tuple[int, bytes, int]], on_answer: OnAnswer) -> None:
        """Have a partition that is led here hold what a try names; None is the answer when it does.

        The conductor hears of it, and of a refusal, without further ado.
        """
        copy = self._engine.cluster
        one = copy.try_of(token)
        if one is None and token > copy.applied_index:
            raise ServiceUnavailable(f"this broker has not heard of try {token} yet; ask again")
        if one is None:
            raise TransactionUnknown(f"try {token} has ended: look how", token=token)
        if set_id not in one.set_ids:
            raise ValidationError(f"try {token} does not name this partition", field="manifests")
        if one.committed:
            on_answer(None, 0)  # it was prepared, else it were not committed
            return

        def told(answer: Answer, index: int) -> None:
            if isinstance(answer, StageExpired | TopicFull):
                self.attendant.refuse(token, set_id, answer.name)
            else:
                self.attendant.touch(set_id)
            on_answer(answer, index)

        asked = Prepare(token, one.transaction, one.owner, one.sequence, manifest, copy.applied_index)
        self._engine.ask(set_id, asked, told)


__all__ = ["Figures", "Tries"]
