"""The metadata of a simulated group: one log, a leader with its coordinator, and copies of it that lag."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

from lanner.cluster import (
    Admitted,
    Assigned,
    Change,
    Cluster,
    Expired,
    Forced,
    Group,
    Joined,
    Left,
    Released,
    encode_change_groups,
)
from lanner.cluster.coordinating import Coordinator
from lanner.errors import LannerError
from lanner.testing.group_checkers import GroupJudge, targets_of
from lanner.testing.group_processes import GROUP, NoRows, Process

TICK_MS: Final = 250
BROKERS: Final = 3


def _grants(group: Group) -> dict[tuple[int, int], tuple[int, int]]:
    """(owner, grant) of each partition."""
    return {
        (topic, partition): (owner, row.grants[partition])
        for topic, row in group.owners.items()
        for partition, owner in enumerate(row.owners)
    }


class SimMetadata:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.judge = GroupJudge()
        self.counts: Counter[str] = self.judge.counts
        self.history: list[str] = []
        self.processes: list[Process] = []
        self.now_ms = 1_000
        self._log: list[bytes] = []
        self._copies = [Cluster(NoRows()) for _ in range(BROKERS)]
        self._leader = 0
        self._coordinator = Coordinator(self._newest, TICK_MS)
        self._heard_ms: dict[int, int] = {}  # the judge's own count, by member number
        self._excused: set[str] = set()  # members that were evicted, replaced, or had a partition taken

    # ------------------------------------------------------------------ the metadata

    @property
    def _newest(self) -> Cluster:
        return self._copies[self._leader]

    def _propose(self, command: bytes) -> Any:
        """Put an entry into the metadata's log; the leader's copy has it at once, the others later."""
        self._log.append(command)
        result = self._apply_next(self._leader)
        self._coordinator.applied(self._newest.take_changed_groups())
        return result

    def _apply_next(self, broker: int) -> Any:
        copy = self._copies[broker]
        index = copy.applied_index
        return copy.apply(index + 1, self._log[index]).result

    def _change(self, *changes: Change) -> list[Any]:
        return [self._change_one(change) for change in changes]

    def _change_one(self, change: Change) -> Any:
        group = self._newest.group(GROUP)
        owners = {} if group is None else {number: one.member for number, one in group.members.items()}
        targets = {} if group is None else targets_of(group)
        forced = ""
        if isinstance(change, Forced) and group is not None:
            forced = owners.get(group.owner_of((change.topic, change.partition))[0], "")
        grants = {} if group is None else _grants(group)
        [result] = self._propose(encode_change_groups([change], self.now_ms)).results
        if group is not None:
            self.judge.changed(grants, _grants(group))
        self._note(f"{type(change).__name__} {result}")
        if isinstance(result, LannerError):
            return result
        if isinstance(result, Admitted):
            self._heard_ms.setdefault(result.member, self.now_ms)
        if isinstance(change, Expired):
            self.counts["evictions"] += 1
            self._excused.add(owners[change.member])
        elif isinstance(change, Assigned):
            self.judge.assigned(targets, set(owners), change)
        elif isinstance(change, Forced):
            self.counts["forced"] += 1
            self._excused.add(forced)
        elif isinstance(change, Released):
            had = grants[change.topic, change.partition][1]
            using = [one for one in self.processes if one.member == change.member]
            self.judge.took_away(change.partition, any(self._uses(one, change.partition, had) for one in using))
        elif isinstance(change, (Left, Joined)):
            self._excused |= {one for one in owners.values() if one not in self._group().ids}
        return result

    @staticmethod
    def _uses(process: Process, partition: int, grant: int) -> bool:
        return any((one.partition, one.grant) == (partition, grant) for one in process.assignments.phases)

    def _group(self) -> Group:
        found = self._newest.group(GROUP)
        assert found is not None
        return found

    def _elect(self) -> None:
        """Another broker leads the metadata. It has every entry, and has heard nobody."""
        self.counts["elections"] += 1
        self._leader = self.rng.randrange(BROKERS)
        while self._newest.applied_index < len(self._log):
            self._apply_next(self._leader)
        self._newest.take_changed_groups()
        self._coordinator = Coordinator(self._newest, TICK_MS)
        self._heard_ms = dict.fromkeys(self._heard_ms, self.now_ms)

    def _catch_up(self) -> None:
        """Some broker's copy comes nearer to the newest."""
        broker = self.rng.randrange(BROKERS)
        for _ in range(self.rng.randint(1, 6)):
            if self._copies[broker].applied_index < len(self._log):
                self._apply_next(broker)

    def _note(self, what: str) -> None:
        self.history.append(f"{self.now_ms} {what}")
