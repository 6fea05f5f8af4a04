from __future__ import annotations

from typing import Any

from lanner.errors import GroupNotFound
from lanner.partition import (
    WAIT,
    CommitOffset,
    DropGroup,
    MakeGroup,
    Poll,
    Redrive,
    Release,
    Seek,
    Settle,
    Tick,
    records,
)


def test_every_request_is_answered_in_its_place(bench: Any, offsets_of: Any) -> None:
    bench.append(count=4)
    token = bench.poll(messages=2).token
    answers = bench.ask(
        Poll("g", "n", 1, 10),
        Tick(),
        Settle("g", [(token, 0, 1, 1, -1, "")]),
        CommitOffset("s", 2),
        Release("g", [(token, 1, 1, 1, -1, "")]),
        MakeGroup("h", "queue"),
        DropGroup("nobody"),
    )
    assert offsets_of(answers[0]) == [1, 2, 3]
    assert answers[1:6] == [None, [(0, 1)], None, [(0, 1)], None]
    assert isinstance(answers[6], GroupNotFound)


def test_settles_come_first_then_dead_letters_then_time_then_polls(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3)
    token = bench.poll(lease_ms=1_000).token
    bench.wait(1_000)
    answers = bench.ask(Poll("g", "n", 1), Redrive("g"), Settle("g", [(token, 0, 1, 1, -1, "")]))
    assert offsets_of(answers[0]) == [1, 2]
    assert answers[1:] == [0, [(0, 1)]]
    decision = records.decode_decision(bench.log[-1])
    assert [type(fact).__name__ for fact in decision.facts] == ["Acked", "LeaseEnded", "Leased"]


def test_a_decision_names_the_index_it_saw_and_the_later_of_both_times(bench: Any) -> None:
    bench.append()
    bench.now_ms = 500
    decided = bench.decide(Poll("g", "m", 1))
    decision = records.decode_decision(decided.record)
    assert decision.seen_index == 1 and decision.now_ms == 1_000


def test_nothing_to_decide_is_nothing_to_write(bench: Any) -> None:
    assert bench.decide().record is None
    assert bench.decide(Tick()).record is None
    bench.ask(MakeGroup("g", "queue"))
    assert bench.decide(MakeGroup("g", "queue"), Seek("x", 0)).record is None


def test_changed_settings_count_from_the_next_decision_on(make_bench: Any) -> None:
    bench = make_bench(lease_ms=1_000)
    bench.append(count=2)
    assert bench.poll(messages=1).deadline_ms == 2_000
    bench.settings = bench.settings.changed({"lease_ms": 9_000})
    assert bench.poll(messages=1).deadline_ms == 10_000
    assert bench.poll() is WAIT


def test_an_append_between_decision_and_application_changes_no_answer(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2)
    decided = bench.decide(Poll("g", "m", 1))
    bench.append(count=2, priority=9)
    bench.apply(decided.record)
    assert offsets_of(decided.answers[0]) == [0, 1]
    assert offsets_of(bench.poll(sequence=2)) == [2, 3]
