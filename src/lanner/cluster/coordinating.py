"""The coordinator: what the leader of the metadata proposes about groups, and when. Pure; time is ticks.

It knows what the metadata does not record: when a member was last heard, since when a partition waits for its owner,
and since when a group's question is open. All of it begins anew with every leader, because a new leader has heard
nobody yet: it must not take that for their silence. Nothing is lost by it but time.

The shell drives it so, while its broker leads the metadata and the leader's own first entry has applied:

    coordinator = Coordinator(cluster, tick_ms)
    at every turn of the loop, once:   coordinator.heard(members); coordinator.tick()
    when entries have applied:         coordinator.applied(cluster.take_changed_groups())
    for each of coordinator.questions(): coordinator.answered(asked, assignor(asked.question))
    when nothing that it proposed is under way: propose coordinator.due(now_ms)

- Silence is counted in ticks that this leader lived through. A leader that was paused itself ages nobody.
- A question is asked once nothing has changed for a moment, so that a storm of joins becomes one assignment.
- What is due stays due until it has applied: a proposal that was lost is simply made again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from lanner import limits
from lanner.cluster.assignors import Answer, Question
from lanner.cluster.group_changes import Assigned, Change, Expired, Forced, Forgotten, Moves
from lanner.cluster.grouped import Group
from lanner.model import TopicPartitionId

QUIET_MS: Final = 100  # so long nothing may change before a question is asked,
OPEN_MS_MAX: Final = 500  # but it does not wait longer than this,
FIRST_OPEN_MS_MAX: Final = 1_000  # nor the first one of a group longer than this

_NEVER_MS: Final = 1 << 62
_CHANGE_BYTES: Final = 60  # at most, without moves
_MOVE_BYTES: Final = 12
_COMMAND_BYTES: Final = 63 * limits.KIB


class Cluster(Protocol):
    """What the coordinator reads of the metadata machine."""

    def groups(self) -> Mapping[int, Group]: ...

    def question_of(self, group: Group) -> Question: ...


class Asked(NamedTuple):
    """A question that is to be answered by the group's assignor, wherever that is computed."""

    number: int
    version: int
    assignor: str
    question: Question


class _Window(NamedTuple):
    version: int
    opened_ms: int
    changed_ms: int
    first: bool  # the group has had no assignment yet


class _Wait(NamedTuple):
    grant: int
    heir: int
    since_ms: int


