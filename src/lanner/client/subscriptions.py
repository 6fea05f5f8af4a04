"""What a consumer or reader wants: topics by their names, and patterns of names.

A pattern has `*` for any characters and `?` for one; nothing else in it means anything but itself. It also stands for
topics that are made later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from lanner import limits
from lanner.errors import ValidationError
from lanner.model import check_name

_PATTERN: Final = re.compile(r"[A-Za-z0-9._*?-]{1,200}\Z")


class Subscription(NamedTuple):
    """Topics and patterns, each once, sorted."""

    topics: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def is_one_topic(self) -> bool:
        return len(self.topics) == 1 and not self.patterns

    def matching(self, names: Iterable[str]) -> list[str]:
        """Those topics that are wanted: the named ones, and which of these the patterns stand for."""
        found = [name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)]
        return sorted({*self.topics, *found})

    def __str__(self) -> str:
        return ", ".join(self.topics + self.patterns)


def subscription_of(topics: str | Sequence[str]) -> Subscription:
    """Tell names from patterns, and refuse what can be neither."""
    given = [topics] if isinstance(topics, str) else list(topics)
    if not given:
        raise ValidationError("topics is empty: name at least one", field="topics")
    patterns = {one for one in given if _is_pattern(one)}
    names = {check_name(one, "topic") for one in given if not _is_pattern(one)}
    for pattern in patterns:
        if not _PATTERN.match(pattern):
            raise ValidationError(
                f"pattern {pattern[:80]!r} is not valid: use the characters of topics' names, and * and ?",
                field="topics",
            )
    if len(names) > limits.SUBSCRIPTION_TOPICS_MAX or len(patterns) > limits.SUBSCRIPTION_PATTERNS_MAX:
        raise ValidationError(
            f"there are {len(names)} topics and {len(patterns)} patterns; at most {limits.SUBSCRIPTION_TOPICS_MAX} and "
            f"{limits.SUBSCRIPTION_PATTERNS_MAX} are allowed: use a pattern for many topics",
            field="topics",
        )
    return Subscription(tuple(sorted(names)), tuple(sorted(patterns)))


def _is_pattern(one: object) -> bool:
    return isinstance(one, str) and ("*" in one or "?" in one)
