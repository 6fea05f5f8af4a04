"""What there is to say of a call besides its two structs. One `Row` for each; `table` holds them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from lanner.calls.asking import Answer
from lanner.errors import LannerError
from lanner.wire.messages import AnswerT, AnyCall, Command

Action = Literal["publish", "consume", "settle", "describe", "administer"]
CallT = TypeVar("CallT", bound=AnyCall)


class Where(Enum):
    """Which brokers serve a call."""

    LEADERS = "the leaders of the partitions that it names"
    METADATA = "any broker, through the metadata's log"
    HERE = "any broker, from its own copy of the metadata or about itself"


class Fresh(Enum):
    """What a broker must have heard before it serves a call, or knows whom to ask."""

    AS_KNOWN = "whatever it knows"
    NAMED = "the topics that the call names: one that is not known may have been made a moment ago, elsewhere"
    LATEST = "all that the metadata's leader knew when the call came"


class Repeat(Enum):
    """Why a call may be asked again after its answer was lost; NEVER: it is not."""

    READS = "it changes nothing"
    SAME_END = "twice comes to the same as once"
    NUMBERED = "it carries an identity, under which it gets its first answer again"
    NEVER = "it would take effect twice, or lose what it counts"


class Part(NamedTuple, Generic[CallT, AnswerT]):
    """What one broker was asked, and what it answered."""

    call: CallT
    answer: Answer[AnswerT]


def _no_topics(call: object) -> Sequence[str]:
    return ()


def _all_partitions(call: object) -> Sequence[int] | None:
    return None


class OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


class OfName(Protocol):
    @property
    def name(self) -> str: ...


class OfPartition(Protocol):
    @property
    def partition(self) -> int: ...


class OfPartitions(Protocol):
    @property
    def partitions(self) -> Sequence[int] | None: ...


class Waiting(Protocol):
    @property
    def wait_ms(self) -> int: ...


def its_topic(call: OfTopic) -> Sequence[str]:
    return (call.topic,)


def its_name(call: OfName) -> Sequence[str]:
    return (call.name,)


def its_partition(call: OfPartition) -> Sequence[int] | None:
    return (call.partition,)


def its_partitions(call: OfPartitions) -> Sequence[int] | None:
    return call.partitions


def _for_partitions(call: CallT, mine: Sequence[int]) -> CallT:
    return replace(call, partitions=list(mine))


def as_it_is(call: CallT, mine: Sequence[int]) -> CallT:
    """For calls about one partition."""
    return call


def _no_wait(call: object) -> int:
    return 0


def its_wait(call: Waiting) -> int:
    return call.wait_ms


def _only(call: CallT, parts: Sequence[Part[CallT, AnswerT]]) -> Answer[AnswerT]:
    """The answer of the one broker that was asked; of several that only confirm, one."""
    return parts[0].answer


def _never(call: object) -> bool:
    return False


def always(call: object) -> bool:
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(Generic[CallT, AnswerT]):
    """One call. Everything that doors, desks and forwarding need to know of it."""

    command: Command
    call: type[CallT]
    answer: type[AnswerT]
    action: Action | Callable[[CallT], Action]  # who may: the action ...
    topics: Callable[[CallT], Sequence[str]] = _no_topics  # ... and the topics; LEADERS: the first is the one
    where: Where
    fresh: Fresh | Callable[[CallT], Fresh] = Fresh.AS_KNOWN
    repeat: Repeat
    strict: bool = False  # from a native client: this broker serves it, or says who leads
    while_draining: bool = False  # also taken by a broker that stops
    waits: Callable[[CallT], int] = _no_wait  # milliseconds that the server may keep it
    # What follows is for LEADERS alone.
    partitions: Callable[[CallT], Sequence[int] | None] = _all_partitions  # None: all of the topic
    narrow: Callable[[CallT, Sequence[int]], CallT] = _for_partitions  # the part for these partitions
    merge: Callable[[CallT, Sequence[Part[CallT, AnswerT]]], Answer[AnswerT]] = _only
    sizes: Callable[[AnswerT], Iterable[int]] | None = None  # how the answer's bulk divides
    identify: Callable[[CallT, str, int], CallT] | None = None  # gives an identity to a call that came without
    absent: Callable[[CallT], bool] = _never  # GroupNotFound is fine from some brokers, an error when all say it
    forgive: bool = False  # GroupNotFound after a lost answer: the attempt before did it
    left_open: Callable[[CallT, AnswerT], Sequence[int]] | None = None  # partitions to ask again
    missed: Callable[[CallT, Mapping[int, LannerError]], Answer[AnswerT]] | None = None  # instead of an error, late

    def action_of(self, call: CallT) -> Action:
        return self.action(call) if callable(self.action) else self.action

    def fresh_of(self, call: CallT) -> Fresh:
        return self.fresh if isinstance(self.fresh, Fresh) else self.fresh(call)