class Coordinator:
    def __init__(self, cluster: Cluster, tick_ms: int) -> None:
        self._cluster = cluster
        self._tick_ms = tick_ms
        self._now_ms = 0  # how long this leader has lived
        self._heard_ms: dict[int, int] = {}  # member → when it was heard last
        self._members: dict[int, set[int]] = {}  # group → its members, as of the last look
        self._group_of: dict[int, int] = {}  # member → group
        self._checks: list[tuple[int, int]] = []  # heap of (when to look whether it is silent, member)
        self._silent: dict[int, None] = {}  # members whose session is over
        self._versions: dict[int, int] = {}  # group → the version whose question was answered, or is open
        self._windows: dict[int, _Window] = {}  # group → its open question
        self._answers: dict[int, tuple[int, Answer]] = {}  # group → version and answer, until it has applied
        self._waits: dict[int, dict[TopicPartitionId, _Wait]] = {}  # group → partitions that wait for their owners
        self._empty: set[int] = set()  # groups without members
        self._idle_ms = _NEVER_MS  # by the time of day: before that none of them is to be forgotten
        self.applied(list(cluster.groups()))

    # ------------------------------------------------------------------ what happens

    def tick(self) -> None:
        """One more turn of the loop."""
        self._now_ms += self._tick_ms

    def heard(self, members: Iterable[int]) -> None:
        """Somebody has heard these members since the last time."""
        for number in members:
            if number in self._heard_ms:
                self._heard_ms[number] = self._now_ms
                if number in self._silent:
                    del self._silent[number]
                    heappush(self._checks, (self._now_ms, number))

    def silent_ms(self, member: int) -> int | None:
        """How long nothing was heard of a member; None: it is not known here."""
        heard_ms = self._heard_ms.get(member)
        return None if heard_ms is None else self._now_ms - heard_ms

    def is_open(self, number: int) -> bool:
        """Whether a group's question is not answered, or the answer has not applied."""
        return number in self._windows

    def waits(self, number: int) -> dict[TopicPartitionId, int]:
        """The partitions of a group that wait for their owners, and for how long, in milliseconds."""
        return {
            partition_id: self._now_ms - wait.since_ms for partition_id, wait in self._waits.get(number, {}).items()
        }

    def applied(self, numbers: Iterable[int]) -> None:
        """These groups have changed."""
        groups = self._cluster.groups()
        for number in numbers:
            group = groups.get(number)
            if group is None:
                self._forget(number)
                continue
            self._note_members(number, group)
            self._note_version(number, group)
            self._note_waits(number, group)

    def answered(self, asked: Asked, answer: Answer) -> None:
        """An assignor has answered; too late, if the question has changed since."""
        window = self._windows.get(asked.number)
        if window is not None and window.version == asked.version:
            self._answers[asked.number] = asked.version, answer

    def _forget(self, number: int) -> None:
        for member in self._members.pop(number, ()):
            self._drop_member(member)
        for table in (self._versions, self._windows, self._answers, self._waits):
            table.pop(number, None)
        self._empty.discard(number)

    def _note_members(self, number: int, group: Group) -> None:
        known = self._members.get(number, set())
        for member in known - group.members.keys():
            self._drop_member(member)
        for member in sorted(group.members.keys() - known):
            self._heard_ms[member], self._group_of[member] = self._now_ms, number
            heappush(self._checks, (self._now_ms, member))
        self._members[number] = set(group.members)
        if group.members:
            self._empty.discard(number)
        else:
            self._empty.add(number)
            self._idle_ms = min(self._idle_ms, _idle_from_ms(group))

    def _drop_member(self, member: int) -> None:
        del self._heard_ms[member], self._group_of[member]
        self._silent.pop(member, None)

    def _note_version(self, number: int, group: Group) -> None:
        version = group.row.version
        if self._versions.get(number) == version:
            return
        self._versions[number] = version
        self._answers.pop(number, None)
        before = self._windows.get(number)
        opened_ms = self._now_ms if before is None else before.opened_ms
        self._windows[number] = _Window(version, opened_ms, self._now_ms, not group.row.rebalances)

    def _note_waits(self, number: int, group: Group) -> None:
        before = self._waits.pop(number, {})
        found: dict[TopicPartitionId, _Wait] = {}
        for partition_ids in group.inherited.values():
            for partition_id in partition_ids:
                _, grant, heir = group.owner_of(partition_id)
                known = before.get(partition_id)
                same = known is not None and (known.grant, known.heir) == (grant, heir)
                found[partition_id] = known if known is not None and same else _Wait(grant, heir, self._now_ms)
        if found:
            self._waits[number] = dict(sorted(found.items()))

    # ------------------------------------------------------------------ what is to be done

    def questions(
        self, busy: Container[int] = (), partitions_max: int = limits.SUBSCRIBED_PARTITIONS_MAX
    ) -> list[Asked]:
        """The questions that should be asked now; each is named until it is answered or has changed.

        `busy`: groups that are left out, because their answer is being looked for. Once the questions ask for
        `partitions_max` partitions the rest wait for the next time.
        """
        found: list[Asked] = []
        for number, window in self._windows.items():
            if number in busy or number in self._answers or not self._is_over(window):
                continue
            group = self._cluster.groups()[number]
            found.append(Asked(number, window.version, group.row.assignor, self._cluster.question_of(group)))
            partitions_max -= sum(found[-1].question.topics.values())
            if partitions_max <= 0:
                break
        return found

    def _is_over(self, window: _Window) -> bool:
        most_ms = FIRST_OPEN_MS_MAX if window.first else OPEN_MS_MAX
        return self._now_ms - window.changed_ms >= QUIET_MS or self._now_ms - window.opened_ms >= most_ms

    def due(self, now_ms: int) -> list[Change]:
        """What should be proposed now, in order, no more than fits into one command. `now_ms`: the time of day."""
        found: list[Change] = []
        size = 0
        for change in self._all_due(now_ms):
            moves = sum(len(one.partitions) for one in change.moves) if isinstance(change, Assigned) else 0
            size += _CHANGE_BYTES + moves * _MOVE_BYTES
            if len(found) == limits.GROUP_CHANGES_MAX or size > _COMMAND_BYTES:
                break
            found.append(change)
        return found

    def _all_due(self, now_ms: int) -> Iterator[Change]:
        yield from self._find_silent()
        yield from self._find_forced()
        yield from self._find_assigned()
        yield from self._find_idle(now_ms)

    def _find_silent(self) -> Iterator[Change]:
        groups = self._cluster.groups()
        while self._checks and self._checks[0][0] <= self._now_ms:
            _, member = heappop(self._checks)
            if member not in self._heard_ms or member in self._silent:
                continue
            group = groups[self._group_of[member]]
            over_ms = self._heard_ms[member] + group.session_ms(group.members[member])
            if over_ms <= self._now_ms:
                self._silent[member] = None
            else:
                heappush(self._checks, (min(over_ms, self._now_ms + limits.SESSION_MS), member))
        for member in self._silent:
            yield Expired(self._group_of[member], member, self._now_ms - self._heard_ms[member])

    def _find_forced(self) -> Iterator[Change]:
        for number, waits in self._waits.items():
            revoke_ms = self._cluster.groups()[number].row.revoke_ms
            for (topic, partition), wait in waits.items():
                if self._now_ms - wait.since_ms >= revoke_ms:
                    yield Forced(number, topic, partition, wait.grant)

    def _find_assigned(self) -> Iterator[Change]:
        for number, (version, answer) in list(self._answers.items()):
            moves = list(self._moves(self._cluster.groups()[number], answer))
            if not moves:  # it is as the answer says: the question is closed
                del self._answers[number], self._windows[number]
            for start in range(0, len(moves), limits.GROUP_MOVES_MAX):
                part = moves[start : start + limits.GROUP_MOVES_MAX]
                yield Assigned(number, version, _in_columns(part))

    @staticmethod
    def _moves(group: Group, answer: Answer) -> Iterator[tuple[TopicPartitionId, int]]:
        """What of the answer differs from the present targets: who is to follow, else who owns."""
        for partition_id, member in sorted(answer.items()):
            owner, _, heir = group.owner_of(partition_id)
            if member != (heir or owner):
                yield partition_id, member

    def _find_idle(self, now_ms: int) -> Iterator[Change]:
        if now_ms < self._idle_ms:  # there may be thousands, and it is asked at every tick
            return
        empty = [self._cluster.groups()[number] for number in sorted(self._empty)]
        self._idle_ms = min(map(_idle_from_ms, empty), default=_NEVER_MS)
        for group in empty:
            if _idle_from_ms(group) <= now_ms:
                yield Forgotten(group.row.number, group.row.generation)


def _idle_from_ms(group: Group) -> int:
    return group.row.generation_ms + limits.GROUP_IDLE_MS


def _in_columns(moves: list[tuple[TopicPartitionId, int]]) -> tuple[Moves, ...]:
    by_topic: dict[int, list[tuple[int, int]]] = {}
    for (topic, partition), member in moves:
        by_topic.setdefault(topic, []).append((partition, member))
    return tuple(
        Moves(topic, tuple(partition for partition, _ in found), tuple(member for _, member in found))
        for topic, found in by_topic.items()
    )
