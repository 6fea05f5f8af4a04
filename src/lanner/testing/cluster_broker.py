"""One broker of a simulated cluster: engine, steward, disk and clock, and what passes between it and the others.

It does what `broker.node` and `broker.peers` do, without threads and sockets. Whatever happens to it (a letter, a tick,
a write that is done) is followed by `work`: the steward looks at the metadata, the engine is pumped, what there is to
say is sent. Writes, saves and rewrites take time, and anything may come between their steps, a power failure too.

What a broker has recorded about its cluster (`record`) survives a restart as the data on its disk does. A broker whose
disk is wiped is another broker: it has another number on the network, another node id, and only its name is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple, Protocol

import msgspec

from lanner.broker.clock import LeaderClock
from lanner.broker.links.acquaintances import Acquaintances
from lanner.broker.pace import Pace
from lanner.broker.replicas import snapshots
from lanner.broker.replicas.engine import CLUSTER_SET, Engine, Seat
from lanner.broker.replicas.replica import Replica
from lanner.broker.replicas.snapshots import Piece, Reply
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.cluster import Registration
from lanner.errors import LannerError, StorageDamaged, StorageFailed
from lanner.features import HIGHEST
from lanner.ledger import FileMissing, Ledger
from lanner.raft import Message, Role, decode_message, encode_message
from lanner.testing.clock import START_MS, SimClock
from lanner.testing.disk import PowerLost
from lanner.testing.network import RAFT, Letter, SimNetwork
from lanner.testing.old_release import forget
from lanner.testing.sim_broker import SimBroker
from lanner.wire.staging import ReportItem

TICK_MS: Final = 50
PULSE_TICKS: Final = 3
ALIVE_MS: Final = 1_000
PIECE: Final = "piece"
PULSE: Final = "pulse"
REPORT: Final = "report"
VOTES: Final = "votes"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_votes: Final = msgspec.msgpack.Decoder(list[ReportItem]).decode
_PULSE: Final = struct.Struct("<qQ?")  # what time it is there, which of its lives this is, and whether it is slow
_LED: Final = struct.Struct("<QQ")
_WORK: Final = ("save", "rewrite", "prepare")


class ClusterRecord(NamedTuple):
    """What a broker has recorded about its cluster."""

    seat: Seat
    nodes: dict[int, str]  # who has which replica of the metadata, as it was at the founding
    told: tuple[Registration, ...]  # whom it may expect to meet before the metadata says who is there


class Bounds(NamedTuple):
    """Small, so that segments fill, tails are cut and snapshots are needed within some thousand events."""

    segment_bytes: int
    tail_entries: int
    tail_bytes: int
    save_ms: int


class Watcher(Protocol):
    """Who sees everything that replicas do."""

    def watch(self, broker: ClusterBroker, replica: Replica) -> None: ...
    def look(self, broker: ClusterBroker) -> None: ...
    def sent(self, broker: ClusterBroker, set_id: int, message: Message) -> None: ...


class World(Protocol):
    """What brokers stand in: time, a network, and somebody who watches."""

    rng: Random
    clock: SimClock
    network: SimNetwork
    bounds: Bounds
    staged: bool  # whether writers stage

    @property
    def watcher(self) -> Watcher: ...
    def later(self, delay_ms: int, act: Callable[[], None]) -> None: ...
    def guard(self, broker: ClusterBroker, act: Callable[[], None]) -> None: ...
    def number_of(self, node_id: str) -> int | None: ...
    def count(self) -> None: ...


class BrokerClock(SimClock):
    """A broker's own wall clock: off by some, running a little wrong, and set by hand now and then."""

    def __init__(self, world: SimClock, skew_ms: int = 0, drift: float = 0.0) -> None:
        super().__init__(START_MS + skew_ms)
        self._world = world
        self._rate = 1.0 + drift

    def now_ms(self) -> int:
        return self._offset_ms + int(self._world.elapsed_ms * self._rate)

    def jump(self, duration_ms: int) -> None:
        self._offset_ms += duration_ms

    def mend(self) -> None:
        """Show the right time from now on."""
        self._offset_ms, self._rate = START_MS, 1.0


