"""What a bug on purpose is: see `planted` for the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Patch = Callable[[Any, str, Any], None]


class Plant(NamedTuple):
    """What is wrong, by which rules it may be caught, and how to make it so. Another rule does not count: a patch that
    no longer fits the code breaks something too."""

    says: str
    caught_by: tuple[str, ...]
    put: Callable[[Patch], None]
