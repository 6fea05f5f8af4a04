"""The use-cases of a broker: the only door that the APIs call.

A call is one struct of the table (`lanner.calls`), its answer another. `serve` has this broker serve it, or say who
leads (NotLeader); `ask` serves it from anywhere, asking the other brokers where it must. Either checks who asks.
PUBLISH and STAGE, which come by the thousand, are futures without a task (`publish`, `stage`). Nothing here knows of
HTTP, frames or gRPC; nothing here touches a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lanner.broker.desks.administration import Administration
from lanner.broker.desks.consumption import Consumption
from lanner.broker.desks.dead_streams import DeadStreams
from lanner.broker.desks.members import Members
from lanner.broker.desks.overview import Overview
from lanner.broker.desks.staging import Staging
from lanner.broker.desks.streams import Streams
from lanner.broker.forwarding.forwarder import Forwarder
from lanner.broker.metrics import metric_lines
from lanner.broker.parts import Parts
from lanner.calls import Answer, Bulk, Identity
from lanner.forwarding.unpacking import Handed, Unpacking
from lanner.forwarding.values import NewMessage, Placed
from lanner.wire import administration, cluster, dead, messages, staging
from lanner.wire.messages import AnswerT, Call

Result = TypeVar("Result")


class Service(Staging, Consumption, Streams, DeadStreams, Members, Administration, Overview):
    """What a broker does for its callers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.handlers = {
            messages.Publish: self.append,
            messages.Poll: self.poll,
            messages.BestPriority: self.best_priority,
            messages.Settle: self.settle,
            messages.Release: self.release,
            messages.Fetch: self.fetch,
            messages.Peek: self.peek,
            messages.Commit: self.commit,
            messages.Committed: self.committed,
            messages.Offsets: self.offsets,
            messages.Metadata: self.metadata,
            messages.OpenProducer: self.open_producer,
            administration.CreateTopic: self.create_topic,
            administration.AlterTopic: self.alter_topic,
            administration.DeleteTopic: self.delete_topic,
            administration.DescribeTopic: self.describe_topic,
            administration.ListTopics: self.list_topics,
            administration.ListGroups: self.list_groups,
            administration.DescribeGroup: self.describe_group,
            administration.DropGroup: self.drop_group,
            administration.Seek: self.seek,
            administration.ListDead: self.list_dead,
            administration.RedriveDead: self.redrive,
            administration.DiscardDead: self.discard,
            dead.FetchDead: self.fetch_dead,
            **self.member_handlers(),
            cluster.DescribeCluster: self.describe_cluster,
            cluster.DescribePartitions: self.describe_partitions,
            cluster.ChangeCluster: self.change_cluster,
            cluster.RaftStatus: self.raft_status,
            cluster.Scrub: self.scrub,
            staging.Stage: self.keep,
            staging.Prepare: self.prepare,
            staging.DiscardStages: self.discard_stages,
            staging.Begin: self.begin,
            staging.End: self.end,
            staging.Look: self.look,
            staging.Claim: self.claim,
            staging.ListTransactions: self.list_transactions,
            staging.Forget: self.forget,
        }
        self._forwarder = Forwarder(self, parts, self._routes)
        self._unpacking = Unpacking(self, parts.reader, self.own)

    @property
    def forwarded(self) -> int:
        """How many calls this broker had another one serve."""
        return self._forwarder.forwarded

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Answer a call from wherever it can be answered: here, or one hop away."""
        return await self._forwarder.ask(identity, call, bulk)

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> Placed:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""
        return await self._forwarder.publish_messages(identity, topic, messages)

    async def poll_messages(self, identity: Identity, call: messages.Poll) -> Handed:
        """A poll, decoded: for doors whose callers cannot read batches."""
        return await self._unpacking.poll(identity, call)

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run what takes a while, such as making a large reply, in a reader thread."""
        return await self._reader.in_reader(work)

    def metrics(self) -> list[str]:
        """Lines of the text exposition, about everything but doors."""
        return metric_lines(self)

    def drain(self) -> None:
        super().drain()
        self._forwarder.wake_all()
