"""A YAML file as values, with the line that each of them came from.

Pure: text in, values and mistakes out. Nothing but plain values is made, whatever tags the text has; what a program
could stumble over (two keys of one name, an alias that holds itself, a mountain of aliases) is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

Path: TypeAlias = tuple[str | int, ...]

_NODES_MAX: Final = 20_000
_TEXT_LENGTH_MAX: Final = 1 << 20


class Mistake(NamedTuple):
    """Something in the file that cannot stay."""

    line: int  # from 1
    what: str


class Document(NamedTuple):
    """What a file says."""

    value: Any
    lines: Mapping[Path, int]
    mistakes: list[Mistake]

    def line(self, path: Path) -> int:
        """The line of a value, or of what it would be in if it were there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str) -> Document:
    """The values of a YAML text; where it is not YAML at all, one mistake and no value."""
    if len(text) > _TEXT_LENGTH_MAX:
        return Document(None, {}, [Mistake(1, f"the file is longer than {_TEXT_LENGTH_MAX} characters")])
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return Document(None, {}, [Mistake(line, f"not YAML: the character #x{error.character:04x} cannot be in it")])
    try:
        node = loader.get_single_node()
        reading = _Reading(loader)
        value = None if node is None else reading.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Document(None, {}, [Mistake(1 if mark is None else mark.line + 1, f"not YAML: {error.problem}")])
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return Document(None, {}, [Mistake(1, f"not YAML: {error}")])
    finally:
        loader.dispose()
    return Document(value, reading.lines, reading.mistakes)


class _Reading:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._nodes = 0
        self._within: set[int] = set()
        self.lines: dict[Path, int] = {}
        self.mistakes: list[Mistake] = []

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._nodes += 1
        if id(node) in self._within or self._nodes > _NODES_MAX:
            if self._nodes <= _NODES_MAX + 1:
                self.mistakes.append(Mistake(line, "this alias holds itself, or there are too many values"))
            return None
        self._within.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(one, (*path, number)) for number, one in enumerate(node.value)]
            return self._scalar(node, line)
        finally:
            self._within.discard(id(node))

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        try:
            made = self._loader.construct_object(node)
        except yaml.YAMLError as error:
            self.mistakes.append(Mistake(line, f"{str(node.value)[:40]!r} cannot be used: {error}".splitlines()[0]))
            return None
        return made if isinstance(made, str | int | float | bool) or made is None else str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, inner in node.value:
            line = key.start_mark.line + 1
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is None:
                self.mistakes.append(Mistake(line, "a name must be plain text"))
                continue
            if name in found:
                first = self.lines[(*path, name)]
                self.mistakes.append(Mistake(line, f"{name!r} is here twice: first in line {first}"))
                continue
            self.lines[(*path, name)] = line
            found[name] = self.value(inner, (*path, name))
        return found
