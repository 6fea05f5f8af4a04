"""A connection without a socket, one class for each end.

It takes the bytes that came and gives back typed requests (at the broker) or typed replies (at the client); it takes
typed replies or requests and gives back the bytes to send. It knows the handshake, correlation ids and the commands'
types. It refuses to know sockets, time and what a command does.

Rules. Both ends walk through the same states, and the legal steps are one table. When the framing itself is broken
nothing behind it can be trusted: the connection says why, under correlation id 0, and ends. When the framing is intact
but a control part is not, only that request fails. Whatever is to be sent collects in `outgoing` until the shell takes
it, so that everything said in one turn of a loop leaves in one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from lanner import limits
from lanner.errors import LannerError, MessageTooLarge, ProtocolError, ServerError, UnsupportedVersion, from_wire
from lanner.wire.exchanges import DECODE_ERRORS, EXCHANGES, explain
from lanner.wire.frames import CORRELATION_MAX, HEADER_BYTES, Frame, FrameReader, encode_frame
from lanner.wire.messages import (
    ERROR,
    PROTOCOL_VERSION,
    REPLY,
    Command,
    Control,
    ErrorReply,
    Hello,
    HelloReply,
    PeerHello,
    Settled,
)

VERSIONS: Final = (PROTOCOL_VERSION,)
CONNECTION_LEVEL: Final = 0  # the correlation id of an error that concerns the whole connection
ERROR_MESSAGE_LENGTH_MAX: Final = 4_000


class State(Enum):
    NEW = "new"
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class Step(Enum):
    HELLO = "HELLO"  # sent by the client, received by the broker
    WELCOME = "reply to HELLO"  # the other way round
    REFUSAL = "error for HELLO"
    EXCHANGE = "any other request or reply"
    END = "broken frame, or the socket closed"


TRANSITIONS: Final[dict[tuple[State, Step], State]] = {
    (State.NEW, Step.HELLO): State.GREETING,
    (State.GREETING, Step.WELCOME): State.OPEN,
    (State.GREETING, Step.REFUSAL): State.CLOSED,
    (State.OPEN, Step.EXCHANGE): State.OPEN,
    (State.NEW, Step.END): State.CLOSED,
    (State.GREETING, Step.END): State.CLOSED,
    (State.OPEN, Step.END): State.CLOSED,
    (State.CLOSED, Step.END): State.CLOSED,
}

_HELLO: Final = Command.HELLO  # looked up on its class for every frame, a member costs as much as a call
_BEFORE_HELLO: Final = {int(Command.HELLO): "HELLO"}
_BEFORE_WELCOME: Final = {Command.HELLO | REPLY: "the reply to HELLO", ERROR: "an error"}

_Decoder = msgspec.msgpack.Decoder[Any]
_REQUESTS: Final[dict[int, tuple[Command, _Decoder, bool]]] = {
    int(command): (command, msgspec.msgpack.Decoder(exchange.request), exchange.request_bulk)
    for command, exchange in EXCHANGES.items()
}
_REPLIES: Final[dict[int, tuple[Command, _Decoder]]] = {
    command | REPLY: (command, msgspec.msgpack.Decoder(exchange.reply)) for command, exchange in EXCHANGES.items()
}
_REPLY_CODES: Final[dict[Command, int]] = {command: command | REPLY for command in Command}
_UNANSWERED: Final = frozenset(command for command, exchange in EXCHANGES.items() if not exchange.answered)
_ERRORS: Final = msgspec.msgpack.Decoder(ErrorReply)
_NO_BULK: Final = memoryview(b"")


class Request(NamedTuple):
    """A request as the broker sees it. `control` is of the type that EXCHANGES gives for the command."""

    command: Command
    correlation: int
    control: Any
    bulk: memoryview
    control_bytes: int = 0  # of the control part, as it came


class Reply(NamedTuple):
    """A reply as the client sees it. For a POLL that carried settles, one of command SETTLE comes first."""

    correlation: int
    command: Command
    control: Any
    bulk: memoryview


class Failure(NamedTuple):
    """The request of this correlation id failed."""

    correlation: int
    error: LannerError


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

    def _step(self, step: Step) -> None:
        following = TRANSITIONS.get((self.state, step))
        if following is None:
            raise ProtocolError(f"{step.value} is not possible while the connection is {self.state.value}")
        self.state = following

    def _opened(self, frame_bytes_max: int) -> None:
        self._step(Step.WELCOME)
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
            known = _REQUESTS.get(frame.command)
            if self.state is not State.OPEN:
                self._greet(frame, requests)
            elif known is None or (not known[2] and frame.bulk) or known[0] is _HELLO:
                self._refuse(frame)
            else:
                try:
                    control = known[1].decode(frame.control)
                except DECODE_ERRORS as error:
                    if self._not_understood(frame, known[0], error):
                        break
                else:
                    # Without bulk nothing of the frame is kept: its bytes go once they are decoded.
                    bulk = frame.bulk if known[2] else _NO_BULK
                    requests.append(Request(known[0], frame.correlation, control, bulk, len(frame.control)))
        if self._reader.failure is not None and not self.is_closed:
            self.end(self._reader.failure)
        return requests

    def welcome(self, request: Request, reply: HelloReply) -> None:
        """Answer HELLO: from here on the connection is open."""
        self._opened(reply.frame_bytes_max)
        self._put(encode_frame(_REPLY_CODES[Command.HELLO], request.correlation, reply))

    def refuse(self, request: Request, error: LannerError) -> None:
        """Answer HELLO with an error, and end."""
        self._step(Step.REFUSAL)
        self.failure = error
        self._put(encode_frame(ERROR, request.correlation, error_reply(error)))

    def reply(self, request: Request, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> bool:
        """Answer a request; False when the answer is not sent: the connection has ended, or it does not fit into a
        frame and an error was sent in its place."""
        if self.state is not State.OPEN:
            return False
        return self._answer(_REPLY_CODES[request.command], request.correlation, control, bulk)

    def reply_settles(self, request: Request, settled: Settled) -> bool:
        """The first answer to a POLL that carried settles; its own reply comes later under the same id."""
        if self.state is not State.OPEN:
            return False
        return self._answer(_REPLY_CODES[Command.SETTLE], request.correlation, settled, ())

    def fail(self, request: Request, error: LannerError) -> bool:
        """Answer a request with an error; False when the connection has ended, or nobody waits for an answer."""
        if self.state is not State.OPEN or request.command in _UNANSWERED:
            return False
        self._fail(request.correlation, error)
        return True

    def end(self, error: LannerError) -> None:
        """Say why, and end: nothing that comes after is understood."""
        if self.state is not State.CLOSED:
            self._put(encode_frame(ERROR, CONNECTION_LEVEL, error_reply(error)))
            self.close(error)

    def _answer(self, command: int, correlation: int, control: Control, bulk: Sequence[bytes | memoryview]) -> bool:
        try:
            self._put(encode_frame(command, correlation, control, bulk))
        except MessageTooLarge as error:
            self._fail(correlation, ServerError(f"the reply does not fit: {error.message}; ask for less at once"))
            return False
        return True

    def _fail(self, correlation: int, error: LannerError) -> None:
        self._put(encode_frame(ERROR, correlation, error_reply(error)))

    def _not_understood(self, frame: Frame, command: Command, error: Exception) -> bool:
        """Only this request fails, unless nobody waits for its answer: then the sender learns it by the end (True)."""
        problem = explain(command.name, EXCHANGES[command].request, error)
        if command in _UNANSWERED:
            self.end(problem)
            return True
        self._fail(frame.correlation, problem)
        return False

    def _refuse(self, frame: Frame) -> None:
        """The framing is intact, the request is not: only it fails."""
        known = _REQUESTS.get(frame.command)
        if known is None:
            error = ProtocolError(f"command 0x{frame.command:02x} is not known here", field="command")
        elif known[0] is Command.HELLO:
            error = ProtocolError("HELLO comes once, as the first frame", command="HELLO", field="command")
        else:
            error = ProtocolError(
                f"{known[0].name}: bulk is not valid: {len(frame.bulk)} bytes follow the control part, "
                "and this command takes none",
                command=known[0].name,
                field="bulk",
            )
        self._fail(frame.correlation, error)

    def _greet(self, frame: Frame, requests: list[Request]) -> None:
        """The one frame that may come while the connection is new: HELLO, in a version spoken here."""
        if self.state is not State.NEW:
            if self.state is State.GREETING:
                self.end(ProtocolError("a frame came before HELLO was answered: wait for the reply"))
            return
        self._step(Step.HELLO)
        _, decoder, _ = _REQUESTS[Command.HELLO]
        try:
            hello: Hello = decoder.decode(frame.control)
        except DECODE_ERRORS as error:
            self.end(explain("HELLO", Hello, error))
            return
        request = Request(Command.HELLO, frame.correlation, hello, frame.bulk)
        if not set(hello.versions) & set(VERSIONS):
            spoken = ", ".join(map(str, VERSIONS))
            offered = ", ".join(map(str, hello.versions[:20])) or "none"
            self.refuse(
                request,
                UnsupportedVersion(
                    f"the broker speaks version {spoken} of the protocol and the client offers {offered}",
                    versions=list(VERSIONS),
                ),
            )
            return
        requests.append(request)


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
        self._asked: dict[int, Command] = {}
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

    def request(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> int:
        """Ask; the correlation id under which the reply will come."""
        if self.state is not State.OPEN:
            self._step(Step.EXCHANGE)  # raises: the table has no such step
        exchange = EXCHANGES[command]
        if type(control) is not exchange.request or (bulk and not exchange.request_bulk) or not exchange.answered:
            raise TypeError(f"{command.name} is asked with {exchange.request.__name__}, not {type(control).__name__}")
        return self._ask(command, control, bulk)

    def tell(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> None:
        """Say something that is never answered. What the other end does not understand of it ends the connection."""
        if self.state is not State.OPEN:
            self._step(Step.EXCHANGE)  # raises: the table has no such step
        exchange = EXCHANGES[command]
        if type(control) is not exchange.request or (bulk and not exchange.request_bulk) or exchange.answered:
            raise TypeError(f"{command.name} with {type(control).__name__} is nothing to tell without an answer")
        self._put(encode_frame(command, CONNECTION_LEVEL, control, bulk))

    def receive(self, data: bytes) -> list[Reply | Failure]:
        """The replies that `data` completes. Look at `is_closed` afterwards: then `failure` holds for all the rest."""
        if self.is_closed:
            return []
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            self.close(error)
            return []
        replies: list[Reply | Failure] = []
        for frame in frames:
            if self.failure is not None:
                break
            known = _REPLIES.get(frame.command)
            command = self._asked.get(frame.correlation)
            if known is None or command is None or (known[0] is not command and known[0] is not Command.SETTLE):
                self._receive_error(frame, command, replies)
            elif command is Command.HELLO:
                self._receive_welcome(frame)
            elif known[0] is not command and command is not Command.POLL:
                self._receive_error(frame, command, replies)
            else:
                self._receive_reply(frame, command, known, replies)
        if self._reader.failure is not None and not self.is_closed:
            self.close(self._reader.failure)
        return replies

    def _ask(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview]) -> int:
        correlation = self._correlation
        while True:  # ids come round after 2**32 requests; one that still waits is passed over
            correlation = correlation % CORRELATION_MAX + 1
            if correlation not in self._asked:
                break
        self._put(encode_frame(command, correlation, control, bulk))
        self._correlation = correlation
        self._asked[correlation] = command
        return correlation

    def _receive_reply(
        self, frame: Frame, command: Command, known: tuple[Command, _Decoder], replies: list[Reply | Failure]
    ) -> None:
        if known[0] is command:
            del self._asked[frame.correlation]
        try:
            control = known[1].decode(frame.control)
        except DECODE_ERRORS as error:
            self._asked.pop(frame.correlation, None)
            kind = EXCHANGES[known[0]].reply
            replies.append(Failure(frame.correlation, explain(f"the reply to {known[0].name}", kind, error)))
        else:
            replies.append(Reply(frame.correlation, known[0], control, frame.bulk))

    def _receive_welcome(self, frame: Frame) -> None:
        del self._asked[frame.correlation]
        try:
            reply: HelloReply = _REPLIES[frame.command][1].decode(frame.control)
        except DECODE_ERRORS as error:
            self.close(explain("the reply to HELLO", HelloReply, error))
            return
        if reply.version not in VERSIONS:
            self.close(UnsupportedVersion(f"the broker chose version {reply.version}, which was not offered"))
            return
        self.hello_reply = reply
        self.frame_bytes_max = min(reply.frame_bytes_max, limits.FRAME_BYTES_MAX)
        self._opened(limits.FRAME_BYTES_MAX)

    def _receive_error(self, frame: Frame, command: Command | None, replies: list[Reply | Failure]) -> None:
        """An error of the broker's, or a reply that answers nothing that was asked."""
        if frame.command != ERROR or (command is None and frame.correlation != CONNECTION_LEVEL):
            asked = "nothing" if command is None else command.name
            self.close(
                ProtocolError(
                    f"a frame of command 0x{frame.command:02x} came for id {frame.correlation}, where {asked} was asked"
                )
            )
            return
        try:
            reply = _ERRORS.decode(frame.control)
        except DECODE_ERRORS as problem:
            error: LannerError = explain("an error", ErrorReply, problem)
        else:
            details = {name: value for name, value in reply.details.items() if name not in ("self", "message")}
            error = from_wire(reply.code, reply.message, details)
        if command is None or command is Command.HELLO:
            self.close(error)
        else:
            del self._asked[frame.correlation]
            replies.append(Failure(frame.correlation, error))
