"""Members of one group from one seed: they join, work, leave, die and fall silent, and everything that can lag lags.

The metadata machine, the coordinator, the partitions and the rules of a client are the real ones. Around them: brokers
whose copies of the metadata lag, a leader of the metadata that changes, partitions whose leadership moves to a broker
with an older copy, requests that arrive late, twice or never, processes that sleep through their session and wake up,
instances that are started twice, topics that grow, operators that reset. A request goes to the broker that leads its
partition, and is resolved there, as a desk does it.

Once the faults are over the group must come to rest. `group_checkers` judges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from lanner import features
from lanner.client.assignments import Granted, Phase, View
from lanner.cluster import (
    Admitted,
    Altered,
    Changed,
    Cluster,
    Expired,
    Forgotten,
    Joined,
    Left,
    Released,
    assignors,
    encode_alter_topic,
    encode_create_topic,
    encode_raise_feature_level,
)
from lanner.errors import InstanceFenced, LannerError, MemberFenced, MemberUnknown
from lanner.model import GroupKind, TopicSettings
from lanner.partition import Claim, Claimed, CommitOffset, Seek
from lanner.testing.group_checkers import Worker
from lanner.testing.group_metadata import BROKERS, TICK_MS, SimMetadata
from lanner.testing.group_processes import GROUP, Process, SimPartition
from lanner.testing.queue_model import Violation

TOPIC: Final = "orders"
SESSION_MS: Final = 2_000
REVOKE_MS: Final = 2_000
STEPS: Final = 500
_SLOTS: Final = 4
_PARTITIONS_MAX: Final = 6
_NOTHING: Final = (0, 0)


class GroupSimulation(SimMetadata):
    """A stream group: its members claim, work, commit and release."""

    kind: ClassVar[GroupKind] = GroupKind.STREAM
    assignor: ClassVar[str] = ""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._late: list[Callable[[], None]] = []
        self._joins = 0
        self._propose(encode_raise_feature_level(features.HIGHEST))
        partitions = self.rng.randint(1, 4)
        self._propose(encode_create_topic(TOPIC, TopicSettings(partitions=partitions), self.now_ms))
        self.partitions = [SimPartition(self.rng.randrange(BROKERS)) for _ in range(partitions)]
        for one in self.partitions:
            one.append(self.rng.randint(5, 40), self.now_ms)
        self.quiet = False  # the faults are over
        self._static = self.rng.random() < 0.5
        # How often a process is killed, falls asleep, or leaves: in some runs most of them leave in order.
        self._odds = self.rng.choice(((0.03, 0.06, 0.08), (0.002, 0.004, 0.05)))

    def _tick(self) -> None:
        self.now_ms += TICK_MS
        self._coordinator.tick()
        for process in self._awake():
            if process.joined and (self.quiet or self.rng.random() < 0.9):
                self._heartbeat(process)
        for asked in self._coordinator.questions():
            self._coordinator.answered(asked, assignors.ASSIGNORS[asked.assignor](asked.question))
        due = self._coordinator.due(self.now_ms)
        for change in due:
            if isinstance(change, Expired):
                self.judge.expired(change.member, self.now_ms - self._heard_ms[change.member], SESSION_MS)
        if due and not self._is_late(lambda: self._change(*due), 0.2):
            self._change(*due)

    # ------------------------------------------------------------------ members

    def _awake(self) -> list[Process]:
        return [one for one in self.processes if not one.ended and not one.asleep]

    def _start(self) -> None:
        taken = {one.slot for one in self.processes if not one.ended}
        free = [slot for slot in range(_SLOTS) if slot not in taken]
        if not free:
            return
        slot = self.rng.choice(free)
        self.processes.append(Process(slot, f"web-{slot}" if self._static and slot % 2 else ""))

    def _start_twice(self) -> None:
        """A second process of an instance that has one: the newer one has it."""
        found = [one for one in self.processes if one.instance and one.joined and not one.ended]
        if found:
            self.processes.append(Process(100 + len(self.processes), self.rng.choice(found).instance))

    def _join(self, process: Process) -> None:
        if not process.member:
            self._joins += 1
            process.member = f"m{self._joins}"
        change = Joined(
            GROUP,
            self.kind,
            process.member,
            (TOPIC,),
            assignor=self.assignor,
            instance=process.instance,
            session_ms=SESSION_MS,
        )
        if self._is_late(lambda: self._change(change)):
            return
        [result] = self._change(change)
        if isinstance(result, InstanceFenced):
            process.ended = True
        elif isinstance(result, Admitted):
            self.counts["joins"] += 1
            process.joined, process.number = True, result.member
            process.assignments.seen = max(process.assignments.seen, (result.number, result.generation))
            if self._group().row.revoke_ms != REVOKE_MS:
                self._change(Altered(GROUP, session_ms=SESSION_MS, revoke_ms=REVOKE_MS))

    def _heartbeat(self, process: Process) -> None:
        """Ask any broker for the view, tell it what is given up, and go by what it says."""
        for one in process.assignments.releases:
            change = Released(process.assignments.seen[0], process.member, one.incarnation, one.partition, one.grant)
            self._say(change)
        self._coordinator.heard([process.number])
        if process.number in self._heard_ms:
            self._heard_ms[process.number] = self.now_ms
        copy = self._copies[self._leader if self.quiet else self.rng.randrange(BROKERS)]
        group = copy.group(GROUP)
        seen = _NOTHING if group is None else (group.row.number, group.row.generation)
        if self._is_behind(process, copy, seen):
            return
        try:
            member = copy.find_member(GROUP, process.member)
        except InstanceFenced:
            process.ended = True
            return
        except MemberUnknown:
            newest = self._newest.group(GROUP)
            known = None if newest is None else newest.ids.get(process.member)
            self.judge.told_unknown(process.member, known == process.number)  # a late join may have made another one
            self._lose_all(process)
            return
        assert group is not None
        shown = copy.member_view(group, member)
        held, revoked = (
            [Granted(one.topic, one.incarnation, one.partition, one.grant) for one in found]
            for found in (shown.held, shown.revoked)
        )
        turn = process.assignments.take(View((shown.number, shown.generation), held, revoked))
        for one in turn.lost:
            process.positions.pop(one, None)

    def _say(self, release: Released) -> None:
        if not self._is_late(lambda: self._change(release), 0.4):
            self._change(release)

    def _is_behind(self, process: Process, copy: Cluster, seen: tuple[int, int]) -> bool:
        """Whether this copy has not heard yet of what the member has seen: rule 1."""
        return seen < process.assignments.seen

    def _lose_all(self, process: Process) -> None:
        self.counts["lost"] += 1
        process.forget()

    def _leave(self, process: Process) -> None:
        """Commit, release, and go."""
        for one, phase in list(process.assignments.phases.items()):
            if phase is not Phase.CLAIMING and self._commit(process, one) is None:
                self._release(process, one)
        self.counts["leaves"] += 1
        self._change(Left(GROUP, process.member))
        process.forget()
        process.ended = True

    def _kill(self, process: Process) -> None:
        self.counts["kills"] += 1
        process.ended = True

    def _sleep(self, process: Process) -> None:
        self.counts["sleeps"] += 1
        process.asleep = self.rng.randint(5, 60)

    # ------------------------------------------------------------------ partitions

    def _is_late(self, act: Callable[[], object], chance: float = 0.1) -> bool:
        """Whether a request is left in the network, to arrive later, twice, or never."""
        if self.quiet or self.rng.random() > chance:
            return False
        self.counts["late"] += 1
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            self._late.append(lambda: (act(), None)[1])
        return True

    def _resolve(self, partition: int, member: str, seen: tuple[int, int]) -> tuple[int, int] | LannerError | None:
        copy = self._copies[self.partitions[partition].leader]
        topic = copy.topics.get(TOPIC)
        if topic is None:
            return None
        try:
            return copy.resolve(GROUP, member, seen, (topic.incarnation, partition))
        except LannerError as error:
            return error

    def _claim(self, process: Process, one: Granted) -> None:
        seen = process.assignments.seen
        if self._is_late(lambda: self._claim_at(one.partition, process.member or "gone", seen)):
            return
        answer = self._claim_at(one.partition, process.member, seen)
        if isinstance(answer, Claimed):
            if process.assignments.claimed(one):
                process.positions[one] = answer.offset
                process.sequence = max(process.sequence, answer.sequence)
        elif isinstance(answer, (MemberFenced, MemberUnknown)):
            self._fenced(process, one)

    def _claim_at(self, partition: int, member: str, seen: tuple[int, int]) -> Any:
        fence = self._resolve(partition, member, seen)
        if not isinstance(fence, tuple):
            return fence
        answer = self.partitions[partition].ask(Claim(GROUP, member, fence), self.now_ms)
        self._note(f"claim {partition} {member} {fence} {answer}")
        if isinstance(answer, Claimed):
            workers = [
                Worker(one.member, one.member in self._excused or one.ended)
                for one in self.processes
                for granted, phase in one.assignments.phases.items()
                if granted.partition == partition and phase is not Phase.CLAIMING
            ]
            self.judge.claimed(partition, member, fence, answer.offset, workers)
        return answer

    def _work(self, process: Process, one: Granted) -> None:
        if process.positions[one] < self.partitions[one.partition].machine.end_offset:
            process.positions[one] += 1

    def _commit(self, process: Process, one: Granted) -> Any:
        """None: it was accepted, and answered."""
        process.sequence += 1
        seen, member = process.assignments.seen, process.member
        sequence, offset = process.sequence, process.positions[one]
        if self._is_late(lambda: self._commit_at(one.partition, member, seen, sequence, offset)):
            return "no answer"
        answer = self._commit_at(one.partition, member, seen, sequence, offset)
        if isinstance(answer, (MemberFenced, MemberUnknown)):
            self._fenced(process, one)
        return answer

    def _commit_at(self, partition: int, member: str, seen: tuple[int, int], sequence: int, offset: int) -> Any:
        fence = self._resolve(partition, member, seen)
        if not isinstance(fence, tuple):
            return fence or "behind"
        found = self.partitions[partition]
        before = found.committed()
        answer = found.ask(CommitOffset(GROUP, offset, member, sequence, fence=fence), self.now_ms)
        self._note(f"commit {partition} {member} {fence} {sequence} {offset} {answer}")
        if answer is None:
            self.judge.committed(partition, member, fence, before, found.committed())
        return answer

    def _fenced(self, process: Process, one: Granted) -> None:
        self.counts["fenced"] += 1
        self._excused.add(process.member)
        process.positions.pop(one, None)
        process.assignments.fenced(one)

    def _finish(self, process: Process, one: Granted) -> None:
        """Give up what is revoked: commit, wait for the answer, release."""
        if self._commit(process, one) is None and one in process.assignments.phases:
            self._release(process, one)

    def _release(self, process: Process, one: Granted) -> None:
        group = self._newest.group(GROUP)
        number = -1 if group is None else group.ids.get(process.member, -1)
        if group is not None and group.owner_of(one.partition_id)[:2] == (number, one.grant):
            self.judge.released(one.partition, process.positions[one])
        process.positions.pop(one, None)
        process.assignments.release(one)

    # ------------------------------------------------------------------ operators and brokers

    def _interfere(self) -> None:
        """What an operator does to this kind of group."""
        self._reset()

    def _reset(self) -> None:
        """Seek back while members work: first a generation that is made for it, then the seek under that one."""
        [touched] = self._change(Altered(GROUP))
        if not isinstance(touched, Changed):
            return
        self.counts["resets"] += 1
        partition = self.rng.randrange(len(self.partitions))
        seen = self._reset_seen(touched)
        fence = self._resolve(partition, "", seen)
        if isinstance(fence, tuple):
            answer = self.partitions[partition].ask(Seek(GROUP, 0, fence), self.now_ms)
            self._note(f"seek {partition} {fence} {answer}")
            if answer is None:
                self.judge.sought(partition, fence, 0)
                self._excused |= set(self._group().ids)

    def _reset_seen(self, touched: Changed) -> tuple[int, int]:
        return touched.number, touched.generation

    def _grow(self) -> None:
        if len(self.partitions) < _PARTITIONS_MAX:
            self._propose(encode_alter_topic(TOPIC, {"partitions": len(self.partitions) + 1}))
            self.partitions.append(SimPartition(self.rng.randrange(BROKERS)))
            self.partitions[-1].append(self.rng.randint(5, 40), self.now_ms)

    def _forget_group(self) -> None:
        group = self._newest.group(GROUP)
        if group is not None and not group.members:
            self._change(Forgotten(group.row.number, group.row.generation))
            self.counts["forgotten"] += 1

    def _transfer(self) -> None:
        self.rng.choice(self.partitions).leader = self.rng.randrange(BROKERS)
        self.counts["transfers"] += 1

    def _arrive(self) -> None:
        if self._late:
            self._late.pop(self.rng.randrange(len(self._late)))()

    # ------------------------------------------------------------------ the run

    def run(self, steps: int = STEPS) -> list[Violation]:
        try:
            for _ in range(steps):
                self._step()
            self._come_to_rest()
        except (AssertionError, KeyError) as error:  # a machine, or a copy of it, cannot go on
            self.judge.broken("state", f"something that must hold does not: {error!r}")
        return self.judge.violations

    def _step(self) -> None:
        for process in self.processes:
            process.asleep = max(0, process.asleep - 1)
        acts: list[tuple[int, Callable[[], None]]] = [
            (14, self._tick),
            (6, self._start),
            (10, self._catch_up),
            (3, self._arrive),
            (2, self._transfer),
            (1, self._elect),
            (1, self._grow),
        ]
        if self._newest.group(GROUP) is not None:
            acts += [(1, self._interfere), (2, self._forget_group)]
        if self._static:
            acts.append((1, self._start_twice))
        awake = self._awake()
        if awake:
            acts.append((40, lambda: self._act(self.rng.choice(awake))))
        weights = [weight for weight, _ in acts]
        self.rng.choices([act for _, act in acts], weights)[0]()

    def _act(self, process: Process) -> None:
        if not process.joined:
            self._join(process)
            return
        drawn = self.rng.random()
        if drawn < self._odds[0]:
            self._kill(process)
        elif drawn < self._odds[1]:
            self._sleep(process)
        elif drawn < self._odds[2]:
            self._leave(process)
        elif drawn < 0.25:
            self._heartbeat(process)
        else:
            self._go_on(process)

    def _go_on(self, process: Process) -> None:
        """Do one of the things that a member does with a partition."""
        phases = process.assignments.phases
        if not phases:
            return
        one = self.rng.choice(list(phases))
        if phases[one] is Phase.CLAIMING:
            self._claim(process, one)
        elif phases[one] is Phase.REVOKED:
            self._finish(process, one)
        elif self.rng.random() < 0.7:
            self._work(process, one)
        else:
            self._commit(process, one)

    def _come_to_rest(self) -> None:
        """No faults any more: each living process does what is to be done, until nothing is."""
        self.quiet = True
        self._late.clear()
        for process in self.processes:
            process.asleep = 0
        last, still = -1, 0
        for _ in range(400):
            for broker in range(BROKERS):
                while self._copies[broker].applied_index < len(self._log):
                    self._apply_next(broker)
            for process in self._awake():
                if not process.joined:
                    self._join(process)
                for one, phase in list(process.assignments.phases.items()):
                    if phase is Phase.CLAIMING:
                        self._claim(process, one)
                    elif phase is Phase.REVOKED:
                        self._finish(process, one)
            self._tick()
            still = still + 1 if len(self._log) == last else 0
            last = len(self._log)
            if still > (SESSION_MS + REVOKE_MS) // TICK_MS:
                break
        self._judge_rest(still > 0)

    def _judge_rest(self, still: bool) -> None:
        self._newest.check()
        living = [one for one in self._awake() if one.joined]
        if not still:
            self.judge.broken("rest", "the group does not come to rest")
        group = self._newest.group(GROUP)
        if group is None:
            if living:
                self.judge.broken("rest", "there are members, and no group")
            return
        if set(group.ids) != {one.member for one in living}:
            self.judge.broken("rest", f"members are {sorted(group.ids)}, {[one.member for one in living]} live")
        if group.shared:
            return
        working = {
            (granted.partition, granted.grant): process.number
            for process in living
            for granted, phase in process.assignments.phases.items()
            if phase is Phase.WORKING
        }
        for incarnation in group.topics():
            row = group.owners[incarnation]
            for partition, (owner, grant, heir) in enumerate(zip(row.owners, row.grants, row.heirs, strict=True)):
                if not owner or heir or working.get((partition, grant)) != owner:
                    self.judge.broken("rest", f"{owner} has not claimed what it owns under {grant}", partition)
