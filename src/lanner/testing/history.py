"""What clients asked and what they were told, in plain values that can be written to a file and judged later.

A history knows nothing of how the broker works; a simulator and a test with real processes write the same events.
`called` and `returned` are points on one clock of the observer (steps of a simulator, seconds of a test run): of two
calls, one came first only if it had returned before the other was made. An operation whose answer never came is
`unknown`: it may have taken effect or not, at any time after it was called, and both are right. An observer who knows
more than the caller may give it a time of return: by then it has had its effect, or never will. Only an operation that
was refused is `failed`. Times of the broker's own machine (`decided_ms`) are 0 where the observer cannot know them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec


class Status(StrEnum):
    """How an operation ended, as far as its caller can know."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Handed(NamedTuple):
    """One message as a poll handed it out."""

    offset: int
    value: str
    priority: int
    attempt: int


class Stored(NamedTuple):
    """One message as it lies in the partition."""

    offset: int
    value: str
    priority: int


class Published(msgspec.Struct, frozen=True, gc=False):
    """One batch. Values are names that nobody else uses, so that each message can be told from every other."""

    kind: ClassVar[str] = "published"
    called: float
    returned: float | None
    status: Status
    partition: int
    base_offset: int  # -1: not known
    values: tuple[str, ...]
    priority: int
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    append_ms: int = 0
    size: int = 0


class Polled(msgspec.Struct, frozen=True, gc=False):
    """A poll on one partition. No messages: nothing was deliverable."""

    kind: ClassVar[str] = "polled"
    called: float
    returned: float | None
    status: Status
    group: str
    partition: int
    messages: tuple[Handed, ...] = ()
    token: int = 0
    decided_ms: int = 0
    deadline_ms: int = 0
    limited: bool = False
    auto_ack: bool = False
    repeated: bool = False  # the answer that the same poll had got, or would have got, before
    unseen: tuple[int, ...] = ()  # offsets of those messages that were left out of the reply: nobody saw them


class Settled(msgspec.Struct, frozen=True, gc=False):
    """One range of one lease: ack, nack, extend, reject or release. `until_ms`: of a nack, when the retry is due at
    the earliest; of an extension, the new deadline."""

    kind: ClassVar[str] = "settled"
    called: float
    returned: float | None
    status: Status
    group: str
    partition: int
    token: int
    offsets: tuple[int, ...]
    action: str
    decided_ms: int = 0
    until_ms: int = 0
    lost: bool = False  # failed because the lease is said to be lost: it had no effect, and never will


class Administered(msgspec.Struct, frozen=True, gc=False):
    """seek (to the offset), redrive or discard (these offsets; none: all), drop (the group)."""

    kind: ClassVar[str] = "administered"
    called: float
    returned: float | None
    status: Status
    group: str
    partition: int
    action: str
    offsets: tuple[int, ...] = ()


class DeadSeen(msgspec.Struct, frozen=True, gc=False):
    """A dead letter as a listing showed it. An empty value: its bytes were not looked at."""

    kind: ClassVar[str] = "dead_seen"
    called: float
    returned: float | None
    group: str
    partition: int
    offset: int
    attempts: int
    reason: str
    value: str = ""


class FloorSeen(msgspec.Struct, frozen=True, gc=False):
    """How far a group has come, as the broker says: a committed offset, or a place in one lane below which everything
    is settled."""

    kind: ClassVar[str] = "floor_seen"
    called: float
    returned: float | None
    group: str
    partition: int
    floor: int
    lane: int = -1  # -1: of the partition as a whole


class ReadBack(msgspec.Struct, frozen=True, gc=False):
    """Messages that a stream read, or a look without leasing, found."""

    kind: ClassVar[str] = "read_back"
    called: float
    returned: float | None
    partition: int
    messages: tuple[Stored, ...]


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The broker lost its memory, and of its disk what was not synced."""

    kind: ClassVar[str] = "crashed"
    called: float
    returned: float | None = None


class Ended(msgspec.Struct, frozen=True, gc=False):
    """One partition after all faults: what it holds, and, where its groups were drained, which letters are dead."""

    kind: ClassVar[str] = "ended"
    called: float
    returned: float | None
    partition: int
    first_offset: int
    end_offset: int
    stored: tuple[Stored, ...]
    machine_ms: int = 0
    drained: tuple[str, ...] = ()  # groups that were polled and acked until nothing came
    dead: tuple[tuple[str, int], ...] = ()  # (group, offset)


Event = Published | Polled | Settled | Administered | DeadSeen | FloorSeen | ReadBack | Crashed | Ended
_KINDS: Final[dict[str, Any]] = {
    kind.kind: kind
    for kind in (Published, Polled, Settled, Administered, DeadSeen, FloorSeen, ReadBack, Crashed, Ended)
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What a partition was asked to do with its messages: the least that any of its settings allowed."""

    max_deliveries: int = 5
    strict: bool = True
    retention: str = "none"  # none: nothing may go; time; acked
    retention_ms: int = 0  # 0: no limit by age
    retention_bytes: int = 0  # 0: no limit by bytes


@dataclass(slots=True)
class History:
    """Events in the order in which the observer wrote them down, and the rules they are judged by."""

    rules: dict[int, Rules] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def rules_of(self, partition: int) -> Rules:
        return self.rules.get(partition, _DEFAULT_RULES)

    def of_kind(self, kind: type) -> Iterator[Any]:
        return (event for event in self.events if type(event) is kind)

    # ------------------------------------------------------------------ files

    def save(self, path: Path) -> None:
        """One JSON object a line; the first holds the rules."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self.lines())

    def lines(self) -> Iterator[str]:
        yield json.dumps({"rules": {str(partition): asdict(rules) for partition, rules in self.rules.items()}})
        for event in self.events:
            yield f'{{"kind": "{event.kind}", {msgspec.json.encode(event)[1:].decode()}'

    @classmethod
    def load(cls, path: Path) -> History:
        with path.open(encoding="utf-8") as file:
            return cls.from_lines(file)

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> History:
        rows = iter(lines)
        head = json.loads(next(rows))
        history = cls({int(partition): Rules(**rules) for partition, rules in head["rules"].items()})
        for line in rows:
            history.add(_event_of(json.loads(line)))
        return history


def _event_of(given: dict[str, Any]) -> Event:
    kind = given.pop("kind")
    if "status" in given:
        given["status"] = Status(given["status"])
    for name in ("values", "offsets", "drained", "unseen"):
        if name in given:
            given[name] = tuple(given[name])
    if "messages" in given:
        row: Any = Stored if kind == ReadBack.kind else Handed
        given["messages"] = tuple(row(*message) for message in given["messages"])
    if kind == Ended.kind:
        given["stored"] = tuple(Stored(*message) for message in given["stored"])
        given["dead"] = tuple((group, offset) for group, offset in given["dead"])
    event: Event = _KINDS[kind](**given)
    return event


_DEFAULT_RULES: Final = Rules()
