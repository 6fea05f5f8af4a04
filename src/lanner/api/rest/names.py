"""Names of fields: which a request knows, and which one was meant by a name that it does not know.

Under `/v1` an unknown name is refused, because a misspelt one would silently be taken for one that was left out.
FalconQ's users may send fields that it ignored; there only near misses of known names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Final

import msgspec
from msgspec import inspect

from lanner.errors import ValidationError
from lanner.model import TopicSettings

_INDEX: Final = re.compile(r"\[[^\]]*\]")
_NEAR: Final = 0.75
_SHOWN_MAX: Final = 80


@cache
def known_names(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, ...]]:
    """The names of a request's fields by where they are: "" for its own, `messages` for those of its messages."""
    found: dict[str, tuple[str, ...]] = {}
    _gather(inspect.type_info(kind), "", found)
    if "settings" in found.get("", ()):
        found["settings"] = tuple(TopicSettings().to_dict())
    return found


def _gather(info: inspect.Type, path: str, found: dict[str, tuple[str, ...]]) -> None:
    if isinstance(info, inspect.Metadata):
        _gather(info.type, path, found)
    elif isinstance(info, inspect.StructType):
        found[path] = tuple(field.encode_name for field in info.fields)
        for field in info.fields:
            _gather(field.type, f"{path}.{field.encode_name}".lstrip("."), found)
    elif isinstance(info, inspect.ListType):
        _gather(info.item_type, path, found)
    elif isinstance(info, inspect.UnionType):
        for one in info.types:
            _gather(one, path, found)


def unknown_name(name: str, path: str, what: str, kind: type[msgspec.Struct]) -> ValidationError:
    """The refusal of a name, with the one that was probably meant."""
    known = known_names(kind)
    place = _INDEX.sub("", path)
    near = _meant(name, place, known)
    beside = known.get(place, ())
    told = f"did you mean {near}?" if near else f"it knows {', '.join(beside)}" if beside else "it takes none"
    shown = name[:_SHOWN_MAX]
    where = f" at {path}" if path else ""
    return ValidationError(
        f"{what} has an unknown field {shown!r}{where}; {told}", field=f"{path}.{shown}" if path else shown
    )


def _meant(name: str, place: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """The nearest name beside it; else one that it is exactly, elsewhere."""
    beside = known.get(place, ())
    elsewhere = [f"{path}.{name}".lstrip(".") for path, names in known.items() if name in names]
    if elsewhere:
        return elsewhere[0]
    near = get_close_matches(name.lower(), {one.lower(): one for one in beside}, 1, 0.5)
    return next((one for one in beside if near and one.lower() == near[0]), "")


def refuse_near_misses(given: Iterable[str], what: str, kind: type[msgspec.Struct]) -> None:
    """Let names pass that have nothing to do with the known ones."""
    known = {name.lower(): name for name in known_names(kind)[""]}
    for name in given:
        if name in known.values():
            continue
        near = get_close_matches(name.lower()[:_SHOWN_MAX], known, 1, _NEAR)
        if near:
            shown = name[:_SHOWN_MAX]
            raise ValidationError(f"{what} has an unknown field {shown!r}; did you mean {known[near[0]]}?", field=shown)