class ClusterBroker(SimBroker):
    """One broker. `life` counts its starts: what was begun in an earlier life never ends."""

    def __init__(self, world: World, number: int, name: str, node_id: str, clock: BrokerClock) -> None:
        super().__init__(world.rng, clock)
        self.world = world
        self.number = number
        self.name = name
        self.node_id = node_id
        self.own_clock = clock
        self.leader_clock = LeaderClock(clock.now_ms, lambda: world.clock.elapsed_ms)
        self.record: ClusterRecord | None = None
        self.founding: bytes | None = None
        self.contacts: list[str] = []  # whom a broker that joins has been told of
        self.others = Acquaintances()
        self.steward: Steward
        self.up = False
        self.retired = False  # it will never run again
        self.life = 0
        self.release = HIGHEST  # the feature level that its release brought
        self.paused_until_ms = 0
        self.slow_until_ms = 0
        self.sync_ms = (0, 0)  # how long syncs take, at least and at most, when they take long
        self.hung = False  # the disk takes nothing any more, until a restart
        self.pace = Pace(lambda: world.clock.elapsed_ms)
        self.heard_ms: dict[str, int] = {}
        self.gossip: dict[int, tuple[int, str]] = {}  # set → (term, who says that it leads it)
        self._silent: set[str] = set()
        self._slow: set[str] = set()  # whose disks are slow, as they say
        self._lives: dict[str, int] = {}
        self._watched: dict[int, Replica] = {}
        self._ticks = 0
        self._hurried = False
        self._lines: tuple[tuple[int, int], list[str]] = ((0, 0), [])
        self._peers: list[str] = []  # to whom there were lines at the last look

    @property
    def opened(self) -> bool:
        """Whether it runs, and has a copy of the metadata to go by."""
        return self.up and self.record is not None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Recover from the disk and take part, as far as is recorded here. The power may go in the middle of it."""
        bounds = self.world.bounds
        self.up = True
        self.life += 1
        self._forget()
        self._watched = {}
        self.commits = []
        self.heard_ms, self._silent, self._slow, self.gossip, self._lives = {}, set(), set(), {}, {}
        self.hung = False
        self.others, self._lines, self._peers = Acquaintances(), ((0, 0), []), []
        self.pace = Pace(lambda: self.world.clock.elapsed_ms)
        self.leader_clock = LeaderClock(self.own_clock.now_ms, lambda: self.world.clock.elapsed_ms)
        ledger = Ledger.recover(
            self.disk.files,
            self.disk.table,
            random_bytes=self.rng.randbytes,
            segment_bytes=bounds.segment_bytes,
            close_damaged=True,
        )
        for set_id, closed in ledger.damaged.items():
            self.explain(set_id, closed.error)
        self.counts["torn_tails"] += ledger.recovery.torn_bytes_cut > 0
        self.engine = Engine(
            ledger,
            self.disk.files,
            rng=self.rng,
            now_ms=self.leader_ms,
            clocks=self.leader_clock.known,
            cache_bytes=8_192,
            tail_entries=bounds.tail_entries,
            tail_bytes_max=bounds.tail_bytes,
        )
        if self.release < HIGHEST:
            forget(self.engine)
        self.tries = Tries(self.engine)
        self.engine.damages.told.append(self.explain)
        ledger.check()
        if self.record is not None:
            self.join(self.record)
        self._later(self.rng.randrange(TICK_MS), self._tick)
        for name in _WORK:
            self._later(self.rng.randrange(1, bounds.save_ms), self._background(name))

    def join(self, record: ClusterRecord) -> None:
        """Take the seat that was given to this broker at the founding, or when it joined."""
        self.record = record
        self.others.told(record.told)
        self.steward = Steward(self.engine, self.node_id)
        self.steward.founding = self.founding
        self.steward.open_metadata(record.seat, record.nodes)
        self.work()

    def stop(self, *, power: bool) -> None:
        """Lose memory, and with the power what was not synced."""
        self.up = False
        self.paused_until_ms = 0
        if power:
            if self.rng.random() < 0.5:
                with suppress(PowerLost, StorageFailed):  # if the disk still takes anything
                    self.write_without_sync()
            self.crash()
        else:
            self.kill()

    def hang(self) -> None:
        """From its next sync on the disk takes nothing any more, until the broker is started anew."""
        self.hung = True

    def leader_ms(self) -> int:
        return self.leader_clock.now_ms()

    # ------------------------------------------------------------------ time

    @property
    def paused(self) -> bool:
        return self.world.clock.elapsed_ms < self.paused_until_ms

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something in this life, or, while paused, when that is over."""
        life = self.life

        def due() -> None:
            if self.life != life or not self.up:
                return
            if self.paused:
                self.world.later(self.paused_until_ms - self.world.clock.elapsed_ms, due)
                return
            self.world.guard(self, act)

        self.world.later(delay_ms, due)

    def _tick(self) -> None:
        self._later(TICK_MS, self._tick)
        self._ticks += 1
        if self._ticks % PULSE_TICKS == 0:
            self._pulse()
        if self.record is None:
            return
        self.engine.tick()
        self.steward.tick(self.may_lead)
        self.tries.tick()
        self.pace.look()
        if self.pace.should_hand_over:
            self.steward.hand_over()
        for command in self.steward.take_reports():
            self.propose_metadata(command)
        if self.engine.installs.save_wanted and not self._hurried:
            self._hurried = True
            self._later(1, self._save_now)
        self.work()

    def is_alive(self, node_id: str) -> bool:
        heard_ms = self.heard_ms.get(node_id)
        return heard_ms is not None and self.world.clock.elapsed_ms - heard_ms <= ALIVE_MS

    def may_lead(self, node_id: str) -> bool:
        return self.is_alive(node_id) and node_id not in self._slow

    def _pulse(self) -> None:
        led = self.steward.led() if self.record is not None else []
        frame = _PULSE.pack(self.own_clock.now_ms(), self.life, self.pace.slow) + b"".join(
            _LED.pack(*one) for one in led
        )
        for node_id in self.acquaintances():
            self._post(node_id, CLUSTER_SET, frame, PULSE)
            if node_id in self.heard_ms and not self.is_alive(node_id) and node_id not in self._silent:
                self._silent.add(node_id)
                self.gossip = {set_id: heard for set_id, heard in self.gossip.items() if heard[1] != node_id}
                if self.record is None:
                    continue
                self.steward.peer_silent(node_id)

    def acquaintances(self) -> list[str]:
        """The brokers that this one has lines to: it reaches nobody else."""
        if self.record is None:
            return self.contacts
        cluster = self.engine.cluster
        now = (cluster.applied_index, len(self.others))
        if self._lines[0] != now or not self._lines[1]:
            known = self.others.brokers(cluster.brokers)
            self._lines = now, [node_id for node_id in known if node_id != self.node_id]
        return self._lines[1]

    def _drop_lines(self) -> None:
        """A broker that does not belong to the cluster any more is silent from now on, as `Peers.know` has it."""
        known = self.acquaintances()
        if known is self._peers:
            return
        gone, self._peers = [one for one in self._peers if one not in known], known
        for node_id in gone:
            self.heard_ms.pop(node_id, None)
            self._silent.discard(node_id)
            self.gossip = {set_id: heard for set_id, heard in self.gossip.items() if heard[1] != node_id}
            self.steward.peer_silent(node_id)

    def _background(self, name: str) -> Callable[[], None]:
        def act() -> None:
            if self.hung:
                return
            going_on = self.step_work(name)
            pause_ms = self.rng.randint(0, 12) if going_on else self.rng.randint(1, 2 * self.world.bounds.save_ms)
            self._later(pause_ms, act)
            if going_on:
                self.world.count()
                if self.record is not None:
                    self.work()

        return act

    def _save_now(self) -> None:
        """An install waits for nothing but a save."""
        self._hurried = False
        if self.hung:
            return
        self.world.count()
        if self.step_work("save"):
            self._hurried = True
            self._later(self.rng.randint(0, 3), self._save_now)
        self.work()

    # ------------------------------------------------------------------ work

    def work(self) -> None:
        """Let everything that may have come of the latest event take its course."""
        self.steward.follow()
        self._drop_lines()
        self._watch_all()
        if self.world.staged:
            self.tries.follow(self.leader_ms())
        if self.busy:
            self.engine.pump()
        elif self.step_commit():
            self.pace.begin()
            self._later(self._disk_ms(), self._perform)
        self.talk()
        self.world.watcher.look(self)

    def _watch_all(self) -> None:
        if self._watched != self.engine.replicas:
            for set_id, replica in self.engine.replicas.items():
                if self._watched.get(set_id) is not replica:
                    self.world.watcher.watch(self, replica)
            self._watched = dict(self.engine.replicas)

    def _disk_ms(self) -> int:
        if self.sync_ms[1]:
            return self.rng.randint(*self.sync_ms)
        if self.world.clock.elapsed_ms < self.slow_until_ms:
            return self.rng.randint(10, 200)
        return self.rng.choice((0, 0, 0, 1, 1, 3))

    def _perform(self) -> None:
        self.world.count()
        if self.hung:
            self.write_without_sync()
            return
        self.step_commit()
        rest_ms = 0 if self.sync_ms[1] else self._disk_ms() // 2
        self._later(rest_ms, self._report if self._performed else self._perform)

    def _report(self) -> None:
        if self.hung:
            return  # it was about to say so
        self.step_commit()
        self.pace.end()
        self.work()

    # ------------------------------------------------------------------ letters

    def talk(self) -> None:
        """Send what the engine has to say."""
        engine, route = self.engine, self.steward.route
        for set_id, message in engine.take_messages():
            self.world.watcher.sent(self, set_id, message)
            node_id = route(set_id, message.receiver)
            if node_id is not None:
                self._post(node_id, set_id, b"".join(encode_message(message)), RAFT)
        values: list[Piece | Reply] = list(engine.take_replies())
        for unread in engine.take_unread_pieces():
            try:
                values.append(unread.load(self.disk.files))
            except FileMissing:
                engine.sending.retry(unread)
            except StorageDamaged as error:
                for index in unread.damaged(error):
                    engine.damages.note(unread.head.set_id, index, error)
                engine.sending.failed(unread)
        for value in values:
            node_id = route(value.set_id, value.receiver)
            if node_id is not None:
                self._post(node_id, value.set_id, snapshots.encode(value), PIECE)

        reports = self.tries.take_reports()
        conductor = self.leader_of(CLUSTER_SET) if reports else None
        if conductor is not None:
            self._post(conductor, CLUSTER_SET, _encode(reports), VOTES)

    def _post(self, node_id: str, set_id: int, frame: bytes, kind: str) -> None:
        number = self.world.number_of(node_id)
        if number is not None and node_id in self.acquaintances():
            world = self.world
            world.network.post(self.number, number, set_id, frame, world.clock.elapsed_ms, kind, once=kind == REPORT)

    def hear(self, letter: Letter, sender_node: str) -> None:
        """A letter of another broker."""
        if self.record is not None:
            self.others.meet(sender_node)
        if letter.kind == PULSE:
            self._hear_pulse(letter.frame, sender_node)
            return
        if self.record is None:
            return
        if letter.kind == RAFT:
            message = decode_message(letter.frame)
            self.steward.learn_route(letter.set_id, message.sender, sender_node)
            self.engine.step(letter.set_id, message)
        elif letter.kind == PIECE:
            value = snapshots.decode(letter.frame)
            self.steward.learn_route(value.set_id, value.sender, sender_node)
            self.engine.step_snapshot(value)
        elif letter.kind == VOTES:
            self.tries.hear(_decode_votes(letter.frame))
        elif letter.kind == REPORT:
            self.propose_metadata(letter.frame, forwarded=True)
        self.work()

    def _hear_pulse(self, frame: bytes, sender_node: str) -> None:
        their_ms, life, slow = _PULSE.unpack_from(frame)
        (self._slow.add if slow else self._slow.discard)(sender_node)
        again = sender_node in self._silent or self._lives.get(sender_node) != life
        self.heard_ms[sender_node] = self.world.clock.elapsed_ms
        self._lives[sender_node] = life
        self._silent.discard(sender_node)
        self.leader_clock.observe(sender_node, their_ms)
        for set_id, term in _LED.iter_unpack(frame[_PULSE.size :]):
            if term >= self.gossip.get(set_id, (0, ""))[0]:
                self.gossip[set_id] = (term, sender_node)
        if again and self.record is not None:
            self.steward.peer_reached(sender_node)
            self.work()

    def propose_metadata(self, command: bytes, *, forwarded: bool = False) -> None:
        """Put a command into the metadata's log, here or where that is led; it may be lost on the way."""
        node = self.engine.replica(CLUSTER_SET).node
        if node.role is Role.LEADER:
            try:
                self.engine.propose(CLUSTER_SET, command, lambda _result: None)
            except LannerError:
                return  # it comes again
        elif not forwarded:
            leader = self.leader_of(CLUSTER_SET)
            if leader is not None:
                self._post(leader, CLUSTER_SET, command, REPORT)

    def leader_of(self, set_id: int) -> str | None:
        """Which broker leads a set, as far as is known here."""
        replica = self.engine.replicas.get(set_id)
        if replica is not None and replica.node.leader_id:
            return self.steward.route(set_id, replica.node.leader_id)
        return self.gossip[set_id][1] if set_id in self.gossip else None
