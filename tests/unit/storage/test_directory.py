from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanner.errors import DataDirectoryRefused
from lanner.storage import open_directory

CLUSTER, NODE = "c" * 32, "d" * 32


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    first = open_directory(tmp_path / "data")
    assert first.created
    assert len(first.node_id) == len(first.cluster_id) == 32
    first.files.create(1, 100, b"x")
    first.table.commit({b"k": b"v"})
    first.close()
    again = open_directory(str(tmp_path / "data"))
    assert not again.created
    assert (again.node_id, again.cluster_id) == (first.node_id, first.cluster_id)
    assert again.files.list() == [(1, 100)]
    assert again.table.get(b"k") == b"v"
    again.close()


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    one, two = open_directory(tmp_path / "one"), open_directory(tmp_path / "two")
    assert one.node_id != two.node_id
    one.close()
    two.close()


def test_a_directory_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    held = open_directory(tmp_path)
    with pytest.raises(DataDirectoryRefused, match=rf"process {os.getpid()}.*--data"):
        open_directory(tmp_path)
    held.close()
    open_directory(tmp_path).close()


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    script = f"import os; from lanner.storage import open_directory; open_directory({str(tmp_path)!r}); os._exit(9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 9
    open_directory(tmp_path).close()


def test_a_given_identity_is_taken_by_a_new_directory_and_checked_in_an_old_one(tmp_path: Path) -> None:
    made = open_directory(tmp_path, cluster_id=CLUSTER, node_id=NODE)
    assert (made.cluster_id, made.node_id) == (CLUSTER, NODE)
    made.close()
    open_directory(tmp_path, cluster_id=CLUSTER).close()
    with pytest.raises(DataDirectoryRefused, match=f"belongs to node {NODE}"):
        open_directory(tmp_path, node_id="e" * 32)
    with pytest.raises(DataDirectoryRefused, match=f"belongs to cluster {CLUSTER}"):
        open_directory(tmp_path, cluster_id="e" * 32)
    open_directory(tmp_path, cluster_id=CLUSTER, node_id=NODE).close()


def test_an_identity_must_be_hexadecimal(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryRefused, match="32 lower-case hex digits"):
        open_directory(tmp_path, node_id="../../etc")


def test_a_directory_of_an_older_version_is_marked_so_that_that_version_refuses_it_from_now_on(tmp_path: Path) -> None:
    identity = {"format": 1, "cluster_id": CLUSTER, "node_id": NODE}
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    opened = open_directory(tmp_path)
    assert (opened.created, opened.cluster_id, opened.node_id) == (False, CLUSTER, NODE)
    opened.close()
    assert json.loads((tmp_path / "identity.json").read_text()) == {**identity, "format": 2}
    open_directory(tmp_path, node_id=NODE).close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text(json.dumps({"format": 3, "something": "else"}))
    with pytest.raises(DataDirectoryRefused, match="newer version"):
        open_directory(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[1]",
        "{}",
        '{"format": "1"}',
        '{"format": true}',
        '{"format": 1, "cluster_id": "x", "node_id": "y"}',
        '{"format": 1, "cluster_id": "' + CLUSTER + '"}',
        '{"format": 1, "cluster_id": "' + CLUSTER + '", "node_id": 7}',
        "\udcff",
    ],
)
def test_an_identity_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataDirectoryRefused, match="whose data"):
        open_directory(tmp_path)
    assert not (tmp_path / "journal").exists(), "nothing was touched"


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"...")
    with pytest.raises(DataDirectoryRefused, match=r"holiday\.jpg"):
        open_directory(tmp_path)
    assert not (tmp_path / "identity.json").exists()


def test_a_crash_while_the_identity_was_written_leaves_a_directory_that_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "identity.json.new").write_text("{")
    (tmp_path / "lock").write_text("")
    open_directory(tmp_path).close()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryRefused, match="cannot be used as a data directory"):
        open_directory(tmp_path / "file")
    with pytest.raises(DataDirectoryRefused, match="--data"):
        open_directory(tmp_path / "file" / "below")


def test_what_is_recorded_of_the_cluster_is_there_whole_after_a_restart(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert directory.read_founding() is None
    directory.write_founding(b"first")
    directory.write_founding(b"second")
    directory.close()
    again = open_directory(tmp_path)
    assert again.read_founding() == b"second"
    assert not (tmp_path / "founding.json.new").exists()
    again.close()


def test_a_crash_while_it_was_recorded_leaves_what_was_there_before(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    (tmp_path / "founding.json.new").write_bytes(b"ha")
    assert directory.read_founding() is None
    directory.write_founding(b"whole")
    assert directory.read_founding() == b"whole"
    directory.close()


def test_a_record_without_an_identity_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "founding.json").write_bytes(b"{}")
    with pytest.raises(DataDirectoryRefused, match="its identity was lost"):
        open_directory(tmp_path)


def test_a_full_disk_does_not_keep_a_directory_from_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory(tmp_path / "data").close()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    opened = open_directory(tmp_path / "data")
    with pytest.raises(DataDirectoryRefused, match=r"in use by another broker \(process unknown\)"):
        open_directory(tmp_path / "data")
    opened.close()
