"""The brokers of a local cluster as child processes: started, looked after, stopped.

Each child is in a session of its own, so that a Ctrl-C in the terminal reaches this process only and every broker is
told to stop exactly once. Should this process be killed, the kernel tells them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from lanner.cli.dev_folder import DevFolder, LocalBroker
from lanner.cli.screen import EXIT_REMOVED
from lanner.errors import LannerError, ServiceUnavailable

if TYPE_CHECKING:
    from lanner.wire.cluster import ClusterDescription

_LOOK_SECONDS: Final = 0.1
_PROBE_SECONDS: Final = 0.25
_WATCH_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 20.0
_RESTART_SECONDS: Final = 1.0
_RESTART_SECONDS_MAX: Final = 15.0
_STEADY_SECONDS: Final = 30.0  # a broker that ran for so long is restarted without delay
_AGAIN_SECONDS: Final = 0.7  # a signal that comes sooner is the same Ctrl-C
_PROBE_MS: Final = 2_000
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """One broker's process."""

    def __init__(self, broker: LocalBroker, command: Sequence[str], environment: dict[str, str]) -> None:
        self.broker = broker
        self.state = "starting"
        self.told = False  # its death was reported
        self.leaving = False  # it was asked to end
        self.began = time.monotonic()
        broker.folder.mkdir(parents=True, exist_ok=True)
        with broker.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def removed(self) -> bool:
        """Whether it ended because the cluster has let go of it."""
        return self._process.poll() == EXIT_REMOVED

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.poll()
        if code is None or code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def send(self, number: signal.Signals) -> None:
        self.leaving = True
        if self.running:
            self._process.send_signal(number)


