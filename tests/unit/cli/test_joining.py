from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from lanner.cli.joining import Wish, command, completed, entrance
from lanner.errors import ValidationError
from lanner.wire.cluster import BrokerState, ClusterDescription

NOTHING = Wish("", "", "", "", "", "", "")


def known(*names: str) -> ClusterDescription:
    brokers = [BrokerState(name, name, "", "active", {}, 0, 0, 0, "voter", True, None) for name in names]
    return ClusterDescription("c", names[0], 1, 0, 0, 0, 0, brokers)


def test_what_was_left_open_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wish = completed(NOTHING, known("node-1", "node-3"), "localhost:7410")
    assert (wish.name, wish.data) == ("node-2", "data-node-2")
    assert wish.native.startswith("127.0.0.1:")
    assert wish.http.startswith("127.0.0.1:")
    assert wish.native != wish.http
    assert completed(NOTHING, known("node-1", "node-2"), "[::1]:7410").name == "node-3"


def test_what_was_given_is_kept():
    wish = Wish("there", "west", "0.0.0.0:7400", "0.0.0.0:8080", "10.0.0.4:7400", "b", "0.0.0.0:8000")
    assert completed(wish, known("node-1"), "10.0.0.1:7400") == wish
    words = command(wish, "10.0.0.1:7400")
    assert words[words.index("--join") + 1] == "10.0.0.1:7400"
    assert words[words.index("--advertise") + 1] == "10.0.0.4:7400"
    assert words[words.index("--rack") + 1] == "b"


def test_a_broker_that_is_alive_is_asked_for_entry():
    found = known("node-1", "node-2", "node-3")
    dead, nameless, alive = found.brokers
    found = replace(
        found,
        brokers=[
            replace(dead, alive=False, addresses={"native": "10.0.0.1:7400"}),
            nameless,
            replace(alive, addresses={"native": "10.0.0.3:7400"}),
        ],
    )
    assert entrance(found, "10.0.0.1:7400") == "10.0.0.3:7400"
    assert entrance(known("node-1"), "10.0.0.1:7400, 10.0.0.2:7400") == "10.0.0.1:7400, 10.0.0.2:7400"


def test_a_broker_that_has_a_name_already_keeps_it(tmp_path):
    (tmp_path / "identity.json").write_text(json.dumps({"node_id": "x"}))
    wish = completed(NOTHING._replace(data=str(tmp_path)), known("node-1"), "localhost:7410")
    assert wish.name == ""
    assert "--name" not in command(wish, "localhost:7410")


def test_a_cluster_on_other_machines_must_be_able_to_reach_it():
    with pytest.raises(ValidationError, match="--native HOST:PORT"):
        completed(NOTHING, known("node-1"), "10.0.0.1:7400,10.0.0.2:7400")
