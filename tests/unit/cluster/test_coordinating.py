"""What the leader of the metadata proposes, and when: driven tick by tick, with every proposal applied or lost."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.cluster import Assigned, Change, Expired, Forced, Forgotten, coordinating, encode_change_groups
from lanner.cluster.assignors import ASSIGNORS
from lanner.cluster.coordinating import FIRST_OPEN_MS_MAX, OPEN_MS_MAX, QUIET_MS, Coordinator
from tests.unit.cluster.groups import QUEUE, Groups

TICK_MS = 50


class Led(Groups):
    """A machine whose leader's coordinator sees everything that applies."""

    def __init__(self) -> None:
        super().__init__()
        self.create("orders", partitions=4)
        self.elect()

    def elect(self) -> None:
        self.machine.take_changed_groups()
        self.coordinator = Coordinator(self.machine, TICK_MS)

    def apply(self, payload: bytes | None) -> Any:
        result = super().apply(payload)
        if hasattr(self, "coordinator"):
            self.coordinator.applied(self.machine.take_changed_groups())
        return result

    def live(self, milliseconds: int, *heard: str, propose: bool = True) -> list[Change]:
        """Tick by tick; these members are heard at each. What was proposed meanwhile."""
        made: list[Change] = []
        for _ in range(milliseconds // TICK_MS):
            self.coordinator.heard(self.number(member) for member in heard if member in self.group().ids)
            self.coordinator.tick()
            made += self.propose() if propose else []
        return made

    def propose(self) -> list[Change]:
        for asked in self.coordinator.questions():
            self.coordinator.answered(asked, ASSIGNORS[asked.assignor](asked.question))
        due = self.coordinator.due(self.now_ms)
        if due:
            self.change(*due)
        return due

    def kinds(self, made: list[Change]) -> list[str]:
        return [type(one).__name__ for one in made]


@pytest.fixture
def led() -> Led:
    return Led()


# ------------------------------------------------------------------ assignments


def test_a_question_is_asked_once_nothing_has_changed_for_a_moment(led: Led) -> None:
    led.join_group("m1")
    assert led.live(QUIET_MS - TICK_MS) == []
    led.join_group("m2")
    assert led.live(QUIET_MS - TICK_MS) == []
    [assigned] = led.live(TICK_MS)
    assert isinstance(assigned, Assigned)
    assert led.owners() == ["m1", "m2", "m1", "m2"]
    assert led.live(2_000, "m1", "m2") == [], "the question is closed"


@pytest.mark.parametrize("first", [True, False])
def test_a_storm_of_joins_does_not_put_the_question_off_for_ever(led: Led, first: bool) -> None:
    if not first:
        led.join_group("m0")
        led.live(500, "m0")
    made: list[Change] = []
    waited_ms = 0
    while not made:
        led.join_group(f"m{waited_ms + 1}")
        made = led.live(TICK_MS)
        waited_ms += TICK_MS
    assert waited_ms == (FIRST_OPEN_MS_MAX if first else OPEN_MS_MAX)


def test_an_answer_to_a_question_that_has_changed_is_not_used(led: Led) -> None:
    led.join_group("m1")
    led.live(QUIET_MS, propose=False)
    [asked] = led.coordinator.questions()
    led.join_group("m2")
    led.coordinator.answered(asked, ASSIGNORS["sticky"](asked.question))
    assert led.coordinator.due(0) == []
    led.live(QUIET_MS)
    assert sorted(led.owners()) == ["m1", "m1", "m2", "m2"]


def test_a_proposal_that_was_lost_is_made_again(led: Led) -> None:
    led.join_group("m1")
    led.live(QUIET_MS, propose=False)
    for asked in led.coordinator.questions():
        led.coordinator.answered(asked, ASSIGNORS[asked.assignor](asked.question))
    first = led.coordinator.due(0)
    assert first and led.coordinator.due(0) == first
    assert led.coordinator.questions() == [], "the answer is known"


def test_what_an_owner_gave_up_for_nobody_is_assigned_again(led: Led) -> None:
    led.join_group("m1")
    led.live(500, "m1")
    led.release("m1", 2)
    assert led.owners() == ["m1", "m1", "-", "m1"]
    assert led.kinds(led.live(500, "m1")) == ["Assigned"]
    assert led.owners() == ["m1"] * 4


def test_in_a_shared_group_there_is_nothing_to_assign(led: Led) -> None:
    led.join_group("m1", kind=QUEUE)
    assert led.live(2_000, "m1") == []


def test_an_assignment_that_does_not_fit_into_a_command_is_made_in_parts(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_MOVES_MAX", 3)
    led.join_group("m1")
    made = led.live(500, "m1")
    assert [sum(len(one.partitions) for one in change.moves) for change in made] == [3, 1]  # type: ignore[union-attr]
    assert led.owners() == ["m1"] * 4
    assert len(led.group().row.rebalances) == 1


def test_what_is_due_at_once_always_fits_into_a_command(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinating, "_COMMAND_BYTES", 500)
    monkeypatch.setattr(limits, "GROUP_MOVES_MAX", 30)
    led.grow(40)
    for member in range(12):
        led.join_group(f"m{member}", session_ms=1_000)
    led.live(FIRST_OPEN_MS_MAX, propose=False)
    for asked in led.coordinator.questions():
        led.coordinator.answered(asked, ASSIGNORS[asked.assignor](asked.question))
    sizes = []
    while due := led.coordinator.due(0):
        sizes.append(len(due))
        assert len(encode_change_groups(due, 1)) <= 500
        led.change(*due)
    assert sizes == [8, 4]


# ------------------------------------------------------------------ silence


def test_a_member_that_is_silent_for_a_session_expires_and_the_others_stay(led: Led) -> None:
    led.join_group("m1")
    led.join_group("m2", session_ms=2_000)
    led.join_group("m3", session_ms=2_000)
    led.live(1_000, "m1", "m2", "m3")
    assert led.coordinator.silent_ms(led.number("m2")) == TICK_MS
    made = led.live(1_900, "m1", "m3")
    assert "Expired" not in led.kinds(made)
    made = led.live(500, "m1", "m3")
    assert led.kinds(made)[0] == "Expired"
    assert set(led.group().ids) == {"m1", "m3"}
    assert led.coordinator.silent_ms(99) is None


def test_members_that_fall_silent_together_expire_in_one_command(led: Led) -> None:
    for member in ("m1", "m2", "m3"):
        led.join_group(member)
    made = led.live(limits.SESSION_MS)
    assert led.kinds(made)[-3:] == ["Expired"] * 3
    assert not led.group().members


def test_a_member_that_is_heard_before_its_end_has_applied_lives_on(led: Led) -> None:
    led.join_group("m1")
    led.live(limits.SESSION_MS, propose=False)
    assert led.kinds(led.coordinator.due(0)) == ["Expired"]
    led.coordinator.heard([led.number("m1")])
    assert led.coordinator.due(0) == []
    led.live(limits.SESSION_MS - TICK_MS)
    assert "m1" in led.group().ids
    led.live(TICK_MS)
    assert not led.group().ids


def test_a_new_leader_starts_every_silence_and_every_wait_at_zero(led: Led) -> None:
    led.join_group("m1")
    led.live(500, "m1")
    led.join_group("m2")
    led.live(limits.SESSION_MS - 2 * TICK_MS, "m2", propose=False)
    led.propose()
    led.elect()
    made = led.live(limits.SESSION_MS - TICK_MS, "m2")
    assert made == [], "nobody is taken for silent whom this leader has had no time to hear"
    assert led.kinds(led.live(TICK_MS, "m2"))[0] == "Expired"


def test_a_shorter_session_counts_within_the_default_one(led: Led) -> None:
    led.join_group("m1", session_ms=0)
    led.alter(session_ms=300_000, revoke_ms=300_000)
    led.live(60_000, "m1")
    led.alter(session_ms=1_000)
    led.live(limits.SESSION_MS + 1_000)
    assert not led.group().members


# ------------------------------------------------------------------ hand-overs


def test_an_owner_that_does_not_give_up_in_time_is_forced(led: Led) -> None:
    led.join_group("m1")
    led.live(500, "m1")
    led.alter(revoke_ms=limits.SESSION_MS)
    led.join_group("m2")
    led.live(500, "m1", "m2")
    assert led.owners() == ["m1", "m1", "m1>m2", "m1>m2"]
    led.release("m1", 2)
    made = led.live(limits.SESSION_MS, "m1", "m2")
    assert [type(one) for one in made] == [Forced]
    assert led.owners() == ["m1", "m1", "m2", "m2"]
    assert set(led.group().ids) == {"m1", "m2"}, "the slow one stays a member"


def test_a_wait_begins_anew_when_another_process_is_to_follow(led: Led) -> None:
    led.join_group("m1")
    led.live(500, "m1")
    led.alter(revoke_ms=limits.SESSION_MS)
    led.join_group("m2", instance="web-1")
    led.live(9_000, "m1", "m2")
    assert led.owners()[3] == "m1>m2"
    led.join_group("m3", instance="web-1")
    assert led.live(9_000, "m1", "m3") == []
    assert "Forced" in led.kinds(led.live(2_000, "m1", "m3"))


# ------------------------------------------------------------------ groups that nobody uses


def test_a_group_without_members_is_forgotten_after_its_time(led: Led) -> None:
    led.join_group("m1")
    led.join_group("m2", "other")
    led.leave("m1")
    assert led.live(1_000) == [] or led.machine.group("g") is not None
    led.coordinator.heard([led.number("m2", "other")])
    [forgotten] = led.coordinator.due(led.now_ms + limits.GROUP_IDLE_MS)
    assert isinstance(forgotten, Forgotten)
    led.change(forgotten)
    assert led.machine.group("g") is None and led.machine.group("other") is not None
    assert not any(isinstance(one, Forgotten) for one in led.coordinator.due(led.now_ms + limits.GROUP_IDLE_MS))


def test_members_of_a_group_that_went_are_not_counted_any_more(led: Led) -> None:
    led.join_group("m1")
    number = led.number("m1")
    led.leave("m1")
    assert led.coordinator.silent_ms(number) is None
    led.coordinator.heard([number])
    assert not any(isinstance(one, Expired) for one in led.live(60_000))
