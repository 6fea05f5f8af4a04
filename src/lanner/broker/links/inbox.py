"""What comes in from other brokers, over sessions that began with a PeerHello.

Frames of Raft messages, pieces of snapshots and pulses are taken as they come, in the turn of the loop in which they
came, without a task and without an answer. Questions are answered. Everything is judged first: a message that does not
decode ends its connection, because its sender cannot be trusted with the next one; a message for a replica that is
not here is ignored.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from lanner.broker.clock import LeaderClock
from lanner.broker.coordination.coordination import Coordination
from lanner.broker.coordination.homes import Homes
from lanner.broker.links.admission import Admission, Serving
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.notices import Notices
from lanner.broker.links.peers import Peers
from lanner.broker.links.proof import PeerProof
from lanner.broker.ports import Fail, Kick
from lanner.broker.proposals import Proposals
from lanner.broker.replicas import snapshots
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.broker.tries import Tries
from lanner.cluster import BrokerState
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    ProtocolError,
    RemoteProtocolError,
    ServiceUnavailable,
    StorageDamaged,
    ValidationError,
)
from lanner.net.addresses import parse_address
from lanner.raft import decode_message
from lanner.wire.connection import Request
from lanner.wire.messages import Command, Control, PeerHello
from lanner.wire.peers import PeerInfo, Proposed, Pulse, RaftFrame
from lanner.wire.staging import Report

log = logging.getLogger("lanner.peers")

_RAFT, _PULSE = Command.RAFT, Command.PULSE
PROPOSE_TIMEOUT_MS: Final = 10_000


class Routing(Protocol):
    """Knows where the replicas of sets are."""

    def learn_route(self, set_id: int, replica_id: int, node_id: str) -> None:
        """Take note that a message of this replica came from that broker."""

    def peer_silent(self, node_id: str) -> None:
        """Take note that a broker is no longer heard."""


class PeerInbox:
    """Takes what other brokers send to this one."""

    def __init__(
        self,
        membership: ClusterMembership,
        admission: Admission,
        engine: Engine,
        routing: Routing,
        tries: Tries,
        homes: Homes,
        coordination: Coordination,
        peers: Peers,
        clock: LeaderClock,
        proposals: Proposals,
        readiness: Serving,
        proof: PeerProof,
        *,
        kick: Kick,
        fail: Fail,
    ) -> None:
        self._membership = membership
        self._admission = admission
        self._engine = engine
        self._routing = routing
        self._tries = tries
        self._homes = homes
        self._coordination = coordination
        self._peers = peers
        self._clock = clock
        self._proposals = proposals
        self._readiness = readiness
        self._proof = proof
        self._kick = kick
        self._fail = fail
        self._notices = Notices(log)

    @property
    def open_to_clients(self) -> bool:
        return self._readiness.serving

    def is_peer(self, hello: PeerHello) -> bool:
        """Whether a broker that greeted so is believed whose calls it passes on."""
        return self._proof.verify(hello)

    def greet(self, peer: PeerHello) -> None:
        """Another broker connects; ConflictError when it belongs to another cluster."""
        ours, own = self._membership.cluster_id, self._membership.node_id
        if ours and peer.cluster_id and peer.cluster_id != ours:
            self._notices.say(
                peer.node_id,
                f"broker {peer.name} ({peer.address}) of cluster {peer.cluster_id} tried to connect; this one belongs "
                f"to cluster {ours}: check its seeds",
                logging.ERROR,
            )
            raise ConflictError(
                f"this broker belongs to cluster {ours}, not to {peer.cluster_id}: check the addresses you were given",
                cluster_id=ours,
            )
        if not ours or peer.cluster_id != ours:
            return
        if peer.node_id == own and peer.address == self._membership.hello.address:
            raise ConflictError(
                "you have dialled yourself: another broker is no longer where it was", node_id=peer.node_id
            )
        if peer.node_id == own:
            self._notices.say(
                peer.node_id,
                f"another broker ({peer.address}) runs on a copy of this data directory: stop one of them",
                logging.CRITICAL,
            )
            raise ConflictError(f"broker {peer.node_id} is here: you run on a copy of its data directory, stop one")
        self._refuse_removed(peer.node_id)
        self._meet(peer)

    def _meet(self, peer: PeerHello) -> None:
        try:
            address = parse_address(peer.address, "address")
        except ValidationError:
            address = None
        self._membership.meet(peer.node_id)
        self._peers.set_peers(self._membership.brokers())
        self._peers.met(peer, address)

    def _hear(self, node_id: str, pulse: Pulse) -> None:
        if node_id in self._peers:
            self._clock.observe(node_id, pulse.now_ms)
        self._peers.heard(node_id, pulse, self._engine.cluster.sets)
        if pulse.sent_ms:
            self._homes.take_sign(node_id, pulse.sent_ms, pulse.echo_ms)
            self._coordination.hear(node_id, pulse.heard)

    def gone_silent(self, node_id: str) -> None:
        """Take note that a broker is no longer heard, or no longer belongs to the cluster.

        The clock of a silent broker still counts: a leader that is cut off with a clock an hour ahead would believe
        that one, and what it decides then may be committed once it is heard again. Only when it is removed it does not.
        """
        if node_id not in self._peers:
            self._clock.forget(node_id)
        self._routing.peer_silent(node_id)
        self._kick()

    def _is_one_of_us(self, peer: PeerHello) -> bool:
        """Whether both brokers belong to the same cluster, and its metadata is open here."""
        return CLUSTER_SET in self._engine.replicas and peer.cluster_id == self._membership.cluster_id

    def _refuse_removed(self, node_id: str) -> None:
        known = self._engine.cluster.brokers.get(node_id) if self._readiness.serving else None
        if known is not None and (known.state is BrokerState.REMOVED or known.lost):
            raise BrokerRemoved(
                f"broker {known.name!r} ({node_id}) was removed from the cluster, or replaced under its name; to use "
                "its machine again, start a broker with an empty data directory there: it joins as a new one",
                node_id=node_id,
            )

    def take(self, peer: PeerHello, request: Request) -> None:
        """Take a frame that is not answered. What this raises ends the connection."""
        if not self._is_one_of_us(peer):
            return
        if peer.node_id not in self._peers and self._membership.meet(peer.node_id):
            self._meet(peer)  # it connected when this broker did not belong to the cluster yet
        command = request.command
        if command is _RAFT:
            assert isinstance(request.control, RaftFrame)
            self._take_raft(peer.node_id, request.control, request.bulk)
        elif command is _PULSE:
            self._refuse_removed(peer.node_id)  # it was let in before; when it dials again it is told why
            assert isinstance(request.control, Pulse)
            self._hear(peer.node_id, request.control)
        elif command is Command.SNAPSHOT:
            self._take_snapshot(peer.node_id, request.bulk)
        elif command is Command.REPORT:
            assert isinstance(request.control, Report)
            self._tries.hear(request.control.items)
            self._kick()

    def _take_raft(self, node_id: str, frame: RaftFrame, bulk: memoryview) -> None:
        learn_route, step = self._routing.learn_route, self._engine.step
        start, end = 0, len(bulk)
        if sum(size for _, size in frame.items) != end:
            raise RemoteProtocolError(f"a RAFT frame has {end} bytes of messages, and announces another number")
        self._kick()
        for set_id, size in frame.items:
            stop = start + size
            message = decode_message(bulk[start:stop])
            learn_route(set_id, message.sender, node_id)
            try:
                step(set_id, message)
            except StorageDamaged as error:
                self._fail(error)
                return
            except ProtocolError as error:
                log.error("a message of set %d from broker %s is not possible: %s", set_id, node_id[:8], error.message)
                raise
            start = stop

    def _take_snapshot(self, node_id: str, bulk: memoryview) -> None:
        value = snapshots.decode(bulk)
        self._routing.learn_route(value.set_id, value.sender, node_id)
        self._engine.step_snapshot(value)
        self._kick()

    # ------------------------------------------------------------------ questions

    async def answer(self, peer: PeerHello, request: Request) -> Control:
        """Answer PEER_INFO and PROPOSE."""
        if isinstance(request.control, PeerInfo):
            return await self._admission.answer(request.control)
        if not self._is_one_of_us(peer):
            raise ServiceUnavailable("this broker does not belong to the cluster yet")
        index, _ = await self._proposals.propose_here(bytes(request.bulk), PROPOSE_TIMEOUT_MS)
        return Proposed(index)


__all__ = ["PeerInbox"]
