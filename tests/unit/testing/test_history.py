from __future__ import annotations

from pathlib import Path

import pytest

from lanner.testing.checkers import judge
from lanner.testing.history import (
    Administered,
    Crashed,
    DeadSeen,
    Ended,
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


def one_of_each() -> History:
    history = History({3: Rules(max_deliveries=2, retention="acked")})
    history.add(Published(1, 2, Status.OK, 3, 0, ("a", "b"), 4, expires_at_ms=9, append_ms=5, size=80))
    history.add(Published(2, None, Status.UNKNOWN, 3, -1, ("c",), 4))
    history.add(Polled(3, 4, Status.OK, "g", 3, (Handed(0, "a", 4, 1), Handed(1, "b", 4, 1)), 7, 6, 8))
    history.add(Settled(5, 6, Status.OK, "g", 3, 7, (0, 1), "ack", decided_ms=6))
    history.add(Administered(7, 8, Status.FAILED, "g", 3, "seek", (1,)))
    history.add(DeadSeen(9, 9, "g", 3, 1, 2, "rejected", "b"))
    history.add(FloorSeen(10, 10, "g", 3, 2, 4))
    history.add(ReadBack(11, 12, 3, (Stored(0, "a", 4),)))
    history.add(Crashed(13))
    history.add(Ended(14, 15, 3, 0, 2, (Stored(0, "a", 4),), 20, ("g",), (("g", 1),)))
    return history


def test_a_history_survives_a_file(tmp_path: Path) -> None:
    history = one_of_each()
    path = tmp_path / "history.jsonl"
    history.save(path)
    again = History.load(path)
    assert again == history
    assert judge(again) == judge(history)


def test_every_line_of_the_file_is_one_event() -> None:
    history = one_of_each()
    assert len(list(history.lines())) == 1 + len(history.events)


def test_an_unknown_kind_of_event_is_not_taken_for_another() -> None:
    with pytest.raises(KeyError):
        History.from_lines(['{"rules": {}}', '{"kind": "rumour", "called": 1}'])


def test_a_partition_without_rules_of_its_own_keeps_everything() -> None:
    assert History().rules_of(99).retention == "none"
