"""A group, or the stages, as one pass of decisions sees them: the applied state, plus what the pass has decided so far.

Deciding changes nothing, yet later requests of a pass must see what earlier ones took. A view holds that difference
and only that: masks of leases already settled, entries made ready, places handed out. It lives for one pass.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from heapq import merge

from lanner.partition.groups import Group
from lanner.partition.leases import LeaseRecord, Run
from lanner.partition.memory import Answered, count_within
from lanner.partition.places import Entry, Standing
from lanner.partition.records import Counted
from lanner.partition.requests import PollAnswer
from lanner.partition.staging import Stages


class StagesView:
    """What a pass has decided about stages so far."""

    __slots__ = ("left", "metadata_index", "prepared", "taken")

    def __init__(self, stages: Stages) -> None:
        self.metadata_index = stages.metadata_index
        self.prepared: dict[int, list[Counted]] = {}  # token → manifest
        self.left: dict[int, int] = {}  # token → stages left after this pass
        self.taken: set[bytes] = set()  # attempts prepared or dropped


class GroupView:
    __slots__ = (
        "answered",
        "closed",
        "commits",
        "committed",
        "dead_gone",
        "dead_taken",
        "extended",
        "fence",
        "group",
        "live",
        "made",
        "metadata",
        "nexts",
        "numbered",
        "outstanding",
        "polls",
        "ready",
        "remembered",
        "taken",
        "touched",
    )

    def __init__(self, group: Group, made: bool = False) -> None:
        self.group = group
        self.made = made  # by this pass: it is not in the state yet
        self.closed = False  # sought in this pass: polls wait for the next
        self.touched = made
        self.fence = group.fence
        self.committed = group.committed
        self.metadata = group.metadata
        self.nexts = [progress.next for progress in group.lanes]
        self.outstanding = group.outstanding
        self.live: dict[int, int] = {}  # token → what is still live
        self.extended: dict[int, int] = {}  # token → what got a later deadline
        self.commits: dict[str, int] = {}  # reader → the sequence of its latest commit in this pass
        self.answered: dict[tuple[int, int], int] = {}  # (token, kind) → what settles of this pass took effect on
        self.remembered: dict[int, Answered] = {}  # token → what was answered about a lease that has ended
        self.ready: dict[int, list[Entry]] = {}  # lane → entries that this pass made ready, in order
        self.taken: dict[tuple[int, int], int] = {}  # (lane, place) of a ready entry → how much of it is gone
        self.numbered = False  # its deaths have numbers from this pass on
        self.dead_gone = False  # all of the group's dead were redriven or discarded
        self.dead_taken: set[tuple[int, int]] = set()  # (lane, place) of dead messages redriven or discarded
        self.polls: dict[tuple[str, int], PollAnswer] = {}

    def latest_commit(self, reader: str) -> int:
        """The sequence of a reader's latest commit; -1: it has none."""
        return max(self.commits.get(reader, -1), self.group.readers.get(reader, -1))

    def live_of(self, lease: LeaseRecord) -> int:
        return self.live.get(lease.token, lease.live)

    def note_answer(self, token: int, kind: int, mask: int) -> None:
        key = (token, kind)
        self.answered[key] = self.answered.get(key, 0) | mask

    def answered_before(self, token: int, kind: int, first_offset: int, count: int) -> int:
        """Of how many of these messages, which are not leased by this token, the same settle took effect before."""
        lease = self.group.leases.get(token)
        if lease is not None:
            mask = lease.answered_mask(kind) | self.answered.get((token, kind), 0)
            return (lease.mask_between(first_offset, count) & mask & ~self.live_of(lease)).bit_count()
        found = self.remembered.get(token)
        if found is None:
            found = self.remembered[token] = self.group.memory.answered(token)
        return count_within(found, kind, first_offset, count)

    def settle(self, lease: LeaseRecord, mask: int) -> None:
        self.live[lease.token] = self.live_of(lease) & ~mask
        self.touched = True

    def add_ready(self, run: Run, attempts: int) -> None:
        entry = Entry(run.place, run.count, run.first_offset, attempts, Standing.READY)
        insort(self.ready.setdefault(run.lane, []), entry)

    def ready_entries(self, lane: int) -> Iterator[tuple[Entry, int]]:
        """The ready entries of a lane in place order, and how much of each is gone already."""
        entries: Iterator[Entry] = self.group.lanes[lane].ready_entries()
        new = self.ready.get(lane)
        if new:
            entries = merge(entries, new)
        for entry in entries:
            gone = self.taken.get((lane, entry.place), 0) if self.taken else 0
            if gone < entry.count:
                yield entry, gone

    def has_ready(self, lane: int) -> bool:
        return bool(self.group.lanes[lane].ready_rows) or lane in self.ready
