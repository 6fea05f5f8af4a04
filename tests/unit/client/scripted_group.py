"""A group on a scripted broker: a test decides who has what, and sees what the client says to it."""

from __future__ import annotations

from typing import Any

from lanner.batch import encode
from lanner.client.assignments import Granted
from lanner.errors import LannerError
from lanner.wire.members import (
    ClaimedPartition,
    ClaimedPartitions,
    ClaimPartitions,
    GrantedPartition,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberView,
)
from lanner.wire.messages import (
    Command,
    Commit,
    Empty,
    Fetch,
    Fetched,
    FetchedBatch,
    LeasedRange,
    Poll,
    Polled,
    PolledBatch,
)

NUMBER = 7
SESSION_MS = 400


class ScriptedGroup:
    """Its partitions hold `messages` messages each, named `partition:offset`."""

    def __init__(self, broker: Any, messages: int = 10) -> None:
        self.broker = broker
        self.messages = messages
        self.generation = 1
        self.shared = False
        self.held: list[Granted] = []
        self.revoked: list[Granted] = []
        self.begins: dict[int, int] = {}  # partition → what a claim answers
        self.refusal: LannerError | None = None  # the answer to every heartbeat
        self.commit_error: LannerError | None = None
        self.commits: list[Commit] = []
        self.leased: set[int] = set()  # partitions whose messages were handed out
        self.log: list[str] = []
        answers = broker.answers
        answers[Command.JOIN_GROUP] = self.join
        answers[Command.HEARTBEAT] = self.heartbeat
        answers[Command.LEAVE_GROUP] = self.leave
        answers[Command.CLAIM_PARTITIONS] = self.claim
        answers[Command.COMMIT] = self.commit
        answers[Command.FETCH] = self.fetch
        answers[Command.POLL] = self.poll

    def show(self, *held: Granted, revoked: tuple[Granted, ...] = (), shared: bool = False) -> None:
        """From now on the member's view is this."""
        self.generation += 1
        self.held, self.revoked, self.shared = list(held), list(revoked), shared

    def of(self, command: Command) -> list[Any]:
        calls: list[Any] = self.broker.of(command)
        return calls

    @property
    def released(self) -> set[tuple[int, int]]:
        return {(one.partition, one.grant) for call in self.of(Command.HEARTBEAT) for one in call.released}

    def view(self, news: bool = True) -> MemberView:
        held, revoked = ([GrantedPartition(*one) for one in some] for some in (self.held, self.revoked))
        if not news:
            held = revoked = []
        return MemberView(NUMBER, self.generation, 1, SESSION_MS, held, revoked, 0, news, "sticky", self.shared)

    def join(self, call: JoinGroup, request: Any) -> Any:
        self.log.append("join")
        return self.view()

    def heartbeat(self, call: Heartbeat, request: Any) -> Any:
        self.log += [f"release {one.partition}" for one in call.released]
        if self.refusal is not None:
            return self.refusal
        return self.view(news=call.generation < self.generation)

    def leave(self, call: LeaveGroup, request: Any) -> Any:
        self.log.append("leave")
        return Empty()

    def claim(self, call: ClaimPartitions, request: Any) -> Any:
        return ClaimedPartitions([ClaimedPartition(one, offset=self.begins.get(one, 0)) for one in call.partitions])

    def commit(self, call: Commit, request: Any) -> Any:
        self.commits.append(call)
        if self.commit_error is not None:
            return self.commit_error
        self.log.append(f"commit {dict(call.offsets)}")
        return Empty()

    def fetch(self, call: Fetch, request: Any) -> Any:
        count = self.messages - call.offset
        if count <= 0:
            return None
        data = encode([b"%d:%d" % (call.partition, call.offset + place) for place in range(count)])
        batch = FetchedBatch(call.offset, count, 77, len(data))
        return Fetched(0, self.messages, self.messages, [batch], 1), [data]

    def poll(self, call: Poll, request: Any) -> Any:
        """One message of each partition asked for, once."""
        chosen = [one for one in call.partitions or [] if one not in self.leased]
        if not chosen:
            return None if call.wait_ms else Polled([])
        self.leased.update(chosen)
        data = [encode([b"%d:0" % one]) for one in chosen]
        batches = [
            PolledBatch(one, 5, 0, 77, 9_999, 4, len(part), [LeasedRange(0, 1, 1)])
            for one, part in zip(chosen, data, strict=True)
        ]
        return Polled(batches), data


def granted(partition: int, grant: int, topic: str = "t") -> Granted:
    return Granted(topic, 1, partition, grant)
