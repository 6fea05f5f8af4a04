"""Two real ends over a wire made of lists take every step of the tables, refuse any other, and blame the right end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner import limits
from lanner.errors import LocalProtocolError, RemoteProtocolError, ServerError, Unauthenticated
from lanner.wire.connection import VERSIONS, ClientConnection, Reply, Request, ServerConnection
from lanner.wire.messages import (
    ERROR,
    REPLY,
    Command,
    Empty,
    HelloReply,
    Poll,
    Polled,
    Settled,
    SettledItem,
    SettleItem,
)
from lanner.wire.peers import Pulse
from lanner.wire.states import (
    EXCHANGE_TRANSITIONS,
    TRANSITIONS,
    Answer,
    Phase,
    State,
    Step,
    step_exchange,
)

WELCOME = HelloReply(1, "cluster", "node", "lanner/test", limits.FRAME_BYTES_MAX, 1_024)
HELLO_ID, PING_ID = 1, 2
STEPS = [(state, step) for state in State for step in Step]
ANSWERS = [(phase, answer) for phase in Phase for answer in Answer]


def frame(command: int, control: Any, correlation: int) -> bytes:
    encoded = msgspec.msgpack.encode(control)
    payload = struct.pack(">II", correlation, len(encoded)) + encoded
    return struct.pack(">BI", command, len(payload)) + payload


def sent(end: ClientConnection | ServerConnection) -> bytes:
    return b"".join(end.take_outgoing())


class Pair:
    """Both ends of one connection, brought to a state by legal steps; open ones have a PING on its way."""

    def __init__(self, state: State) -> None:
        self.client, self.server = ClientConnection(), ServerConnection()
        self.hello = Request(Command.HELLO, HELLO_ID, None, memoryview(b""))
        self.ping = Request(Command.PING, PING_ID, Empty(), memoryview(b""))
        if state is not State.NEW:
            self.client.hello()
            [self.hello] = self.server.receive(sent(self.client))
        if state in (State.OPEN, State.CLOSED):
            self.server.welcome(self.hello, WELCOME)
            self.client.receive(sent(self.server))
            assert self.client.request(Command.PING, Empty()) == PING_ID
            [self.ping] = self.server.receive(sent(self.client))
        if state is State.CLOSED:
            self.client.close()
            self.server.close()
        assert self.client.state is self.server.state is state


# What each end does itself, and what it does to the other by the bytes it sends.
OWN: dict[Step, Callable[[Pair], object]] = {
    Step.HELLO: lambda pair: pair.client.hello(),
    Step.REQUEST: lambda pair: pair.client.request(Command.PING, Empty()),
    Step.WELCOME: lambda pair: pair.server.welcome(pair.hello, WELCOME),
    Step.REFUSAL: lambda pair: pair.server.refuse(pair.hello, Unauthenticated()),
    Step.ANSWER: lambda pair: pair.server.reply(pair.ping, Empty()),
    Step.END: lambda pair: (pair.client.close(), pair.server.close()),
}
RECEIVED: dict[Step, bytes] = {
    Step.HELLO: frame(Command.HELLO, [list(VERSIONS)], HELLO_ID),
    Step.REQUEST: frame(Command.PING, [], PING_ID),
    Step.WELCOME: frame(Command.HELLO | REPLY, WELCOME, HELLO_ID),
    Step.REFUSAL: frame(ERROR, [Unauthenticated.code, "no"], HELLO_ID),
    Step.ANSWER: frame(Command.PING | REPLY, [], PING_ID),
    Step.END: struct.pack(">BI", 0x02, 2**32 - 1),
}
BY_CLIENT = (Step.HELLO, Step.REQUEST)


@pytest.mark.parametrize(("state", "step"), STEPS)
def test_an_end_takes_the_steps_of_the_table_and_is_to_blame_for_any_other(state: State, step: Step) -> None:
    pair = Pair(state)
    following = TRANSITIONS[state].get(step)
    if following is None:
        with pytest.raises(LocalProtocolError, match=f"{step} is not possible while the connection is {state}"):
            OWN[step](pair)
        assert pair.client.state is pair.server.state is state
        assert sent(pair.client) == sent(pair.server) == b"", "what is not legal is not sent"
    else:
        OWN[step](pair)
        assert (pair.client if step in BY_CLIENT else pair.server).state is following


@pytest.mark.parametrize(("state", "step"), STEPS)
def test_what_the_other_end_sends_out_of_turn_is_its_fault(state: State, step: Step) -> None:
    pair = Pair(state)
    end: ClientConnection | ServerConnection = pair.server if step in BY_CLIENT else pair.client
    end.receive(RECEIVED[step])
    following = TRANSITIONS[state].get(step)
    if following is not None:
        assert end.state is following
    elif state is State.CLOSED:
        assert end.failure is None and end.is_closed, "nothing more is read"
    elif (state, step) == (State.OPEN, Step.HELLO):
        assert end.state is State.OPEN
        pair.client.receive(sent(end).replace(struct.pack(">I", HELLO_ID), struct.pack(">I", 0)))
        assert isinstance(pair.client.failure, LocalProtocolError), "its sender hears that the fault is there"
        assert pair.client.failure.details == {"command": "HELLO", "field": "command"}
    else:
        assert end.is_closed and isinstance(end.failure, RemoteProtocolError)


@given(st.lists(st.sampled_from([*OWN, *(f"to {step}" for step in RECEIVED)]), max_size=12))
def test_no_order_of_steps_takes_an_end_where_the_table_does_not(steps: list[Step | str]) -> None:
    """Whatever both shells do and both sockets bring: each end is where its legal steps alone lead."""
    pair = Pair(State.NEW)
    for step in steps:
        before = pair.client.state, pair.server.state
        try:
            if isinstance(step, Step):
                OWN[step](pair)
            else:
                named = Step(step.removeprefix("to "))
                end: ClientConnection | ServerConnection = pair.server if named in BY_CLIENT else pair.client
                end.receive(RECEIVED[named])
        except LocalProtocolError:
            assert (pair.client.state, pair.server.state) == before
        for earlier, later in zip(before, (pair.client.state, pair.server.state), strict=True):
            assert later is earlier or later in TRANSITIONS[earlier].values()


# ---------------------------------------------------------------------- exchanges


class Asked:
    """A request at both ends, brought to a phase by legal answers."""

    def __init__(self, phase: Phase) -> None:
        pair = Pair(State.OPEN)
        self.client, self.server = pair.client, pair.server
        self.correlation = 0
        if phase is Phase.TOLD:
            self.client.tell(Command.PULSE, Pulse(1, []))
        else:
            settles = [SettleItem(0, 1, 2, 3, 1)] if phase is Phase.SETTLING else []
            self.correlation = self.client.request(Command.POLL, Poll("g", "t", "m", 1, settles=settles))
        [self.request] = self.server.receive(sent(self.client))
        if phase is Phase.ANSWERED:
            self.server.fail(self.request, ServerError())
            self.client.receive(sent(self.server))
        assert self.request.phase is phase

    def give(self, answer: Answer) -> bool:
        if answer is Answer.SETTLED:
            return self.server.reply_settles(self.request, Settled([SettledItem(0, 3)]))
        if answer is Answer.REPLY:
            return self.server.reply(self.request, Polled([], True))
        return self.server.fail(self.request, ServerError("no"))


BYTES_OF = {
    Answer.SETTLED: (Command.SETTLE | REPLY, [[]]),
    Answer.REPLY: (Command.POLL | REPLY, [[], True]),
    Answer.ERROR: (ERROR, [90, "no"]),
}


@pytest.mark.parametrize(("phase", "answer"), ANSWERS)
def test_a_request_is_answered_as_the_table_has_it_and_never_otherwise(phase: Phase, answer: Answer) -> None:
    asked = Asked(phase)
    following = EXCHANGE_TRANSITIONS[phase].get(answer)
    if following is None:
        with pytest.raises(LocalProtocolError, match=f"a request that is {phase} cannot be answered by {answer}"):
            asked.give(answer)
        assert asked.request.phase is phase and sent(asked.server) == b""
        return
    assert asked.give(answer) is (following is not phase), "an error that nobody waits for is not sent"
    assert asked.request.phase is following
    events = asked.client.receive(sent(asked.server))
    assert len(events) == (following is not phase)
    assert asked.client.state is State.OPEN


@pytest.mark.parametrize(("phase", "answer"), ANSWERS)
def test_a_client_takes_no_answer_that_the_table_does_not_have(phase: Phase, answer: Answer) -> None:
    asked = Asked(phase)
    command, control = BYTES_OF[answer]
    asked.client.receive(frame(command, control, asked.correlation))
    if phase is Phase.TOLD and answer is Answer.ERROR:
        assert type(asked.client.failure) is ServerError, "an error under id 0 ends the connection"
    elif answer in EXCHANGE_TRANSITIONS[phase]:
        assert asked.client.state is State.OPEN
    else:
        assert isinstance(asked.client.failure, RemoteProtocolError)
        assert asked.client.is_closed


@given(st.sampled_from((Phase.TOLD, Phase.ASKED, Phase.SETTLING)), st.lists(st.sampled_from(list(Answer)), max_size=5))
def test_both_ends_agree_on_every_order_of_answers(phase: Phase, answers: list[Answer]) -> None:
    asked, expected = Asked(phase), phase
    for answer in answers:
        following = EXCHANGE_TRANSITIONS[expected].get(answer)
        try:
            gave = asked.give(answer)
        except LocalProtocolError:
            assert following is None
            continue
        assert following is not None
        events = asked.client.receive(sent(asked.server))
        assert len(events) == gave
        assert all(isinstance(event, Reply) == (answer is not Answer.ERROR) for event in events)
        expected = following
    assert asked.request.phase is expected
    assert asked.client.state is asked.server.state is State.OPEN
    assert asked.client.unanswered == 1 + (expected in (Phase.ASKED, Phase.SETTLING)), "the PING waits, too"


def test_a_reply_that_does_not_fit_is_the_one_answer_all_the_same() -> None:
    asked = Asked(Phase.ASKED)
    asked.server.frame_bytes_max = 200
    assert not asked.server.reply(asked.request, Polled([], True), [bytes(1_000)])
    assert asked.request.phase is Phase.ANSWERED
    with pytest.raises(LocalProtocolError):
        asked.server.fail(asked.request, ServerError())


def test_a_reply_that_cannot_be_encoded_leaves_the_request_unanswered() -> None:
    asked = Asked(Phase.ASKED)
    with pytest.raises(TypeError):
        asked.server.reply(asked.request, Polled([], True), [object()])  # type: ignore[list-item]
    assert asked.request.phase is Phase.ASKED
    assert asked.server.fail(asked.request, ServerError())


def test_work_that_is_done_after_the_end_is_answered_to_nobody() -> None:
    for answer in Answer:
        asked = Asked(Phase.SETTLING)
        asked.server.close()
        assert asked.give(answer) is False
        assert sent(asked.server) == b""


def test_an_illegal_step_names_the_next_one() -> None:
    with pytest.raises(LocalProtocolError, match="wait for the reply to HELLO"):
        Pair(State.GREETING).client.request(Command.PING, Empty())
    with pytest.raises(RemoteProtocolError, match="SETTLE reply to a POLL or error may come"):
        step_exchange(Phase.SETTLING, Answer.REPLY, RemoteProtocolError)
