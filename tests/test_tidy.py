"""Style is executable: what the tree must look like, judged from its syntax, without importing any of it.

Bounds on length are a ratchet. A file or function that is longer today is listed with its size; it may shrink, never
grow, and leaves the list as soon as it fits.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lanner"

PURE_ROOMS = ("batch", "raft", "partition", "cluster", "ledger", "wire", "calls")
BELOW = {"calls": {"wire"}}  # pure rooms that stand on another one
FOUNDATIONS = ("errors", "limits", "model")
IMPURE_MODULES = frozenset(
    [
        "asyncio",
        "concurrent",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    ]
)
CODEC_LIBRARIES = frozenset({"crc32c", "lz4", "msgspec", "xxhash", "zstandard"})

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 50
LONGER_FILES: dict[str, int] = {}
LONGER_FUNCTIONS: dict[str, int] = {}

TYPED_ROOMS = ("api", "broker", "calls", "forwarding", "proxy")  # what a call passes from a door to a partition
MAY_SAY_ANY = {
    "calls/table.py": "rows, handlers and ways by the type of their call; a test over annotations holds them",
    "api/rest/operations.py": "operations with their handlers; a test over annotations holds them, too",
    "api/rest/app.py": "what a path names, as fields of a call",
    "api/rest/door.py": "what uvicorn gives to its protocols",
    "api/rest/group_shapes.py": "fields that a reply leaves out, and a schema",
    "api/rest/openapi.py": "schemas",
    "api/rest/shapes.py": "schemas, settings and details of errors",
    "api/rest/topics.py": "fields of a message, for several shapes",
    "api/grpc/cluster.py": "what a broker tells of a log, as JSON has it",
}

VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "misc", "common"})
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|mnt)/\w")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "__pycache__" not in path.parts]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_of_room(room: str) -> list[Path]:
    module = SOURCE / f"{room}.py"
    return [module] if module.exists() else python_files(f"src/lanner/{room}")


def imports(path: Path, *, for_types_too: bool) -> Iterator[tuple[int, str]]:
    """Every absolute import of a file as (line, dotted name)."""
    skipped: set[ast.AST] = set()
    if not for_types_too:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                skipped.update(inner for statement in node.body for inner in ast.walk(statement))
    for node in ast.walk(tree_of(path)):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path)}:{node.lineno}: relative import; write the whole name"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_a_pure_room_imports_nothing_that_does_io_or_knows_time_or_chance(room: str) -> None:
    for path in files_of_room(room):
        for line, name in imports(path, for_types_too=False):
            top = name.split(".")[0]
            assert top not in IMPURE_MODULES, f"{shown(path)}:{line} imports {name}"
            if top != "lanner":
                assert top in sys.stdlib_module_names or top in CODEC_LIBRARIES, f"{shown(path)}:{line} imports {name}"


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_a_pure_room_knows_only_itself_and_the_foundations(room: str) -> None:
    allowed = {room, *FOUNDATIONS, *BELOW.get(room, ())}
    for path in files_of_room(room):
        for line, name in imports(path, for_types_too=True):
            parts = name.split(".")
            if parts[0] == "lanner" and len(parts) > 1:
                assert parts[1] in allowed, f"{shown(path)}:{line} imports {name}"


@pytest.mark.parametrize("name", FOUNDATIONS)
def test_the_foundations_import_the_standard_library_only(name: str) -> None:
    for line, imported in imports(SOURCE / f"{name}.py", for_types_too=True):
        top = imported.split(".")[0]
        assert top in sys.stdlib_module_names or top == "lanner", f"{name}.py:{line} imports {imported}"


def test_the_import_rule_sees_a_forbidden_import(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\nimport time\n")
    assert list(imports(planted, for_types_too=False)) == [(1, "typing"), (4, "time")]
    assert "random" in {name for _, name in imports(planted, for_types_too=True)}


def test_every_module_opens_with_a_docstring() -> None:
    silent = [
        shown(path)
        for path in python_files("src", "bench", "tools")
        if ast.get_docstring(tree_of(path)) is None and tree_of(path).body
    ]
    assert silent == []


def says_any(tree: ast.Module) -> list[int]:
    """The lines that say Any. What a coroutine gives to its loop and takes from it is nobody's: it may be left open."""
    open_still = {
        id(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "Coroutine"
        and isinstance(node.slice, ast.Tuple)
        for one in node.slice.elts[:2]
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "Any" and id(node) not in open_still)
        or (isinstance(node, ast.Attribute) and node.attr == "Any" and ast.unparse(node.value) in ("typing", "t"))
        or (isinstance(node, ast.Constant) and node.value == "Any")
        or (isinstance(node, ast.ImportFrom) and node.module == "typing" and any(one.asname for one in node.names))
    ]


