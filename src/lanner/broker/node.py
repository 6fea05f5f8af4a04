"""The shell around the engine: it owns threads, clocks, links and the data directory, and puts the parts together.

One writer thread writes and syncs commits (`commits`); a saver thread brings the table up to date; reader threads read
cold payloads and make extracts. Everything else happens on the event loop. A failed sync ends the broker: `failed` is
set with the reason and nothing is acknowledged any more.

The node itself has only a life: open, join, hand over, stop. What it can do otherwise is in its parts, each of which
takes the ports that it uses (`ports`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from lanner.broker.background import Background
from lanner.broker.clock import LeaderClock
from lanner.broker.commits import Commits, threads_ended
from lanner.broker.coordination.changes import Changes
from lanner.broker.coordination.coordination import Answered, Coordination
from lanner.broker.coordination.figures import Counts
from lanner.broker.coordination.homes import Homes
from lanner.broker.links.admission import Admission
from lanner.broker.links.catching_up import CatchingUp
from lanner.broker.links.dispatch import Dispatch
from lanner.broker.links.founding import decode_record
from lanner.broker.links.identity import Address, BrokerIdentity
from lanner.broker.links.inbox import PeerInbox
from lanner.broker.links.joining import Joining
from lanner.broker.links.leaders import KnownLeaders
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.peers import Peers
from lanner.broker.links.proof import SameCluster
from lanner.broker.links.registering import keep_registered
from lanner.broker.metadata_watch import MetadataWatch
from lanner.broker.opening import Converting
from lanner.broker.outages import Outages
from lanner.broker.pace import Pace
from lanner.broker.parts import Parts
from lanner.broker.ports import Result
from lanner.broker.proposals import Proposals
from lanner.broker.readiness import Readiness
from lanner.broker.reading import Reading
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.saving import Saving
from lanner.broker.scrubbing import Scrubbing
from lanner.broker.settings import BrokerSettings
from lanner.broker.steward import Steward
from lanner.broker.ticking import Ticking
from lanner.broker.tries import Tries
from lanner.broker.waiting import Waiting
from lanner.broker.wall_clock import FollowingClock, steady_clock_ms, wall_clock_ms
from lanner.cluster import encode_found_cluster
from lanner.errors import BrokerRemoved, LannerError, ServerError, StorageFailed
from lanner.ledger import Ledger
from lanner.ledger.seals import SealedTable
from lanner.storage import DataDirectory, open_directory
from lanner.storage.aside import read_rejoin

log = logging.getLogger("lanner.broker")

_HAND_OVER_SECONDS: Final = 0.02


class Node:
    """One broker's engine, running."""

    def __init__(self, settings: BrokerSettings, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.settings = settings
        self._wall_ms = now_ms
        self.own_clock = FollowingClock(now_ms)
        self.clock = LeaderClock(self.own_clock.now_ms, steady_clock_ms)
        self.pace = Pace(steady_clock_ms)
        self.failed: asyncio.Future[LannerError]
        self.hung: StorageFailed | None = None  # what was left behind by `stop`: threads that wait for the disk
        self.directory: DataDirectory
        self.node_id: str
        self.engine: Engine
        self.steward: Steward
        self.tries: Tries
        self.homes: Homes
        self.coordination: Coordination
        self.changes: Changes
        self.group_counts: Counts
        self.identity: BrokerIdentity
        self.membership: ClusterMembership
        self.joining: Joining
        self.peers: Peers
        self.leaders: KnownLeaders
        self.readiness: Readiness
        self.inbox: PeerInbox
        self.proposals: Proposals
        self.waiting: Waiting
        self.outages: Outages
        self.saving: Saving
        self.scrubbing: Scrubbing
        self.reading: Reading
        self.commits: Commits
        self._background: Background
        self._catching_up: CatchingUp
        self._watch: MetadataWatch
        self._ticking: Ticking
        self._loop: asyncio.AbstractEventLoop
        self._saver = ThreadPoolExecutor(1, "lanner-saver")
        self._readers = ThreadPoolExecutor(2, "lanner-reader")

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the data directory and replay the journal. Nothing is held or led yet."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        self.waiting = Waiting(self.failed)
        self._background = Background(self.fail)
        settings = self.settings
        self.directory = await self._in_saver(lambda: open_directory(settings.data))
        self.node_id = self.directory.node_id
        try:
            self._open_parts(await self._in_saver(self._recover))
        except BaseException:
            self.directory.close()  # unlocked, for another attempt
            raise

    def _open_parts(self, ledger: Ledger) -> None:
        """Make everything that works with the open directory."""
        settings = self.settings
        if ledger.recovery.torn_bytes_cut:
            log.warning(
                "cut %d bytes that a crash left unfinished at the end of the journal", ledger.recovery.torn_bytes_cut
            )
        rng = Random(os.urandom(16))
        self.engine = Engine(
            ledger,
            self.directory.files,
            rng=rng,
            now_ms=self.clock.now_ms,
            clocks=self.clock.known,
            cache_bytes=settings.cache_bytes,
        )
        self._open_storage()
        self._open_links(rng)
        self._open_metadata()
        self._open_conversation()

    def _recover(self) -> Ledger:
        files = self.directory.files
        return Ledger.recover(
            files,
            self.directory.table,
            random_bytes=os.urandom,
            segment_bytes=self.settings.segment_size(files.free_bytes()[1]),
            close_damaged=True,
            converting=Converting().tell,
        )

    def _open_storage(self) -> None:
        """Make the parts that read and write."""
        engine, files, settings = self.engine, self.directory.files, self.settings
        self.outages = Outages(engine, self.node_id, self.fail)
        self.saving = Saving(engine, self.directory, settings, saver=self._saver, readers=self._readers, fail=self.fail)
        self.saving.check_disk()
        self.reading = Reading(engine, files, self._readers)
        self.scrubbing = Scrubbing(
            engine,
            files,
            SealedTable(self.directory.table),
            self.reading.in_reader,
            settings.scrub_bytes_per_second,
            self.fail,
            self._background.spawn_vital,
        )
        self.commits = Commits(
            engine,
            files,
            self.saving,
            self.pace,
            failed=self.failed,
            fail=self.fail,
            changed=self._changed,
            in_saver=self._in_saver,
        )
        self.steward = Steward(engine, self.node_id)
        self.tries = Tries(engine)

    def _open_links(self, rng: Random) -> None:
        """Make the parts that know this broker's cluster and reach the others."""
        engine, directory, settings = self.engine, self.directory, self.settings
        recorded = directory.read_founding()
        founding = None if recorded is None else decode_record(recorded, self.node_id)
        rejoin = read_rejoin(directory.path) if recorded is None else None
        self.identity = BrokerIdentity(
            self.node_id,
            settings,
            recorded_name="" if founding is None else founding.name,
            rejoin_name="" if rejoin is None else rejoin.name,
        )
        self.membership = ClusterMembership(self.identity, engine, settings.seeds, founding)
        self.peers = Peers(self.membership, rng=rng, snapshot_bytes_per_second=settings.snapshot_bytes_per_second)
        self.peers.on_reached, self.peers.on_unreachable = self.steward.peer_reached, engine.report_unreachable
        self.peers.on_removed = self._removed
        self.leaders = KnownLeaders(self.node_id, engine.replicas, self.steward.route, self.peers)
        self.joining = Joining(
            self.identity, self.membership, directory, engine.ledger, settings, rejoin, self.peers, self._in_saver
        )

    def _open_metadata(self) -> None:
        """Make the parts that follow the metadata, and change it."""
        engine, kick, fail = self.engine, self.commits.kick, self.fail
        self.group_counts = Counts()
        self.homes = Homes(self.node_id, engine, lambda: self.leaders.leader_of(CLUSTER_SET), steady_clock_ms)
        self.coordination = Coordination(
            self.node_id, engine, self.homes, self.clock, self._in_thread, self.group_counts
        )
        self._watch = MetadataWatch(
            engine,
            self.steward,
            self.tries,
            self.coordination,
            self.membership,
            self.leaders,
            self.peers,
            self.clock,
            kick=kick,
            fail=fail,
        )
        self._catching_up = CatchingUp(self.node_id, engine, self.leaders, self.peers, self.waiting, kick)
        self.readiness = Readiness(
            self.node_id,
            engine,
            self.failed,
            metadata=self._catching_up,
            holdings=self.steward,
            room=self.saving.room,
            pace=self.pace,
            others=self.peers,
        )
        self.proposals = Proposals(
            self.node_id, engine, self.leaders, self.peers, self.waiting, kick=kick, follow=self._watch.follow
        )
        self.changes = Changes(self.proposals, self.clock, self._background.spawn, self.group_counts)

    def _open_conversation(self) -> None:
        """Make the parts that speak with other brokers: the ticks and their pulses, and what is taken from them."""
        engine, kick, fail = self.engine, self.commits.kick, self.fail
        self._ticking = Ticking(
            engine,
            self.steward,
            self.tries,
            self.homes,
            self.coordination,
            self.outages,
            self.peers,
            self.pace,
            own_clock=self.own_clock,
            proposer=self.proposals,
            failed=self.failed,
            kick=kick,
            spawn=self._background.spawn,
        )
        admission = Admission(
            self.identity,
            self.membership,
            self.settings.seeds,
            engine,
            self.peers,
            self.proposals,
            self.waiting,
            self.own_clock,
            self.readiness,
        )
        self.inbox = PeerInbox(
            self.membership,
            admission,
            engine,
            self.steward,
            self.tries,
            self.homes,
            self.coordination,
            self.peers,
            self.clock,
            self.proposals,
            self.readiness,
            SameCluster(lambda: self.membership.cluster_id),
            kick=kick,
            fail=fail,
        )
        self.peers.on_silent = self.inbox.gone_silent

    async def join(self, doors: Mapping[str, Address]) -> None:
        """Found a cluster, join one, or take the recorded one, with the doors open at these addresses; then begin."""
        self.identity.introduce(doors)
        founding = await self.joining.establish()
        if not founding.joined:
            self.steward.founding = encode_found_cluster(
                founding.cluster_id, founding.founders, self.own_clock.now_ms()
            )
        metadata = self.steward.open_metadata(founding.seat, founding.nodes)
        self.outages.refuse_alone()
        metadata.on_outcome = self.proposals.outcomes.note
        background = self._background
        self.commits.outbox = Dispatch(
            self.engine,
            self.steward,
            self.peers,
            files=self.directory.files,
            reading=self.reading,
            saving=self.saving,
            spawn=background.spawn,
        )
        self.peers.set_peers(self.membership.brokers())
        for work in (self._ticking.forever(), *self.saving.tasks(), *self.scrubbing.tasks()):
            background.spawn_vital(work)
        background.spawn(self._catching_up.run())
        self.commits.kick()

    async def until_ready(self) -> None:
        """Wait until everything that belongs here is here and led."""
        await self.waiting.until(lambda: self.readiness.complete)

    def keep_registered(self) -> None:
        """See that the metadata knows where this broker is reached now."""
        self._background.spawn(keep_registered(self.identity, self.engine, self.proposals, self.own_clock, self.fail))

    @property
    def alone(self) -> bool:
        """Whether there are no other brokers, as far as this disk knows."""
        return not self.peers.known and not self.engine.replicas[CLUSTER_SET].has_peers

    async def hand_over(self, timeout_ms: int) -> None:
        """Have others lead before this broker stops, as far as they can, while everything is still served.

        They are told first: else a broker that should lead would be handed it back while it drains, and die with it.
        """
        ends = self._loop.time() + timeout_ms / 1_000
        self._ticking.leaving = True
        if CLUSTER_SET not in self.engine.replicas:
            return
        self._ticking.pulse()
        while not self.failed.done() and self.steward.hand_over():
            self.commits.kick()
            if self._loop.time() >= ends or not self.peers.others_may_lead:
                return  # no broker is there to take over, such as when all are told to stop
            await asyncio.sleep(_HAND_OVER_SECONDS)

    async def stop(self) -> None:
        """Finish what is in flight, save, and let go of the data directory.

        A disk that does not answer in time is left alone: what it was to store was never acknowledged.
        """
        self.saving.stopping = True
        await self._background.cancel()
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
                await self.waiting.until(self.commits.settled)
                await self.saving.save()
            except LannerError as error:
                self.fail(error)

    def fail(self, problem: Exception) -> None:
        """End this broker with a reason: an error of the environment, or a bug, from which nothing safe follows."""
        if not isinstance(problem, LannerError):
            log.critical("the broker has a bug", exc_info=problem)
            problem = ServerError(f"the broker met something that it did not foresee: {problem!r}")
        if not self.failed.done():
            log.critical("the broker stops: %s", problem.message)
            self.failed.set_result(problem)
            self.saving.failed = True
        self.waiting.wake()

    # ------------------------------------------------------------------ what the parts tell

    def _changed(self) -> None:
        """Look at what callers wait for, and at the metadata: either may have changed."""
        self._watch.follow()
        self.waiting.wake()

    def _removed(self, error: BrokerRemoved) -> None:
        """End when another broker says that this one is no longer wanted: what it could still say would be old."""
        if error.details.get("node_id") == self.node_id:
            self.fail(error)

    async def _in_saver(self, work: Callable[[], Result]) -> Result:
        """Run something that writes beside the journal, in the saver thread."""
        return await self._loop.run_in_executor(self._saver, work)

    def _in_thread(self, work: Callable[[], Answered], told: Callable[[Answered], None]) -> None:
        """Have the assignors of groups answer beside the loop."""

        async def answer() -> None:
            told(await self.reading.in_reader(work))

        self._background.spawn_vital(answer())

    # ------------------------------------------------------------------ for the service

    def parts(self) -> Parts:
        """Return what the service is made of, once the node is open."""
        return Parts(
            node_id=self.node_id,
            name=self.identity.name,
            settings=self.settings,
            engine=self.engine,
            clock=self.clock,
            wall_ms=self._wall_ms,
            reader=self.reading,
            proposer=self.proposals,
            waiting=self.waiting,
            leaders=self.leaders,
            peers=self.peers,
            membership=self.membership,
            steward=self.steward,
            tries=self.tries,
            homes=self.homes,
            coordination=self.coordination,
            changes=self.changes,
            group_counts=self.group_counts,
            outages=self.outages,
            scrubbing=self.scrubbing,
            room=self.saving.room,
            readiness=self.readiness,
            failed=self.failed,
            kick=self.commits.kick,
        )


__all__ = ["Node", "wall_clock_ms"]
