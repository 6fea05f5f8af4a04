"""The service of the whole cluster, asked on one broker: every call by the table, or by a way of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanner.broker.forwarding.clients import ClientPages
from lanner.broker.forwarding.neighbours import Neighbours
from lanner.broker.forwarding.ways import OwnWays
from lanner.calls import Answer, Identity
from lanner.forwarding.polls import ForwardedPolls
from lanner.forwarding.publishes import ForwardedPublishes
from lanner.wire.administration import AlterTopic, DescribeTopic, Seek
from lanner.wire.cluster import DescribeCluster, DescribePartitions, RaftStatus
from lanner.wire.members import ListClients, ListMembers
from lanner.wire.messages import BestPriority, Metadata, Poll, Polled
from lanner.wire.staging import ListTransactions

if TYPE_CHECKING:
    from lanner.broker.desks.desk import Desk
    from lanner.broker.desks.routes import Routes
    from lanner.broker.parts import Parts


class Forwarder(ForwardedPublishes, ForwardedPolls, ClientPages, OwnWays):
    """Where calls enter that any broker may serve."""

    def __init__(self, service: Desk, parts: Parts, routes: Routes) -> None:
        self._neighbours = neighbours = Neighbours(service.own, parts, routes)
        super().__init__(service, neighbours, neighbours)
        self._homes = parts.homes
        self.ways = {
            Poll: self.poll,
            BestPriority: self.best_priority,
            Metadata: self.metadata,
            AlterTopic: self.alter_topic,
            DescribeTopic: self.describe_topic,
            Seek: self.seek,
            DescribeCluster: self.describe_cluster,
            DescribePartitions: self.describe_partitions,
            RaftStatus: self.raft_status,
            ListMembers: self.list_members,
            ListTransactions: self.list_transactions,
            ListClients: self.list_clients,
        }

    async def poll(self, identity: Identity, call: Poll) -> Answer[Polled]:
        """A member is heard of here, too, while its poll waits at other brokers."""
        if not call.member_id:
            return await super().poll(identity, call)
        with self._homes.present(call.group, call.member_id):
            return await super().poll(identity, call)
