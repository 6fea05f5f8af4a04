"""The judge of groups: nine rules, held against what partitions accepted and what the metadata recorded.

What members believe is never judged, but for one thing: that nobody works beside an owner who was not told so.

- `order`: claims and leases of a partition come in rising order of their fences, one member under each.
- `zombie`: after a claim, no commit of another member counts until that one has claimed.
- `progress`: what is committed falls only by a seek.
- `hand-over`: after an orderly release the next owner begins where the last one stopped, and nobody else works there.
- `eviction`: nobody expires who was heard in time, and nobody is told so who has not.
- `rest`: without faults each partition has one owner, who has claimed it, and nothing changes any more.
- `grants`: a grant changes only together with the owner.
- `state`: the metadata keeps its invariants.
- `moves`: an assignment moves no partition that could have stayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from lanner.cluster import Assigned, Group
from lanner.testing.queue_model import Violation

OUTSIDER: Final = "operator"
Fence = tuple[int, int]
PartitionKey = tuple[int, int]  # incarnation of the topic, partition
Grants = Mapping[tuple[int, int], tuple[int, int]]  # partition → owner, grant


class _OwnedPartition:
    """What was accepted on one partition."""

    def __init__(self) -> None:
        self.holder = ""
        self.fence: Fence = (0, 0)
        self.committed = 0
        self.given_up: int | None = None  # how far the last owner had worked that released it in order


class Worker(NamedTuple):
    """A process that works on a partition."""

    member: str
    excused: bool  # it was evicted, forced, replaced or fenced: it may not know yet


class GroupJudge:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._partitions: dict[int, _OwnedPartition] = {}

    def _partition(self, partition: int) -> _OwnedPartition:
        return self._partitions.setdefault(partition, _OwnedPartition())

    def broken(self, rule: str, what: str, partition: int = -1) -> None:
        self.violations.append(Violation(rule, partition, what))

    # ------------------------------------------------------------------ what partitions accepted

    def claimed(self, partition: int, member: str, fence: Fence, offset: int, workers: list[Worker]) -> None:
        self.counts["claims"] += 1
        found = self._partition(partition)
        if fence < found.fence or (fence == found.fence and found.holder not in ("", member)):
            self.broken("order", f"{member} claimed under {fence} after {found.holder} under {found.fence}", partition)
        others = [one.member for one in workers if one.member != member and not one.excused]
        if others:
            self.broken("hand-over", f"{member} begins while {others} work on it", partition)
        if found.given_up is not None and offset != found.given_up:
            self.broken("hand-over", f"{member} begins at {offset}, {found.given_up} was given up", partition)
        found.given_up = None
        found.holder, found.fence = member, fence

    def committed(self, partition: int, member: str, fence: Fence, before: int, after: int) -> None:
        """A commit was accepted; `before` and `after`: what the partition had committed."""
        self.counts["commits"] += 1
        found = self._partition(partition)
        if found.holder != member or fence < found.fence:
            self.broken(
                "zombie", f"a commit of {member} under {fence} after {found.holder} under {found.fence}", partition
            )
        if after < max(before, found.committed):
            self.broken("progress", f"progress fell from {found.committed} to {after}", partition)
        found.committed = max(after, 0)

    def leased(self, partition: int, member: str, fence: Fence, shared: bool) -> None:
        """A poll of a queue group was handed something; in a shared group everybody polls under one fence."""
        self.counts["leases"] += 1
        found = self._partition(partition)
        if fence[1] == 0 and found.fence == (0, 0):
            return  # where nobody ever was a member, calls from outside leave no trace
        if fence < found.fence or (fence == found.fence and not shared and found.holder not in ("", member)):
            self.broken(
                "order", f"{member} was served under {fence} after {found.holder} under {found.fence}", partition
            )
        found.holder, found.fence = member, fence

    def sought(self, partition: int, fence: Fence, offset: int) -> None:
        found = self._partition(partition)
        found.holder, found.fence, found.committed, found.given_up = OUTSIDER, fence, offset, None

    def released(self, partition: int, position: int) -> None:
        """A member has released a partition in order, after its last commit was answered."""
        self.counts["releases"] += 1
        self._partition(partition).given_up = position

    def took_away(self, partition: int, in_use: bool) -> None:
        """A release has applied."""
        if in_use:
            self.broken("hand-over", "a release of the past took away what its member works on", partition)

    # ------------------------------------------------------------------ what the metadata recorded

    def expired(self, member: int, silent_ms: int, session_ms: int) -> None:
        """That it has is proposed; it may apply later."""
        if silent_ms < session_ms:
            self.broken("eviction", f"{member} expired, and was heard {silent_ms} ms ago ({session_ms} ms are allowed)")

    def changed(self, before: Grants, after: Grants) -> None:
        for partition_id, (owner, grant) in after.items():
            was = before.get(partition_id, (0, 0))
            if owner == was[0] and grant != was[1]:
                self.broken("grants", f"{owner} had it under {was[1]}, and has it under {grant}", partition_id[1])

    def told_unknown(self, member: str, is_member: bool) -> None:
        if is_member:
            self.broken("eviction", f"{member} is told that it is no member, and is one")

    def assigned(self, targets: Mapping[PartitionKey, int], members: set[int], change: Assigned) -> None:
        """It has applied. Members that want the same get even shares by as few moves as possible."""
        self.counts["assignments"] += 1
        moves = {
            (one.topic, partition): member
            for one in change.moves
            for partition, member in zip(one.partitions, one.members, strict=True)
        }
        after = {**targets, **moves}
        shares = Counter(after.values())
        sizes = [shares[number] for number in members]
        if max(sizes) - min(sizes) > 1:
            self.broken("moves", f"version {change.version}: shares of {sizes}")
        living = {partition_id: number for partition_id, number in targets.items() if number in members}
        left = sum(after[partition_id] != number for partition_id, number in living.items())
        if left > len(living) - _most_kept(Counter(living.values()), len(targets), len(members)):
            self.broken("moves", f"version {change.version}: {left} partitions left a member that could keep them")


def targets_of(group: Group) -> dict[PartitionKey, int]:
    """Who is to have each partition that some member wants: who follows, else who owns."""
    return {
        (topic, partition): heir or owner
        for topic in group.topics()
        for partition, (owner, heir) in enumerate(
            zip(group.owners[topic].owners, group.owners[topic].heirs, strict=True)
        )
    }


def _most_kept(counts: Counter[int], partitions: int, members: int) -> int:
    """How many partitions may stay when shares are even: the fullest members have one more than the others."""
    low, extra = divmod(partitions, members)
    fullest = sorted(counts.values(), reverse=True)
    return sum(min(count, low + (rank < extra)) for rank, count in enumerate(fullest))
