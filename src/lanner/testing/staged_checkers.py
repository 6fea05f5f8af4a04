"""The judge of staged publish: what writers staged and were told, what was recorded of their commits, what shows.

It sees every entry of the metadata once, in order, and every decision of a partition, wherever it is applied first. It
keeps a metadata machine of its own to learn what an entry came to, but takes its word for nothing that it can count
itself: who may use a transaction, which sequences are committed, which partitions have prepared.

- *acted otherwise*: a partition publishes or withdraws what is not, or not yet, recorded so
- *seen before its outcome*: a staged message is read, and its commit is not recorded as committed
- *token of nobody*: a partition acts for a try that never was
- *outcome changed*: a commit has ended, and then ends in another way
- *fence ignored*: an owner begins or commits after another one has claimed the transaction
- *sequence committed twice*: under the same claim
- *commit without every vote*: some partition had not prepared it
- *half a transaction*: in the end a partition does not show all of a commit, or shows some of it twice, or out of order
- *told otherwise*: a writer was told that its commit is committed, aborted or passed over, and it is not so
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Begun, Claimed, Cluster, Repeated, Try, commands
from lanner.partition import records
from lanner.testing.queue_model import Violation

STAGED_RULES: Final = (
    "acted otherwise",
    "token of nobody",
    "seen before its outcome",
    "outcome changed",
    "fence ignored",
    "sequence committed twice",
    "commit without every vote",
    "half a transaction",
    "told otherwise",
)


_OUTCOME_OF: Final[dict[type, str]] = {records.StagesPublished: "committed", records.StagesWithdrawn: "aborted"}


class StagedName(NamedTuple):
    """A staged batch: the attempt it belongs to, and its number there on its partition."""

    attempt: str
    set_id: int
    number: int


@dataclass(slots=True)
class Round:
    """One commit as its writer means it: by set, the stages that count, in the order in which they shall show."""

    transaction: str
    owner: str
    sequence: int
    commit_id: bytes
    stages: dict[int, list[StagedName]]


@dataclass(slots=True)
class Recorded:
    """One try as the metadata has it."""

    one: Try
    era: int  # how often the transaction was started over, counted here
    prepared: set[int] = field(default_factory=set)
    outcome: str = ""


class NoRows:
    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class StagedJudge:
    """Everything about staged publish in one simulation."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.rounds: dict[bytes, Round] = {}  # by commit id
        self.tries: dict[int, Recorded] = {}  # by token
        self.committed: dict[bytes, int] = {}  # commit id → token
        self.shown: dict[int, dict[int, StagedName]] = defaultdict(dict)  # set → offset → what lies there
        self._commit_of: dict[str, bytes] = {}  # attempt → the commit that names it
        self._machine = Cluster(NoRows())
        self._owners: dict[str, str] = {}
        self._eras: dict[str, int] = defaultdict(int)
        self._sequences: set[tuple[str, int, int]] = set()  # (transaction, era, sequence) that are committed
        self._told: list[tuple[str, bytes, str]] = []
        self._passed: list[tuple[str, int, int]] = []

    def _report(self, rule: str, text: str, set_id: int = CLUSTER_SET) -> None:
        self.violations.append(Violation(rule, set_id, text))

    # ------------------------------------------------------------------ what writers do

    def meant(self, one: Round) -> None:
        """A writer is about to commit this."""
        self.rounds[one.commit_id] = one
        for stages in one.stages.values():
            for name in stages:
                self._commit_of[name.attempt] = one.commit_id

    def told(self, writer: str, commit_id: bytes, outcome: str) -> None:
        """`committed` (it, or another commit of its sequence), or `aborted`."""
        self._told.append((writer, commit_id, outcome))

    def told_passed(self, one: Round) -> None:
        self._passed.append((one.transaction, self._eras[one.transaction], one.sequence))

    # ------------------------------------------------------------------ what is recorded

    def metadata_entry(self, index: int, payload: bytes | None) -> None:
        """An entry of the metadata, seen for the first time."""
        before = dict(self._machine.tries())
        result = self._machine.apply(index, payload).result
        self._machine.take_dirty()
        after = self._machine.tries()
        if payload and isinstance(result, Claimed):
            self._claimed(payload, result)
        elif payload and isinstance(result, Begun | Repeated):
            self._begun(payload, result)
        for token in [*after, *before]:
            if before.get(token) is not after.get(token):
                self._changed(token, before.get(token), after.get(token))

    def _claimed(self, payload: bytes, result: Claimed) -> None:
        command = commands.decode(payload)
        assert isinstance(command, commands.ClaimTransaction)
        if result.owner_before == command.owner:
            return
        self._owners[command.transaction] = command.owner
        if command.restart:
            self._eras[command.transaction] += 1

    def _begun(self, payload: bytes, result: Begun | Repeated) -> None:
        command = commands.decode(payload)
        assert isinstance(command, commands.BeginTry)
        owner = self._owners.setdefault(command.transaction, command.owner)
        if owner != command.owner:
            text = f"{command.owner} is told {result}, and {owner} has {command.transaction}"
            self._report("fence ignored", text)

    def _changed(self, token: int, before: Try | None, after: Try | None) -> None:
        one = after or before
        assert one is not None
        if before is None:
            self.tries.setdefault(token, Recorded(one, self._eras[one.transaction]))
        row = self._machine.transaction(one.transaction)
        ended = None if row is None else row.ended_as(one.commit_id)
        outcome = "" if ended is None else ("committed" if ended.committed else "aborted")
        if after is not None and after.committed:
            outcome = "committed"
        if outcome:
            self._ended(self.tries[token], outcome)

    def _ended(self, recorded: Recorded, outcome: str) -> None:
        one = recorded.one
        if recorded.outcome:
            if recorded.outcome != outcome:
                self._report("outcome changed", f"try {one.token} was {recorded.outcome} and is {outcome}")
            return
        recorded.outcome = outcome
        if outcome != "committed":
            return
        if self._owners[one.transaction] != one.owner:
            self._report("fence ignored", f"try {one.token} of {one.owner}, which is fenced, is committed")
        key = (one.transaction, recorded.era, one.sequence)
        if key in self._sequences:
            self._report("sequence committed twice", f"{one.sequence} of {one.transaction}, again as try {one.token}")
        self._sequences.add(key)
        awaited = set(one.set_ids) - recorded.prepared
        if awaited:
            self._report("commit without every vote", f"try {one.token}, and {sorted(awaited)} had not prepared it")
        self.committed[one.commit_id] = one.token

    def decided(self, set_id: int, decision: records.Decision) -> None:
        """A decision of a partition, seen for the first time."""
        for fact in decision.facts:
            if isinstance(fact, records.StagesPrepared | records.StagesPublished | records.StagesWithdrawn):
                recorded = self.tries.get(fact.token)
                if recorded is None:
                    self._report("token of nobody", f"{fact.token} is in {type(fact).__name__}", set_id)
                elif isinstance(fact, records.StagesPrepared):
                    if recorded.outcome == "committed":  # it was prepared here before, else it were not committed
                        self._report("acted otherwise", f"prepared again, and try {fact.token} is committed", set_id)
                    recorded.prepared.add(set_id)
                elif recorded.outcome != _OUTCOME_OF[type(fact)]:
                    outcome = recorded.outcome or "undecided"
                    self._report("acted otherwise", f"{type(fact).__name__}, and try {fact.token} is {outcome}", set_id)

    # ------------------------------------------------------------------ what shows

    def seen(self, set_id: int, offset: int, name: StagedName) -> None:
        known = self.shown[set_id].setdefault(offset, name)
        if known != name:
            self._report("half a transaction", f"offset {offset} held {known} and then {name}", set_id)
        commit_id = self._commit_of.get(name.attempt)
        if commit_id is None or commit_id not in self.committed:
            self._report("seen before its outcome", f"{name} at offset {offset} is not committed", set_id)

    # ------------------------------------------------------------------ the end

    def finish(self) -> list[Violation]:
        """Everything has come to rest and was read once more: judge it as a whole."""
        for commit_id, token in self.committed.items():
            meant = self.rounds[commit_id]
            for set_id, stages in meant.stages.items():
                self._check_shown(set_id, token, stages)
        self._check_order()
        done = {
            (self.tries[token].one.transaction, self.tries[token].one.sequence) for token in self.committed.values()
        }
        for writer, commit_id, outcome in self._told:
            meant = self.rounds[commit_id]
            if outcome == "committed" and (meant.transaction, meant.sequence) not in done:
                self._report("told otherwise", f"{writer} was told that {meant.sequence} is committed, and it is not")
            if outcome == "aborted" and commit_id in self.committed:
                self._report(
                    "told otherwise", f"{writer} was told of an abort, and {meant.sequence} is committed by it"
                )
        for passed in self._passed:
            if passed in self._sequences:
                self._report("told otherwise", f"{passed} was said to be passed over, and it is committed")
        return self.violations

    def _check_shown(self, set_id: int, token: int, stages: Sequence[StagedName]) -> None:
        wanted = set(stages)
        shown = [name for _, name in sorted(self.shown[set_id].items()) if name in wanted]
        if shown != list(stages):
            text = f"try {token} is committed; of its {len(stages)} stages there show, in order, {shown}"
            self._report("half a transaction", text, set_id)

    def _check_order(self) -> None:
        """What a transaction committed later shows later."""
        for set_id, shown in self.shown.items():
            latest: dict[str, int] = {}
            for _, name in sorted(shown.items()):
                commit_id = self._commit_of.get(name.attempt, b"")
                token = self.committed.get(commit_id)
                if token is None:
                    continue
                transaction = self.tries[token].one.transaction
                if token < latest.get(transaction, 0):
                    self._report("half a transaction", f"{name} of try {token} shows after a later try", set_id)
                latest[transaction] = max(token, latest.get(transaction, 0))
