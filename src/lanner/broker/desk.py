"""Where every call reports first: who calls, what is named, and which replica serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from lanner.broker.calls import Identity
from lanner.broker.engine import CLUSTER_SET
from lanner.broker.node import Node
from lanner.broker.polling import Polling
from lanner.broker.publishing import Router
from lanner.broker.replica import Replica
from lanner.cluster import Topic
from lanner.errors import (
    LannerError,
    PartitionNotFound,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
    ValidationError,
)
from lanner.model import check_name


class Desk:
    """One check for every call, and the look-ups that all calls share."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._engine = node.engine
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._producer_ids: Iterable[int] = iter(())
        self._draining = False
        self._polling = Polling(node, self._router)
        self.auto_create = node.settings.auto_create_topics
        self.cluster_id = node.directory.cluster_id
        self.node_id = node.directory.node_id
        self.addresses: dict[str, tuple[str, int]] = {}

    @property
    def ready(self) -> bool:
        return not self._draining and not self._node.failed.done() and self._engine.led

    @property
    def healthy(self) -> bool:
        return not self._node.failed.done()

    def drain(self) -> None:
        """Refuse new work and end the long polls, so that the doors can close without cutting anybody off."""
        self._draining = True
        self._polling.wake_all()

    def _admit(self, identity: Identity, action: str, topic: str | None = None) -> None:
        """Who may do what, and what may be named. Access rules hang here; for now everybody may do everything."""
        if not identity.name:
            raise ValidationError("the call names nobody", field="identity")
        if topic is not None and topic not in self._engine.cluster.topics:
            check_name(topic, "topic")
        if self._draining and action != "settle":
            raise ServiceUnavailable("the broker is draining; try another one, or again after its restart")
        if self._node.failed.done():
            raise ServiceUnavailable(f"the broker has stopped: {self._node.failed.result().message}")

    def _topic(self, name: str, incarnation: int = 0) -> Topic:
        topic = self._engine.cluster.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first", topic=name)
        if incarnation and topic.incarnation != incarnation:
            raise StaleIncarnation(f"topic {name!r} was deleted and created again; look it up anew", topic=name)
        return topic

    def _replica(self, topic: Topic, partition: int) -> Replica:
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < len(topic.set_ids):
            raise PartitionNotFound(
                f"topic {topic.name!r} has partitions 0 to {len(topic.set_ids) - 1}, not {partition!r}",
                topic=topic.name,
                partition=partition,
            )
        return self._engine.replica(topic.set_ids[partition])

    def _replicas(self, topic: Topic, partitions: Sequence[int] | None) -> list[tuple[int, Replica]]:
        chosen = range(len(topic.set_ids)) if partitions is None else dict.fromkeys(partitions)
        return [(partition, self._replica(topic, partition)) for partition in chosen]

    async def _change_cluster(self, command: bytes) -> Any:
        """Put a change into the cluster's log; its result once it has applied and this broker follows it."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def applied(result: Any) -> None:
            self._node.reconcile()
            if not future.done():
                future.set_result(result)

        self._engine.propose(CLUSTER_SET, command, applied)
        self._node.kick()
        result = await future
        if isinstance(result, LannerError):
            raise result
        await self._node.all_led()
        return result
