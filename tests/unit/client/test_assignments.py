"""The rules of a member: what it makes of views, in whatever order they come."""

from __future__ import annotations

from lanner.client.assignments import Assignments, Granted, Phase, Turn, View

NOTHING = Turn([], [], [])


def granted(partition: int, grant: int) -> Granted:
    return Granted("orders", 1, partition, grant)


def view(generation: int, held: list[Granted], revoked: list[Granted] | None = None, number: int = 1) -> View:
    return View((number, generation), held, revoked or [])


def working(*held: Granted) -> Assignments:
    member = Assignments()
    member.take(view(5, list(held)))
    for one in held:
        assert member.claimed(one)
    return member


def test_a_partition_is_claimed_before_it_is_worked_on() -> None:
    member, one = Assignments(), granted(0, 3)
    assert member.take(view(3, [one])) == Turn([one], [], [])
    assert member.phases == {one: Phase.CLAIMING}
    assert member.claimed(one) and not member.claimed(one)
    assert member.take(view(4, [one])) == NOTHING


def test_a_view_that_is_older_than_the_newest_one_is_ignored() -> None:
    member = working(granted(0, 3))
    member.take(view(7, []))
    assert member.take(view(6, [granted(0, 3)])) == NOTHING
    assert member.phases == {} and member.seen == (1, 7)
    assert member.take(view(1, [granted(0, 1)], number=2)).claim == [granted(0, 1)], (
        "another group, whatever its generation"
    )


def test_a_new_grant_is_claimed_anew_and_the_old_one_is_lost() -> None:
    member = working(granted(0, 3))
    assert member.take(view(8, [granted(0, 8)])) == Turn([granted(0, 8)], [], [granted(0, 3)])


def test_what_is_revoked_is_finished_and_then_released_until_no_view_shows_it() -> None:
    one = granted(0, 3)
    member = working(one)
    assert member.take(view(6, [], [one])) == Turn([], [one], [])
    assert member.releases == [] and member.take(view(6, [], [one])) == NOTHING
    member.release(one)
    assert member.releases == [one]
    assert member.take(view(7, [], [one])) == NOTHING
    assert member.releases == [one], "it is said again"
    member.take(view(8, []))
    assert member.releases == []


def test_what_was_released_is_not_used_again_when_the_move_is_called_off() -> None:
    one = granted(0, 3)
    member = working(one)
    member.take(view(6, [], [one]))
    member.release(one)
    assert member.take(view(7, [one])) == NOTHING
    assert member.phases == {} and member.releases == [one]
    assert member.take(view(9, [granted(0, 9)])).claim == [granted(0, 9)]


def test_a_move_that_is_called_off_before_the_release_changes_nothing() -> None:
    one = granted(0, 3)
    member = working(one)
    member.take(view(6, [], [one]))
    assert member.take(view(7, [one])) == NOTHING
    assert member.phases == {one: Phase.WORKING}


def test_what_is_revoked_before_it_was_claimed_is_released_at_once() -> None:
    member, one = Assignments(), granted(0, 3)
    member.take(view(3, [one]))
    assert member.take(view(4, [], [one])) == NOTHING
    assert member.releases == [one] and not member.claimed(one)


def test_a_refused_grant_is_lost_and_released() -> None:
    one = granted(0, 3)
    member = working(one)
    assert member.fenced(one) and not member.fenced(one)
    assert member.releases == [one] and member.phases == {}
    assert member.take(view(6, [one])) == NOTHING
    assert member.releases == [one]


def test_what_is_gone_from_the_view_is_lost_and_not_released() -> None:
    member = working(granted(0, 3), granted(1, 3))
    assert member.take(view(6, [granted(1, 3)])) == Turn([], [], [granted(0, 3)])
    assert member.releases == []
