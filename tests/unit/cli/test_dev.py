from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lanner.cli.dev import Narrator
from lanner.cli.dev_folder import LocalBroker
from lanner.cli.screen import Screen
from lanner.wire.cluster import ClusterDescription


class StillChild:
    """As much of a child as is told of."""

    def __init__(self, broker: LocalBroker, pid: int) -> None:
        self.broker = broker
        self.pid = pid
        self.state = "starting"
        self.ending = "SIGKILL"


@pytest.fixture
def children(tmp_path: Path) -> list[Any]:
    found = [StillChild(LocalBroker(number, tmp_path, 7400), 100 + number) for number in (1, 2)]
    found[0].broker.log.write_text("all is well\nthe disk is gone\n")
    return found


def narrate(narrator: Narrator, children: list[Any]) -> None:
    narrator.starting(children)
    narrator.waiting(children)
    narrator.waiting(children)
    narrator.ready(children, ClusterDescription("c" * 32, "n", 1, 0, 0, 0, 0, []))
    narrator.died(children[0], None)
    narrator.died(children[0], 2.0)
    narrator.restarted(children[0])
    narrator.removed(children[1])
    narrator.stopping()
    narrator.stopped(children[1:])


def test_people_are_told_where_everything_is_and_what_to_try(capsys, children):
    narrate(Narrator(Screen(as_json=False)), children)
    shown = capsys.readouterr().out
    for words in (
        "127.0.0.1:7410",
        "http://127.0.0.1:7421",
        "101",
        "export LANNER_SERVERS=127.0.0.1:7410,127.0.0.1:7420",
        "kill -9 101",
        "127.0.0.1:7412",
        "the disk is gone",
        "The others go on",
        "starts again in 2 s",
        "node-2 was removed from the cluster",
        "Killed, because they did not end in time: node-2",
        "The same command starts it again",
    ):
        assert words in shown
    assert shown.count("node-1 starting, node-2 starting") == 1


def test_programs_are_told_one_line_an_event(capsys, children):
    narrate(Narrator(Screen(as_json=True)), children)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in told] == [
        "starting",
        "ready",
        "died",
        "died",
        "restarted",
        "removed",
        "stopping",
        "stopped",
    ]
    ready, died = told[1], told[2]
    assert ready["servers"] == "127.0.0.1:7410,127.0.0.1:7420"
    assert [(broker["name"], broker["pid"]) for broker in ready["brokers"]] == [("node-1", 101), ("node-2", 102)]
    assert (died["name"], died["ending"], died["log_tail"][-1]) == ("node-1", "SIGKILL", "the disk is gone")
    assert told[-1]["killed"] == ["node-2"]


def test_who_waits_for_long_is_shown_the_log(capsys, children, monkeypatch):
    monkeypatch.setattr("lanner.cli.dev._PATIENCE_SECONDS", -1.0)
    children[1].state = "ready"
    narrator = Narrator(Screen(as_json=False))
    narrator.waiting(children)
    narrator.waiting(children)
    shown = capsys.readouterr().out
    assert shown.count("node-1 is not ready yet") == 1
    assert "the disk is gone" in shown
    assert "node-2 is not ready" not in shown
