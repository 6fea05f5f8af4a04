"""The simulator's own judgement: whatever goes wrong inside a run becomes a named violation, never a silent end."""

from __future__ import annotations

from typing import Any

import pytest

from lanner.errors import StorageDamaged
from lanner.testing import simulator
from lanner.testing.sim_broker import SimBroker
from lanner.testing.simulator import Simulation, simulate
from lanner.testing.traffic import Traffic, name_of

EVENTS = 300


def rules_broken(events: int = EVENTS) -> list[str]:
    return sorted({violation.rule for violation in simulate(1, events).violations})


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def inspect(_traffic: Traffic) -> None:
        raise error

    monkeypatch.setattr(Traffic, "inspect", inspect)


def test_a_short_run_breaks_nothing_and_tells_what_it_met() -> None:
    report = simulate(1, EVENTS)
    assert not report.failed
    assert report.events >= EVENTS
    assert report.totals["published"] > 0
    assert report.history.events


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (AssertionError("a count is wrong"), "invariant broken"),
        (KeyError("gone"), "broker broke down"),
        (StorageDamaged("a file is missing"), "broker refuses its own disk"),
    ],
)
def test_what_comes_out_of_the_broker_by_itself_is_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, error: Exception, rule: str
) -> None:
    fail_with(monkeypatch, error)
    assert rule in rules_broken(2_000)


def test_damage_that_is_accepted_is_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credulous:
        @staticmethod
        def recover(*_arguments: Any, **_more: Any) -> None:
            return None

    monkeypatch.setattr(simulator, "Ledger", Credulous)
    simulation = Simulation(1)
    simulation.broker.start()
    simulation._make_topics()
    records = simulation.broker.commits[:1]
    with pytest.raises(simulator.Broken, match="damage accepted"):
        for _ in range(200):
            simulation._check_refusal(records)


def test_a_group_that_never_comes_to_rest_is_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_DRAIN_ROUNDS_MAX", 5)
    monkeypatch.setattr(Simulation, "_at_rest", lambda _simulation: False)
    assert rules_broken() == ["group never comes to rest"]


def test_a_message_that_a_broken_run_lost_is_still_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_DRAIN_ROUNDS_MAX", 5)
    monkeypatch.setattr(Simulation, "_at_rest", lambda _simulation: False)
    read = SimBroker.read

    def swap(broker: SimBroker, set_id: int, ref: Any) -> dict[int, bytes]:
        return dict.fromkeys(read(broker, set_id, ref), b"nobody sent this|")

    monkeypatch.setattr(SimBroker, "read", swap)
    assert "unexpected message" in rules_broken()


def test_the_name_of_a_message_ends_at_the_bar() -> None:
    assert name_of(b"12.3|.......") == "12.3"
