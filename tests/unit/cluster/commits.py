"""A metadata machine that is asked to commit, and a clerk beside it who notes every answer and finds contradictions.

The clerk knows none of the machine's rows. It hears what callers are told and looks at which tries there are, as
partitions do, and judges by the promise alone: an outcome never changes, a sequence is committed once, a caller that
is told something is not told the contrary later, and a fenced owner commits nothing.
"""

from __future__ import annotations

from typing import Any

from lanner import features
from lanner.cluster import (
    AbortReason,
    Begun,
    Claimed,
    CommitEnded,
    Repeated,
    Try,
    encode_abort_commit,
    encode_begin_try,
    encode_claim_transaction,
    encode_delete_topic,
    encode_end_tries,
    encode_forget_transactions,
)
from lanner.errors import LannerError, SequencePassed
from tests.unit.cluster.world import World

TIMEOUT_MS = 120_000


def commit_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Commits(World):
    """Three brokers with two topics of two partitions: `orders` has sets 1 and 2, `audit` has 3 and 4."""

    def __init__(self) -> None:
        super().__init__("a", "b", "c", level=features.STAGES)
        self.now_ms = 10_000
        self.create("orders", partitions=2, replication=3)
        self.create("audit", partitions=2, replication=3)
        self.outcomes: dict[int, str] = {}
        self.known: dict[int, Try] = {}  # every try that was ever seen
        self.committed: dict[tuple[str, int, int], int] = {}  # (transaction, era, sequence) -> token
        self.eras: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.told_aborted: set[tuple[str, bytes]] = set()
        self.gone: set[str] = set()  # forgotten, and not claimed since
        self.finished: set[int] = set()
        self.open: dict[int, Try] = {}

    # ------------------------------------------------------------------ calls

    def begin(
        self,
        sequence: int = 0,
        *,
        name: str = "t",
        owner: str = "me",
        commit: int = 1,
        topics: dict[str, tuple[int, ...]] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        once: bool = False,
    ) -> Any:
        chosen = {"orders": (0, 1)} if topics is None else topics
        known = self.machine.topics
        participants = [(topic, known[topic].incarnation, parts) for topic, parts in chosen.items() if topic in known]
        command = encode_begin_try(
            name,
            owner,
            sequence,
            commit_id(commit),
            participants,
            timeout_ms=timeout_ms,
            once=once,
            now_ms=self.now_ms,
        )
        result = self._apply_and_compare(command)
        self._note_begun(result, name, owner, sequence, commit_id(commit))
        return result

    def end(
        self,
        commits: tuple[int, ...] = (),
        aborts: tuple[int, ...] = (),
        finished: tuple[int, ...] = (),
        reason: AbortReason = AbortReason.DEADLINE,
    ) -> Any:
        self.finished.update(token for token in finished if self.outcomes.get(token) == "committed")
        return self._apply_and_compare(
            encode_end_tries(commits, [(token, reason) for token in aborts], finished, self.now_ms)
        )

    def abort(self, commit: int = 1, *, name: str = "t", owner: str = "me") -> Any:
        result = self._apply_and_compare(encode_abort_commit(name, owner, commit_id(commit), self.now_ms))
        if isinstance(result, CommitEnded):
            self._note_ended(result, name, commit_id(commit))
            assert name not in self.gone, f"{name} was forgotten, and lives again"
            self._note_owner(name, owner, only_new=True)
        return result

    def claim(self, owner: str, *, name: str = "t", restart: bool = False) -> Any:
        result = self._apply_and_compare(encode_claim_transaction(name, owner, restart=restart, now_ms=self.now_ms))
        if isinstance(result, Claimed) and result.owner_before != owner:
            self.owners[name] = owner
            self.gone.discard(name)
            if restart:
                self.eras[name] = self.eras.get(name, 0) + 1
        return result

    def forget(self, name: str = "t", used_ms: int | None = None) -> Any:
        row = self.machine.transaction(name)
        seen = (0 if row is None else row.used_ms) if used_ms is None else used_ms
        result = self._apply_and_compare(encode_forget_transactions([(name, seen)]))
        if result == 1 and row is not None:
            self.owners.pop(name, None)
            self.eras[name] = self.eras.get(name, 0) + 1  # nobody knows what was committed before, or given up
            self.told_aborted = {one for one in self.told_aborted if one[0] != name}
            if not row.once:
                self.gone.add(name)
        return result

    def delete(self, topic: str) -> Any:
        return self._apply_and_compare(encode_delete_topic(topic))

    # ------------------------------------------------------------------ what the clerk sees

    def _apply_and_compare(self, command: bytes) -> Any:
        result = self.apply(command)
        now = dict(self.machine.tries())
        sets = {set_id for topic in self.machine.topics.values() for set_id in topic.set_ids}
        for token, one in now.items():
            self._see(token, one)
            self.known[token] = one
        for token, one in self.open.items():
            if token not in now:
                if self.outcomes.get(token) == "committed" or one.committed:
                    confirmed = token in self.finished or not set(one.set_ids) & sets
                    assert confirmed, f"try {token} is committed, and gone before all have published"
                else:
                    self._decide(token, "aborted")
        by_name = [one.transaction for one in now.values()]
        assert len(set(by_name)) == len(by_name), "two tries of a transaction at once"
        self.open = now
        return result

    def _see(self, token: int, one: Try) -> None:
        before = self.open.get(token)
        if before is None:
            assert token not in self.known, f"try {token} is back"
        if one.committed:
            if before is not None and not before.committed:
                assert one.owner == self.owners.get(one.transaction, one.owner), f"a fenced owner commits try {token}"
            self._decide(token, "committed")
            self._note_committed(one)

    def _note_committed(self, one: Try) -> None:
        assert (one.transaction, one.commit_id) not in self.told_aborted, "it was said to be aborted, and is committed"
        if self.open.get(one.token) is None or not self.open[one.token].committed:
            key = (one.transaction, self.eras.get(one.transaction, 0), one.sequence)
            assert self.committed.setdefault(key, one.token) == one.token, f"sequence {one.sequence} commits twice"

    def _decide(self, token: int, outcome: str) -> None:
        assert self.outcomes.setdefault(token, outcome) == outcome, f"the outcome of try {token} changes to {outcome}"

    def _note_owner(self, name: str, owner: str, *, only_new: bool = False) -> None:
        known = self.owners.setdefault(name, owner)
        assert only_new or known == owner, f"{owner} begins what belongs to {known}"

    def _note_ended(self, ended: CommitEnded, name: str, commit: bytes) -> None:
        if ended.committed:
            assert (name, commit) not in self.told_aborted
            return
        assert self.outcomes.get(ended.token) != "committed", "it is committed, and said to be aborted"
        self.told_aborted.add((name, commit))

    def _note_begun(self, result: Any, name: str, owner: str, sequence: int, commit: bytes) -> None:
        key = (name, self.eras.get(name, 0), sequence)
        if isinstance(result, LannerError):
            if isinstance(result, SequencePassed):
                assert key not in self.committed, f"sequence {sequence} is committed, and said to be passed over"
            return
        assert name not in self.gone, f"{name} was forgotten, and is taken for a new one"
        self._note_owner(name, owner)
        if isinstance(result, Repeated):
            assert key in self.committed, f"sequence {sequence} is not committed, and said to be"
        elif isinstance(result, CommitEnded):
            self._note_ended(result, name, commit)
            if result.committed and result.token == self.index:  # without participants it is committed at once
                assert self.committed.setdefault(key, result.token) == result.token
                self._decide(result.token, "committed")
        else:
            assert isinstance(result, Begun)
            assert (name, commit) not in self.told_aborted, "it was said to be aborted, and begins again"
            assert key not in self.committed, f"sequence {sequence} is committed, and begins again"
