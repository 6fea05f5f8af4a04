from __future__ import annotations

import json
import os
import socket

import pytest

from lanner.cli.dev_folder import DevFolder, LocalBroker, lock_folder, open_folder
from lanner.errors import DataDirectoryRefused, ValidationError
from lanner.testing.process import free_port


def names(folder: DevFolder) -> list[str]:
    return [broker.name for broker in folder.brokers]


def found(folder: DevFolder) -> DevFolder:
    """As the brokers leave it once they belong to a cluster."""
    for broker in folder.brokers:
        broker.data.mkdir(exist_ok=True)
        (broker.data / "founding.json").touch()
    return folder


def flag(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def test_an_empty_folder_becomes_three_brokers_on_the_ports_of_the_manual(tmp_path):
    folder = open_folder(tmp_path / "new", None, None)
    assert names(folder) == ["node-1", "node-2", "node-3"]
    assert [(broker.native, broker.http) for broker in folder.brokers] == [
        ("127.0.0.1:7410", "127.0.0.1:7411"),
        ("127.0.0.1:7420", "127.0.0.1:7421"),
        ("127.0.0.1:7430", "127.0.0.1:7431"),
    ]
    listens = [
        [flag(folder.command(broker), f"--{door}") for door in ("native", "http", "grpc")] for broker in folder.brokers
    ]
    assert listens == [[f"127.0.0.1:{7400 + 10 * number + door}" for door in range(3)] for number in (1, 2, 3)]
    assert not folder.founded


def test_every_founder_is_started_with_the_same_seeds(tmp_path):
    folder = open_folder(tmp_path, 3, 9000)
    commands = [folder.command(broker) for broker in folder.brokers]
    assert {flag(command, "--seeds") for command in commands} == {"127.0.0.1:9010,127.0.0.1:9020,127.0.0.1:9030"}
    assert [flag(command, "--name") for command in commands] == ["node-1", "node-2", "node-3"]
    assert [flag(command, "--join") for command in commands] == [None] * 3


def test_a_single_broker_founds_its_cluster_alone(tmp_path):
    folder = open_folder(tmp_path, 1, 9000)
    assert "--seeds" not in folder.command(folder.brokers[0])


def test_the_same_folder_is_the_same_cluster(tmp_path):
    found(open_folder(tmp_path, 2, 9000))
    again = open_folder(tmp_path, None, None)
    assert names(again) == ["node-1", "node-2"]
    assert again.port == 9000
    assert again.founded


def test_what_was_never_founded_is_not_settled(tmp_path):
    folder = open_folder(tmp_path, 3, 9000)
    folder.brokers[0].data.mkdir()
    smaller = open_folder(tmp_path, 2, 9500)
    assert (names(smaller), smaller.port) == (["node-1", "node-2"], 9500)
    assert names(open_folder(tmp_path, None, None)) == ["node-1", "node-2"]


def test_other_ports_than_before_are_refused_with_the_next_step(tmp_path):
    found(open_folder(tmp_path, 2, 9000))
    with pytest.raises(ValidationError, match="--port 9000"):
        open_folder(tmp_path, None, 9500)
    assert open_folder(tmp_path, None, 9000).port == 9000


def test_more_brokers_than_before_join_the_others(tmp_path):
    found(open_folder(tmp_path, 3, 9000))
    grown = open_folder(tmp_path, 5, None)
    assert [broker.name for broker in grown.newcomers] == ["node-4", "node-5"]
    fourth = grown.command(grown.brokers[3])
    assert (flag(fourth, "--join"), flag(fourth, "--seeds")) == ("127.0.0.1:9010,127.0.0.1:9020,127.0.0.1:9030", None)
    grown.brokers[3].data.mkdir()
    assert [broker.name for broker in open_folder(tmp_path, None, None).newcomers] == ["node-4", "node-5"]
    (grown.brokers[3].data / "founding.json").touch()
    assert [broker.name for broker in open_folder(tmp_path, None, None).newcomers] == ["node-5"]


def test_fewer_brokers_than_before_are_refused_with_the_next_step(tmp_path):
    found(open_folder(tmp_path, 3, 9000))
    with pytest.raises(ValidationError, match="lanner broker remove node-3"):
        open_folder(tmp_path, 2, None)
    assert names(open_folder(tmp_path, None, None)) == ["node-1", "node-2", "node-3"]


def test_a_broker_that_was_removed_is_not_started_again_and_its_name_not_given_again(tmp_path):
    folder = found(open_folder(tmp_path, 3, 9000))
    folder.forget(folder.brokers[0])
    again = open_folder(tmp_path, None, None)
    assert names(again) == ["node-2", "node-3"]
    grown = open_folder(tmp_path, 3, None)
    assert names(grown) == ["node-2", "node-3", "node-4"]
    assert flag(grown.command(grown.brokers[2]), "--join") == "127.0.0.1:9020,127.0.0.1:9030"


def test_a_founder_with_a_new_disk_joins_those_that_are_left_when_no_founder_is(tmp_path):
    found(open_folder(tmp_path, 2, 9000))
    grown = open_folder(tmp_path, 3, None)
    founder, other, third = grown.brokers
    (third.data).mkdir()
    (third.data / "founding.json").touch()
    (founder.data / "founding.json").unlink()
    assert flag(grown.command(founder), "--seeds") == "127.0.0.1:9010,127.0.0.1:9020"
    grown.forget(other)
    assert flag(grown.command(founder), "--join") == "127.0.0.1:9030"


def test_there_is_room_for_nine_brokers(tmp_path):
    folder = found(open_folder(tmp_path, 9, 9000))
    folder.forget(folder.brokers[0])
    with pytest.raises(ValidationError, match="node-10 would be one too many"):
        open_folder(tmp_path, 9, None)


def test_a_port_that_leaves_no_room_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="choose a lower one"):
        open_folder(tmp_path, 9, 65_500)


