"""Which modules and packages a part of Lanner stands on, read from its import statements; nothing is imported.

It follows imports of our own modules, inside functions too, and stops at those of others. What is imported only for
types does not count. Importing a module also runs the packages that it lies in.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Final

OURS: Final = ("lanner", "pyspark_lanner")


class Reached:
    """What was found."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}  # our modules by name
        self.packages: set[str] = set()  # of others, by the name that is imported; without the standard library
        self.refused: set[tuple[str, str]] = set()  # modules that were not entered: who imports them, and which
        self.lines: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by module: line and name of each import


def reached(source: Path, roots: Iterable[str], enter: Callable[[str], bool] = lambda _: True) -> Reached:
    """Everything that these modules stand on. `source` is the folder that our packages lie in."""
    found = Reached()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found.files:
            continue
        path = file_of(source, name)
        if path is None:
            continue
        found.files[name] = path
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        for line, imported in _imports(path):
            found.lines[name].append((line, imported))
            top = imported.partition(".")[0]
            if top not in OURS:
                found.packages |= {top} - set(sys.stdlib_module_names)
            elif file_of(source, imported) is None:
                continue  # a name inside a module
            elif enter(imported):
                waiting.append(imported)
            else:
                found.refused.add((name, imported))
    return found


def file_of(source: Path, name: str) -> Path | None:
    """The file of a module of ours."""
    path = source.joinpath(*name.split("."))
    package = path / "__init__.py"
    module = path.with_suffix(".py")
    return package if package.is_file() else module if module.is_file() else None


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and name of each import; `from a import b` gives a and a.b, for b may be a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found