def test_from_the_doors_to_the_partitions_everything_has_a_type() -> None:
    saying = {
        path.relative_to(SOURCE).as_posix(): lines
        for room in TYPED_ROOMS
        for path in files_of_room(room)
        if "generated" not in path.parts and (lines := says_any(tree_of(path)))
    }
    assert {name: lines for name, lines in saying.items() if name not in MAY_SAY_ANY} == {}
    assert set(MAY_SAY_ANY) - set(saying) == set(), "these need it no more: take them off the list"


def test_an_any_is_seen_wherever_it_hides() -> None:
    planted = (
        "from typing import Any as Anything\n"
        "def ask(call: Any) -> None: ...\n"
        "work: Coroutine[Any, Any, None]\n"
        "left: Coroutine[Any, Any, dict[str, Any]]\n"
        "hidden: typing.Any\n"
        "cast('Any', kind)\n"
    )
    assert sorted(says_any(ast.parse(planted))) == [1, 2, 4, 5, 6]


def test_only_the_command_line_prints() -> None:
    allowed = (SOURCE / "cli", SOURCE / "testing" / "simulate.py")
    for path in python_files("src"):
        if any(path == one or one in path.parents for one in allowed):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                pytest.fail(f"{shown(path)}:{node.lineno} prints; log or return it instead")


def text_files() -> list[Path]:
    loose = [ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run")]
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *python_files("src", "tests", "bench", "tools")]
    return [path for path in (*loose, *written) if path.exists() and path != Path(__file__).resolve()]


def test_nothing_in_the_tree_names_a_path_of_one_machine_or_is_left_unfinished() -> None:
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not MACHINE_PATH.search(line), f"{shown(path)}:{number} names a path of one machine: {line.strip()}"
            assert not UNFINISHED.search(line), f"{shown(path)}:{number} is unfinished: {line.strip()}"


def test_the_constraints_pin_names_and_versions_and_nothing_else() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [shown(path) for path in python_files("src", "bench") if path.stem.strip("_") in VAGUE_NAMES]
    assert vague == []


def functions_of(tree: ast.Module, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    waiting: list[tuple[str, ast.AST]] = [(prefix, tree)]
    while waiting:
        outer, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{outer}.{child.name}" if outer else child.name
                if not isinstance(child, ast.ClassDef):
                    yield name, child
            waiting.append((name, child))


def ratchet(sizes: dict[str, int], bound: int, listed: dict[str, int]) -> list[str]:
    """What breaks the bound, and which listed ones are out of date."""
    wrong = [
        f"{name} has {size} lines; at most {listed.get(name, bound)}"
        for name, size in sizes.items()
        if size > max(bound, listed.get(name, bound))
    ]
    wrong += [f"{name} fits now: take it off the list" for name in listed if sizes.get(name, 0) <= bound]
    return wrong


def test_files_stay_near_a_size_one_can_hold_in_mind() -> None:
    sizes = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("src")}
    assert ratchet(sizes, FILE_LINES_MAX, LONGER_FILES) == []


def test_functions_stay_near_a_size_one_can_read_at_once() -> None:
    sizes = {
        f"{shown(path)}:{name}": (node.end_lineno or 0) - node.lineno + 1
        for path in python_files("src")
        for name, node in functions_of(tree_of(path))
    }
    assert ratchet(sizes, FUNCTION_LINES_MAX, LONGER_FUNCTIONS) == []


def test_the_ratchet_turns_one_way_only() -> None:
    assert ratchet({"long": 51}, 50, {}) == ["long has 51 lines; at most 50"]
    assert ratchet({"long": 60}, 50, {"long": 60}) == []
    assert ratchet({"long": 61}, 50, {"long": 60}) == ["long has 61 lines; at most 60"]
    assert ratchet({"long": 50}, 50, {"long": 60}) == ["long fits now: take it off the list"]


def test_tests_are_named_as_sentences() -> None:
    short = [
        f"{shown(path)}:{node.lineno} {name}"
        for path in python_files("tests")
        if path.name.startswith("test_")
        for name, node in functions_of(tree_of(path))
        if name.split(".")[-1].startswith("test_") and name.count("_") - name.split("test_")[0].count("_") < 3
    ]
    assert short == []


def test_the_architecture_page_names_modules_that_exist() -> None:
    named = re.findall(r"`((?:[a-z]+)/[a-z_/]+)`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    gone = [
        name
        for name in named
        if not ((SOURCE / f"{name}.py").exists() or (SOURCE / name).is_dir() or (ROOT / name).is_dir())
    ]
    assert gone == []