def end_with_parent() -> None:
    """Run in a child before it begins: it is told to stop when this process is gone, however that came about."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Teller(Protocol):
    """Who says what happens: to people, or as JSON."""

    def starting(self, children: Sequence[Child]) -> None: ...
    def waiting(self, children: Sequence[Child]) -> None: ...
    def ready(self, children: Sequence[Child], seen: ClusterDescription) -> None: ...
    def died(self, child: Child, restart_seconds: float | None) -> None: ...
    def restarted(self, child: Child) -> None: ...
    def removed(self, child: Child) -> None: ...
    def stopping(self) -> None: ...
    def stopped(self, killed: Sequence[Child]) -> None: ...


class LocalBrokers:
    """Runs the brokers of one folder until told to stop."""

    def __init__(self, folder: DevFolder, teller: Teller, restart: bool) -> None:
        self._folder = folder
        self._teller = teller
        self._restart = restart
        self._children: dict[str, Child] = {}
        self._restart_at: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._members = {broker.name for broker in folder.brokers if broker.belongs}  # seen in the cluster at some time
        self._missing: set[str] = set()
        self._asked_at = 0.0
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def children(self) -> list[Child]:
        return list(self._children.values())

    def stop(self) -> None:
        """Stop all brokers; asked again, kill them. A wrapper may pass on what the terminal sent us, too."""
        now = time.monotonic()
        if not self._stop.is_set():
            self._asked_at = now
        elif now - self._asked_at > _AGAIN_SECONDS:
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        brokers = self._folder.brokers
        for broker in brokers:
            broker.check_ports()
        newcomers = self._folder.newcomers
        try:
            self._start([broker for broker in brokers if broker not in newcomers])
            following = asyncio.create_task(self._follow(newcomers))
            try:
                while not self._stop.is_set():
                    self._look_after()
                    if following.done():
                        following.result()  # it never ends by itself: this raises what ended it
                    await _wait(self._stop, _LOOK_SECONDS)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        finally:
            await self._stop_all()

    def _start(self, brokers: Sequence[LocalBroker]) -> None:
        for broker in brokers:
            self._spawn(broker)
        self._teller.starting([self._children[broker.name] for broker in brokers])

    def _spawn(self, broker: LocalBroker) -> Child:
        child = Child(broker, self._folder.command(broker), self._folder.environment())
        self._children[broker.name] = child
        return child

    # ------------------------------------------------------------------ deaths

    def _look_after(self) -> None:
        now = time.monotonic()
        for name, child in list(self._children.items()):
            if child.running or child.leaving:
                continue
            if child.removed:
                self._let_go(name)
            elif not child.told:
                self._report(child, now)
            elif self._restart and self._restart_at[name] <= now:
                self._teller.restarted(self._spawn(child.broker))
        if not self._restart and not any(child.running for child in self._children.values()):
            raise ServiceUnavailable(f"every broker has ended; what they said is in {self._folder.path}/node-*.log")

    def _report(self, child: Child, now: float) -> None:
        child.told = True
        child.state = "ended"
        name = child.broker.name
        if not self._folder.founded and not self._restart:
            raise ServiceUnavailable(
                f"{name} ended ({child.ending}) before the cluster was founded, which needs all brokers. The end of "
                f"{child.broker.log}:\n" + "\n".join(child.broker.log_tail())
            )
        pause = None
        if self._restart:
            steady = now - child.began > _STEADY_SECONDS
            pause = _RESTART_SECONDS if steady else self._pauses.get(name, _RESTART_SECONDS)
            self._pauses[name] = min(_RESTART_SECONDS_MAX, pause * 2)
            self._restart_at[name] = now + pause
        self._teller.died(child, pause)

    # ------------------------------------------------------------------ what the cluster says of itself

    async def _follow(self, newcomers: Sequence[LocalBroker]) -> None:
        seen = await self._until_ready()
        if newcomers:
            self._start(newcomers)
            seen = await self._until_ready()
        self._teller.ready([child for child in self.children if not child.leaving], seen)
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await self._look_around()

    async def _until_ready(self) -> ClusterDescription:
        """Wait until every broker that runs is part of the cluster and sees who leads it."""
        while True:
            views = await self._look_around()
            self._teller.waiting(self.children)
            running = [child for child in self.children if child.running and not child.leaving]
            if running and all(child.state == "ready" for child in running):
                return next(iter(views.values()))
            await asyncio.sleep(_PROBE_SECONDS)

    async def _look_around(self) -> dict[str, ClusterDescription]:
        """How each broker that knows who leads sees the cluster; lets go of those that the cluster has let go of."""
        running = [child for child in self.children if child.running and not child.leaving]
        found = await asyncio.gather(*(self._probe(child) for child in running))
        views = {child.broker.name: seen for child, seen in zip(running, found, strict=True) if seen is not None}
        names = {viewer: {broker.name for broker in seen.brokers} for viewer, seen in views.items()}
        missing = {
            child.broker.name
            for child in self.children
            if child.broker.name in self._members and _is_missing(child.broker.name, names)
        }
        for name in missing & self._missing:  # twice: one may have looked before the other had heard
            self._let_go(name)
        self._missing = missing
        self._members.update(*names.values())
        return views

    def _let_go(self, name: str) -> None:
        child = self._children[name]
        if not child.leaving:
            child.send(signal.SIGTERM)
            child.state = "removed"
            self._folder.forget(child.broker)
            self._teller.removed(child)

    async def _probe(self, child: Child) -> ClusterDescription | None:
        """What a broker says of the cluster, if it belongs to one that somebody leads."""
        try:
            seen = await _describe(child.broker.native)
        except LannerError:
            return None
        own = next((broker for broker in seen.brokers if broker.name == child.broker.name), None)
        if not seen.metadata_leader or own is None:
            child.state = "electing"
            return None
        child.state = own.state if own.state == "joining" else "ready"
        return seen

    # ------------------------------------------------------------------ the end

    async def _stop_all(self) -> None:
        running = [child for child in self._children.values() if child.running]
        if running:
            self._teller.stopping()
        for child in running:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while any(child.running for child in running) and time.monotonic() < deadline and not self._hurry.is_set():
            await _wait(self._hurry, 0.05)
        killed = [child for child in running if child.running]
        for child in killed:
            child.send(signal.SIGKILL)
        while any(child.running for child in killed):
            await asyncio.sleep(0.02)
        self._teller.stopped(killed)


def _is_missing(name: str, names: Mapping[str, set[str]]) -> bool:
    """Whether others have a view of the cluster and none of them has this broker in it."""
    others = [found for viewer, found in names.items() if viewer != name]
    return bool(others) and not any(name in found for found in others)


async def _describe(servers: str) -> ClusterDescription:
    from lanner.client import connect

    async with connect(servers, client_name="lanner-dev", timeout_ms=_PROBE_MS) as queue:
        return await queue.admin.describe_cluster()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
