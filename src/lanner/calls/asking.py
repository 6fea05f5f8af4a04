"""Who asks, what an answer is, and the one way to ask: `ask(identity, Settle(...))` gives an `Answer[Settled]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol

from lanner.wire.messages import AnswerT, AnswerT_co, AnyCall, Call

Bulk = Sequence[bytes | memoryview]


class Connection(Protocol):
    """What a call came by."""

    @property
    def number(self) -> int:
        """No other connection of the broker has had it."""

    def note(self, call: AnyCall) -> None:
        """Remember which group the call uses, if it uses one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls. Anonymous until tokens arrive; every call carries one all the same."""

    name: str
    door: str = ""
    connection: Connection | None = field(default=None, compare=False, repr=False)  # None: it came by another broker


ANONYMOUS: Final = Identity("anonymous")


class Answer(NamedTuple, Generic[AnswerT_co]):
    """What a call was answered: the control part as it travels, and one piece of bulk for each size that it names."""

    control: AnswerT_co
    bulk: Bulk = ()
    unheard: Callable[[], None] | None = None  # call it when the answer cannot be handed over: leases go back


class Asker(Protocol):
    """What answers calls, from wherever they can be answered."""

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]: ...
