"""Who gets which partition: one file for each way, all behind one small interface.

An assignor is a function from a `Question` to an answer. A new one is one more file and one more line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lanner.cluster.assignors import range, round_robin, shared, sticky
from lanner.cluster.assignors.question import Answer, Assignor, Question, Subscriber

SHARED: Final = "shared"
STICKY: Final = "sticky"

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        STICKY: sticky.assign,
        "range": range.assign,
        "round_robin": round_robin.assign,
        SHARED: shared.assign,
    }
)

__all__ = ["ASSIGNORS", "SHARED", "STICKY", "Answer", "Assignor", "Question", "Subscriber"]
