"""Who takes part in simulated traffic, and what each remembers: producers what they have not heard of, consumers what
they hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from lanner.testing.history import Published

_STALE_MAX: Final = 30


class Lost(Enum):
    LOST = "no answer came, and nobody knows whether anything happened"


LOST: Final = Lost.LOST


class Sent(NamedTuple):
    """A batch as its producer remembers it."""

    event: Published
    data: bytes
    again: bool  # it has an identity, so it may be sent again


@dataclass(slots=True)
class SentToLane:
    """What a producer has sent to one lane of one partition and not heard of."""

    sequence: int = 0
    unheard: deque[Sent] = field(default_factory=deque)  # in order; the first ones are under way
    under_way: int = 0


@dataclass(slots=True)
class Producer:
    """With an id, or with a dedup id for each batch, it sends again what it has not heard of; with neither it does
    not."""

    producer_id: int
    dedup: bool = False
    lanes: dict[tuple[int, int], SentToLane] = field(default_factory=dict)


class Held(NamedTuple):
    """Messages of one lease: leased together, delivered equally often."""

    token: int
    first_offset: int
    count: int  # type: ignore[assignment]
    attempt: int


@dataclass(slots=True)
class Consumer:
    group: str
    set_id: int
    member: str
    sequence: int = 0
    polling: bool = False
    held: list[Held] = field(default_factory=list)
    asked: deque[tuple[Held, str]] = field(default_factory=lambda: deque(maxlen=_STALE_MAX))  # settles, heard of or not
    nacked: set[tuple[int, int]] = field(default_factory=set)  # (token, offset) that it ever wanted nacked
    late: deque[Held] = field(default_factory=lambda: deque(maxlen=_STALE_MAX))  # to be settled when it is too late
