"""Who coordinates, and when: driven over brokers without sockets, tick by tick."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lanner import limits
from lanner.broker.coordination.coordination import Answered
from lanner.broker.coordination.figures import REASONS, kind_of
from lanner.cluster import METADATA_SET, Altered, Assigned, Change, Joined, Left, Moves, Released, encode_change_groups
from lanner.cluster.grouped import Group
from lanner.model import GroupKind
from lanner.testing.flock import Broker, Flock


def change(flock: Flock, *changes: Change) -> None:
    flock.command(encode_change_groups(changes, flock.now_ms))


def join(flock: Flock, member: str, *, session_ms: int = 1_000, kind: str = "stream", topic: str = "orders") -> None:
    change(flock, Joined("g", GroupKind(kind), member, (topic,), session_ms=session_ms))


def group(flock: Flock) -> Group:
    found = flock.metadata.group("g")
    assert found is not None
    return found


def leader(flock: Flock) -> Broker:
    found = flock.leader_of(METADATA_SET)
    assert found is not None
    return found


def test_only_the_broker_that_leads_the_metadata_coordinates() -> None:
    flock = Flock()
    flock.settle()
    assert [one.name for one in flock.up() if one.coordination.coordinator is not None] == [leader(flock).name]
    old = leader(flock)
    flock.cut.add(old.node_id)
    flock.until(lambda: flock.leader_of(METADATA_SET) not in (None, old))
    flock.until(lambda: old.coordination.coordinator is None)
    assert leader(flock).coordination.coordinator is not None


def test_a_leader_that_was_paused_ages_nobody() -> None:
    """Time passes without ticks: silence is what the leader has lived through."""
    flock = Flock("a")
    flock.create_topic("orders", 1, 1)
    join(flock, "m")
    flock.now_ms += 3_600_000
    flock.pass_time(5)
    assert len(group(flock).members) == 1
    flock.pass_time(20)
    assert not group(flock).members, "a second of ticks"


def test_an_answer_for_many_partitions_is_found_beside_the_loop_and_one_that_comes_late_means_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flock = Flock("a")
    flock.create_topic("orders", 6, 1)
    broker = flock.brokers["a"]
    later: list[tuple[Callable[[], Answered], Callable[[Answered], None]]] = []
    broker.beside = lambda work, told: later.append((work, told))
    join(flock, "m", session_ms=limits.SESSION_MS_MAX)
    flock.pass_time(10)
    assert len(group(flock).owned) == 1 and not later, "a few are answered at once"
    monkeypatch.setattr(limits, "ASSIGN_AT_ONCE_PARTITIONS_MAX", 5)
    join(flock, "n", session_ms=limits.SESSION_MS_MAX)
    flock.pass_time(30)
    assert len(later) == 1, "asked once, however long it takes"
    join(flock, "o", session_ms=limits.SESSION_MS_MAX)
    [(work, told)] = later
    told(work())  # of the question before that
    flock.pass_time(30)
    assert len(later) == 2 and len(group(flock).inherited) == 0
    told = later[1][1]
    told(later[1][0]())
    flock.pass_time(2)
    assert len(group(flock).inherited) == 2, "two are to follow"


def test_an_answer_that_was_asked_for_by_an_earlier_leadership_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = Flock("a")
    flock.create_topic("orders", 6, 1)
    broker = flock.brokers["a"]
    later: list[tuple[Callable[[], Answered], Callable[[Answered], None]]] = []
    broker.beside = lambda work, told: later.append((work, told))
    monkeypatch.setattr(limits, "ASSIGN_AT_ONCE_PARTITIONS_MAX", 5)
    join(flock, "m", session_ms=limits.SESSION_MS_MAX)
    flock.pass_time(10)
    assert len(later) == 1
    broker.coordination._stop()  # as when it loses the lead,
    broker.coordination.follow()  # and has it again
    later[0][1](later[0][0]())
    assert broker.coordination.coordinator is not None
    flock.pass_time(10)
    assert len(later) == 2, "the new coordinator asks for itself"


def test_an_assignor_that_this_release_does_not_know_leaves_its_group_alone() -> None:
    flock = Flock("a")
    flock.create_topic("orders", 2, 1)
    change(flock, Joined("g", GroupKind.STREAM, "m", ("orders",), assignor="of-tomorrow", session_ms=60_000))
    flock.pass_time(40)
    assert not group(flock).owned
    change(flock, Altered("g", "range"))
    flock.pass_time(40)
    assert len(group(flock).owned) == 1


def test_a_copy_that_came_as_a_snapshot_is_looked_at_anew() -> None:
    flock = Flock("a")
    flock.create_topic("orders", 2, 1)
    join(flock, "m", session_ms=60_000)
    flock.pass_time(10)
    broker = flock.brokers["a"]
    told: list[list[str]] = []
    broker.homes.on_changed.append(lambda names: told.append(sorted(names)))
    before = broker.coordination.coordinator
    broker.coordination._copy = None  # another one, as far as it knows
    broker.coordination.follow()
    assert told == [["g"]]
    assert broker.coordination.coordinator is not before


def test_a_group_without_members_is_forgotten_after_its_time() -> None:
    flock = Flock("a")
    flock.create_topic("orders", 1, 1)
    join(flock, "m")
    flock.pass_time(10)
    change(flock, Left("g", "m"))
    flock.pass_time(10)
    assert flock.metadata.group("g") is not None
    flock.now_ms += limits.GROUP_IDLE_MS
    flock.pass_time(10)
    assert flock.metadata.group("g") is None
    join(flock, "n")
    assert group(flock).row.number == 2, "numbers are not given twice"


def test_what_the_leader_does_is_counted_once() -> None:
    flock = Flock()
    flock.create_topic("orders", 4, 3)
    join(flock, "m", session_ms=2_000)
    flock.pass_time(10)
    join(flock, "n")
    flock.pass_time(10)
    owned = sorted(group(flock).owner_of(place)[1:] for places in group(flock).inherited.values() for place in places)
    assert len(owned) == 2, "two partitions wait"
    [told] = [one.coordination.figures().groups for one in flock.up() if one.coordination.figures().groups]
    [one] = told
    assert (one.name, one.members, one.unowned, one.waiting) == ("g", 2, 0, 2)
    assert one.generation == group(flock).row.generation and one.silent_ms > 0
    flock.pass_time(60)  # both fall silent
    counts = leader(flock).group_counts.counts
    assert counts["evicted_silent"] == 2
    assert (counts["rebalances_joined"], counts["moved"]) == (2, 6)
    assert counts["handovers"] == 2 and counts["handover_ms"] > 0
    assert counts["assignments"] >= 2 and counts["records_bytes"] > 0
    others = [one.group_counts.counts for one in flock.up() if one is not leader(flock)]
    assert others == [{}, {}]


def test_a_slow_owner_is_forced_and_counted() -> None:
    flock = Flock("a")
    flock.create_topic("orders", 2, 1)
    join(flock, "m", session_ms=limits.SESSION_MS_MAX)
    flock.pass_time(10)
    change(flock, Altered("g", session_ms=1_000, revoke_ms=1_000))
    join(flock, "n", session_ms=limits.SESSION_MS_MAX)
    flock.pass_time(40)
    assert len(group(flock).owned) == 2
    assert flock.brokers["a"].group_counts.counts["forced"] == 1


def test_every_reason_that_the_metadata_gives_is_of_a_known_kind() -> None:
    flock = Flock("a")
    flock.coordinating = False
    flock.create_topic("orders", 2, 1)
    reasons: list[str] = []

    def note(*changes: Change) -> None:
        change(flock, *changes)
        reasons.append(group(flock).row.reason)

    note(Joined("g", GroupKind.STREAM, "0123456789ab", ("orders", "later"), instance="web-1"))
    note(Joined("g", GroupKind.STREAM, "0123456789ac", ("orders", "later"), instance="web-1"))
    number, member = group(flock).row.number, group(flock).ids["0123456789ac"]
    incarnation = flock.metadata.topics["orders"].incarnation
    note(Assigned(number, group(flock).row.version, (Moves(incarnation, (0,), (member,)),)))
    note(Released(number, "0123456789ac", incarnation, 0, group(flock).owner_of((incarnation, 0))[1]))
    flock.create_topic("later", 1, 1)
    reasons.append(group(flock).row.reason)
    note(Altered("g", "range"))
    note(Left("g", "0123456789ac", "nobody else joined"))
    assert [kind_of(one) for one in reasons] == [
        "joined",
        "joined",
        "joined",
        "released",
        "topic",
        "assignor",
        "left",
    ]
    assert kind_of("01234567… silent for 10 s") == "silent"
    assert set(REASONS) == {"joined", "released", "topic", "assignor", "left", "silent"}
