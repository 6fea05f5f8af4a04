"""The service of the whole cluster, asked on one broker: every call by the table, or by a way of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanner.broker.forwarding.polls import ForwardedPolls
from lanner.broker.forwarding.publishes import ForwardedPublishes
from lanner.broker.forwarding.ways import OwnWays
from lanner.wire.administration import AlterTopic, DescribeTopic
from lanner.wire.cluster import DescribeCluster, DescribePartitions, RaftStatus
from lanner.wire.messages import Glance, Metadata, Poll
from lanner.wire.staging import ListTransactions

if TYPE_CHECKING:
    from lanner.broker.desks.desk import Desk
    from lanner.broker.desks.routes import Routes
    from lanner.broker.parts import Parts


class Forwarder(ForwardedPublishes, ForwardedPolls, OwnWays):
    """Where calls enter that any broker may serve."""

    def __init__(self, service: Desk, parts: Parts, routes: Routes) -> None:
        super().__init__(service, parts, routes)
        self.ways = {
            Poll: self.poll,
            Glance: self.glance,
            Metadata: self.metadata,
            AlterTopic: self.alter_topic,
            DescribeTopic: self.describe_topic,
            DescribeCluster: self.describe_cluster,
            DescribePartitions: self.describe_partitions,
            RaftStatus: self.raft_status,
            ListTransactions: self.list_transactions,
        }
