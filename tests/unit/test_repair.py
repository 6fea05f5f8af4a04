"""What is done about a data directory that is damaged: with other brokers, and without."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lanner import batch, repair
from lanner.broker.links.founding import Founding, encode_record
from lanner.broker.settings import BrokerSettings
from lanner.cli.app import app
from lanner.cluster import Registration, encode_create_topic, encode_found_cluster, encode_register_broker
from lanner.errors import ConflictError, DataDirectoryRefused, StorageDamaged
from lanner.ledger import CommitItem, EntryIn, Ledger, perform
from lanner.model import TopicSettings
from lanner.partition import encode_append
from lanner.raft import EntryKind
from lanner.server import Server
from lanner.storage import open_directory
from lanner.storage.aside import LockedDirectory, read_rejoin

CLUSTER_ID = "c" * 32


class Stored:
    """A directory as a broker left it that was killed: nothing is saved, everything is in the journal."""

    def __init__(self, path: Path, brokers: Sequence[str] = ("a",), *, replication: int = 0) -> None:
        self.path = path
        directory = open_directory(path)
        self.node_id = directory.node_id
        node_ids = [self.node_id, *(f"{number:032x}" for number in range(1, len(brokers)))]
        founders = tuple(
            Registration(name, node_id, {"native": f"127.0.0.1:{7000 + number}"}, "", 1, 1)
            for number, (name, node_id) in enumerate(zip(brokers, node_ids, strict=True))
        )
        directory.write_founding(encode_record(Founding(CLUSTER_ID, founders, 1, name=brokers[0])))
        self.files = directory.files
        self.ledger = self._recover(directory.table)
        self.ledger.add_set(0)
        settings = TopicSettings(partitions=2, replication=replication or len(brokers))
        self.places: list[tuple[int, int, int]] = []
        self.commit(0, encode_found_cluster(CLUSTER_ID, founders, 1))
        self.commit(0, encode_create_topic("orders", settings, 2))
        self.ledger.add_set(1)
        for number in range(3):
            values = [b"value %d" % number] * (number + 2)
            self.commit(1, encode_append(10 + number, batch.encode(values)))
        directory.close()

    def _recover(self, table: object) -> Ledger:
        return Ledger.recover(self.files, table, random_bytes=os.urandom, segment_bytes=1 << 20)  # type: ignore[arg-type]

    def commit(self, set_id: int, payload: bytes) -> None:
        index = self.ledger.state(set_id).last_index + 1
        entry = EntryIn(index, 1, EntryKind.NORMAL, payload)
        commit = self.ledger.begin_commit([CommitItem(set_id, (1, 1), [entry])])
        perform(commit, self.files)
        self.ledger.commit_synced(commit)
        self.places.append((commit.file, commit.offset, commit.size))

    def flip(self, record: int, place: int = -10) -> None:
        file, offset, size = self.places[record]
        with open(self.path / "journal" / f"{file:012d}.journal", "r+b") as journal:
            at = offset + (place if place >= 0 else size + place)
            journal.seek(at)
            byte = journal.read(1)[0]
            journal.seek(at)
            journal.write(bytes([byte ^ 4]))

    def journal(self) -> bytes:
        return (self.path / "journal" / "000000000001.journal").read_bytes()


def started(path: Path) -> Ledger:
    """What a start makes of the directory."""
    directory = open_directory(path)
    try:
        return Ledger.recover(directory.files, directory.table, random_bytes=os.urandom, segment_bytes=1 << 20)
    finally:
        directory.close()


def test_with_other_brokers_everything_is_set_aside_and_the_broker_is_told_where_to_join(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data", ("a", "b", "c"))
    stored.flip(-1)
    before = stored.journal()
    with pytest.raises(StorageDamaged):
        started(stored.path)
    done = repair.repair(str(stored.path))
    assert (done.action, done.name, done.peers) == ("set aside", "a", ["127.0.0.1:7001", "127.0.0.1:7002"])
    aside = stored.path / done.aside
    assert (aside / "journal" / "000000000001.journal").read_bytes() == before
    assert {entry.name for entry in aside.iterdir()} == {"identity.json", "founding.json", "journal", "table"}
    assert json.loads((aside / "identity.json").read_text())["node_id"] == stored.node_id
    assert json.loads((stored.path / "identity.json").read_text())["node_id"] != stored.node_id
    assert not (stored.path / "founding.json").exists()
    rejoin = read_rejoin(stored.path)
    assert rejoin is not None
    assert (rejoin.cluster_id, rejoin.name, list(rejoin.addresses)) == (CLUSTER_ID, "a", done.peers)
    assert started(stored.path).sets() == {}
    with pytest.raises(ConflictError, match="set aside already"):
        repair.repair(str(stored.path))


@pytest.mark.parametrize("renames", range(4))
def test_a_repair_that_is_interrupted_leaves_nothing_that_starts_and_goes_on_when_asked_again(
    tmp_path: Path, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(tmp_path / "data", ("a", "b", "c"))
    stored.flip(-1)
    left = renames
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    if renames < 3:
        with pytest.raises(KeyboardInterrupt):
            repair.repair(str(stored.path))
        with pytest.raises(StorageDamaged):
            started(stored.path)
        monkeypatch.undo()
        assert repair.repair(str(stored.path)).action == "set aside"
    else:
        assert repair.repair(str(stored.path)).action == "set aside"
    assert started(stored.path).sets() == {}
    asides = [entry for entry in stored.path.iterdir() if entry.name.startswith("aside-")]
    assert sum((aside / "journal").exists() and (aside / "founding.json").exists() for aside in asides) == 1


def test_what_no_other_broker_has_is_set_aside_only_when_told_to_accept_the_loss(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data", ("a", "b"), replication=1)
    stored.flip(-1)
    before = stored.journal()
    with pytest.raises(ConflictError, match=r"No other broker has a copy of orders/[01]: .*--accept-loss"):
        repair.repair(str(stored.path))
    assert stored.journal() == before
    assert len(repair.repair(str(stored.path), accept_loss=True).sole_copies) == 1


def test_alone_it_refuses_and_says_what_would_be_lost(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    stored.flip(-2)
    before = stored.journal()
    with pytest.raises(ConflictError, match="--accept-loss cuts the journal there") as refused:
        repair.repair(str(stored.path))
    assert "entries 2 to 3 of orders/0 (4 messages; unreadable entries: 1)" in refused.value.message
    assert refused.value.details["lost"][0]["entries"] == 2
    assert stored.journal() == before
    assert not [entry for entry in stored.path.iterdir() if entry.name.startswith("aside-")]


def test_alone_and_told_to_accept_the_loss_it_cuts_and_keeps_what_it_cut(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    stored.flip(-2)
    _, offset, _ = stored.places[-2]
    _, last_offset, last_size = stored.places[-1]
    before = stored.journal()[offset : last_offset + last_size]
    done = repair.repair(str(stored.path), accept_loss=True)
    assert (done.action, done.position) == ("cut", f"file 1, offset {offset}")
    assert (done.cut_bytes, done.lost_unknown_bytes) == (len(before), 0)
    (loss,) = done.lost
    assert (loss.topic, loss.partition, loss.entries, loss.first_index, loss.last_index) == ("orders", 0, 2, 2, 3)
    assert (loss.messages, loss.unreadable) == (4, 1)
    assert (stored.path / done.aside / f"000000000001-{offset}.cut").read_bytes() == before
    assert started(stored.path).state(1).last_index == 1
    with pytest.raises(ConflictError, match="nothing is damaged"):
        repair.repair(str(stored.path))


def test_a_record_whose_header_is_damaged_is_lost_without_a_name(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    stored.flip(-1, place=20)
    done = repair.repair(str(stored.path), accept_loss=True)
    assert (done.lost, done.lost_unknown_bytes) == ([], stored.places[-1][2])
    assert started(stored.path).state(1).last_index == 2


def test_what_cutting_does_not_mend_is_refused_alone_whatever_is_accepted(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    with open(stored.path / "journal" / "000000000001.journal", "r+b") as journal:
        journal.seek(20)
        journal.write(b"\xff")
    with pytest.raises(ConflictError, match="restore the data directory from a backup"):
        repair.repair(str(stored.path), accept_loss=True)


def test_a_directory_that_is_whole_or_in_use_or_none_is_left_alone(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    with pytest.raises(ConflictError, match="nothing is damaged here"):
        repair.repair(str(stored.path))
    with LockedDirectory(stored.path), pytest.raises(DataDirectoryRefused, match="in use by another broker"):
        repair.repair(str(stored.path))
    with pytest.raises(DataDirectoryRefused, match="not a data directory"):
        repair.repair(str(tmp_path))
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("founders", [("a", "b"), ("a",)])
def test_brokers_that_joined_later_count_unless_the_metadata_is_nowhere_else(
    tmp_path: Path, founders: tuple[str, ...]
) -> None:
    path = tmp_path / "data"
    stored = Stored(path, founders)
    directory = open_directory(path)
    stored.files = directory.files
    stored.ledger = stored._recover(directory.table)
    joined = Registration("c", "b" * 32, {"native": "127.0.0.1:7009"}, "", 1, 1)
    stored.commit(0, encode_register_broker(joined, 5))
    stored.commit(1, b"the last one")
    directory.close()
    stored.flip(-1)
    if len(founders) == 2:
        assert sorted(repair.repair(str(path)).peers) == ["127.0.0.1:7001", "127.0.0.1:7009"]
    else:
        with pytest.raises(ConflictError, match="alone has the cluster's metadata"):
            repair.repair(str(path))


def test_the_command_says_what_it_did_and_what_to_run_next(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data", ("a", "b", "c"))
    stored.flip(-1)
    shown = CliRunner().invoke(app, ["broker", "repair", "--data", str(stored.path)])
    assert shown.exit_code == 0, shown.output
    assert "its last record was written whole" in shown.output
    assert "are set aside in" in shown.output
    assert f"Next: lanner up --data {stored.path}" in shown.output
    alone = Stored(tmp_path / "alone")
    alone.flip(-1)
    refused = CliRunner().invoke(app, ["broker", "repair", "--data", str(alone.path), "--json"])
    assert refused.exit_code == 1
    told = json.loads(refused.stderr)
    assert (told["type"], told["details"]["lost"][0]["topic"]) == ("ConflictError", "orders")
    done = CliRunner().invoke(app, ["broker", "repair", "--data", str(alone.path), "--json", "--accept-loss"])
    assert json.loads(done.stdout)["action"] == "cut"


async def test_a_start_that_finds_damage_names_the_command(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "data")
    stored.flip(-1)
    server = Server(BrokerSettings(data=str(stored.path), http="", native="127.0.0.1:0"))
    with pytest.raises(StorageDamaged, match=f"To repair it: lanner broker repair --data {stored.path}"):
        await server.start()


def test_damage_names_the_command_with_the_directory_and_a_later_release_does_not() -> None:
    damage = StorageDamaged("broken", file=1).at("/var/my data")
    assert damage.message == "broken. To repair it: lanner broker repair --data '/var/my data'"
    assert damage.details == {"file": 1, "repair": "lanner broker repair --data '/var/my data'"}
    assert StorageDamaged("a later release", newer=True).at("/x").message == "a later release"
