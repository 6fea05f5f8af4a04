"""The cluster itself, for operators: who there is, where replicas are, what moves, and how to change that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lanner import features
from lanner.broker.desks.calls import (
    BrokerResult,
    ClusterResult,
    Identity,
    PartitionResult,
    PlanResult,
    ReplicasReport,
    ScrubResult,
)
from lanner.broker.desks.desk import Desk
from lanner.broker.scrubbing import Pass
from lanner.cluster import (
    METADATA_SET,
    Broker,
    BrokerState,
    Plan,
    PlanState,
    encode_cancel_plan,
    encode_drain_broker,
    encode_move_replica,
    encode_raise_feature_level,
    encode_rebalance,
    encode_remove_broker,
    encode_transfer_leader,
    encode_undrain_broker,
)
from lanner.errors import ConflictError, NotFoundError, ValidationError

_PLANS_SHOWN_MAX: Final = 100


class Overview(Desk):
    """What operators ask about the whole, and what they wish for it."""

    @property
    def metadata_index(self) -> int:
        """How far this broker has applied the metadata."""
        return self._engine.cluster.applied_index

    async def applied_index(self) -> int:
        return self.metadata_index

    def broker_called(self, name: str) -> Broker:
        """The broker of that name or node id. A name that came back on a new disk means the one that is there now."""
        brokers = self._engine.cluster.brokers
        found = brokers.get(name)
        if found is None:
            named = [broker for broker in brokers.values() if broker.name == name]
            found = next((broker for broker in named if not broker.lost), None)
        if found is None or found.state is BrokerState.REMOVED:
            known = ", ".join(sorted(row.name for row in brokers.values() if row.state is not BrokerState.REMOVED))
            raise NotFoundError(f"there is no broker {name!r}; there are {known}", broker=name)
        return found

    async def describe_cluster(self, identity: Identity) -> ClusterResult:
        self._admit(identity, "describe")
        cluster = self._engine.cluster
        row = cluster.describe_cluster()
        brokers = [
            BrokerResult(
                *found,
                alive=self._node.peers.is_alive(found.node_id),
                scrub=await self.scrub(identity, False) if found.node_id == self.node_id else None,
            )
            for found in cluster.describe_brokers(self._leaders())
        ]
        return ClusterResult(
            row.cluster_id or self.cluster_id,
            self._routes.leader_of(METADATA_SET),
            row.feature_level,
            row.topics,
            row.partitions,
            row.replicas,
            row.replicas_missing,
            brokers,
            cluster.describe_plans()[:_PLANS_SHOWN_MAX],
            self._node.time_ahead_ms,
            row.feature_level_possible,
            row.behind,
        )

    async def describe_partitions(self, identity: Identity, topic: str | None = None) -> list[PartitionResult]:
        """Where every replica is; how far those lag whose leader is this broker, and which of its own do not run."""
        return self.partitions_seen(identity, topic, await self.replicas_report(identity, topic))

    def partitions_seen(self, identity: Identity, topic: str | None, told: ReplicasReport) -> list[PartitionResult]:
        self._admit(identity, "describe", topic)
        if topic is not None:
            self._topic(topic)
        rows = self._engine.cluster.describe_partitions(topic, self._leaders(), told.lags)
        return [_with_stopped(row, told) for row in rows] if told.stopped else rows

    async def replicas_report(self, identity: Identity, topic: str | None) -> ReplicasReport:
        """What this broker alone knows: who is behind of what it leads, and which of its own replicas do not run."""
        steward = self._node.steward
        stopped = {(set_id, self.node_id): why for set_id, why in self._node.outages.by_set().items()}
        return ReplicasReport({} if steward is None else steward.lags(), stopped)

    async def scrub(self, identity: Identity, start: bool) -> ScrubResult:
        """How far this broker is with reading what lies on its disk; begin a pass first, if wished."""
        self._admit(identity, "administer" if start else "describe")
        scrubbing = self._node.scrubbing
        if start:
            scrubbing.begin()
        found = scrubbing.present or scrubbing.latest or Pass()
        return ScrubResult(
            scrubbing.present is not None,
            scrubbing.passes,
            found.entries,
            found.rows,
            found.read_bytes,
            found.damaged,
            found.expected_bytes,
        )

    def _leaders(self) -> dict[int, str]:
        leader_of = self._routes.leader_of
        return {set_id: leader for set_id in self._engine.cluster.sets if (leader := leader_of(set_id))}

    # ------------------------------------------------------------------ wishes

    async def change_cluster(
        self,
        identity: Identity,
        action: str,
        *,
        broker: str = "",
        target: str = "",
        topic: str = "",
        partition: int | None = None,
        plan_id: int = 0,
    ) -> PlanResult | None:
        """Carry out a wish, or begin to; the plan that it came to, if it takes one."""
        self._admit(identity, "administer", topic or None)
        if action == "upgrade":
            await self._upgrade()
            return None
        now_ms = self._node.now_ms()
        commands: dict[str, Callable[[], bytes]] = {
            "drain": lambda: encode_drain_broker(self._named("broker", broker), now_ms),
            "undrain": lambda: encode_undrain_broker(self._named("broker", broker)),
            "remove": lambda: encode_remove_broker(self._named("broker", broker), now_ms),
            "rebalance": lambda: encode_rebalance(now_ms),
            "move": lambda: encode_move_replica(
                self._set_of(topic, partition), self._named("broker", broker), self._named("target", target), now_ms
            ),
            "transfer": lambda: encode_transfer_leader(self._set_of(topic, partition), self._named("target", target)),
            "cancel": lambda: encode_cancel_plan(plan_id),
        }
        encode = commands.get(action)
        if encode is None:
            raise ValidationError(
                f"{action!r} is not known; there are {', '.join((*commands, 'upgrade'))}", field="action"
            )
        result = await self._change_cluster(encode())
        return self._plan_of(result)

    async def _upgrade(self) -> None:
        """Raise the feature level to what this release brings; nothing happens when it is there already."""
        if self._engine.feature_level < features.HIGHEST:
            try:
                await self._change_cluster(encode_raise_feature_level(features.HIGHEST))
            except ConflictError:
                if self._engine.feature_level < features.HIGHEST:  # nobody else has raised it meanwhile
                    raise

    def _plan_of(self, result: Any) -> PlanResult | None:
        cluster = self._engine.cluster
        if isinstance(result, Plan):
            return cluster.progress(result.plan_id)
        if isinstance(result, Broker):
            about = (plan for plan in cluster.describe_plans() if plan.node_id == result.node_id)
            return next((plan for plan in about if plan.state is PlanState.RUNNING), None)
        return None

    def _named(self, field: str, name: str) -> str:
        if not name:
            raise ValidationError(f"name a {field}", field=field)
        return self.broker_called(name).node_id

    def _set_of(self, topic: str, partition: int | None) -> int:
        if not topic or partition is None:
            raise ValidationError("name the topic and the partition", field="partition" if topic else "topic")
        found = self._topic(topic)
        self._check_partition(found, partition)
        return found.set_ids[partition]


def _with_stopped(row: PartitionResult, told: ReplicasReport) -> PartitionResult:
    """The same, with the reasons of those replicas that do not run."""
    return row._replace(
        replicas=tuple(
            replica._replace(stopped=told.stopped.get((row.set_id, replica.node_id), "")) for replica in row.replicas
        )
    )
