"""Every rule with a history that keeps it and one that breaks it: a checker that cannot fail is a defect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lanner.testing.checkers import RULES, judge
from lanner.testing.history import (
    Administered,
    Crashed,
    DeadSeen,
    Ended,
    Event,
    FloorSeen,
    Handed,
    History,
    Polled,
    Published,
    ReadBack,
    Rules,
    Settled,
    Status,
    Stored,
)

GROUP = "workers"


class Story:
    """A history told step by step: each call returns before the next begins, unless it says otherwise."""

    def __init__(self, **rules: Any) -> None:
        self.history = History({0: Rules(**rules)})
        self.at = 0.0

    def add(self, make: Callable[[float, float], Event]) -> Story:
        self.at += 2
        self.history.add(make(self.at, self.at + 1))
        return self

    def publish(self, offset: int, *values: str, priority: int = 4, **more: int) -> Story:
        return self.add(
            lambda called, returned: Published(called, returned, Status.OK, 0, offset, values, priority, **more)
        )

    def lose_publish(self, *values: str) -> Story:
        return self.add(lambda called, _: Published(called, None, Status.UNKNOWN, 0, -1, values, 4))

    def poll(
        self, token: int, *messages: Handed, now_ms: int = 0, until_ms: int = 0, auto_ack: bool = False, **more: Any
    ) -> Story:
        return self.add(
            lambda called, returned: Polled(
                called, returned, Status.OK, GROUP, 0, messages, token, now_ms, until_ms, auto_ack=auto_ack, **more
            )
        )

    def lose_poll(self, auto_ack: bool = False) -> Story:
        return self.add(lambda called, _: Polled(called, None, Status.UNKNOWN, GROUP, 0, auto_ack=auto_ack))

    def settle(
        self,
        action: str,
        token: int,
        *offsets: int,
        now_ms: int = 0,
        until_ms: int = 0,
        status: Status = Status.OK,
        lost: bool = False,
    ) -> Story:
        return self.add(
            lambda called, returned: Settled(
                called,
                None if status is Status.UNKNOWN else returned,
                status,
                GROUP,
                0,
                token,
                offsets,
                action,
                now_ms,
                until_ms,
                lost,
            )
        )

    def administer(self, action: str, *offsets: int, status: Status = Status.OK) -> Story:
        return self.add(
            lambda called, returned: Administered(
                called, None if status is Status.UNKNOWN else returned, status, GROUP, 0, action, offsets
            )
        )

    def crash(self) -> Story:
        return self.add(lambda called, _: Crashed(called))

    def end(self, *stored: Stored, drained: bool = True, dead: tuple[int, ...] = (), machine_ms: int = 10_000) -> Story:
        return self.add(
            lambda called, returned: Ended(
                called,
                returned,
                0,
                0,
                100,
                stored,
                machine_ms,
                (GROUP,) if drained else (),
                tuple((GROUP, offset) for offset in dead),
            )
        )

    def broken(self) -> set[str]:
        return {violation.rule for violation in judge(self.history)}


def handed(offset: int, value: str, attempt: int = 1, priority: int = 4) -> Handed:
    return Handed(offset, value, priority, attempt)


def stored(offset: int, value: str, priority: int = 4) -> Stored:
    return Stored(offset, value, priority)


# ------------------------------------------------------------------ histories that break nothing


def test_an_ordinary_history_breaks_nothing() -> None:
    story = Story().publish(0, "a", "b", priority=9).publish(2, "c")
    story.poll(5, handed(0, "a", priority=9), handed(1, "b", priority=9), now_ms=100, until_ms=200)
    story.settle("ack", 5, 0, now_ms=110).settle("nack", 5, 1, now_ms=110, until_ms=150)
    story.poll(6, handed(2, "c"), now_ms=120, until_ms=220).settle("ack", 6, 2)
    story.poll(7, handed(1, "b", 2, 9), now_ms=150, until_ms=250).settle("ack", 7, 1).poll(0, now_ms=160)
    story.end(stored(0, "a", 9), stored(1, "b", 9), stored(2, "c"))
    assert story.broken() == set()


def test_an_unknown_operation_may_have_happened_or_not() -> None:
    for took_effect in (False, True):
        story = Story().publish(0, "a").lose_publish("b")
        story.poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        story.settle("ack", 5, 0, status=Status.UNKNOWN).lose_poll().crash()
        found = [stored(0, "a")]
        if took_effect:
            found.append(stored(1, "b"))
            story.poll(8, handed(1, "b", 2), now_ms=300, until_ms=400).settle("ack", 8, 1)
        else:
            story.poll(8, handed(0, "a", 2), now_ms=300, until_ms=400).settle("ack", 8, 0)
        assert story.end(*found).broken() == set()


# ------------------------------------------------------------------ one history for each rule

BREAKS: dict[str, Callable[[], Story]] = {
    "lost write": lambda: Story().publish(0, "a", "b").end(stored(0, "a"), drained=False),
    "unexpected message": lambda: Story().publish(0, "a").poll(5, handed(1, "z")),
    "duplicate offset": lambda: Story().publish(0, "a").end(stored(0, "a"), stored(1, "a"), drained=False),
    "offset with two values": lambda: (
        Story()
        .publish(0, "a")
        .lose_publish("b")
        .add(lambda called, returned: ReadBack(called, returned, 0, (stored(0, "b"),)))
    ),
    "acked message redelivered": lambda: (
        Story().publish(0, "a").poll(5, handed(0, "a")).settle("ack", 5, 0).poll(6, handed(0, "a", 2))
    ),
    "dead message delivered": lambda: (
        Story().publish(0, "a").poll(5, handed(0, "a")).settle("reject", 5, 0).poll(6, handed(0, "a", 2))
    ),
    "leased twice": lambda: (
        Story()
        .publish(0, "a")
        .poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        .poll(6, handed(0, "a", 2), now_ms=199, until_ms=299)
    ),
    "stale lease accepted": lambda: (
        Story()
        .publish(0, "a")
        .poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        .poll(6, handed(0, "a", 2), now_ms=200, until_ms=300)
        .settle("ack", 5, 0)
    ),
    "settle forgotten": lambda: (
        Story()
        .publish(0, "a")
        .poll(5, handed(0, "a"))
        .settle("ack", 5, 0)
        .settle("ack", 5, 0, status=Status.FAILED, lost=True)
    ),
    "message vanished": lambda: (
        Story().publish(0, "a", "b").poll(5, handed(0, "a")).settle("ack", 5, 0).end(stored(0, "a"), stored(1, "b"))
    ),
    "delivery count went back": lambda: (
        Story()
        .publish(0, "a")
        .poll(5, handed(0, "a", 2), now_ms=100, until_ms=200)
        .poll(6, handed(0, "a", 1), now_ms=200, until_ms=300)
    ),
    "delivered too often": lambda: Story(max_deliveries=2).publish(0, "a").poll(5, handed(0, "a", 3)),
    "dead before the limit": lambda: Story(max_deliveries=5).add(
        lambda called, returned: DeadSeen(called, returned, GROUP, 0, 0, 4, "max deliveries")
    ),
    "died unseen": lambda: (
        Story(max_deliveries=2)
        .publish(0, "a")
        .poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        .poll(6, handed(0, "a", 2), now_ms=200, until_ms=300, unseen=(0,))
        .add(lambda called, returned: DeadSeen(called, returned, GROUP, 0, 0, 2, "lease expired, max deliveries"))
    ),
    "priority inversion": lambda: Story().publish(0, "a").publish(1, "b", priority=9).poll(5, handed(0, "a"), now_ms=1),
    "message withheld": lambda: Story().publish(0, "a").poll(0, now_ms=100).poll(0, now_ms=100),
    "lane out of order": lambda: (
        Story().publish(0, "a").publish(1, "b").poll(5, handed(1, "b"), now_ms=1).poll(6, handed(0, "a"), now_ms=1)
    ),
    "early delivery": lambda: (
        Story().publish(0, "a", deliver_at_ms=200).poll(5, handed(0, "a"), now_ms=199, until_ms=300)
    ),
    "early retry": lambda: (
        Story()
        .publish(0, "a")
        .poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        .settle("nack", 5, 0, now_ms=110, until_ms=180)
        .poll(6, handed(0, "a", 2), now_ms=179, until_ms=300)
    ),
    "late delivery": lambda: (
        Story().publish(0, "a", expires_at_ms=200).poll(5, handed(0, "a"), now_ms=200, until_ms=300)
    ),
    "floor went back": lambda: (
        Story()
        .add(lambda called, returned: FloorSeen(called, returned, GROUP, 0, 9, 4))
        .add(lambda called, returned: FloorSeen(called, returned, GROUP, 0, 8, 4))
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_catches_the_history_that_breaks_it_and_only_that_rule_does(rule: str) -> None:
    assert BREAKS[rule]().broken() == {rule}


def test_no_rule_is_without_a_history_that_breaks_it() -> None:
    assert set(BREAKS) == set(RULES)


def test_deliveries_that_nobody_saw_and_that_were_given_back_or_may_have_been_are_no_fault() -> None:
    def dead(called: float, returned: float) -> Event:
        return DeadSeen(called, returned, GROUP, 0, 0, 2, "max deliveries")

    def story() -> Story:
        seen = Story(max_deliveries=2).publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
        return seen.poll(6, handed(0, "a", 2), now_ms=200, until_ms=300, unseen=(0,))

    released = story().settle("release", 6, 0, now_ms=210).poll(7, handed(0, "a", 2), now_ms=220, until_ms=300)
    assert released.add(dead).broken() == set()
    assert story().settle("release", 6, 0, now_ms=210, status=Status.UNKNOWN).add(dead).broken() == set()
    heard_again = story().poll(6, handed(0, "a", 2), now_ms=200, until_ms=300, repeated=True)
    assert heard_again.add(dead).broken() == set()
    assert story().administer("redrive", 0).add(dead).broken() == set()


# ------------------------------------------------------------------ what is lost, more closely


def test_a_message_stored_under_another_priority_is_lost() -> None:
    assert Story().publish(0, "a", priority=9).end(stored(0, "a", 4), drained=False).broken() == {"lost write"}


def test_two_batches_that_were_told_the_same_offset_are_seen() -> None:
    assert Story().publish(0, "a", "b").publish(1, "c").broken() == {"duplicate offset", "offset with two values"}


def test_a_retry_that_is_told_the_same_offset_is_no_duplicate() -> None:
    assert (
        Story().lose_publish("a").publish(0, "a").publish(0, "a").end(stored(0, "a"), drained=False).broken() == set()
    )


def test_a_repeat_so_old_that_its_place_is_forgotten_proves_nothing() -> None:
    assert Story().publish(-1, "a").end(drained=False).broken() == set()


def test_a_refused_message_that_shows_is_unexpected() -> None:
    story = Story().add(lambda called, returned: Published(called, returned, Status.FAILED, 0, -1, ("a",), 4))
    assert story.end(stored(0, "a"), drained=False).broken() == {"unexpected message"}


@pytest.mark.parametrize(("machine_ms", "broken"), [(1_099, {"lost write"}), (1_100, set())])
def test_age_explains_a_loss_from_its_time_on(machine_ms: int, broken: set[str]) -> None:
    story = Story(retention="time", retention_ms=1_000).publish(0, "a", append_ms=100)
    assert story.end(drained=False, machine_ms=machine_ms).broken() == broken


@pytest.mark.parametrize(("size", "broken"), [(600, {"lost write"}), (900, set())])
def test_bytes_explain_a_loss_when_enough_came_behind(size: int, broken: set[str]) -> None:
    story = Story(retention="time", retention_bytes=1_000).publish(0, "a", size=200).publish(1, "b", size=size)
    assert story.end(stored(1, "b"), drained=False).broken() == broken


def test_a_dead_letter_is_never_explained_away() -> None:
    story = Story(retention="time", retention_ms=1).publish(0, "a", append_ms=1)
    assert story.end(drained=False, dead=(0,)).broken() == {"lost write"}


def test_acks_of_every_group_explain_a_loss_and_of_none_do_not() -> None:
    for action, broken in (("ack", set[str]()), ("extend", {"lost write"})):
        story = Story(retention="acked").poll(0).publish(0, "a").poll(5, handed(0, "a")).settle(action, 5, 0)
        assert story.end(drained=False).broken() == broken


def test_without_any_group_nothing_may_go() -> None:
    assert Story(retention="acked").publish(0, "a").end(drained=False).broken() == {"lost write"}


# ------------------------------------------------------------------ what lost answers leave open


def test_a_poll_that_nobody_heard_of_may_hold_what_is_urgent() -> None:
    story = Story().publish(0, "a").publish(1, "b", priority=9).lose_poll().crash()
    assert story.poll(5, handed(0, "a"), now_ms=100).broken() == set()


def test_what_a_poll_got_that_nobody_heard_of_may_come_after_what_others_got_since() -> None:
    story = Story().publish(0, "a").publish(1, "b").lose_poll()
    story.poll(5, handed(1, "b"), now_ms=1).poll(6, handed(0, "a"), now_ms=1)
    assert story.broken() == set()


def test_what_came_after_the_crash_cannot_be_held_by_a_lost_poll() -> None:
    story = Story().publish(0, "a").lose_poll().crash().publish(1, "b", priority=9)
    assert story.poll(5, handed(0, "a"), now_ms=100).broken() == {"priority inversion"}


def test_a_message_taken_by_a_lost_poll_that_settles_by_itself_has_not_vanished() -> None:
    assert Story().publish(0, "a").lose_poll(auto_ack=True).crash().end(stored(0, "a")).broken() == set()


def test_what_a_poll_settled_by_itself_is_not_delivered_again() -> None:
    story = Story().publish(0, "a").poll(0, handed(0, "a"), auto_ack=True).poll(0, handed(0, "a", 2), auto_ack=True)
    assert story.broken() == {"acked message redelivered"}


def test_an_extension_moves_the_end_of_a_lease() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("extend", 5, 0, now_ms=150, until_ms=500)
    assert story.poll(6, handed(0, "a", 2), now_ms=300, until_ms=400).broken() == {"leased twice"}


def test_a_lease_that_ended_makes_its_message_urgent_again() -> None:
    story = Story().publish(0, "a", priority=9).publish(1, "b")
    story.poll(5, handed(0, "a", priority=9), now_ms=100, until_ms=200)
    assert story.poll(6, handed(1, "b"), now_ms=200, until_ms=300).broken() == {"priority inversion"}


def test_a_released_message_is_delivered_again_under_the_same_count() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("release", 5, 0, now_ms=110)
    assert story.poll(6, handed(0, "a", 1), now_ms=111, until_ms=211).broken() == set()


def test_a_settle_that_was_refused_changed_nothing() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("ack", 5, 0, status=Status.FAILED)
    assert story.end(stored(0, "a")).broken() == {"message vanished"}


def test_a_message_settled_in_two_ways_was_settled_by_nobody_the_second_time() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle("ack", 5, 0).settle("reject", 5, 0)
    assert story.broken() == {"stale lease accepted"}


@pytest.mark.parametrize("first", [Status.OK, Status.UNKNOWN])
@pytest.mark.parametrize("action", ["ack", "nack", "reject", "extend"])
def test_the_same_settle_asked_again_gets_the_same_answer_and_has_no_other_effect(action: str, first: Status) -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle(action, 5, 0, status=first)
    assert story.settle(action, 5, 0).broken() == set()


@pytest.mark.parametrize("action", ["extend", "release"])
def test_a_promise_that_ran_out_and_a_release_may_be_lost_when_they_are_asked_again(action: str) -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle(action, 5, 0)
    assert story.settle(action, 5, 0, status=Status.FAILED, lost=True).broken() == set()


def test_a_nack_asked_again_does_not_touch_the_next_lease_but_an_ack_that_had_no_effect_is_stale() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200).settle("nack", 5, 0)
    story.poll(6, handed(0, "a", 2), now_ms=150, until_ms=250)
    assert story.settle("nack", 5, 0).broken() == set()
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("ack", 5, 0, status=Status.UNKNOWN).poll(6, handed(0, "a", 2), now_ms=300, until_ms=350)
    assert story.settle("ack", 5, 0).broken() == {"stale lease accepted"}


def test_a_dead_letter_that_is_gone_has_vanished() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle("reject", 5, 0)
    assert story.end(stored(0, "a"), dead=(0,)).broken() == set()
    assert "message vanished" in story.end(stored(0, "a")).broken()


def test_a_nack_of_the_last_delivery_is_a_death() -> None:
    story = Story(max_deliveries=1).publish(0, "a").poll(5, handed(0, "a")).settle("nack", 5, 0)
    assert story.poll(0, now_ms=9_999).end(stored(0, "a"), dead=(0,)).broken() == set()


def test_a_redrive_counts_from_the_beginning() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a", 4)).settle("reject", 5, 0).administer("redrive", 0)
    assert story.poll(6, handed(0, "a", 1)).broken() == set()


def test_a_lost_redrive_may_have_revived_what_died_meanwhile() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a", 4)).administer("redrive", status=Status.UNKNOWN)
    story.settle("reject", 5, 0).crash()
    assert story.poll(6, handed(0, "a", 1)).broken() == set()


def test_a_redrive_may_revive_what_a_lost_reject_killed() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("reject", 5, 0, status=Status.UNKNOWN).crash().administer("redrive")
    assert story.poll(6, handed(0, "a", 1), now_ms=300, until_ms=400).broken() == set()


@pytest.mark.parametrize("discarded", [(), (0,)], ids=["all", "by offset"])
def test_a_letter_may_be_discarded_before_its_publish_is_known(discarded: tuple[int, ...]) -> None:
    story = Story().poll(0).lose_publish("a").lose_poll().administer("discard", *discarded)
    assert story.publish(0, "a").end(stored(0, "a")).broken() == set()


@pytest.mark.parametrize("discarded", [None, (1,)], ids=["none", "another"])
def test_a_message_whose_publish_is_known_late_has_vanished_when_it_was_not_discarded(
    discarded: tuple[int, ...] | None,
) -> None:
    story = Story().poll(0).lose_publish("a").lose_poll()
    if discarded is not None:
        story.administer("discard", *discarded)
    assert story.publish(0, "a").end(stored(0, "a")).broken() == {"message vanished"}


@pytest.mark.parametrize(("redriven", "broken"), [(True, set()), (False, {"lane out of order"})])
def test_a_letter_may_be_redriven_before_its_publish_is_known_and_comes_behind_what_came_after_it(
    redriven: bool, broken: set[str]
) -> None:
    story = Story().lose_publish("a").publish(1, "b").poll(5, handed(1, "b")).settle("ack", 5, 1)
    if redriven:
        story.administer("redrive")
    story.publish(0, "a").poll(6, handed(0, "a")).settle("ack", 6, 0)
    assert story.end(stored(0, "a"), stored(1, "b")).broken() == broken


def test_a_discarded_letter_may_be_gone() -> None:
    story = Story(retention="acked").poll(0).publish(0, "a").poll(5, handed(0, "a")).settle("reject", 5, 0)
    assert story.administer("discard", 0).end().broken() == set()


@pytest.mark.parametrize(("discarded", "broken"), [(True, set()), (False, {"message vanished"})])
def test_a_reject_asked_again_does_not_bring_a_discarded_letter_back(discarded: bool, broken: set[str]) -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle("reject", 5, 0, status=Status.UNKNOWN)
    if discarded:
        story.administer("discard", 0)
    assert story.settle("reject", 5, 0).end(stored(0, "a")).broken() == broken


def test_after_a_seek_messages_come_again_and_floors_go_back() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a")).settle("ack", 5, 0)
    story.add(lambda called, returned: FloorSeen(called, returned, GROUP, 0, 1)).administer("seek", 0)
    story.add(lambda called, returned: FloorSeen(called, returned, GROUP, 0, 0)).poll(6, handed(0, "a", 1))
    assert story.settle("ack", 6, 0).end(stored(0, "a")).broken() == set()


@pytest.mark.parametrize(("redriven", "broken"), [(True, set()), (False, {"stale lease accepted"})])
def test_a_lost_reject_that_a_redrive_undid_gets_its_first_answer_again(redriven: bool, broken: set[str]) -> None:
    story = Story(max_deliveries=9).publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    story.settle("reject", 5, 0, status=Status.UNKNOWN).crash()
    if redriven:
        story.administer("redrive")
    story.poll(7, handed(0, "a", 1 if redriven else 2), now_ms=400, until_ms=500).settle("reject", 5, 0)
    assert story.poll(9, handed(0, "a", 3), now_ms=500).settle("ack", 9, 0).end(stored(0, "a")).broken() == broken


@pytest.mark.parametrize(("seek", "broken"), [(True, set()), (False, {"stale lease accepted"})])
def test_an_ack_that_was_lost_beside_a_seek_may_have_come_before_it_and_gets_its_first_answer_again(
    seek: bool, broken: set[str]
) -> None:
    story = Story(max_deliveries=9).publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    if seek:
        story.administer("seek", 0, status=Status.UNKNOWN)
    else:
        story.poll(6, handed(0, "a", 2), now_ms=200, until_ms=300)
    story.settle("ack", 5, 0, status=Status.UNKNOWN).crash()
    story.poll(7, handed(0, "a", 1 if seek else 3), now_ms=400, until_ms=500).settle("ack", 7, 0)
    assert story.settle("ack", 5, 0).end(stored(0, "a")).broken() == broken


def test_after_a_seek_what_lies_behind_it_is_owed_again() -> None:
    story = Story().publish(0, "a", "b").poll(5, handed(0, "a"), handed(1, "b")).settle("ack", 5, 0, 1)
    assert story.administer("seek", 1).end(stored(0, "a"), stored(1, "b")).broken() == {"message vanished"}


def test_a_settle_answered_after_the_next_lease_is_not_stale() -> None:
    story = Story().publish(0, "a").poll(5, handed(0, "a"), now_ms=100, until_ms=200)
    called = story.at + 2
    story.at += 2
    story.poll(6, handed(0, "a", 2), now_ms=120, until_ms=220)
    story.history.add(Settled(called, story.at + 2, Status.OK, GROUP, 0, 5, (0,), "nack", 110, 110))
    assert story.broken() == set()


def test_a_delayed_message_may_hold_up_one_empty_poll_when_it_becomes_due() -> None:
    story = Story().publish(0, "a", deliver_at_ms=100, priority=9).publish(1, "b")
    assert story.poll(0, now_ms=100).broken() == set()
    assert story.poll(0, now_ms=100).broken() == {"message withheld"}


def test_a_group_at_its_bound_is_served_retries_only() -> None:
    story = Story().publish(0, "a").publish(1, "b", priority=9)
    assert story.poll(5, handed(0, "a", 2), now_ms=100, limited=True).broken() == set()


def test_a_policy_that_is_not_strict_is_not_judged_by_priority() -> None:
    story = Story(strict=False).publish(0, "a").publish(1, "b", priority=9)
    assert story.poll(5, handed(0, "a"), now_ms=1).broken() == set()


def test_a_repeated_poll_may_return_what_was_decided_long_ago() -> None:
    story = Story().publish(0, "a", expires_at_ms=150).publish(1, "b", priority=9)
    assert story.poll(5, handed(0, "a"), now_ms=200, until_ms=300, repeated=True).broken() == set()
