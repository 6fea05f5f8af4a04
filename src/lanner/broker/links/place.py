"""This broker's place among the others: who it says it is, which cluster it belongs to, and who leads what.

The place is found once (`founding`) and recorded; every later start takes it from the record. Where the others are
comes from the metadata, from what they say when they connect, and, before there is any of that, from the record.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from lanner import features
from lanner.broker.links.acquaintances import Acquaintances
from lanner.broker.links.founding import Founding, Search, decode_record, encode_record
from lanner.broker.links.peers import Address
from lanner.broker.replicas.engine import CLUSTER_SET, SOLE_VOTER
from lanner.broker.settings import join_address, parse_address
from lanner.cluster import Broker, Registration, encode_register_broker
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    DataDirectoryRefused,
    LannerError,
    ServiceUnavailable,
    StorageFailed,
    ValidationError,
)
from lanner.storage.aside import forget_rejoin, read_rejoin
from lanner.wire.messages import Command, Metadata, PeerHello
from lanner.wire.peers import PeerInfo, PeerInfoReply

if TYPE_CHECKING:
    from lanner.broker.node import Node

log = logging.getLogger("lanner.broker")

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})
_REGISTER_AGAIN_SECONDS: Final = 1.0
_LOOK_AGAIN_SECONDS: Final = 0.02
_CATCH_UP_MS: Final = 2_000


class Place:
    """What the node knows of itself as one of several."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registration: Registration | None = None
        self._others = Acquaintances()
        self._caught_up = False
        self.founding: Founding | None = None
        recorded = node.directory.read_founding()
        if recorded is not None:
            self._belong(decode_record(recorded, node.directory.node_id))
        self._rejoin = read_rejoin(node.directory.path) if recorded is None else None  # see `storage.aside`

    def _belong(self, founding: Founding) -> None:
        self.founding = founding
        self._others.told(founding.told)

    # ------------------------------------------------------------------ who this is

    @property
    def node_id(self) -> str:
        return self._node.directory.node_id

    @property
    def cluster_id(self) -> str:
        """Empty until this broker belongs to one."""
        return "" if self.founding is None else self.founding.cluster_id

    @property
    def name(self) -> str:
        if self.founding is not None:
            return self.founding.name
        if self._rejoin is not None:
            return self._rejoin.name
        return self._node.settings.name or f"broker-{self.node_id[:8]}"

    @property
    def registration(self) -> Registration:
        if self._registration is None:
            raise ServiceUnavailable("the broker is starting")
        return self._registration

    @property
    def hello(self) -> PeerHello:
        return PeerHello(self.cluster_id, self.node_id, self.name, self.registration.addresses.get("native", ""))

    def introduce(self, doors: Mapping[str, Address]) -> None:
        """The doors are open: from now on this broker can say where it is reached."""
        settings = self._node.settings
        if self.founding is not None and settings.name not in ("", self.founding.name):
            raise ValidationError(
                f"this data belongs to broker {self.founding.name!r}, which cannot be renamed to {settings.name!r}: "
                "give its own name, or an empty data directory",
                field="name",
            )
        advertised = parse_address(settings.advertise, "advertise")
        native = doors.get("native")
        host = None if advertised is None else advertised[0]
        if native is not None and advertised is None:
            host = native[0]
            if host in _WILDCARDS:
                host = socket.gethostname()
                if settings.seeds or settings.join:
                    raise ValidationError(
                        f"the native door listens on {native[0]}, which others cannot dial: say with --advertise "
                        "HOST:PORT where they reach this broker",
                        field="advertise",
                    )
            advertised = (host, native[1])
        addresses = {} if advertised is None else {"native": join_address(*advertised)}
        for kind in ("http", "grpc"):
            door = doors.get(kind)
            if door is not None:
                addresses[kind] = join_address(host if host and door[0] in _WILDCARDS else door[0], door[1])
        self._registration = Registration(
            self.name, self.node_id, addresses, settings.rack, features.LOWEST, features.HIGHEST
        )

    # ------------------------------------------------------------------ coming to belong

    @property
    def is_found(self) -> bool:
        """Whether nobody else need be asked: the place is recorded, or this broker stands alone."""
        settings = self._node.settings
        asked = settings.seeds or settings.join or self._rejoin
        return self.founding is not None or self._holds_data or not asked

    @property
    def _holds_data(self) -> bool:
        return CLUSTER_SET in self._node.engine.ledger.sets()

    @property
    def is_current(self) -> bool:
        """Whether the metadata here is as far as its leader's was at some moment since the start."""
        return self._caught_up or self._node.engine.replicas[CLUSTER_SET].leads

    async def catch_up(self) -> None:
        """Ask the metadata's leader once since the start how far it is, and come as far."""
        node = self._node
        while not self.is_current:
            leader = self.leader_of(CLUSTER_SET)
            try:
                if leader and leader != self.node_id:
                    reply = await node.peers.call(leader, Command.METADATA, Metadata([]), timeout_ms=_CATCH_UP_MS)
                    await node.until(partial(self._reached, reply.control.index), _CATCH_UP_MS)
                    self._caught_up = True
            except LannerError as error:
                log.debug("the metadata's leader does not say how far it is: %s", error.message)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        node.kick()

    def _reached(self, index: int) -> bool:
        return self._node.metadata_index >= index

    async def establish(self) -> Founding:
        """The place that is recorded; else find one, and record it before anything is built on it."""
        if self.founding is None:
            found = await self._search()
            found = msgspec.structs.replace(found, name=self.name)
            try:
                await self._node.in_saver(lambda: self._node.directory.write_founding(encode_record(found)))
            except OSError as error:
                raise StorageFailed(f"the cluster could not be recorded in the data directory: {error}") from error
            self._belong(found)
            forget_rejoin(self._node.directory.path)
            log.info("broker %s belongs to cluster %s", self.name, found.cluster_id)
            return found
        return self.founding

    async def _search(self) -> Founding:
        node, settings = self._node, self._node.settings
        search = Search(self.registration, self._ask, node.directory.cluster_id)
        if self._holds_data:
            if node.engine.ledger.state(CLUSTER_SET).replica_id != SOLE_VOTER:
                raise DataDirectoryRefused(
                    f"{node.directory.path} holds the data of one broker of several, but not the founding.json that "
                    "says of which: restore it from a backup, or start with an empty directory to join anew"
                )
            if settings.seeds or settings.join:
                log.warning(
                    "this directory holds the data of one broker that stood alone: it goes on as a cluster of one"
                )
            return search.alone()
        if self._rejoin is not None:
            log.warning("what was stored here was set aside: joining cluster %s anew", self._rejoin.cluster_id)
            given = [settings.join] if settings.join else []
            return await search.rejoin(self._rejoin.cluster_id, [*given, *self._rejoin.addresses])
        if settings.join:
            return await search.join(settings.entrances)
        return await search.among(settings.seeds) if settings.seeds else search.alone()

    async def _ask(self, address: str, control: PeerInfo) -> PeerInfoReply:
        where = parse_address(address, "address")
        assert where is not None, "settings refuse empty addresses"
        reply: PeerInfoReply = await self._node.peers.ask_at(where, Command.PEER_INFO, control)
        return reply

    async def keep_registered(self) -> None:
        """Tell the metadata what has changed about this broker since it was here last; again until it is heard."""
        while True:
            known = self._node.engine.cluster.brokers.get(self.node_id)
            own = self.registration
            if known is not None and _said(known) == _said(own):
                self._say_level()
                return
            try:
                await self._node.propose_cluster(encode_register_broker(own, self._node.own_ms()))
            except ConflictError as error:
                self._node.fail(error)
                return
            except LannerError as error:
                log.warning("could not tell the cluster about this broker: %s", error.message)
            await asyncio.sleep(_REGISTER_AGAIN_SECONDS)

    def _say_level(self) -> None:
        found = self._node.engine.cluster.describe_cluster()
        if found.feature_level < found.feature_level_possible:
            log.warning(
                "the cluster is at feature level %d and every broker supports %d: `lanner cluster upgrade` raises it, "
                "so that they use all that their release brings; older releases cannot join from then on",
                found.feature_level,
                found.feature_level_possible,
            )

    # ------------------------------------------------------------------ the others

    def meet(self, node_id: str) -> bool:
        """That one says that it belongs here; until the metadata knows better it is believed. Whether it is news."""
        return self._others.meet(node_id)

    def brokers(self) -> list[str]:
        """The node ids of all that this broker should keep lines to."""
        if self.founding is None or self._node.steward is None:
            return []
        return self._others.brokers(self._node.engine.cluster.brokers)

    def addresses_of(self, node_id: str) -> list[Address]:
        """Where the metadata and the record say that a broker is."""
        found: list[str] = []
        if self._node.steward is not None:
            broker = self._node.engine.cluster.brokers.get(node_id)
            if broker is not None:
                found.append(broker.addresses.get("native", ""))
        return _parsed_all([*found, self._others.address_of(node_id)])

    @property
    def seeds(self) -> list[Address]:
        """Where the operator says that brokers are, this one left out. Who is there is not known."""
        own = self.registration.addresses.get("native", "")
        return _parsed_all([seed for seed in self._node.settings.seeds if seed != own])

    def unreachable(self, set_id: int, replica_id: int) -> None:
        replica = self._node.engine.replicas.get(set_id)
        if replica is not None:
            replica.node.report_unreachable(replica_id)

    def removed(self, error: BrokerRemoved) -> None:
        """Another broker says that this one is no longer wanted: what it could still say to anybody would be old."""
        if error.details.get("node_id") == self.node_id:
            self._node.fail(error)

    def leader_of(self, set_id: int) -> str:
        """The node id of a set's leader as far as this broker knows; empty while it does not."""
        node = self._node
        replica = node.engine.replicas.get(set_id)
        gossip = node.peers.leaders.get(set_id)
        if replica is not None and node.steward is not None:
            leader = replica.node.leader_id
            if leader == replica.node.node_id:
                return self.node_id
            found = node.steward.route(set_id, leader) if leader else None
            if found:
                return found
            if gossip is not None and gossip[0] < replica.node.term:
                return ""
        if gossip is None or not node.peers.is_alive(gossip[1]) or gossip[1] == self.node_id:
            return ""
        return gossip[1]


def _said(of: Broker | Registration) -> tuple[object, ...]:
    """What a broker says of itself, and may say otherwise after a restart."""
    return of.rack, of.addresses, of.feature_min, of.feature_max


def _parsed_all(texts: Iterable[str]) -> list[Address]:
    addresses = map(_parsed, texts)
    return [address for address in addresses if address is not None]


def _parsed(text: str) -> Address | None:
    """What others say of themselves may make no sense; then it is nowhere."""
    try:
        return parse_address(text, "address")
    except ValidationError:
        return None
