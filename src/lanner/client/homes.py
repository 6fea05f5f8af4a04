"""The brokers as the home of a member: who hears its heartbeats, and who leads what it claims.

Rules:
- Any broker can be the home. It stays the same while it answers; a member that asks for another gets another, if there
  is one that can be reached.
- A heartbeat waits at its home. One that is not answered within twice that wait has failed.
- Joining and leaving go to any broker, and are repeated until the deadline: the member's id makes that safe.
- A member that joins again after an eviction takes the group as it is: an operator may have altered its assignor.
- A claim goes to the leader of each partition, once; the member repeats what failed. Partitions that came to the topic
  after the group wanted it begin at the earliest message, wherever the group began: else what was published before the
  claim would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.client.assignments import Granted, Seen, View
from lanner.client.brokers import Brokers
from lanner.client.member_ports import Told
from lanner.client.routing import Routing
from lanner.client.session import Session
from lanner.errors import AssignorConflict, LannerError, NotLeader, ServiceUnavailable, from_wire
from lanner.model import TopicPartitionId
from lanner.wire.members import (
    ClaimedPartitions,
    ClaimPartitions,
    GrantedPartition,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberView,
)
from lanner.wire.messages import Command

_CONNECTING_S: Final = 2.0
_ANSWER_MS_MIN: Final = 500  # what a home may take beside the wait
EARLIEST: Final = "earliest"


class BrokerHome:
    """The home of one member, over the connections of its client."""

    def __init__(self, brokers: Brokers, routing: Routing, joining: JoinGroup) -> None:
        self._brokers = brokers
        self._routing = routing
        self._joining = joining  # what every join says; each has an id of its own
        self._session: Session | None = None  # with the broker that heard the latest heartbeat
        self._late: set[TopicPartitionId] = set()  # partitions that came after the group had wanted their topic
        self._has_joined = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_closed(self) -> bool:
        return self._brokers.is_closed

    async def join(self, member_id: str) -> Told:
        call = replace(self._joining, member_id=member_id)
        try:
            view = await self._brokers.ask(call)
        except AssignorConflict:
            if not self._has_joined:
                raise
            view = await self._brokers.ask(replace(call, assignor=""))
        self._has_joined = True
        return self._told(view)

    def is_late(self, partition_id: TopicPartitionId) -> bool:
        """Whether this partition came to its topic after the group had wanted that."""
        return partition_id in self._late

    async def heartbeat(
        self, member_id: str, seen: Seen, released: Sequence[Granted], wait_ms: int, elsewhere: bool
    ) -> Told:
        answer_ms = wait_ms + max(wait_ms, _ANSWER_MS_MIN)
        session = await self._reached(answer_ms, elsewhere)
        given_up = [GrantedPartition(*one) for one in released[: limits.RELEASES_MAX]]
        call = Heartbeat(self._joining.group, member_id, *seen, given_up, wait_ms)
        outcome = await session.ask(Command.HEARTBEAT, call, answer_ms)
        if isinstance(outcome, LannerError):
            raise outcome
        assert isinstance(outcome.control, MemberView)
        return self._told(outcome.control)

    async def _reached(self, timeout_ms: int, elsewhere: bool) -> Session:
        session = self._session
        if session is None or not session.is_up or elsewhere:
            avoid = () if session is None else (session,)
            session = await self._brokers.reached(self._loop.time() + timeout_ms / 1000, avoid)
            self._session = session
        return session

    async def leave(self, member_id: str, reason: str) -> None:
        call = LeaveGroup(self._joining.group, member_id, reason[: limits.REASON_LENGTH_MAX])
        await self._brokers.ask(call)

    async def claim(
        self, member_id: str, seen: Seen, granted: Sequence[Granted]
    ) -> Mapping[Granted, int | LannerError]:
        found: dict[Granted, int | LannerError] = {}
        alike: dict[tuple[str, int, str], list[Granted]] = {}
        for one in granted:
            start = EARLIEST if one.partition_id in self._late else self._joining.start
            alike.setdefault((one.topic, one.incarnation, start), []).append(one)
        for answers in await asyncio.gather(
            *(self._claim_alike(member_id, seen, start, some) for (_, _, start), some in alike.items())
        ):
            found.update(answers)
        return found

    async def _claim_alike(
        self, member_id: str, seen: Seen, start: str, granted: list[Granted]
    ) -> dict[Granted, int | LannerError]:
        """Claim partitions of one topic, each where it is led."""
        topic = granted[0].topic
        try:
            await self._routing.route(topic)
        except LannerError as error:
            return dict.fromkeys(granted, error)
        by_partition = {one.partition: one for one in granted}
        led, orphans = self._routing.by_leader(topic, by_partition)
        found: dict[Granted, int | LannerError] = {
            by_partition[one]: NotLeader(f"nobody leads {topic}/{one} at present") for one in orphans
        }

        async def claim_at(session: Session, partitions: list[int]) -> None:
            incarnation = granted[0].incarnation
            call = ClaimPartitions(topic, self._joining.group, member_id, *seen, incarnation, partitions, start)
            await session.wait_until_tried(self._loop.time() + _CONNECTING_S)
            outcome = await session.ask(Command.CLAIM_PARTITIONS, call)
            answers = _answers(outcome if isinstance(outcome, LannerError) else outcome.control, topic, partitions)
            for partition, answer in answers.items():
                found[by_partition[partition]] = answer
                if isinstance(answer, LannerError):
                    self._routing.failed(topic, partition, session, answer)

        await asyncio.gather(*(claim_at(session, partitions) for session, partitions in led.items()))
        return found

    def _told(self, view: MemberView) -> Told:
        shown = None
        if view.news:
            self._late = {(one.incarnation, one.partition) for one in (*view.held, *view.revoked) if not one.first}
            shown = View((view.number, view.generation), _granted(view.held), _granted(view.revoked))
        return Told(shown, view.session_ms, view.confirmed_ms, view.shared)


def _granted(partitions: Sequence[GrantedPartition]) -> list[Granted]:
    return [Granted(one.topic, one.incarnation, one.partition, one.grant) for one in partitions]


def _answers(outcome: object, topic: str, partitions: Sequence[int]) -> dict[int, int | LannerError]:
    """What a leader says of each partition that it was asked for; one that it leaves out is asked for again."""
    if isinstance(outcome, LannerError):
        return dict.fromkeys(partitions, outcome)
    assert isinstance(outcome, ClaimedPartitions)
    told = {one.partition: one for one in outcome.partitions}
    answers: dict[int, int | LannerError] = {}
    for partition in partitions:
        one = told.get(partition)
        if one is None:
            answers[partition] = ServiceUnavailable(f"the broker did not answer for {topic}/{partition}")
        elif one.code:
            why = from_wire(one.code, "").message.rstrip(".")
            answers[partition] = from_wire(one.code, f"{topic}/{partition} could not be claimed: {why}")
        else:
            answers[partition] = one.offset
    return answers