def test_a_port_in_use_is_named_with_its_broker(tmp_path):
    port = free_port(2) + 1  # its neighbour below is free as well
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(ValidationError, match=f"127.0.0.1:{port}, the native port of node-1 .*--port"):
            LocalBroker(1, tmp_path, port - 10).check_ports()
        with pytest.raises(ValidationError, match=f"127.0.0.1:{port}, the REST port of node-1"):
            LocalBroker(1, tmp_path, port - 11).check_ports()


def test_a_folder_is_for_one_at_a_time(tmp_path):
    held = lock_folder(tmp_path / "new")
    with pytest.raises(DataDirectoryRefused, match=f"process {os.getpid()}.*--data"):
        lock_folder(tmp_path / "new")
    os.close(held)
    os.close(lock_folder(tmp_path / "new"))


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(DataDirectoryRefused, match="single broker"):
        open_folder(tmp_path, None, None)
    (tmp_path / "identity.json").unlink()
    (tmp_path / "node-1").mkdir()
    with pytest.raises(DataDirectoryRefused, match="restore"):
        open_folder(tmp_path, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        json.dumps({"format": 2, "port": 1, "founders": 1, "joined": [], "removed": []}),
        json.dumps({"format": 1, "port": 1, "founders": 1, "joined": 4, "removed": []}),
        json.dumps({"format": 1, "port": "x", "founders": 1, "joined": [], "removed": []}),
        json.dumps({"format": 1, "port": 1, "founders": 1, "joined": [], "removed": [1]}),
    ],
)
def test_a_file_that_is_not_ours_is_refused_with_the_next_step(tmp_path, text):
    (tmp_path / "dev.json").write_text(text)
    with pytest.raises(DataDirectoryRefused, match="give another folder with --data"):
        open_folder(tmp_path, None, None)


def test_what_this_process_was_told_about_one_broker_does_not_reach_all(tmp_path, monkeypatch):
    monkeypatch.setenv("LANNER_DATA", "elsewhere")
    monkeypatch.setenv("LANNER_DISK_RESERVE", "0")
    environment = open_folder(tmp_path, None, None).environment()
    assert "LANNER_DATA" not in environment
    assert environment["LANNER_DISK_RESERVE"] == "0"


def test_the_end_of_a_log_is_shown(tmp_path):
    broker = LocalBroker(1, tmp_path, 9000)
    assert broker.log_tail() == []
    broker.log.write_text("".join(f"line {number}\n" for number in range(5_000)))
    assert broker.log_tail(2) == ["line 4998", "line 4999"]


def test_what_brokers_say_in_json_is_shown_in_words(tmp_path):
    broker = LocalBroker(1, tmp_path, 9000)
    said = [
        '{"event": "ready", "data": "x"}',
        '{"type": "StorageFull", "message": "no room"}',
        "[1]",
        "17",
        "{}",
        "plain",
    ]
    broker.log.write_text("\n".join(said))
    assert broker.log_tail() == ["ready", "StorageFull: no room", "[1]", "17", "{}", "plain"]
