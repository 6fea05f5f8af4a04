"""A connection without a socket, one class for each end.

It takes the bytes that came and gives back typed requests (at the broker) or typed replies (at the client); it takes
typed replies or requests and gives back the bytes to send. It knows the handshake, correlation ids and the commands'
types. It refuses to know sockets, time and what a command does.

Rules. Every request and every answer, sent or received, is a step of the tables in `states`; nothing else decides what
is legal, and an error says which end took a step that is not. When the framing itself is broken nothing behind it can
be trusted: the connection says why, under correlation id 0, and ends. When the framing is intact but a control part is
not, only that request fails. What is to be sent collects in `outgoing` until the shell takes it, so that everything
said in one turn of a loop leaves in one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

import msgspec

from lanner import limits
from lanner.errors import (
    LannerError,
    LocalProtocolError,
    MessageTooLarge,
    ProtocolError,
    RemoteProtocolError,
    ServerError,
    UnsupportedVersion,
    from_wire,
)
from lanner.wire.exchanges import DECODE_ERRORS, EXCHANGES, explain, of_older_release
from lanner.wire.frames import CORRELATION_MAX, HEADER_BYTES, Frame, FrameReader, encode_frame
from lanner.wire.messages import (
    ERROR,
    PROTOCOL_VERSION,
    REPLY,
    AnswerT_co,
    Call,
    Command,
    Control,
    Empty,
    ErrorReply,
    Hello,
    HelloReply,
    PeerHello,
    Poll,
    Settled,
)
from lanner.wire.peers import Forward
from lanner.wire.states import TRANSITIONS, Answer, Phase, State, Step, illegal_step, step_exchange

VERSIONS: Final = (PROTOCOL_VERSION,)
CONNECTION_LEVEL: Final = 0  # the correlation id of an error that concerns the whole connection
ERROR_MESSAGE_LENGTH_MAX: Final = 4_000

# Looked up on its class for every frame, a member costs as much as a call.
_HELLO: Final = Command.HELLO
_FORWARD: Final = Command.FORWARD
_STEP_REQUEST: Final = Step.REQUEST
_STEP_ANSWER: Final = Step.ANSWER
_CLOSED: Final = State.CLOSED
_ANSWERED: Final = Phase.ANSWERED
_SETTLING: Final = Phase.SETTLING
_TOLD: Final = Phase.TOLD
_SETTLED: Final = Answer.SETTLED
_REPLY: Final = Answer.REPLY
_ERROR: Final = Answer.ERROR
_BEFORE_HELLO: Final = {int(Command.HELLO): "HELLO"}
_BEFORE_WELCOME: Final = {Command.HELLO | REPLY: "the reply to HELLO", ERROR: "an error"}

_Decoder = msgspec.msgpack.Decoder[Control]
_REQUESTS: Final[dict[int, tuple[Command, _Decoder, bool]]] = {
    int(command): (command, msgspec.msgpack.Decoder(exchange.request), exchange.request_bulk)
    for command, exchange in EXCHANGES.items()
}
_REPLIES: Final[dict[int, tuple[Command, _Decoder]]] = {
    command | REPLY: (command, msgspec.msgpack.Decoder(exchange.reply)) for command, exchange in EXCHANGES.items()
}
_REPLY_CODES: Final[dict[Command, int]] = {command: command | REPLY for command in Command}
_SETTLE_REPLY: Final = _REPLY_CODES[Command.SETTLE]
# What a frame of this code answers a request of this command with.
_ANSWERS: Final[dict[Command, dict[int, Answer]]] = {
    command: {code: _REPLY, ERROR: _ERROR} for command, code in _REPLY_CODES.items()
}
_ANSWERS[Command.POLL][_SETTLE_REPLY] = _SETTLED
_FIRST_PHASES: Final = {command: Phase.ASKED if exchange.answered else _TOLD for command, exchange in EXCHANGES.items()}
_WELCOMES: Final = msgspec.msgpack.Decoder(HelloReply)
_ERRORS: Final = msgspec.msgpack.Decoder(ErrorReply)
_NO_BULK: Final = memoryview(b"")


class Request(msgspec.Struct):
    """A request as the broker sees it. `control` is of the type that EXCHANGES gives for the command."""

    command: Command
    correlation: int
    control: Control
    bulk: memoryview
    control_bytes: int = 0  # of the control part, as it came
    phase: Phase = Phase.ASKED  # what it may still be answered with
    caller: str = ""  # who made the call that another broker passes on; empty: its sender


class Reply(NamedTuple, Generic[AnswerT_co]):
    """A reply as the client sees it. For a POLL that carried settles, one of command SETTLE comes first."""

    correlation: int
    command: Command
    control: AnswerT_co
    bulk: memoryview


class Failure(NamedTuple):
    """The request of this correlation id failed."""

    correlation: int
    error: LannerError


def _first_phase(command: Command, control: Control) -> Phase:
    return _SETTLING if type(control) is Poll and control.settles else _FIRST_PHASES[command]


def error_reply(error: LannerError) -> ErrorReply:
    """An error as it travels: details that cannot are left behind, the error itself never is."""
    message = error.message[:ERROR_MESSAGE_LENGTH_MAX]
    reply = ErrorReply(error.code, message, error.details)
    if error.details:
        try:
            encoded = msgspec.msgpack.encode(reply, enc_hook=str)
        except (TypeError, ValueError, OverflowError, RecursionError):
            encoded = b""
        if not 0 < len(encoded) <= limits.FRAME_BYTES_MAX_BEFORE_HELLO * 2:
            reply = ErrorReply(error.code, message)
    return reply


class _Connection:
    """What both ends share: the state, the reader, and what waits to be sent."""

    __slots__ = ("_outgoing", "_reader", "failure", "frame_bytes_max", "outgoing_bytes", "state")

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._outgoing: list[bytes | memoryview] = []
        self.outgoing_bytes = 0
        self.state = State.NEW
        self.failure: LannerError | None = None  # why the connection ended, once it has
        self.frame_bytes_max = limits.FRAME_BYTES_MAX

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def unfinished_bytes(self) -> int:
        """What is held of a frame that is not whole yet."""
        return self._reader.pending_bytes

    @property
    def unfinished_number(self) -> int:
        """Which frame that is: another number, another frame."""
        return self._reader.begun

    def take_outgoing(self, bytes_max: int | None = None) -> list[bytes | memoryview]:
        """What is to be written now, in order: everything, or buffers until they reach `bytes_max`."""
        outgoing = self._outgoing
        if bytes_max is None or self.outgoing_bytes <= bytes_max:
            self._outgoing = []
            self.outgoing_bytes = 0
            return outgoing
        taken = place = 0
        while taken < bytes_max:
            taken += len(outgoing[place])
            place += 1
        self._outgoing = outgoing[place:]
        self.outgoing_bytes -= taken
        return outgoing[:place]

    def close(self, error: LannerError | None = None) -> None:
        """The socket is gone, or must go: nothing more is sent or understood."""
        self._step(Step.END)
        self._reader.drop()
        if self.failure is None:
            self.failure = error

    def _step(self, step: Step, blame: type[ProtocolError] = LocalProtocolError) -> State:
        following = TRANSITIONS[self.state].get(step)
        if following is None:
            raise illegal_step(self.state, step, blame)
        self.state = following
        return following

    def _opened(self, frame_bytes_max: int, blame: type[ProtocolError] = LocalProtocolError) -> None:
        self._step(Step.WELCOME, blame)
        self._reader.frame_bytes_max = frame_bytes_max
        self._reader.expected = None

    def _put(self, buffers: list[bytes | memoryview]) -> None:
        size = 0
        for buffer in buffers:
            size += len(buffer)
        if size > self.frame_bytes_max + HEADER_BYTES:
            raise MessageTooLarge(
                f"a frame of {size - HEADER_BYTES} bytes is more than the {self.frame_bytes_max} that may be sent",
                field="length",
            )
        self._outgoing += buffers
        self.outgoing_bytes += size


class ServerConnection(_Connection):
    """The broker's end. Malformed requests are answered here; the caller only sees those that make sense."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FrameReader(limits.FRAME_BYTES_MAX_BEFORE_HELLO, expected=_BEFORE_HELLO))

    def receive(self, data: bytes) -> list[Request]:
        """The requests that `data` completes. Look at `is_closed` afterwards: then send `outgoing`, and hang up."""
        if self.is_closed:
            return []
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            self.end(error)
            return []
        requests: list[Request] = []
        for frame in frames:
            try:
                requests.append(self._understand(frame))
            except LannerError as error:
                self._refuse_frame(frame, error)
                if self.state is _CLOSED:
                    break
        if self._reader.failure is not None and not self.is_closed:
            self.end(self._reader.failure)
        return requests

    def welcome(self, request: Request, reply: HelloReply) -> None:
        """Answer HELLO: from here on the connection is open."""
        self._opened(reply.frame_bytes_max)
        request.phase = step_exchange(request.phase, _REPLY)
        self._put(encode_frame(_REPLY_CODES[Command.HELLO], request.correlation, reply))

    def refuse(self, request: Request, error: LannerError) -> None:
        """Answer HELLO with an error, and end."""
        self._step(Step.REFUSAL)
        request.phase = step_exchange(request.phase, _ERROR)
        self.failure = error
        self._put_error(request.correlation, error)

    def reply(self, request: Request, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> bool:
        """Answer a request; False when the answer is not sent: the connection has ended, or it does not fit into a
        frame and an error was sent in its place."""
        return self._answer(request, _REPLY, _REPLY_CODES[request.command], control, bulk)

    def reply_settles(self, request: Request, settled: Settled) -> bool:
        """Give the first answer to a POLL that carried settles; its own reply comes later under the same id."""
        return self._answer(request, _SETTLED, _SETTLE_REPLY, settled, ())

    def fail(self, request: Request, error: LannerError) -> bool:
        """Answer a request with an error; False when the connection has ended, or nobody waits for an answer."""
        if self._step(_STEP_ANSWER) is _CLOSED:
            return False
        following = step_exchange(request.phase, _ERROR)
        if following is _TOLD:
            return False
        self._put_error(request.correlation, error)
        request.phase = following
        return True

    def end(self, error: LannerError) -> None:
        """Say why, and end: nothing that comes after is understood."""
        if self.state is not State.CLOSED:
            self._put_error(CONNECTION_LEVEL, error)
            self.close(error)

    def _answer(
        self, request: Request, answer: Answer, code: int, control: Control, bulk: Sequence[bytes | memoryview]
    ) -> bool:
        if self._step(_STEP_ANSWER) is _CLOSED:
            return False
        following = step_exchange(request.phase, answer)
        try:
            self._put(encode_frame(code, request.correlation, control, bulk))
        except MessageTooLarge as error:
            self.fail(request, ServerError(f"the reply does not fit: {error.message}; ask for less at once"))
            return False
        request.phase = following
        return True

    def _put_error(self, correlation: int, error: LannerError) -> None:
        self._put(encode_frame(ERROR, correlation, error_reply(error)))

    def _understand(self, frame: Frame) -> Request:
        """Read a request out of a frame; raise what is wrong with it, or with sending it now."""
        known = _REQUESTS.get(frame.command)
        if known is None:
            raise RemoteProtocolError(f"command 0x{frame.command:02x} is not known here", field="command")
        command, decoder, takes_bulk = known
        self._step(Step.HELLO if command is _HELLO else _STEP_REQUEST, RemoteProtocolError)
        if frame.bulk and not takes_bulk and command is not _HELLO:
            raise RemoteProtocolError(
                f"{command.name}: bulk is not valid: {len(frame.bulk)} bytes follow the control part, "
                "and this command takes none",
                command=command.name,
                field="bulk",
            )
        try:
            control = decoder.decode(frame.control)
        except DECODE_ERRORS as error:
            raise explain(command.name, EXCHANGES[command].request, error) from None
        if type(control) is Forward:
            return self._open_envelope(frame, control)
        if type(control) is Hello:
            _check_versions(control)
        # Without bulk nothing of the frame is kept: its bytes go once they are decoded.
        bulk = frame.bulk if takes_bulk else _NO_BULK
        return Request(command, frame.correlation, control, bulk, len(frame.control), _first_phase(command, control))

    def _open_envelope(self, frame: Frame, envelope: Forward) -> Request:
        """The call that another broker passes on, as if its caller had sent it."""
        known = _REQUESTS.get(envelope.command)
        if known is None or not issubclass(EXCHANGES[known[0]].request, Call):
            raise RemoteProtocolError(f"FORWARD: command 0x{envelope.command:02x} is no call", field="command")
        request = self._understand(frame._replace(command=envelope.command, control=memoryview(envelope.call)))
        request.caller = envelope.caller
        return request

    def _refuse_frame(self, frame: Frame, error: LannerError) -> None:
        """Fail this request alone if the connection is open and its sender waits for an answer; else end."""
        command = _REQUESTS[frame.command][0] if frame.command in _REQUESTS else None
        if command is not None:
            error.details.setdefault("command", command.name)
        if isinstance(error, UnsupportedVersion):
            self.refuse(Request(_HELLO, frame.correlation, Empty(), _NO_BULK), error)
        elif self.state is not State.OPEN or (command is not None and _FIRST_PHASES[command] is _TOLD):
            self.end(error)
        else:
            self._put_error(frame.correlation, error)


def _check_versions(hello: Hello) -> None:
    if not set(hello.versions) & set(VERSIONS):
        spoken = ", ".join(map(str, VERSIONS))
        offered = ", ".join(map(str, hello.versions[:20])) or "none"
        raise UnsupportedVersion(
            f"the broker speaks version {spoken} of the protocol and the client offers {offered}",
            versions=list(VERSIONS),
        )


class ClientConnection(_Connection):
    """The client's end. It remembers what it asked, so that a reply can be judged against its request."""

    __slots__ = ("_asked", "_correlation", "hello_reply")

    def __init__(self) -> None:
        super().__init__(
            FrameReader(
                limits.FRAME_BYTES_MAX_BEFORE_HELLO,
                control_bytes_max=limits.FRAME_BYTES_MAX,
                expected=_BEFORE_WELCOME,
            )
        )
        self._asked: dict[int, tuple[Command, Phase]] = {}
        self._correlation = 0
        self.hello_reply: HelloReply | None = None

    @property
    def unanswered(self) -> int:
        """How many requests wait for their reply."""
        return len(self._asked)

    def hello(self, client: str = "", token: str = "", peer: PeerHello | None = None) -> None:
        """Begin. Nothing else may be asked until `state` is OPEN. `peer`: of a broker that connects to another."""
        self._step(Step.HELLO)
        self._ask(Command.HELLO, Hello(list(VERSIONS), client, token, peer), ())

    def request(
        self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = (), caller: str = ""
    ) -> int:
        """Ask; the correlation id under which the reply will come. `caller`: of a call that is passed on."""
        self._step(_STEP_REQUEST)
        exchange = EXCHANGES[command]
        if type(control) is not exchange.request or (bulk and not exchange.request_bulk) or not exchange.answered:
            kind = exchange.request.__name__
            raise LocalProtocolError(f"{command.name} is asked with {kind}, not {type(control).__name__}")
        return self._ask(command, control, bulk, caller)

    def tell(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> None:
        """Say something that is never answered. What the other end does not understand of it ends the connection."""
        self._step(_STEP_REQUEST)
        exchange = EXCHANGES[command]
        if type(control) is not exchange.request or (bulk and not exchange.request_bulk) or exchange.answered:
            kind = type(control).__name__
            raise LocalProtocolError(f"{command.name} with {kind} is nothing to tell without an answer")
        self._put(encode_frame(command, CONNECTION_LEVEL, control, bulk))

    def receive(self, data: bytes) -> list[Reply[Control] | Failure]:
        """The replies that `data` completes. Look at `is_closed` afterwards: then `failure` holds for all the rest."""
        if self.is_closed:
            return []
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            self.close(error)
            return []
        replies: list[Reply[Control] | Failure] = []
        for frame in frames:
            try:
                event = self._understand(frame)
            except LannerError as error:
                self.close(error)
                break
            if event is not None:
                replies.append(event)
        if self._reader.failure is not None and not self.is_closed:
            self.close(self._reader.failure)
        return replies

    def _ask(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview], caller: str = "") -> int:
        correlation = self._correlation
        while True:  # ids come round after 2**32 requests; one that still waits is passed over
            correlation = correlation % CORRELATION_MAX + 1
            if correlation not in self._asked:
                break
        if caller:
            envelope = Forward(caller, command, msgspec.Raw(msgspec.msgpack.encode(control)))
            self._put(encode_frame(_FORWARD, correlation, envelope, bulk))
        else:
            self._put(encode_frame(command, correlation, control, bulk))
        self._correlation = correlation
        self._asked[correlation] = command, _first_phase(command, control)
        return correlation

    def _understand(self, frame: Frame) -> Reply[Control] | Failure | None:
        """Read an answer out of a frame; raise what ends the connection: it answers nothing, or it refuses HELLO."""
        command, phase = self._asked.get(frame.correlation, (None, _ANSWERED))
        if command is None:
            if frame.command == ERROR and frame.correlation == CONNECTION_LEVEL:
                raise _read_error(frame)
            raise _out_of_place(frame, "nothing")
        answer = _ANSWERS[command].get(frame.command)
        if answer is None:
            raise _out_of_place(frame, command.name)
        phase = step_exchange(phase, answer, RemoteProtocolError)
        if phase is _ANSWERED:
            del self._asked[frame.correlation]
        else:
            self._asked[frame.correlation] = command, phase
        if command is _HELLO:
            self._greeted(frame, answer)
            return None
        self._step(_STEP_ANSWER, RemoteProtocolError)
        if answer is _ERROR:
            return Failure(frame.correlation, of_older_release(_read_error(frame), command))
        replied, decoder = _REPLIES[frame.command]
        try:
            control = decoder.decode(frame.control)
        except DECODE_ERRORS as error:
            self._asked.pop(frame.correlation, None)
            problem = explain(f"the reply to {replied.name}", EXCHANGES[replied].reply, error)
            return Failure(frame.correlation, problem)
        return Reply(frame.correlation, replied, control, frame.bulk)

    def _greeted(self, frame: Frame, answer: Answer) -> None:
        """Open the connection, or raise why it cannot be opened."""
        if answer is _ERROR:
            error = _read_error(frame)
            self._step(Step.REFUSAL, RemoteProtocolError)
            raise error
        try:
            reply = _WELCOMES.decode(frame.control)
        except DECODE_ERRORS as error:
            raise explain("the reply to HELLO", HelloReply, error) from None
        if reply.version not in VERSIONS:
            raise UnsupportedVersion(f"the broker chose version {reply.version}, which was not offered")
        self._opened(limits.FRAME_BYTES_MAX, RemoteProtocolError)
        self.hello_reply = reply
        self.frame_bytes_max = min(reply.frame_bytes_max, limits.FRAME_BYTES_MAX)


def _read_error(frame: Frame) -> LannerError:
    """The error that the broker reports."""
    try:
        reply = _ERRORS.decode(frame.control)
    except DECODE_ERRORS as problem:
        return explain("an error", ErrorReply, problem)
    details = {name: value for name, value in reply.details.items() if name not in ("self", "message")}
    return from_wire(reply.code, reply.message, details)


def _out_of_place(frame: Frame, asked: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a frame of command 0x{frame.command:02x} came for id {frame.correlation}, where {asked} was asked"
    )
