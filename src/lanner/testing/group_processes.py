"""What a simulated group is made of: partitions that are led somewhere, and processes that are, or will be, members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lanner import features
from lanner.client.assignments import Assignments, Granted
from lanner.model import TopicSettings
from lanner.partition import Partition, encode_append

GROUP: Final = "g"


class _Header(NamedTuple):
    count: int  # type: ignore[assignment]
    priority: int = 4
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    dedup_id: bytes = b""


class NoRows:
    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class SimPartition:
    """One partition's machine, and the broker that leads it."""

    def __init__(self, leader: int) -> None:
        self.machine = Partition(NoRows(), lambda data: _Header(data[0]))
        self.leader = leader
        self._index = 0

    def append(self, count: int, now_ms: int) -> None:
        self._apply(encode_append(now_ms, bytes((count,))))

    def ask(self, request: Any, now_ms: int) -> Any:
        decided = self.machine.decide([request], TopicSettings(), now_ms, features.GROUPS)
        if decided.record is not None:
            self._apply(decided.record)
        return decided.answers[0]

    def _apply(self, payload: bytes) -> None:
        self._index += 1
        self.machine.apply(self._index, payload)

    def committed(self) -> int:
        found = self.machine._state.groups.get(GROUP)
        return -1 if found is None else found.committed


class Process:
    """A consumer: a member, or on its way to be one."""

    def __init__(self, slot: int, instance: str) -> None:
        self.slot = slot
        self.instance = instance
        self.member = ""  # its id; new with every join
        self.number = 0
        self.joined = False
        self.ended = False  # killed, or fenced by a newer process of its instance
        self.asleep = 0  # steps that it sleeps on
        self.assignments = Assignments()
        self.positions: dict[Granted, int] = {}
        self.sequence = 0

    def forget(self) -> None:
        """It is no member any more: nothing of what it had may be committed."""
        self.member, self.joined, self.number = "", False, 0
        self.assignments, self.positions, self.sequence = Assignments(), {}, 0
