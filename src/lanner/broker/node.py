"""The shell around the engine: it owns threads, clock, links and data directory, and carries out what is asked for.

One writer thread writes and syncs commits (`commits`); a saver thread brings the table up to date; reader threads read
cold payloads and make extracts. Everything else happens on the event loop. A failed sync ends the broker: `failed` is
set with the reason and nothing is acknowledged any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final, TypeVar

from lanner.broker.clock import LeaderClock
from lanner.broker.commits import Commits, threads_ended
from lanner.broker.links.dispatch import Dispatch
from lanner.broker.links.founding import Founding
from lanner.broker.links.intake import Intake
from lanner.broker.links.peers import Address, Peers
from lanner.broker.links.place import Place
from lanner.broker.opening import Converting
from lanner.broker.outages import Outages
from lanner.broker.pace import SLOW_SYNC_MS, Pace
from lanner.broker.proposals import Proposals, Waiting
from lanner.broker.reading import Reading
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.saving import Saving
from lanner.broker.scrubbing import Scrubbing
from lanner.broker.settings import BrokerSettings
from lanner.broker.steward import Steward
from lanner.broker.ticking import Ticking
from lanner.broker.tries import Tries
from lanner.broker.wall_clock import FollowingClock, steady_clock_ms, wall_clock_ms
from lanner.cluster import Registration, encode_found_cluster
from lanner.errors import DeadlineExceeded, LannerError, ServerError, StorageFailed, UnknownRecord
from lanner.features import HIGHEST, START_NEWER
from lanner.ledger import Ledger
from lanner.ledger.seals import SealedTable
from lanner.storage import DataDirectory, open_directory
from lanner.wire.messages import PeerHello
from lanner.wire.peers import Pulse

log = logging.getLogger("lanner.broker")
Result = TypeVar("Result")

_HAND_OVER_SECONDS: Final = 0.02


class Node:
    """One broker's engine, running."""

    def __init__(self, settings: BrokerSettings, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.settings = settings
        self.wall_ms = now_ms
        self.own_clock = FollowingClock(now_ms)
        self.own_ms = self.own_clock.now_ms
        self.clock = LeaderClock(self.own_ms, steady_clock_ms)
        self.now_ms = self.clock.now_ms
        self.pace = Pace(steady_clock_ms)
        self.failed: asyncio.Future[LannerError]
        self.hung: StorageFailed | None = None  # what was left behind by `stop`: threads that wait for the disk
        self.engine: Engine
        self.directory: DataDirectory
        self.steward: Steward | None = None  # from when this broker belongs to a cluster
        self.tries: Tries
        self.peers: Peers
        self.intake: Intake
        self.place: Place
        self.proposals: Proposals
        self.outages: Outages
        self.saving: Saving
        self.scrubbing: Scrubbing
        self._reading: Reading
        self.commits: Commits
        self._waiting: Waiting
        self._loop: asyncio.AbstractEventLoop
        self._saver = ThreadPoolExecutor(1, "lanner-saver")
        self._readers = ThreadPoolExecutor(2, "lanner-reader")
        self.leaving = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed = (-1, -1)
        self._serving = False
        self._was_ready = False

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the data directory and replay the journal. Nothing is held or led yet."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        self._waiting = Waiting()
        settings = self.settings
        self.directory = await self.in_saver(lambda: open_directory(settings.data))
        files, table = self.directory.files, self.directory.table
        try:
            ledger = await self.in_saver(
                lambda: Ledger.recover(
                    files,
                    table,
                    random_bytes=os.urandom,
                    segment_bytes=settings.segment_size(files.free_bytes()[1]),
                    close_damaged=True,
                    converting=Converting().tell,
                )
            )
        except BaseException:
            self.directory.close()  # unlocked, for another attempt
            raise
        if ledger.recovery.torn_bytes_cut:
            log.warning(
                "cut %d bytes that a crash left unfinished at the end of the journal", ledger.recovery.torn_bytes_cut
            )
        rng = Random(os.urandom(16))
        self.engine = Engine(
            ledger, files, rng=rng, now_ms=self.now_ms, clocks=self.clock.known, cache_bytes=settings.cache_bytes
        )
        self.outages = Outages(self.engine, self.node_id, self.fail)
        self.saving = Saving(
            self.engine, self.directory, settings, saver=self._saver, readers=self._readers, fail=self.fail
        )
        self.saving.check_disk()
        self.scrubbing = Scrubbing(
            self.engine,
            files,
            SealedTable(table),
            self.in_reader,
            settings.scrub_bytes_per_second,
            self.fail,
            lambda work: self.spawn(self._vital(work)),
        )
        self.commits = Commits(self)
        self._reading = Reading(self.engine, files, self._readers)
        self.proposals = Proposals(self)
        self.place = Place(self)
        self.peers = Peers(self.place, rng=rng, snapshot_bytes_per_second=settings.snapshot_bytes_per_second)
        self.intake = Intake(self)

    async def join(self, doors: Mapping[str, Address]) -> None:
        """The doors are open at these addresses: found a cluster, join one, or take the recorded place; then begin."""
        self.place.introduce(doors)
        founding = await self.place.establish()
        steward = Steward(self.engine, self.node_id, founding.seat, founding.nodes)
        self.tries = Tries(self.engine)
        if not founding.joined:
            steward.founding = encode_found_cluster(founding.cluster_id, founding.founders, self.own_ms())
        metadata = steward.open_metadata()
        self.outages.refuse_alone()
        metadata.on_outcome = self.proposals.outcomes.note
        self.peers.on_silent, self.peers.on_reached = self._silent, steward.peer_reached
        self.steward = steward
        self.commits.dispatch = Dispatch(
            self.engine,
            steward,
            self.peers,
            files=self.directory.files,
            reading=self._reading,
            saving=self.saving,
            spawn=self.spawn,
        )
        self.peers.know(self.place.brokers())
        for work in (Ticking(self, steward).forever(), *self.saving.tasks(), *self.scrubbing.tasks()):
            self.spawn(self._vital(work))
        self.spawn(self.place.catch_up())
        self.kick()

    async def until_ready(self) -> None:
        """Wait until this broker serves what it should."""
        await self._until(lambda: self.ready)

    def keep_registered(self) -> None:
        """See that the metadata knows where this broker is reached now."""
        self.spawn(self.place.keep_registered())

    @property
    def alone(self) -> bool:
        """Whether there are no other brokers, as far as this disk knows."""
        return not self.peers.known and not self.engine.replicas[CLUSTER_SET].has_peers

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _vital(self, work: Coroutine[Any, Any, None]) -> None:
        """Without this the broker would only seem to be alive."""
        try:
            await work
        except Exception as problem:
            self.fail_on(problem)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def hand_over(self, timeout_ms: int) -> None:
        """This broker will stop: have others lead, as far as they can, while everything is still served.

        They are told first: else a broker that should lead would be handed it back while it drains, and die with it.
        """
        ends = self._loop.time() + timeout_ms / 1_000
        self.leaving = True
        if self.steward is not None:
            self.peers.pulse(self.own_ms(), self.steward.led(), leaving=True)
        while self.steward is not None and not self.failed.done() and self.steward.hand_over():
            self.kick()
            if self._loop.time() >= ends or not self.others_may_lead:
                return  # nobody is there to take over, such as when all are told to stop
            await asyncio.sleep(_HAND_OVER_SECONDS)

    async def stop(self) -> None:
        """Finish what is in flight, save, and let go of the data directory.

        A disk that does not answer in time is left alone: what it was to store was never acknowledged.
        """
        self.saving.stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.peers.close()
        try:
            async with asyncio.timeout(self.settings.stop_ms / 1_000):
                await self._finish()
                await threads_ended(self.commits.writer, self._saver, self._readers)
        except TimeoutError:
            self.hung = StorageFailed(
                f"the disk has not answered for {self.settings.stop_ms / 1_000:g} s, so the broker ends without it: "
                "what was in flight was not acknowledged, and may be missing. Check the disk, then start it again",
                hung=True,
            )
            log.critical("%s", self.hung.message)
            if not self.failed.done():
                self.failed.set_result(self.hung)
            return
        self.directory.close()

    async def _finish(self) -> None:
        await self.saving.guard(self.saving.finish)
        if not self.failed.done():
            try:
                await self._until(self.commits.settled)
                await self.saving.save()
            except LannerError as error:
                self.fail(error)

    def fail(self, error: LannerError) -> None:
        """The environment has failed this broker: it stops, with this reason."""
        if not self.failed.done():
            log.critical("the broker stops: %s", error.message)
            self.failed.set_result(error)
            self.saving.failed = True
        self._waiting.look_again()

    def fail_on(self, problem: Exception) -> None:
        """Whatever breaks the commit path ends the broker: going on from a state that nobody foresaw helps nobody."""
        if not isinstance(problem, LannerError):
            log.critical("the broker has a bug", exc_info=problem)
            problem = ServerError(f"the broker met something that it did not foresee: {problem!r}")
        self.fail(problem)

    # ------------------------------------------------------------------ what is known here

    @property
    def node_id(self) -> str:
        return self.directory.node_id

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def cluster_id(self) -> str:
        """Empty until this broker belongs to a cluster."""
        return self.place.cluster_id

    @property
    def founding(self) -> Founding | None:
        return self.place.founding

    @property
    def registration(self) -> Registration:
        return self.place.registration

    @property
    def metadata_index(self) -> int:
        """How far the metadata is applied here."""
        return self.engine.replicas[CLUSTER_SET].node.applied_index

    @property
    def serving(self) -> bool:
        """Whether the metadata is there, so that callers can be answered or sent on; once so, always so.

        What the disk knows after a restart may be old: a topic that it does not know may exist, and must not be denied.
        """
        if not self._serving and self.steward is not None:
            cluster = self.engine.cluster
            known = bool(cluster.cluster_id) and self.node_id in cluster.brokers
            self._serving = known and self.place.is_current
        return self._serving

    @property
    def ready(self) -> bool:
        """Whether every set that belongs here is here and has a leader that is known.

        After a disk was replaced that takes until its replicas vote again: who waits for this before replacing the
        next disk never has two copies missing at a time.
        """
        if not self.serving or self.steward is None or not self.steward.settled:
            return False
        if not self._was_ready and not self.engine.cluster.is_restored(self.node_id):
            return False
        for replica in self.engine.replicas.values():
            leader = replica.node.leader_id
            if not leader or (leader == replica.node.node_id and not replica.leads):
                return False
        self._was_ready = True
        return True

    @property
    def available(self) -> bool:
        """Whether callers should come here. A broker that was ready stays so while one partition elects a leader: it
        serves the others, and taking it away for that would take all brokers away at once."""
        return self.ready or (self._was_ready and self.leader_of(CLUSTER_SET) != "")

    @property
    def time_ahead_ms(self) -> int:
        """How far the latest time that anything was decided at here is ahead of the wall clock; 0: it is not."""
        replicas = self.engine.replicas.items()
        latest_ms = max((one.partition.machine_ms for set_id, one in replicas if set_id != CLUSTER_SET), default=0)
        return max(0, latest_ms - self.wall_ms())

    @property
    def storage_full(self) -> bool:
        return self.saving.room.is_full

    def leader_of(self, set_id: int) -> str:
        """The node id of a set's leader; empty while it is not known."""
        return self.place.leader_of(set_id)

    def address_of(self, node_id: str) -> Address | None:
        """Where a broker's native door is reached."""
        return next(iter(self.peers.addresses_of(node_id)), None)

    async def propose_cluster(self, command: bytes, timeout_ms: int = 10_000) -> Any:
        """Put a change into the cluster's log, wherever it is led; its result once it has applied on this broker."""
        result = await self.proposals.propose(command, timeout_ms)
        self._follow()
        return result

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> None:
        """Wait for something that commits, messages or time may bring about; DeadlineExceeded."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._until(condition)
        except TimeoutError:
            raise DeadlineExceeded() from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.failed.done():
                raise self.failed.result()
            await self._waiting.change()

    # ------------------------------------------------------------------ what the intake hears

    def met(self, peer: PeerHello, address: Address | None) -> None:
        self.place.meet(peer.node_id)
        self.peers.know(self.place.brokers())
        self.peers.met(peer, address)

    def heard(self, node_id: str, pulse: Pulse) -> None:
        if node_id in self.peers.known:
            self.clock.observe(node_id, pulse.now_ms)
        self.peers.heard(node_id, pulse, self.engine.cluster.sets)

    def _silent(self, node_id: str) -> None:
        # Its clock still counts: a leader that is cut off with a clock an hour ahead would believe it, and what it
        # decides then may be committed once it is heard again. Only when it is removed it counts no more.
        if node_id not in self.peers.known:
            self.clock.forget(node_id)
        if self.steward is not None:
            self.steward.peer_silent(node_id)
            self.kick()

    def kick(self) -> None:
        """Something may be waiting: pump the engine at the end of this turn of the loop."""
        self.commits.kick()

    def changed(self) -> None:
        """What callers wait for may have come about."""
        self._follow()
        self._waiting.look_again()

    # ------------------------------------------------------------------ the metadata

    def _follow(self) -> None:
        """Do what the metadata says, when it says something new."""
        steward, engine = self.steward, self.engine
        if steward is None:
            return
        steward.follow()
        level = engine.feature_level
        if level > HIGHEST:
            self.fail(
                UnknownRecord(f"the cluster is at feature level {level}, and {HIGHEST} is known here; {START_NEWER}")
            )
            return
        now = (engine.cluster.shape_index, len(engine.replicas))
        if now != self._followed:
            self._followed = now
            self.peers.know(self.place.brokers())
            self.peers.forget_leaders(engine.cluster.sets)
            self.kick()
        if self.tries.follow(self.now_ms()):
            self.kick()
        reports = self.tries.take_reports()
        if reports:
            self.peers.report(self.leader_of(CLUSTER_SET), reports)

    # ------------------------------------------------------------------ time

    @property
    def disk_slow(self) -> str:
        """What there is to say of a disk that is slow; empty when it is not."""
        pace = self.pace
        if not pace.slow:
            return ""
        if pace.sync_ms >= SLOW_SYNC_MS:
            return f"disk slow: a sync has been under way for {pace.sync_ms / 1_000:.1f} s"
        return f"disk slow: a sync took {pace.longest_ms / 1_000:.1f} s a moment ago"

    @property
    def others_may_lead(self) -> bool:
        """Whether there are other brokers which neither stop nor have a slow disk."""
        return any(map(self.peers.may_lead, self.peers.known))

    # ------------------------------------------------------------------ threads

    async def in_saver(self, work: Callable[[], Result]) -> Result:
        """Run something that writes beside the journal, in the saver thread."""
        return await self._loop.run_in_executor(self._saver, work)

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run something that may block on the disk, or on much computing, in a reader thread."""
        return await self._reading.in_reader(work)

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The payloads of (set, index) pairs, from memory or the journal; None for one that retention has taken."""
        return await self._reading.payloads(wanted)


__all__ = ["Node", "wall_clock_ms"]
