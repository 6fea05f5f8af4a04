from __future__ import annotations

import json
from pathlib import Path

from lanner.testing.checkers import judge
from lanner.testing.history import Ended, Event, Handed, History, Polled, Published, Rules, Settled, Status, Stored
from lanner.testing.member_worker import KILLED, history_of, read_worker

POLLED = Polled(1.0, 2.0, Status.OK, "workers", 0, (Handed(0, "0-0", 4, 1),), 7, 1_000, 3_000)
ACKED = Settled(2.5, 3.0, Status.OK, "workers", 0, 7, (0,), "ack")


def written(path: Path, *pieces: Event | dict[str, object], torn: str = "") -> Path:
    lines = []
    for piece in pieces:
        lines += [json.dumps(piece)] if isinstance(piece, dict) else list(History({}, [piece]).lines())[1:]
    path.write_text("".join(f"{line}\n" for line in lines) + torn)
    return path


def test_a_round_that_ended_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "w", {"begun": 1.0}, POLLED, {"kept": 2.1}, ACKED, {"done": 3.1}, {"failures": {"x": 1}})
    ((begun, ended, events),), failures = read_worker(path)
    assert (begun, ended, events, failures) == (1.0, 3.1, [POLLED, ACKED], {"x": 1})
    assert history_of(read_worker(path)[0], "workers", 2, []) == [POLLED, ACKED]


def test_of_a_poll_whose_answer_was_not_kept_nobody_knows_what_it_leased(tmp_path: Path) -> None:
    for torn in ("", '{"kind": "pol'):
        path = written(tmp_path / "w", {"begun": 1.0}, POLLED, torn=torn)
        rounds, _ = read_worker(path)
        assert [one.ended for one in rounds] == [KILLED]
        found = history_of(rounds, "workers", 2, [])
        assert found == [Polled(1.0, None, Status.UNKNOWN, "workers", partition) for partition in range(2)]


def test_polls_that_a_broken_broker_may_have_answered_twice_are_unknown_too(tmp_path: Path) -> None:
    path = written(tmp_path / "w", {"begun": 1.0}, {"kept": 2.0}, {"done": 2.0}, {"begun": 5.0}, {"done": 6.0})
    found = history_of(read_worker(path)[0], "workers", 1, [(1.5, 3.0)])
    assert found == [Polled(1.0, None, Status.UNKNOWN, "workers", 0)]


def test_acks_of_a_killed_worker_may_have_taken_effect(tmp_path: Path) -> None:
    """The judges must neither miss the message nor take it for lost."""
    path = written(tmp_path / "w", {"begun": 1.0}, POLLED, {"kept": 2.1})
    killed = history_of(read_worker(path)[0], "workers", 1, [])
    history = History({0: Rules()}, [Published(0.1, 0.2, Status.OK, 0, 0, ("0-0",), 4, append_ms=500), *killed])
    ended = Ended(9.0, 9.5, 0, 0, 1, (Stored(0, "0-0", 4),), 9_000, ("workers",))
    assert judge(History(history.rules, [*history.events, ended])) == []
    unsettled = History(history.rules, [*history.events[:2], ended])
    assert [violation.rule for violation in judge(unsettled)] == ["message vanished"]
