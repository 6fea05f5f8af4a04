"""Words of a command line as values: settings, message ids, offsets, times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import typer

_LISTS: Final = frozenset({"hold_for"})
_DIGITS_MAX: Final = 20  # of a number that a request can hold


def is_number(text: str) -> bool:
    """Whether text is a whole number in plain digits."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def pairs(words: Iterable[str], what: str) -> dict[str, str]:
    """NAME=VALUE, several times."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint=what)
        found[name] = value
    return found


def settings(words: Iterable[str]) -> dict[str, int | str | list[str]]:
    """Topic settings: numbers where they look like numbers, names with commas between; the broker knows the bounds."""
    found: dict[str, int | str | list[str]] = {}
    for name, value in pairs(words, "settings").items():
        if name in _LISTS:
            found[name] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            found[name] = int(value) if is_number(value.removeprefix("-")) else value
    return found


def offsets(words: Iterable[str]) -> dict[int, int]:
    """PARTITION=OFFSET, several times."""
    found: dict[int, int] = {}
    for partition, offset in pairs(words, "--offset").items():
        if not is_number(partition) or not is_number(offset):
            raise typer.BadParameter(f"{partition}={offset} is not PARTITION=OFFSET in numbers", param_hint="--offset")
        found[int(partition)] = int(offset)
    return found


def message_ids(words: Iterable[str]) -> dict[int, list[int]]:
    """Offsets by partition, from ids written PARTITION/OFFSET or TOPIC/PARTITION/OFFSET."""
    found: dict[int, list[int]] = {}
    for word in words:
        parts = word.split("/")[-2:]
        if len(parts) != 2 or not all(map(is_number, parts)):
            raise typer.BadParameter(f"{word!r} is not an id: write PARTITION/OFFSET, such as 0/17", param_hint="ID")
        found.setdefault(int(parts[0]), []).append(int(parts[1]))
    return found


def place(text: str, what: str) -> tuple[int, int]:
    """PARTITION/OFFSET, as a listing says where it goes on."""
    parts = text.split("/")
    if len(parts) != 2 or not all(map(is_number, parts)):
        raise typer.BadParameter(f"{text!r} is not PARTITION/OFFSET, such as 0/17", param_hint=what)
    return int(parts[0]), int(parts[1])


def partition(text: str) -> tuple[str, int]:
    """TOPIC/PARTITION, as tables show it."""
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not is_number(number):
        raise typer.BadParameter(f"{text!r} is not TOPIC/PARTITION, such as orders/0", param_hint="PARTITION")
    return topic, int(number)


def moment(text: str) -> int:
    """Milliseconds since 1970, from a number of them or from an ISO date and time (UTC where it does not say)."""
    if is_number(text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00 or milliseconds since 1970", param_hint="--time"
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
