"""Lanner: a distributed, priority-aware message queue.

    async with lanner.connect("localhost:7400") as queue:
        await queue.publish("orders", b"refund RF001", priority="high")

Names are loaded when they are first used, so that importing the package costs nothing and pulls in no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lanner import errors, sync
    from lanner.client import (
        Admin,
        Claimed,
        Committed,
        Consumer,
        DeadMessage,
        DeadMessages,
        Hole,
        Message,
        MessageBatch,
        Producer,
        Queue,
        ReadBatch,
        Reader,
        Receipt,
        Receipts,
        Sending,
        Settling,
        Staged,
        StageWriter,
        Transaction,
        connect,
    )
    from lanner.embedding import embedded
    from lanner.errors import LannerError
    from lanner.model import Message as StoredMessage
    from lanner.model import TopicPartition, TopicSettings

__version__ = "0.6.0"

__all__ = [
    "Admin",
    "Claimed",
    "Committed",
    "Consumer",
    "DeadMessage",
    "DeadMessages",
    "Hole",
    "LannerError",
    "Message",
    "MessageBatch",
    "Producer",
    "Queue",
    "ReadBatch",
    "Reader",
    "Receipt",
    "Receipts",
    "Sending",
    "Settling",
    "StageWriter",
    "Staged",
    "StoredMessage",
    "TopicPartition",
    "TopicSettings",
    "Transaction",
    "connect",
    "embedded",
    "errors",
    "sync",
]

_ELSEWHERE = {
    "LannerError": ("lanner.errors", "LannerError"),
    "StoredMessage": ("lanner.model", "Message"),
    "TopicPartition": ("lanner.model", "TopicPartition"),
    "TopicSettings": ("lanner.model", "TopicSettings"),
    "embedded": ("lanner.embedding", "embedded"),
}
_MODULES = frozenset({"errors", "sync"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lanner' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"lanner.{name}")
    module, attribute = _ELSEWHERE.get(name, ("lanner.client", name))
    found = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
