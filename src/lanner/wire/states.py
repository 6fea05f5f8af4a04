"""Which steps are legal, and when: one table for a connection, one for each exchange on it.

Both ends step through the same two tables, and docs/protocol.md is drawn from them. A step that is not in its table is
a mistake: of this end when it speaks out of turn (LocalProtocolError), of the other end when its frame does
(RemoteProtocolError).

This module knows the order of steps. It does not know frames, commands or bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from lanner.errors import LocalProtocolError, ProtocolError


class State(StrEnum):
    """Where a connection is, at either end."""

    NEW = "new"
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class Step(StrEnum):
    """What happens on a connection: requests are the client's, answers the broker's, the end is everybody's."""

    HELLO = "HELLO"
    WELCOME = "reply to HELLO"
    REFUSAL = "error for HELLO"
    REQUEST = "any other request"
    ANSWER = "any other answer"
    END = "broken frame, or the socket closed"


TRANSITIONS: Final[Mapping[State, Mapping[Step, State]]] = {
    State.NEW: {Step.HELLO: State.GREETING, Step.END: State.CLOSED},
    State.GREETING: {Step.WELCOME: State.OPEN, Step.REFUSAL: State.CLOSED, Step.END: State.CLOSED},
    State.OPEN: {Step.REQUEST: State.OPEN, Step.ANSWER: State.OPEN, Step.END: State.CLOSED},
    # Work that is done after its connection has ended is answered to nobody.
    State.CLOSED: {Step.ANSWER: State.CLOSED, Step.END: State.CLOSED},
}

_NEXT_STEP: Final = {
    State.NEW: "HELLO comes first",
    State.GREETING: "wait for the reply to HELLO",
    State.OPEN: "HELLO comes once, as the first frame",
    State.CLOSED: "connect again",
}


class Phase(StrEnum):
    """Where one exchange is: what its request may still be answered with."""

    TOLD = "told: no answer is expected"
    SETTLING = "asked, with settles"
    ASKED = "asked"
    ANSWERED = "answered"


class Answer(StrEnum):
    """What answers a request."""

    SETTLED = "SETTLE reply to a POLL"
    REPLY = "reply"
    ERROR = "error"


EXCHANGE_TRANSITIONS: Final[Mapping[Phase, Mapping[Answer, Phase]]] = {
    # An error about something that expects no answer is not sent: its connection ends instead.
    Phase.TOLD: {Answer.ERROR: Phase.TOLD},
    Phase.SETTLING: {Answer.SETTLED: Phase.ASKED, Answer.ERROR: Phase.ANSWERED},
    Phase.ASKED: {Answer.REPLY: Phase.ANSWERED, Answer.ERROR: Phase.ANSWERED},
    Phase.ANSWERED: {},
}

assert set(TRANSITIONS) == set(State)
assert set(EXCHANGE_TRANSITIONS) == set(Phase)


def illegal_step(state: State, step: Step, blame: type[ProtocolError]) -> ProtocolError:
    """The error for a step that the state does not have, blaming the end which took it."""
    return blame(f"{step} is not possible while the connection is {state}: {_NEXT_STEP[state]}", field="command")


def step_exchange(phase: Phase, answer: Answer, blame: type[ProtocolError] = LocalProtocolError) -> Phase:
    """Return the phase after this answer; raise the error that blames the end which gave it when it is not legal."""
    following = EXCHANGE_TRANSITIONS[phase].get(answer)
    if following is None:
        expected = " or ".join(EXCHANGE_TRANSITIONS[phase]) or "nothing"
        raise blame(f"a request that is {phase} cannot be answered by {answer}: {expected} may come")
    return following
