"""What comes in from other brokers, over sessions that began with a PeerHello.

Frames of Raft messages, pieces of snapshots and pulses are taken as they come, in the turn of the loop in which they
came, without a task and without an answer. Questions are answered. Everything is judged first: a message that does not
decode ends its connection, because its sender cannot be trusted with the next one; a message for a replica that is
not here is ignored.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from lanner.broker.links.acquaintances import present
from lanner.broker.links.founding import founder_of, registration_of
from lanner.broker.links.notices import Notices
from lanner.broker.replicas import snapshots
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.settings import parse_address
from lanner.cluster import BrokerState, Cluster, encode_register_broker
from lanner.errors import (
    BrokerRemoved,
    ConflictError,
    DeadlineExceeded,
    ProtocolError,
    RemoteProtocolError,
    ServiceUnavailable,
    StorageDamaged,
    ValidationError,
)
from lanner.raft import decode_message
from lanner.wire.connection import Request
from lanner.wire.messages import Command, Control, PeerHello
from lanner.wire.peers import PeerInfo, PeerInfoReply, Proposed, RaftFrame

if TYPE_CHECKING:
    from lanner.broker.node import Node

log = logging.getLogger("lanner.peers")

_RAFT, _PULSE = Command.RAFT, Command.PULSE
PROPOSE_TIMEOUT_MS: Final = 10_000
REPLICA_TIMEOUT_MS: Final = 3_000


class Intake:
    """One broker's ear for the others."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._notices = Notices(log)

    @property
    def open_to_clients(self) -> bool:
        return self._node.serving

    def greet(self, peer: PeerHello) -> None:
        """Another broker connects; ConflictError when it belongs to another cluster."""
        node = self._node
        ours = node.cluster_id
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
        if peer.node_id == node.node_id and peer.address == node.place.hello.address:
            raise ConflictError(
                "you have dialled yourself: another broker is no longer where it was", node_id=peer.node_id
            )
        if peer.node_id == node.node_id:
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
        self._node.met(peer, address)

    def _refuse_removed(self, node_id: str) -> None:
        known = self._node.engine.cluster.brokers.get(node_id) if self._node.serving else None
        if known is not None and (known.state is BrokerState.REMOVED or known.lost):
            raise BrokerRemoved(
                f"broker {known.name!r} ({node_id}) was removed from the cluster, or replaced under its name; to use "
                "its machine again, start a broker with an empty data directory there: it joins as a new one",
                node_id=node_id,
            )

    def take(self, peer: PeerHello, request: Request) -> None:
        """A frame that is not answered. Whatever it raises ends the connection."""
        if self._node.steward is None or peer.cluster_id != self._node.cluster_id:
            return  # one of the two does not belong to the cluster yet
        if peer.node_id not in self._node.peers and self._node.place.meet(peer.node_id):
            self._meet(peer)  # it connected when this broker did not belong to the cluster yet
        command = request.command
        if command is _RAFT:
            self._take_raft(peer.node_id, request.control, request.bulk)
        elif command is _PULSE:
            self._refuse_removed(peer.node_id)  # it was let in before; when it dials again it is told why
            self._node.heard(peer.node_id, request.control)
        elif command is Command.SNAPSHOT:
            self._take_snapshot(peer.node_id, request.bulk)
        elif command is Command.REPORT:
            self._node.tries.hear(request.control.items)
            self._node.kick()

    def _take_raft(self, node_id: str, frame: RaftFrame, bulk: memoryview) -> None:
        node = self._node
        steward, step = node.steward, node.engine.step
        assert steward is not None, "looked at before"
        start, end = 0, len(bulk)
        if sum(size for _, size in frame.items) != end:
            raise RemoteProtocolError(f"a RAFT frame has {end} bytes of messages, and announces another number")
        node.kick()
        for set_id, size in frame.items:
            stop = start + size
            message = decode_message(bulk[start:stop])
            steward.learn_route(set_id, message.sender, node_id)
            try:
                step(set_id, message)
            except StorageDamaged as error:
                node.fail(error)
                return
            except ProtocolError as error:
                log.error("a message of set %d from broker %s is not possible: %s", set_id, node_id[:8], error.message)
                raise
            start = stop

    def _take_snapshot(self, node_id: str, bulk: memoryview) -> None:
        node = self._node
        assert node.steward is not None, "looked at before"
        value = snapshots.decode(bulk)
        node.steward.learn_route(value.set_id, value.sender, node_id)
        node.engine.step_snapshot(value)
        node.kick()

    # ------------------------------------------------------------------ questions

    async def answer(self, peer: PeerHello, request: Request) -> Control:
        """PEER_INFO and PROPOSE."""
        if request.command is Command.PEER_INFO:
            return await self._info(request.control)
        node = self._node
        if not node.cluster_id or peer.cluster_id != node.cluster_id or node.steward is None:
            raise ServiceUnavailable("this broker does not belong to the cluster yet")
        index, _ = await node.proposals.propose_here(bytes(request.bulk), PROPOSE_TIMEOUT_MS)
        return Proposed(index)

    async def _info(self, asked: PeerInfo) -> PeerInfoReply:
        node = self._node
        own, founding = founder_of(node.registration), node.founding
        if founding is None:
            return PeerInfoReply(own, seeds=list(node.settings.seeds))
        founders = [founder_of(founder) for founder in founding.founders]
        if not asked.join:
            return PeerInfoReply(own, founding.cluster_id, founders)
        if not node.serving:
            raise ServiceUnavailable("the broker there does not know itself yet who leads the metadata")
        replica_id = await self._register(asked)
        brokers = [founder_of(one) for one in present(node.engine.cluster.brokers)]
        return PeerInfoReply(own, founding.cluster_id, founders, replica_id, brokers=brokers)

    async def _register(self, asked: PeerInfo) -> int:
        """Have the cluster take the asker in; which replica of the metadata it will be, 0 while that is open."""
        node, newcomer = self._node, registration_of(asked.asker)
        cluster = node.engine.cluster
        namesakes = [one.node_id for one in cluster.brokers.values() if one.name == newcomer.name and not one.lost]
        replaces = not any(one != newcomer.node_id and node.peers.is_alive(one) for one in namesakes)
        await node.propose_cluster(encode_register_broker(newcomer, node.own_ms(), replaces=replaces))
        try:
            await node.until(lambda: _place(node.engine.cluster, newcomer.node_id) > 0, REPLICA_TIMEOUT_MS)
        except DeadlineExceeded:
            return 0
        return _place(node.engine.cluster, newcomer.node_id)


def _place(cluster: Cluster, node_id: str) -> int:
    record = cluster.sets.get(CLUSTER_SET)
    replica = None if record is None else record.replica_on(node_id)
    return 0 if replica is None else replica.replica_id


__all__ = ["Intake"]
