"""Patterns of topic names: `*` stands for any characters, `?` for one. Nothing else means anything but itself.

Matching happens when entries are applied, so its time is bounded: what one star has taken is never tried again.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from lanner import limits
from lanner.errors import ValidationError

_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?-]{1,200}\Z")


def check_pattern(pattern: str) -> str:
    if not _PATTERN.match(pattern):
        raise ValidationError(
            f"pattern {pattern[:80]!r} is not valid: use 1 to {limits.NAME_LENGTH_MAX} of the characters "
            "A-Z a-z 0-9 . _ - and * ?",
            field="patterns",
        )
    return pattern


def matches(pattern: str, name: str) -> bool:
    return _compile(pattern).match(name) is not None


@lru_cache(limits.PATTERNS_MAX)
def _compile(pattern: str) -> re.Pattern[str]:
    first, *others = [re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern)]
    if not others:
        return re.compile(first + r"\Z")
    *middle, last = others
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + rf".*{last}\Z")
