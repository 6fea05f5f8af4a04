"""The attendant's table, row by row, over a real metadata machine and partitions that only say what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from lanner.broker.attendant import LOOK_TICKS, REPORT_TICKS, Attendant
from lanner.wire.staging import ReportItem, ReportKind
from tests.unit.cluster.commits import Commits

PREPARED, REFUSED, DONE = ReportKind.PREPARED, ReportKind.REFUSED, ReportKind.DONE


class HeldHere:
    def __init__(self) -> None:
        self.tokens: dict[int, object] = {}
        self.metadata_index = 0

    def prepared(self) -> Mapping[int, object]:
        return self.tokens


class Bench:
    """Sets 1 and 2 are led here; `asked` is what partitions were told to do, unanswered."""

    def __init__(self) -> None:
        self.world = Commits()
        self.led = {1: HeldHere(), 2: HeldHere()}
        self.asked: list[tuple[str, int, int, int, Callable[[bool], None]]] = []
        self.attendant = Attendant(self)
        self.follow()

    def held(self) -> Iterable[int]:
        return [1, 2, 3, 4]

    def partition(self, set_id: int) -> HeldHere | None:
        return self.led.get(set_id)

    def publish(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        self.asked.append(("publish", set_id, token, metadata_index, told))

    def withdraw(self, set_id: int, token: int, metadata_index: int, told: Callable[[bool], None]) -> None:
        self.asked.append(("withdraw", set_id, token, metadata_index, told))

    def begin(self, sequence: int = 0, **how: Any) -> int:
        token: int = self.world.begin(sequence, **how).token
        return token

    def hold(self, set_id: int, token: int, *, seen: int = 0) -> None:
        self.led[set_id].tokens[token] = None
        self.led[set_id].metadata_index = seen or self.world.index
        self.attendant.touch(set_id)

    def follow(self) -> list[tuple[int, int, int]]:
        """What is said now, as (token, set, kind)."""
        copy = self.world.machine
        self.attendant.follow(copy, copy.take_changed_tries())
        return said(self.attendant.take_reports())

    def pass_time(self, ticks: int) -> list[tuple[int, int, int]]:
        found = []
        for _ in range(ticks):
            self.attendant.tick()
            found += self.follow()
        return found


def said(items: list[ReportItem]) -> list[tuple[int, int, int]]:
    return sorted((item.token, item.set_id, item.kind) for item in items)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_prepared_and_undecided_is_reported_once_and_again_after_a_while(bench: Bench) -> None:
    token = bench.begin()
    assert bench.follow() == []
    bench.hold(1, token)
    assert bench.follow() == [(token, 1, PREPARED)]
    assert bench.follow() == []
    assert bench.pass_time(REPORT_TICKS - 1) == []
    assert bench.pass_time(LOOK_TICKS) == [(token, 1, PREPARED)]
    assert bench.attendant.said_again == 1
    bench.attendant.say_again()
    assert bench.follow() == [(token, 1, PREPARED)], "somebody else conducts"


def test_what_is_committed_is_published_until_nothing_is_left_then_reported_done(bench: Bench) -> None:
    token = bench.begin()
    bench.hold(1, token)
    bench.follow()
    bench.world.end(commits=(token,))
    assert bench.follow() == []
    [(what, set_id, asked, index, told)] = bench.asked
    assert (what, set_id, asked, index) == ("publish", 1, token, bench.world.index)
    bench.attendant.touch(1)
    bench.follow()
    assert len(bench.asked) == 1, "one question at a time"
    told(True)
    bench.follow()
    assert len(bench.asked) == 2, "some of it was left"
    bench.led[1].tokens.clear()
    bench.led[1].metadata_index = bench.world.index
    bench.asked[1][4](True)
    assert bench.follow() == [(token, 1, DONE)]
    bench.world.end(finished=(token,))
    assert bench.follow() == [] and bench.pass_time(3 * REPORT_TICKS) == []


def test_a_partition_that_could_not_publish_is_asked_again_within_a_second(bench: Bench) -> None:
    token = bench.begin()
    bench.hold(2, token)
    bench.world.end(commits=(token,))
    bench.follow()
    bench.asked[0][4](False)
    bench.follow()
    assert len(bench.asked) == 1
    bench.pass_time(LOOK_TICKS)
    assert len(bench.asked) == 2


def test_what_is_in_no_row_is_withdrawn(bench: Bench) -> None:
    token = bench.begin()
    bench.hold(1, token)
    bench.follow()
    bench.world.end(aborts=(token,))
    assert bench.follow() == []
    assert [asked[:4] for asked in bench.asked] == [("withdraw", 1, token, bench.world.index)]


def test_what_was_prepared_before_this_broker_led_is_found_within_a_second(bench: Bench) -> None:
    token = bench.begin()
    bench.world.end(aborts=(token,))
    bench.follow()
    bench.led[1].tokens[token] = None  # nobody says so
    bench.pass_time(LOOK_TICKS)
    assert [asked[:3] for asked in bench.asked] == [("withdraw", 1, token)]


def test_a_copy_that_is_older_than_what_the_partition_acted_on_says_nothing(bench: Bench) -> None:
    token = bench.begin()
    bench.hold(1, token, seen=bench.world.index + 2)
    assert bench.follow() == []
    bench.world.end(aborts=(token,))
    bench.follow()
    assert bench.asked == []
    bench.world.apply(None)
    bench.follow()
    assert [asked[:3] for asked in bench.asked] == [("withdraw", 1, token)], "as soon as the copy is there"


def test_a_token_that_this_copy_has_not_heard_of_is_not_withdrawn(bench: Bench) -> None:
    bench.hold(1, bench.world.index + 5, seen=1)
    bench.follow()
    assert bench.asked == []


def test_nothing_prepared_is_not_done_before_the_partition_acted_on_the_commit(bench: Bench) -> None:
    token = bench.begin()
    bench.world.end(commits=(token,))
    bench.led[1].metadata_index = bench.world.index - 1
    bench.led[2].metadata_index = bench.world.index
    assert bench.follow() == [(token, 2, DONE)]


def test_a_refusal_is_reported_until_the_try_is_over(bench: Bench) -> None:
    token = bench.begin()
    bench.attendant.refuse(token, 1, "StageExpired")
    assert bench.follow() == [(token, 1, REFUSED)]
    assert bench.pass_time(REPORT_TICKS + LOOK_TICKS) == [(token, 1, REFUSED)]
    bench.world.end(aborts=(token,))
    bench.follow()
    assert bench.pass_time(3 * REPORT_TICKS) == []


def test_a_partition_that_is_led_elsewhere_is_somebody_elses(bench: Bench) -> None:
    token = bench.begin()
    bench.hold(1, token)
    bench.hold(2, token)
    bench.attendant.refuse(token, 2, "TopicFull")
    bench.follow()
    bench.led.clear()
    assert bench.pass_time(3 * REPORT_TICKS) == []
    assert (bench.attendant._words, bench.attendant._refusals) == ({}, {})


def test_only_the_sets_of_what_changed_are_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(bench.attendant, "_attend", lambda _copy, set_id: looked.append(set_id))
    token = bench.begin(topics={"orders": (1,)})
    bench.follow()
    assert looked == [2]
    bench.begin(name="u", topics={"audit": (0,)})
    bench.follow()
    assert looked == [2, 3]
    bench.world.end(aborts=(token,))
    bench.follow()
    assert looked == [2, 3, 2], "it has gone, and was there"
    bench.follow()
    assert looked == [2, 3, 2]


def test_every_set_is_looked_at_once_a_second_however_many_there_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(bench, "held", lambda: range(1_010))
    monkeypatch.setattr(bench.attendant, "_attend", lambda _copy, set_id: looked.append(set_id))
    most = 0
    for _ in range(2 * LOOK_TICKS):
        before = len(looked)
        bench.pass_time(1)
        most = max(most, len(looked) - before)
    assert {looked.count(set_id) for set_id in range(1_010)} == {2}
    assert most <= -(-1_010 // LOOK_TICKS) + 1, "a share with every tick"
