"""The conductor: which votes make which outcome, one entry at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lanner import limits
from lanner.broker.conductor import Conductor
from lanner.cluster import AbortReason
from lanner.cluster.commands import EndTries, ForgetTransactions, decode
from lanner.errors import LannerError, NotLeader, Overloaded
from lanner.wire.staging import ReportItem, ReportKind
from tests.unit.cluster.commits import TIMEOUT_MS, Commits

PREPARED, REFUSED, DONE = ReportKind.PREPARED, ReportKind.REFUSED, ReportKind.DONE


class Bench:
    """A conductor over a metadata machine; what it proposes applies when `record` is called."""

    def __init__(self) -> None:
        self.world = Commits()
        self.proposed: list[tuple[bytes, Callable[[Any], None]]] = []
        self.refuses: LannerError | None = None
        self.conductor = Conductor(self)
        self.term = 1
        self.now_ms = self.world.now_ms

    def propose(self, command: bytes, told: Callable[[Any], None]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.proposed.append((command, told))

    def begin(self, **how: Any) -> int:
        token: int = self.world.begin(0, **how).token
        self.follow()
        return token

    def follow(self) -> None:
        copy = self.world.machine
        self.conductor.follow(copy, self.term, copy.take_changed_tries(), self.now_ms)
        self.conductor.act(copy, self.now_ms)

    def hear(self, kind: int, token: int, *set_ids: int) -> None:
        self.conductor.hear([ReportItem(token, set_id, kind) for set_id in set_ids])
        self.follow()

    def record(self) -> Any:
        """What is in flight applies; the command."""
        ((payload, told),) = self.proposed
        self.proposed.clear()
        told(self.world._apply_and_compare(payload))
        command = decode(payload)
        if isinstance(command, EndTries):
            self.world.finished.update(command.finished)
        self.follow()
        return command


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.follow()
    return made


def test_every_vote_makes_a_commit_and_one_vote_short_makes_none(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1)
    bench.hear(PREPARED, token, 1, 1)
    assert bench.proposed == []
    bench.hear(PREPARED, token, 2)
    assert bench.record().commits == (token,)
    assert bench.world.outcomes == {token: "committed"}


def test_votes_are_told_apart_by_their_tokens(bench: Bench) -> None:
    first = bench.begin()
    bench.hear(PREPARED, first, 1)
    second = bench.begin(commit=2)  # the same work, tried anew
    bench.hear(PREPARED, first, 2)
    bench.hear(PREPARED, second, 2)
    assert bench.proposed == [], "the second lacks the vote of set 1"
    bench.hear(PREPARED, second, 1)
    assert bench.record().commits == (second,)


def test_votes_of_sets_that_a_try_does_not_name_count_for_nothing(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1, 3, 4)
    bench.hear(REFUSED, token, 3)
    bench.hear(PREPARED, token + 50, 1, 2)
    assert bench.proposed == []


def test_one_refusal_makes_an_abort(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1)
    bench.hear(REFUSED, token, 2)
    assert bench.record().aborts == ((token, AbortReason.REFUSED),)
    assert bench.world.machine.tries() == {} and bench.conductor.counts["aborted_refused"] == 1


def test_a_try_is_forgotten_when_all_are_done_and_not_before(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1, 2)
    bench.record()
    assert bench.proposed == []
    bench.hear(PREPARED, token, 1, 2)
    bench.hear(DONE, token, 1)
    assert bench.proposed == []
    bench.hear(DONE, token, 2)
    bench.world.finished.add(token)
    assert bench.record().finished == (token,)


def test_what_is_heard_of_an_outcome_that_does_not_show_here_yet_counts_once_it_does(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1, 2)
    bench.hear(DONE, token, 1)  # that broker has applied the commit, and this one is still writing it
    assert len(bench.proposed) == 1, "the outcome alone is in flight"
    assert bench.record().commits == (token,)
    assert bench.proposed == [], "set 2 has said nothing"
    bench.hear(DONE, token, 2)
    bench.world.finished.add(token)
    assert bench.record().finished == (token,)


def test_votes_on_a_try_that_does_not_show_here_yet_count_once_it_does(bench: Bench) -> None:
    token = bench.world.begin(0).token  # applied, and not looked at
    bench.conductor.hear([ReportItem(token, set_id, PREPARED) for set_id in (1, 2)])
    bench.conductor.hear([ReportItem(token + 1, set_id, PREPARED) for set_id in (1, 2)])
    assert bench.proposed == []
    bench.follow()
    assert bench.record().commits == (token,)


def test_a_deleted_topic_confirms_for_its_sets(bench: Bench) -> None:
    token = bench.begin(topics={"orders": (0,), "audit": (0,)})
    bench.hear(PREPARED, token, 1, 3)
    bench.record()
    bench.hear(DONE, token, 3)
    assert bench.proposed == []
    bench.world.delete("orders")
    bench.world.finished.add(token)
    bench.follow()
    assert bench.record().finished == (token,)


def test_the_deadline_aborts_what_is_undecided_and_nothing_else(bench: Bench) -> None:
    undecided = bench.begin()
    decided = bench.begin(name="u")
    bench.hear(PREPARED, decided, 1, 2)
    bench.record()
    bench.now_ms += TIMEOUT_MS - 1
    bench.follow()
    assert bench.proposed == []
    bench.now_ms += 1
    bench.follow()
    assert bench.record().aborts == ((undecided, AbortReason.DEADLINE),)
    bench.now_ms += 10 * TIMEOUT_MS
    bench.follow()
    assert bench.proposed == []


def test_a_machine_whose_time_is_far_ahead_still_gives_a_try_its_timeout_and_no_more(bench: Bench) -> None:
    bench.world.now_ms += 10**10
    token = bench.begin()
    bench.now_ms += TIMEOUT_MS
    bench.follow()
    assert bench.record().aborts == ((token, AbortReason.DEADLINE),)


def test_what_waits_while_one_entry_is_in_flight_goes_into_the_next(bench: Bench) -> None:
    tokens = [bench.begin(name=f"t{number}") for number in range(4)]
    for token in tokens:
        bench.hear(PREPARED, token, 1, 2)
    assert bench.record().commits == (tokens[0],)
    assert bench.record().commits == tuple(tokens[1:])
    assert bench.proposed == []


def test_reports_that_come_again_while_the_outcome_is_in_flight_propose_it_once(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1, 2)
    bench.hear(PREPARED, token, 1, 2)
    bench.hear(REFUSED, token, 1)
    bench.record()
    assert bench.proposed == [] and bench.world.outcomes == {token: "committed"}


def test_one_entry_ends_no_more_tries_than_it_may(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIES_ENDED_AT_ONCE", 2)
    tokens = [bench.begin(name=f"t{number}") for number in range(5)]
    bench.conductor.hear([ReportItem(token, set_id, PREPARED) for token in tokens[:3] for set_id in (1, 2)])
    bench.conductor.hear([ReportItem(token, 1, REFUSED) for token in tokens[3:]])
    bench.follow()
    assert bench.record().commits == tuple(tokens[:2])
    mixed = bench.record()
    assert (mixed.commits, [token for token, _ in mixed.aborts]) == ((tokens[2],), [tokens[3]])
    assert [token for token, _ in bench.record().aborts] == [tokens[4]]


@pytest.mark.parametrize("error", [NotLeader(), Overloaded()])
def test_an_entry_that_was_not_recorded_is_proposed_again(bench: Bench, error: LannerError) -> None:
    tokens = [bench.begin(name=f"t{number}") for number in range(2)]
    bench.conductor.hear([ReportItem(tokens[0], set_id, PREPARED) for set_id in (1, 2)])
    bench.hear(REFUSED, tokens[1], 1)
    ((_, told),) = bench.proposed
    bench.proposed.clear()
    told(error)
    bench.follow()
    again = bench.record()
    assert (again.commits, again.aborts) == ((tokens[0],), ((tokens[1], AbortReason.REFUSED),))


def test_a_log_that_takes_nothing_now_is_asked_at_the_next_turn(bench: Bench) -> None:
    token = bench.begin()
    bench.refuses = Overloaded()
    bench.hear(PREPARED, token, 1, 2)
    bench.refuses = None
    bench.follow()
    assert bench.record().commits == (token,)


def test_who_comes_to_lead_begins_with_the_tries_and_hears_the_votes_again(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1)
    bench.conductor.stop()
    assert bench.conductor.vote_of(token, 1) == ""
    bench.term = 3
    bench.follow()
    bench.hear(PREPARED, token, 2)
    assert bench.proposed == [], "it has not heard of set 1 in its own time"
    bench.hear(PREPARED, token, 1)
    assert bench.record().commits == (token,)


def test_what_is_heard_a_moment_before_it_may_conduct_counts(bench: Bench) -> None:
    token = bench.begin()
    bench.conductor.stop()
    bench.conductor.hear([ReportItem(token, 1, PREPARED), ReportItem(token, 2, PREPARED)])
    bench.term = 2
    bench.follow()
    assert bench.record().commits == (token,)


def test_what_an_earlier_term_proposed_is_none_of_the_next_ones_business(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1, 2)
    ((_, told),) = bench.proposed
    bench.proposed.clear()
    bench.term = 2
    bench.follow()
    bench.hear(PREPARED, token, 1, 2)
    told(NotLeader())
    bench.follow()
    assert len(bench.proposed) == 1, "its own is in flight"


def test_an_outcome_that_came_otherwise_ends_the_wait(bench: Bench) -> None:
    token = bench.begin()
    bench.refuses = Overloaded()
    bench.hear(PREPARED, token, 1, 2)
    bench.world.claim("other")
    bench.refuses = None
    bench.follow()
    assert bench.proposed == [] and bench.conductor.counts["aborted_fenced"] == 1


def test_old_transactions_are_forgotten_now_and_then(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_KEPT", 1)
    bench.world.begin(0, name="old", topics={})
    bench.world.now_ms += 1
    bench.world.begin(0, name="new", topics={})
    bench.follow()
    assert bench.proposed == [], "it has looked a moment ago"
    bench.now_ms += 1_000
    bench.follow()
    command = bench.record()
    assert isinstance(command, ForgetTransactions) and [name for name, _ in command.seen] == ["old"]


def test_it_tells_who_is_awaited_and_how_long_it_takes(bench: Bench) -> None:
    token = bench.begin()
    bench.hear(PREPARED, token, 1)
    assert [bench.conductor.vote_of(token, set_id) for set_id in (1, 2, 3)] == ["prepared", "awaited", ""]
    assert bench.conductor.oldest_ms(bench.now_ms + 70) == (70, 0)
    bench.world.now_ms += 30
    bench.now_ms += 30
    bench.hear(PREPARED, token, 2)
    bench.record()
    bench.hear(DONE, token, 1)
    assert [bench.conductor.vote_of(token, set_id) for set_id in (1, 2)] == ["confirmed", "prepared"]
    assert bench.conductor.oldest_ms(bench.now_ms + 5) == (0, 5)
    bench.now_ms += 12
    bench.hear(DONE, token, 2)
    bench.world.finished.add(token)
    bench.record()
    counts = bench.conductor.counts
    assert (counts["committed"], counts["finished"]) == (1, 1)
    assert (counts["to_outcome_ms"], counts["to_visible_ms"]) == (30, 12)
