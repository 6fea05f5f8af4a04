"""Changes of the metadata: where they go, and what is said of one whose first outcome was not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lanner.broker.proposals import COMMAND_BYTES_MAX, OUTCOMES_MAX, Outcomes, Proposals
from lanner.cluster import encode_rebalance
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotLeader,
    NotSupported,
    ServiceUnavailable,
    TopicExists,
    ValidationError,
)
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Control
from lanner.wire.peers import Proposed

COMMAND = encode_rebalance(1)


class Script:
    """A broker that leads the metadata, or knows who does; each proposal meets the next outcome of the script."""

    node_id = "own"

    def __init__(self, leader: str, *outcomes: Any) -> None:
        self.leader = leader
        self.outcomes = list(outcomes)
        self.metadata_index = 10
        self.asked: list[bytes] = []
        self.followed = 0
        self.proposals = Proposals("own", self, self, self, self, kick=lambda: None, follow=self.follow)

    def leader_of(self, set_id: int) -> str:
        return self.leader

    def is_alive(self, node_id: str) -> bool:
        return True

    def follow(self) -> None:
        self.followed += 1

    def propose(self, set_id: int, command: bytes, on_applied: Callable[[Any], None]) -> int:
        self.asked.append(command)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, NotLeader):
            raise outcome
        if outcome is not None:
            asyncio.get_running_loop().call_soon(self._apply, command, outcome, on_applied)
        return self.metadata_index + 1

    def _apply(self, command: bytes, outcome: Any, on_applied: Callable[[Any], None]) -> None:
        lost = isinstance(outcome, tuple)  # it takes effect, and nobody hears of it
        self.metadata_index += 1
        self.proposals.outcomes.note(self.metadata_index, command, outcome[0] if lost else outcome)
        on_applied(NotLeader("not known here") if lost else outcome)

    async def call(
        self,
        node_id: str,
        command: Command,
        control: Control,
        bulk: Sequence[bytes | memoryview] = (),
        *,
        timeout_ms: int,
        caller: str = "",
    ) -> Reply:
        assert (node_id, command) == (self.leader, Command.PROPOSE)
        self.asked.append(bytes(bulk[0]))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.metadata_index += 1
        if outcome is not None:
            self.proposals.outcomes.note(self.metadata_index, bytes(bulk[0]), outcome)
        return Reply(1, Command.PROPOSE, Proposed(self.metadata_index), memoryview(b""))

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> None:
        assert condition()


async def test_a_leader_proposes_here_and_tells_what_it_came_to() -> None:
    node = Script("own", "made")
    assert await node.proposals.propose(COMMAND, 1_000) == "made"
    assert await Script("own", "made").proposals.propose_here(COMMAND, 1_000) == (11, "made")


async def test_what_the_machine_refuses_is_raised() -> None:
    with pytest.raises(TopicExists):
        await Script("own", TopicExists()).proposals.propose(COMMAND, 1_000)
    with pytest.raises(TopicExists):
        await Script("other", TopicExists()).proposals.propose(COMMAND, 1_000)


async def test_everybody_else_sends_it_to_the_leader_and_has_the_outcome_from_the_own_machine() -> None:
    node = Script("other", "made")
    assert await node.proposals.propose(COMMAND, 1_000) == "made"
    assert node.asked == [COMMAND]


async def test_it_is_tried_again_while_nobody_leads_or_the_connection_breaks() -> None:
    node = Script("other", ConnectionLost("cut"), NotLeader("not me"), ServiceUnavailable("draining"), "made")
    assert await node.proposals.propose(COMMAND, 5_000) == "made"
    assert len(node.asked) == 4


async def test_nobody_for_too_long_is_a_missed_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="nobody leads the metadata"):
        await Script("").proposals.propose(COMMAND, 50)
    with pytest.raises(DeadlineExceeded, match="did not commit in time"):
        await Script("own", None).proposals.propose(COMMAND, 50)


async def test_a_command_that_took_effect_unheard_is_not_reported_as_somebody_elses() -> None:
    node = Script("own", ("made",), TopicExists())
    assert await node.proposals.propose(COMMAND, 5_000) == "made"
    assert node.asked == [COMMAND, COMMAND]


async def test_what_somebody_else_did_before_is_still_a_conflict() -> None:
    node = Script("own", NotLeader("not yet"), TopicExists())
    node.proposals.outcomes.note(9, COMMAND, "made")
    with pytest.raises(TopicExists):
        await node.proposals.propose(COMMAND, 5_000)


async def test_an_outcome_that_came_within_a_snapshot_is_not_known() -> None:
    node = Script("other", None)
    with pytest.raises(ServiceUnavailable, match="outcome is not known"):
        await node.proposals.propose(COMMAND, 1_000)


@pytest.mark.parametrize("size", [0, COMMAND_BYTES_MAX + 1])
async def test_commands_are_bounded(size: int) -> None:
    with pytest.raises(ValidationError, match="too short or too long"):
        await Script("own").proposals.propose_here(b"x" * size, 1_000)


def test_only_so_many_outcomes_are_kept() -> None:
    outcomes = Outcomes()
    for index in range(OUTCOMES_MAX + 1):
        outcomes.note(index, COMMAND, index)
    assert isinstance(outcomes.at(0), ServiceUnavailable)
    assert outcomes.at(OUTCOMES_MAX) == OUTCOMES_MAX


async def test_a_command_that_this_release_does_not_know_is_not_proposed() -> None:
    """Once it were committed, every broker that does not know it would stop."""
    node = Script("own")
    with pytest.raises(NotSupported, match="command 119 is not known"):
        await node.proposals.propose_here(b"\x77\x01\x90", 1_000)
    assert node.asked == []
