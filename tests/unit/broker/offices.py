"""A flock whose brokers have services, and peers that call each other through the table of calls.

Everything is real but the sockets, the disks and the clock: twenty ticks pass in a moment. Calls between brokers can be
lost on the way there (`refuse`), or on the way back, when they have taken effect (`lose`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from lanner.broker.coordination.changes import Changes
from lanner.broker.outages import Outages
from lanner.broker.pace import Pace
from lanner.broker.parts import Parts
from lanner.broker.ports import Result
from lanner.broker.readiness import Readiness
from lanner.broker.replicas.engine import Engine
from lanner.broker.room import Room
from lanner.broker.scrubbing import Scrubbing
from lanner.broker.service import Service
from lanner.broker.settings import BrokerSettings
from lanner.calls import Identity
from lanner.errors import ConnectionLost, DeadlineExceeded, LannerError, NotLeader, from_wire
from lanner.ledger import read_entry
from lanner.ledger.seals import SealedTable
from lanner.testing.flock import Broker, Flock
from lanner.wire.connection import Reply
from lanner.wire.exchanges import EXCHANGES
from lanner.wire.messages import Command, Control
from tests.callers import Caller, Here

PEER = Identity("anonymous", "native")
BEAT_SECONDS = 0.002


class Office:
    """One broker's service, over its engine and steward; everything else that it asks for is this object."""

    def __init__(self, offices: Offices, broker: Broker) -> None:
        self.offices, self.broker = offices, broker
        self.settings = BrokerSettings(data="nowhere", native="", http="")
        self.failed: asyncio.Future[LannerError] = asyncio.get_running_loop().create_future()
        self.is_current = True  # the metadata here, as its leader said
        self.others_may_lead = True
        self.known_leader: Callable[[int], str] = self._known_leader
        self.heard_leader: Callable[[int], str] = self.leader_by_pulses
        self.proposed: Callable[[bytes], Awaitable[Any]] = self._proposed
        self.spawned: list[asyncio.Future[Any]] = []
        self.outages = Outages(broker.engine, broker.node_id, self.failed.set_result)
        self.scrubbing = Scrubbing(
            broker.engine,
            broker.files,
            SealedTable(broker.table),
            self.in_reader,
            0,
            self.failed.set_result,
            lambda work: self.spawned.append(asyncio.ensure_future(work)),
        )
        engine, room = broker.engine, Room(1)
        self.parts = Parts(
            node_id=broker.node_id,
            name=broker.name,
            settings=self.settings,
            engine=engine,
            clock=self,
            wall_ms=self.now_ms,
            reader=self,
            proposer=self,
            waiting=self,
            leaders=self,
            peers=self,
            membership=self,
            steward=broker.steward,
            tries=broker.tries,
            homes=broker.homes,
            coordination=broker.coordination,
            changes=Changes(
                self, self, lambda work: self.spawned.append(asyncio.ensure_future(work)), broker.group_counts
            ),
            group_counts=broker.group_counts,
            outages=self.outages,
            scrubbing=self.scrubbing,
            room=room,
            readiness=Readiness(
                broker.node_id,
                engine,
                self.failed,
                metadata=self,
                holdings=broker.steward,
                room=room,
                pace=Pace(self.now_ms),
                others=self,
            ),
            failed=self.failed,
            kick=self.kick,
        )
        self.service = Service(self.parts)
        self.called: list[tuple[str, Command]] = []

    @property
    def anywhere(self) -> Caller:
        """Somebody who asks the cluster through this broker."""
        return Caller(self.service, self.service.ask)

    @property
    def here(self) -> Here:
        """Somebody who asks this broker alone."""
        return Here(self.service)

    # ------------------------------------------------------------------ as the ports of its service

    @property
    def engine(self) -> Engine:
        return self.broker.engine

    @property
    def node_id(self) -> str:
        return self.broker.node_id

    @property
    def name(self) -> str:
        return self.broker.name

    cluster_id = "cluster"

    def now_ms(self) -> int:
        return self.offices.flock.now_ms

    def kick(self) -> None:
        self.offices.kick()

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        return work()

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        await asyncio.sleep(0)
        return [read_entry(self.broker.files, self.engine.ledger.locate(*one)) for one in wanted]

    def leader_of(self, set_id: int) -> str:
        return self.known_leader(set_id)

    def _known_leader(self, set_id: int) -> str:
        """As `KnownLeaders` has it: a replica here that may decide, or else a living broker that was heard to lead."""
        replica = self.engine.replicas.get(set_id)
        if replica is not None and replica.leads:
            return self.node_id
        leader = self.heard_leader(set_id)
        return leader if leader != self.node_id and self.is_alive(leader) else ""

    def leader_by_pulses(self, set_id: int) -> str:
        leader = self.offices.flock.leader_of(set_id)
        return "" if leader is None else leader.node_id

    def address_of(self, node_id: str) -> tuple[str, int] | None:
        return (node_id.removeprefix("node-"), 7400)

    async def propose(self, command: bytes, timeout_ms: int = 10_000) -> Any:
        return await self.proposed(command)

    async def _proposed(self, command: bytes) -> Any:
        leader = self.offices.flock.leader_of(0)
        if leader is None:
            raise DeadlineExceeded("nobody leads the metadata")
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        leader.engine.propose(0, command, told.set_result)
        self.kick()
        result = await told
        if isinstance(result, LannerError):
            raise result
        return result

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while not condition():
                    await asyncio.sleep(BEAT_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded() from None

    # ------------------------------------------------------------------ as its peers

    def is_alive(self, node_id: str) -> bool:
        return bool(node_id) and self.offices.flock.is_alive(node_id, self.node_id)

    def _reaches(self, other: Office) -> bool:
        return other.broker.up and not self.offices.flock.cut & {self.node_id, other.node_id}

    async def call(
        self,
        node_id: str,
        command: Command,
        control: Control,
        bulk: Sequence[bytes | memoryview] = (),
        *,
        timeout_ms: int,
        caller: str = "",
    ) -> Reply:
        """As over a link: everything goes as bytes, errors too."""
        self.called.append((node_id, command))
        other = self.offices.by_node[node_id]
        if self.offices.refuse(node_id, command) or not self._reaches(other):
            raise ConnectionLost(f"the connection to {node_id} is closed")
        exchange = EXCHANGES[command]
        asked = msgspec.msgpack.decode(msgspec.msgpack.encode(control), type=exchange.request)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                identity = Identity(caller, "peer") if caller else PEER
                answered, parts, _ = await other.service.serve(identity, asked, bulk)
        except TimeoutError:
            raise DeadlineExceeded(f"{node_id} did not answer") from None
        except LannerError as error:
            raise from_wire(error.code, error.message, error.details) from None
        if self.offices.lose(node_id, command) or not self._reaches(other):
            raise ConnectionLost(f"the connection to {node_id} ended before the answer came")
        answered = msgspec.msgpack.decode(msgspec.msgpack.encode(answered), type=exchange.reply)
        return Reply(0, command, answered, memoryview(b"".join(parts)))


class Offices:
    """All of them, and the time that passes."""

    def __init__(self, names: str) -> None:
        self.flock = Flock(names)
        self.refuse: Callable[[str, Command], bool] = lambda node_id, command: False
        self.lose: Callable[[str, Command], bool] = lambda node_id, command: False
        self.by_name = {name: Office(self, broker) for name, broker in self.flock.brokers.items()}
        self.by_node = {office.node_id: office for office in self.by_name.values()}
        self._kicked = False

    def __getitem__(self, name: str) -> Office:
        return self.by_name[name]

    def kick(self) -> None:
        if not self._kicked:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._kicked = False
        self.flock.settle()

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.flock.pass_time()

    # ------------------------------------------------------------------ who leads

    def topic(self, name: str, partitions: int = 3, **settings: Any) -> tuple[int, ...]:
        """A topic whose partitions are led on different brokers, as far as there are any."""
        set_ids = self.flock.create_topic(name, partitions, min(3, len(self.by_name)), **settings)
        self.flock.until(lambda: all(self.flock.is_home(set_id) for set_id in set_ids))
        return set_ids

    def leader(self, set_id: int) -> Office:
        found = self.flock.leader_of(set_id)
        assert found is not None
        return self.by_name[found.name]

    def stop(self, office: Office) -> None:
        """Pull the plug: what it was doing is never heard of again."""
        office.broker.stop()
        replicas = office.engine.replicas
        for set_id, replica in list(replicas.items()):
            replica.close(NotLeader("the broker is gone"))
            if set_id:
                del replicas[set_id]

    def restart(self, name: str) -> Office:
        """From what is on its disk, with a service that remembers nothing."""
        broker = self.by_name[name].broker
        broker.start()
        office = self.by_name[name] = self.by_node[broker.node_id] = Office(self, broker)
        return office


@asynccontextmanager
async def opened(names: str = "abc") -> AsyncIterator[Offices]:
    offices = Offices(names)
    beating = asyncio.create_task(offices.beat())
    try:
        yield offices
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        for office in offices.by_name.values():
            assert not office.service._forwarder._background, "something went on for ever"


def only(*commands: Command, times: int = 1) -> Callable[[str, Command], bool]:
    """The first few calls of these kinds."""
    left = [times]

    def matches(node_id: str, command: Command) -> bool:
        if command in commands and left[0] > 0:
            left[0] -= 1
            return True
        return False

    return matches
