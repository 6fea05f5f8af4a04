"""Single options as text: what each kind of them may say, and how one that cannot be meant is refused.

Pure. Reads (`options`) and writes (`write_options`) share it. Names of options come in as they are documented; the
options themselves under their names in lower case, because Spark does not keep the case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from lanner import limits
from lanner.errors import ValidationError

SERVERS: Final = "servers"
_TRUTH: Final = {"true": True, "false": False}
_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_DURATION: Final = re.compile(r"(\d{1,15})\s*([a-z]*)")


def check_known(options: Mapping[str, str], known: Sequence[str], what: str = "option") -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    by_lower = {name.lower(): name for name in known}
    unknown = sorted(set(options) - set(by_lower))
    if unknown:
        close = difflib.get_close_matches(unknown[0], by_lower, n=1, cutoff=0.5)
        hint = f", did you mean {by_lower[close[0]]}?" if close else "."
        refuse(unknown[0], f"there is no such {what}{hint} There are {', '.join(known)}")


def required(options: Mapping[str, str], name: str, example: str) -> str:
    value = options.get(name.lower(), "").strip()
    if not value:
        refuse(name, f'it is missing: say .option("{name}", "{example}")')
    return value


def choice(options: Mapping[str, str], name: str, words: tuple[str, ...], default: str | None = None) -> str:
    word = options.get(name.lower(), default or words[0]).strip().lower()
    if word not in words:
        refuse(name, f"it is {word[:80]!r}; give {' or '.join(words)}")
    return word


def truth(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    return _TRUTH[choice(options, name, tuple(_TRUTH), "true" if default else "false")]


def whole_number(
    options: Mapping[str, str], name: str, highest: int = limits.OFFSET_MAX, lowest: int = 1
) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20 and lowest <= int(text) <= highest):
        refuse(name, f"it is {text[:80]!r}; give a whole number from {lowest} to {highest}")
    return int(text)


def duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        refuse(name, f"it is {text[:80]!r}; give a time like 500ms, 30s, 15m or 2h")
    return int(found[1]) * _UNITS_MS[found[2]]


def refuse(name: str, why: str) -> NoReturn:
    raise ValidationError(f"option {name}: {why}", field=name)
