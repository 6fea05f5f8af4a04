"""A document against the JSON Schema of pipeline files: every mistake, each in words that say what to write.

Pure. It knows just those words of JSON Schema that our schema uses, and refuses any other, so that the file that
editors use and the check that `lanner pipeline validate` does cannot drift apart.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lanner.spark.pipelines.document import Document, Mistake, Path

SCHEMA_NAME: Final = "pipeline.schema.json"
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_WORDS: Final = {
    "object": "names with values",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_KNOWN: Final = frozenset(
    [
        *("$ref", "$schema", "$id", "$defs", "title", "description", "examples", "default"),
        *("type", "enum", "const", "pattern", "minimum", "maximum", "items", "minItems"),
        *("properties", "required", "additionalProperties", "propertyNames", "minProperties", "oneOf"),
    ]
)


def schema_text() -> str:
    return (files("lanner.spark.pipelines") / SCHEMA_NAME).read_text(encoding="utf-8")


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schema_text())
    return found


def check(document: Document) -> list[Mistake]:
    """Everything in the document that the schema does not allow, in the order of the file."""
    if document.value is None:
        return document.mistakes or [Mistake(1, "the file is empty: lanner pipeline new writes one to begin with")]
    found = _Checking(document, schema()).check(document.value, schema(), ())
    return sorted({*document.mistakes, *found})


class _Checking:
    def __init__(self, document: Document, root: Mapping[str, Any]) -> None:
        self._document = document
        self._root = root

    def check(self, value: Any, rule: Mapping[str, Any], path: Path) -> Iterator[Mistake]:
        unknown = set(rule) - _KNOWN
        assert not unknown, f"the schema uses {sorted(unknown)}, which nothing here checks"
        if "$ref" in rule:
            yield from self.check(value, self._root["$defs"][rule["$ref"].rpartition("/")[2]], path)
            return
        kinds = rule.get("type", [])
        allowed = [kinds] if isinstance(kinds, str) else kinds
        if allowed and not any(_is(value, kind) for kind in allowed):
            wanted = " or ".join(_WORDS[kind] for kind in allowed)
            yield self._mistake(path, f"{_name(path)} must be {wanted}, and is {_shown(value)}")
            return
        if "enum" in rule and value not in rule["enum"]:
            yield self._mistake(path, f"{_name(path)} is {_shown(value)}; {_one_of(value, rule['enum'])}")
        if "const" in rule and value != rule["const"]:
            yield self._mistake(path, f"{_name(path)} must be {json.dumps(rule['const'])}, or be left away")
        if isinstance(value, str) and "pattern" in rule and not _matches(rule["pattern"], value):
            hint = rule.get("description", f"it must match {rule['pattern']}")
            yield self._mistake(path, f"{_name(path)} is {_shown(value)}: {hint}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from self._bounds(value, rule, path)
        if isinstance(value, list):
            if len(value) < rule.get("minItems", 0):
                yield self._mistake(path, f"{_name(path)} must not be empty")
            for number, one in enumerate(value):
                yield from self.check(one, rule.get("items", {}), (*path, number))
        if isinstance(value, dict):
            yield from self._object(value, rule, path)

    def _bounds(self, value: float, rule: Mapping[str, Any], path: Path) -> Iterator[Mistake]:
        low, high = rule.get("minimum"), rule.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = [f"at least {low}"] if low is not None else []
            bounds += [f"at most {high}"] if high is not None else []
            yield self._mistake(path, f"{_name(path)} is {value}; it must be {' and '.join(bounds)}")

    def _object(self, value: Mapping[str, Any], rule: Mapping[str, Any], path: Path) -> Iterator[Mistake]:
        known = rule.get("properties", {})
        for name in rule.get("required", []):
            if name not in value:
                yield self._mistake(path, f"{_name(path)} needs {name!r}")
        if "oneOf" in rule:
            choices = [one["required"][0] for one in rule["oneOf"]]
            given = [name for name in choices if name in value]
            if len(given) != 1:
                said = " and ".join(given) if given else "none of them"
                yield self._mistake(path, f"{_name(path)} needs exactly one of {', '.join(choices)}, and has {said}")
        if len(value) < rule.get("minProperties", 0):
            yield self._mistake(path, f"{_name(path)} must not be empty")
        other = rule.get("additionalProperties", True)
        for name, inner in value.items():
            place = (*path, name)
            if "propertyNames" in rule and not _matches(rule["propertyNames"]["pattern"], name):
                yield self._mistake(place, f"{name!r} is no name: {rule['propertyNames']['description']}")
            if name in known:
                yield from self.check(inner, known[name], place)
            elif other is False:
                yield self._mistake(place, f"{_name(path)} knows no {name!r}; {_one_of(name, known)}")
            elif isinstance(other, dict):
                yield from self.check(inner, other, place)

    def _mistake(self, path: Path, what: str) -> Mistake:
        return Mistake(self._document.line(path), what)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _matches(pattern: str, text: str) -> bool:
    """As JSON Schema means it: $ is the end, and not what comes before the end of the last line."""
    return bool(re.search(re.sub(r"\$$", r"\\Z", pattern), text))


def _name(path: Path) -> str:
    return ".".join(str(part) for part in path) or "the file"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return _WORDS["object" if isinstance(value, dict) else "array"]
    return "nothing" if value is None else repr(value)[:60]


def _one_of(given: Any, known: Iterable[str]) -> str:
    names = [str(name) for name in known]
    close = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
