"""The native door: one session for each connection, between the listener and the service.

A publish or a stage is a future of the service with a callback on it: no task. Everything else runs as a task of its
own. What one connection may have in hand is bounded, by count and by bytes; beyond that its requests wait in the order
they came, and nothing more is read from it. The control parts of all connections have one budget (`controls`).

Leases whose reply cannot be sent are given back at once, without counting a delivery: nobody saw the messages.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from lanner import limits
from lanner.api.native.controls import Controls
from lanner.calls import Answer, Identity, row_of
from lanner.errors import LannerError, Overloaded, RemoteProtocolError, ServerError, ServiceUnavailable
from lanner.net.clients import Client, Clients
from lanner.net.link import Pause
from lanner.net.listener import Listener, ServerLink
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from lanner.wire.connection import Request
from lanner.wire.messages import (
    PROTOCOL_VERSION,
    AnswerT,
    AnyCall,
    Call,
    Command,
    Control,
    Empty,
    Hello,
    HelloReply,
    PeerHello,
    Poll,
    Polled,
    Publish,
    Published,
    Settle,
    Settled,
    SettledItem,
)
from lanner.wire.staging import Stage, Staged

if TYPE_CHECKING:
    from lanner.api.ports import Appended, PeerInbox, Pending, Service
    from lanner.api.ports import Staged as StagedFacts

Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_EMPTY: Final = Empty()
_PUBLISH: Final = Command.PUBLISH
_STAGE: Final = Command.STAGE
_TAKEN: Final = frozenset({Command.RAFT, Command.PULSE, Command.SNAPSHOT, Command.REPORT})  # without an answer
_BETWEEN_BROKERS: Final = frozenset({Command.PEER_INFO, Command.PROPOSE, *_TAKEN})
# These may wait; without a client there is nobody to wait for.
_LONG: Final = frozenset({Command.POLL, Command.FETCH, Command.BEST_PRIORITY, Command.LOOK, Command.HEARTBEAT})


class NativeDoor:
    """Serves the native protocol on one address."""

    def __init__(
        self,
        service: Service,
        *,
        inbox: PeerInbox | None = None,
        inflight_max: int = limits.CONNECTION_INFLIGHT_MAX,
        inflight_bytes_max: int = limits.CONNECTION_INFLIGHT_BYTES_MAX,
        seats: Seats | None = None,
        hello_deadline_ms: int = limits.HELLO_DEADLINE_MS,
        unsent_bytes_max: int = limits.CONNECTION_UNSENT_BYTES_MAX,
        stall_ms: int = limits.CONNECTION_STALL_MS,
        unfinished: Unfinished | None = None,
        between_brokers: Unfinished | None = None,
        control_bytes_max: int = limits.CONTROLS_BYTES_MAX,
        rest_address: Callable[[], str] = str,  # HOST:PORT; empty: there is none
        clients: Clients | None = None,
    ) -> None:
        self.service = service
        self.clients = Clients() if clients is None else clients  # who is connected, by all doors
        self.inbox = inbox  # None: this broker has no others
        self.inflight_max = inflight_max
        self.inflight_bytes_max = inflight_bytes_max
        self.draining = False
        self.background: set[asyncio.Task[None]] = set()  # settles and releases, which may outlive their connection
        self._sessions: set[_NativeSession] = set()
        self._listener = Listener(
            self._open_session,
            seats=seats,
            hello_deadline_ms=hello_deadline_ms,
            unsent_bytes_max=unsent_bytes_max,
            stall_ms=stall_ms,
            unfinished=unfinished,
            told_to_http=lambda: _told_to_http(rest_address()),
        )
        # Budgets of their own: strangers must not use them up.
        self.between_brokers = Unfinished() if between_brokers is None else between_brokers
        self.controls, self.controls_between_brokers = Controls(control_bytes_max), Controls(control_bytes_max)
        self.software = f"lanner/{_version()}"

    @property
    def connections(self) -> int:
        return len(self._listener.links)

    @property
    def seats(self) -> Seats:
        return self._listener.seats

    async def start(self, host: str, port: int, *, ssl: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen; the address that it became."""
        return await self._listener.start(host, port, ssl_context=ssl)

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address, so that nobody else does; nobody is let in until `accept`."""
        return await self._listener.start(host, port, accept=False)

    async def accept(self) -> None:
        await self._listener.accept()

    async def stop(self, drain_ms: int = 0) -> None:
        """Take nothing new, answer what is in hand for as long as drain_ms allows, then close."""
        self._listener.stop_accepting()
        self.draining = True
        busy = [session.idle() for session in self._sessions]
        if busy and drain_ms > 0:
            await asyncio.wait(busy, timeout=drain_ms / 1_000)
        for session in list(self._sessions):
            session.give_up(ServiceUnavailable("the broker stopped before the outcome was known"))
        await self._listener.close()
        if self.background:
            await asyncio.wait(self.background, timeout=max(drain_ms, 100) / 1_000)

    def _open_session(self, link: ServerLink) -> _NativeSession:
        session = _NativeSession(self, link)
        self._sessions.add(session)
        return session

    def forget(self, session: _NativeSession) -> None:
        self._sessions.discard(session)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that goes on when its connection is gone."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return task


class _NativeSession:
    """One connection's requests."""

    def __init__(self, door: NativeDoor, link: ServerLink) -> None:
        self._door = door
        self._service = door.service
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._identity = Identity("anonymous", "native")
        self._inflight = 0
        self._inflight_bytes = 0
        self._backlog: deque[Request] = deque()
        self._running: dict[asyncio.Task[None], Request] = {}
        self._unsent: list[Callable[[], None]] = []  # give back leases that the socket has not taken yet
        self._idle: asyncio.Future[None] | None = None
        self._given_up = False
        self._peer: PeerHello | None = None  # another broker
        self._client: Client | None = None  # or a client, once it is greeted
        self._inbox = door.inbox
        self._controls = door.controls

    # ------------------------------------------------------------------ what the link calls

    def greet(self, hello: Hello) -> HelloReply:
        if self._door.draining:
            raise ServiceUnavailable("the broker is draining; try another one, or again after its restart")
        if hello.peer is not None and self._inbox is not None:
            self._inbox.greet(hello.peer)
            self._peer = hello.peer
            self._controls = self._door.controls_between_brokers
            self._link.count_apart(self._door.between_brokers)
            self._link.expect_progress(limits.PEER_SILENT_MS_MAX)
        elif self._door.seats.is_beyond_callers:
            raise self._door.seats.refuse()  # the rest is for other brokers: clients must not keep them out
        elif self._inbox is not None and not self._inbox.open_to_clients:
            raise ServiceUnavailable("the broker does not belong to its cluster yet; try another one, or again soon")
        if self._peer is None:
            self._client = self._door.clients.enter("native", self._link.peer, hello.client)
            self._identity = Identity("anonymous", "native", self._client)
        return HelloReply(
            PROTOCOL_VERSION,
            self._service.cluster_id,
            self._service.node_id,
            self._door.software,
            limits.FRAME_BYTES_MAX,
            self._door.inflight_max,
        )

    def handle(self, request: Request) -> None:
        if self._peer is not None and self._take(request):
            return
        if request.caller and not self._is_from_a_peer:
            self._refuse_stranger(request, "FORWARD")
            return
        try:
            self._controls.take(request.command, request.control_bytes)
        except Overloaded as error:
            self._link.fail(request, error)
            return
        if self._backlog or self._inflight >= self._door.inflight_max or not self._has_room(request):
            self._backlog.append(request)
            self._link.pause_reading(Pause.WORK_IN_HAND)
        else:
            self._start(request)

    def handed_over(self) -> None:
        if self._unsent:
            self._unsent.clear()

    def lost(self) -> None:
        self._door.forget(self)
        if self._client is not None:
            self._door.clients.leave(self._client)
        self._drop_backlog()
        for task, request in self._running.items():
            if request.command in _LONG:
                task.cancel()
        for unheard in self._unsent:
            unheard()
        self._unsent.clear()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # ------------------------------------------------------------------ how much is in hand

    def _drop_backlog(self) -> None:
        for request in self._backlog:
            self._controls.give_back(request.control_bytes)
        self._backlog.clear()

    def _has_room(self, request: Request) -> bool:
        # A single request always has room, or one larger than the bound would wait for ever.
        size = len(request.bulk)
        return not size or not self._inflight or self._inflight_bytes + size <= self._door.inflight_bytes_max

    def _start(self, request: Request) -> None:
        command = request.command
        if self._door.draining:
            self._link.fail(request, ServiceUnavailable("the broker is draining; ask another one"))
            self._controls.give_back(request.control_bytes)
        elif command is _PUBLISH or command is _STAGE:
            self._append(request)
        elif command is Command.PING:
            self._link.reply(request, _EMPTY)
            self._controls.give_back(request.control_bytes)
        else:
            if command in _BETWEEN_BROKERS:
                if self._peer is None or self._inbox is None:
                    self._refuse_stranger(request, command.name)
                    self._controls.give_back(request.control_bytes)
                    return
                work = self._answer_peer(self._peer, self._inbox, request)
            else:
                asked = request.control
                work = self._begin_poll(request, asked) if isinstance(asked, Poll) else self._call(request)
            self._inflight += 1
            task = self._loop.create_task(work)
            self._running[task] = request
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._finish(0, self._running.pop(task).control_bytes)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a request of the native door failed", exc_info=task.exception())

    def _finish(self, size: int, control_bytes: int) -> None:
        """One request less in hand: the next that waits may begin."""
        self._inflight -= 1
        self._inflight_bytes -= size
        self._controls.give_back(control_bytes)
        if self._backlog:
            backlog = self._backlog
            while backlog and self._inflight < self._door.inflight_max and self._has_room(backlog[0]):
                self._start(backlog.popleft())
            if not backlog:
                self._link.resume_reading(Pause.WORK_IN_HAND)
        if not self._inflight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def idle(self) -> asyncio.Future[None]:
        """Done when nothing is in hand."""
        self._idle = self._loop.create_future()
        if not self._inflight and not self._backlog:
            self._idle.set_result(None)
        return self._idle

    def give_up(self, error: LannerError) -> None:
        """Answer what is still in hand with an error."""
        self._given_up = True
        for request in self._backlog:
            self._link.fail(request, error)
        self._drop_backlog()
        for task, request in list(self._running.items()):
            if not task.done():
                self._link.fail(request, error)
                task.cancel()

    # ------------------------------------------------------------------ other brokers

    def _take(self, request: Request) -> bool:
        """What another broker wants no answer to; False: it does. Who says something impossible is hung up on."""
        if request.command not in _TAKEN:
            return False
        assert self._peer is not None and self._inbox is not None, "greeted as another broker"
        if self._link.is_closing:
            return True  # what came behind something impossible, in one piece with it
        try:
            self._inbox.take(self._peer, request)
        except Exception as problem:
            self._link.end(_unexpected(request, problem))
        return True

    async def _answer_peer(self, peer: PeerHello, inbox: PeerInbox, request: Request) -> None:
        try:
            self._link.reply(request, await inbox.answer(peer, request))
        except Exception as problem:
            self._link.fail(request, _unexpected(request, problem))

    @property
    def _is_from_a_peer(self) -> bool:
        return self._peer is not None and self._inbox is not None and self._inbox.is_peer(self._peer)

    def _caller(self, request: Request) -> Identity:
        """Who makes a call: this session's client, or the one whose call another broker passes on."""
        return Identity(request.caller, "peer") if request.caller else self._identity

    def _refuse_stranger(self, request: Request, what: str) -> None:
        error = RemoteProtocolError(f"{what} is for brokers: they say in HELLO who they are")
        if not self._link.fail(request, error):
            self._link.end(error)  # nobody waits for an answer to it

    # ------------------------------------------------------------------ PUBLISH and STAGE

    def _append(self, request: Request) -> None:
        asked, size = request.control, len(request.bulk)
        service, identity = self._service, self._caller(request)
        # The bulk is not kept: the service copies what it needs.
        kept = Request(request.command, request.correlation, asked, _NOTHING, request.control_bytes)
        try:
            if isinstance(asked, Stage):
                staging = service.stage(identity, asked, request.bulk)
                staging.add_done_callback(partial(self._appended, kept, size, _staged))
            else:
                assert isinstance(asked, Publish)
                publishing = service.publish(identity, asked, request.bulk)
                publishing.add_done_callback(partial(self._appended, kept, size, _published))
        except Exception as problem:
            self._link.fail(request, _unexpected(request, problem))
            self._controls.give_back(request.control_bytes)
        else:
            self._inflight += 1
            self._inflight_bytes += size

    def _appended(
        self, request: Request, size: int, answer: Callable[[Result], Control], pending: Pending[Result]
    ) -> None:
        if pending.cancelled():
            self._link.fail(request, ServiceUnavailable("the publish was given up; it may still take effect"))
        else:
            problem = pending.exception()
            if problem is not None:
                self._link.fail(request, _unexpected(request, problem))
            else:
                self._link.reply(request, answer(pending.result()))
        self._finish(size, request.control_bytes)

    # ------------------------------------------------------------------ everything else

    async def _call(self, request: Request) -> None:
        try:
            call = request.control
            assert isinstance(call, Call)
            answer: Answer[Control] = await self._asker(call)(self._caller(request), call)
            self._link.reply(request, answer.control, answer.bulk)
        except Exception as problem:
            self._link.fail(request, _unexpected(request, problem))

    def _asker(self, asked: AnyCall) -> Callable[[Identity, Call[AnswerT]], Awaitable[Answer[AnswerT]]]:
        return self._service.serve if self._is_for_here(asked) else self._service.ask

    def _is_for_here(self, asked: AnyCall) -> bool:
        """Whether this broker alone serves a call. Another broker has found out whom to ask: one hop, never two. So has
        a client that names partitions, or makes a call that it must bring to the right broker itself."""
        return self._peer is not None or row_of(asked).strict or getattr(asked, "partitions", None) is not None

    def _begin_poll(self, request: Request, asked: Poll) -> Coroutine[Any, Any, None]:
        # Settles begin first and in the same turn as the poll, so that they meet in one decision; they are answered
        # by themselves, so that they never wait for the poll.
        settling = self._door.spawn(self._settle_first(request, asked)) if asked.settles else None
        return self._poll(request, asked, settling)

    async def _poll(self, request: Request, asked: Poll, settling: asyncio.Task[None] | None) -> None:
        try:
            poll = replace(asked, settles=[]) if asked.settles else asked
            found = await self._asker(asked)(self._caller(request), poll)
        except Exception as problem:
            if settling is not None:
                await asyncio.shield(settling)
            self._link.fail(request, _unexpected(request, problem))
            return
        try:
            if settling is not None:
                await asyncio.shield(settling)
        finally:
            self._reply_leases(request, found)  # also when cancelled here: then it gives them back

    async def _settle_first(self, request: Request, asked: Poll) -> None:
        try:
            settle = Settle(asked.group, asked.topic, asked.settles)
            reply = (await self._asker(asked)(self._caller(request), settle)).control
        except Exception as problem:
            # The poll is answered for itself, so an error of all the settles is told settle by settle.
            code = _unexpected(request, problem).code
            reply = Settled([SettledItem(code, 0)] * len(asked.settles))
        self._link.reply_settles(request, reply)

    def _reply_leases(self, request: Request, found: Answer[Polled]) -> None:
        sent = False
        try:
            sent = not self._given_up and self._link.reply(request, found.control, found.bulk)
        except Exception as problem:
            self._link.fail(request, _unexpected(request, problem))
        if found.unheard is None:
            return
        if sent:
            self._unsent.append(found.unheard)
        else:
            found.unheard()


_NOTHING: Final = memoryview(b"")


def _published(facts: Appended) -> Published:
    base_offset, count, append_ms, duplicate = facts
    return Published(base_offset, append_ms, count, duplicate)


def _staged(facts: StagedFacts) -> Staged:
    number, _, duplicate = facts
    return Staged(number, duplicate)


def _unexpected(request: Request, problem: BaseException) -> LannerError:
    """An error of the catalogue as it is; anything else is the broker's own fault, and is logged."""
    if isinstance(problem, LannerError):
        return problem
    _log.error("%s failed", request.command.name, exc_info=problem)
    return ServerError()


def _version() -> str:
    try:
        return metadata.version("lanner")
    except metadata.PackageNotFoundError:
        return "unknown"


def _told_to_http(rest: str) -> str:
    where = f"REST is at http://{rest}" if rest else "this broker serves no REST: start it with --http HOST:PORT"
    return f"This is the native port of a Lanner broker, which does not speak HTTP; {where}"
