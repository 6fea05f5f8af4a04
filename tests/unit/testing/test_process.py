"""Brokers of tests: their ports are free and never given twice in a short time; a paused one stands still."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lanner.testing import process
from lanner.testing.process import HOST, BrokerProcess, free_port

DRAW = "from lanner.testing.process import free_port; print(*(free_port() for _ in range(200)))"


def test_processes_that_draw_side_by_side_get_different_ports() -> None:
    drawing = [subprocess.Popen([sys.executable, "-c", DRAW], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    drawn = [int(port) for each in drawing for port in each.communicate()[0].split()]
    assert len(set(drawn)) == len(drawn) == 600


def test_ports_in_a_row_belong_to_the_one_who_asked() -> None:
    first = free_port(5)
    assert free_port() not in range(first, first + 5)


@pytest.fixture
def turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "turn"
    monkeypatch.setattr(process, "_TURN", path)
    return path


def test_a_taken_port_is_passed_over(turn: Path) -> None:
    first = free_port(4)
    turn.write_text(str(first))
    with socket.socket() as listener:
        listener.bind((HOST, first + 1))
        assert free_port(2) >= first + 2


def test_the_ports_are_handed_out_in_a_circle(turn: Path) -> None:
    turn.write_text(str(process._PORTS[1] - 1))
    port = free_port(2)
    assert process._PORTS[0] <= port < process._PORTS[1] - 1


@pytest.mark.parametrize("written", ["", "what is this?", "99999"])
def test_a_file_that_makes_no_sense_is_begun_again(turn: Path, written: str) -> None:
    turn.write_text(written)
    assert process._PORTS[0] <= free_port() < process._PORTS[1]


def test_a_thread_that_stops_waiting_for_the_disk_may_run_for_a_moment_before_it_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen waiting, and then running, while it was on its way to the signal."""
    broker = BrokerProcess(tmp_path / "broker")
    monkeypatch.setattr(broker, "command", lambda: [sys.executable, "-c", "input()"])
    seen = iter([{"R"}, {"D", "T"}, {"R", "T"}, {"T"}])
    monkeypatch.setattr(broker, "_thread_states", lambda: next(seen))
    broker.launch()
    try:
        broker.pause()
        assert next(seen) == {"R", "T"}, "looked at once more than needed"
    finally:
        broker.kill()
