"""The cluster itself, for operators: who there is, where replicas are, what moves, and how to change that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lanner import features
from lanner.broker.desks.desk import Desk
from lanner.broker.ports import Applied
from lanner.broker.scrubbing import Pass
from lanner.calls import Answer
from lanner.cluster import (
    METADATA_SET,
    Broker,
    PartitionRow,
    Plan,
    PlanState,
    Progress,
    encode_cancel_plan,
    encode_drain_broker,
    encode_move_replica,
    encode_raise_feature_level,
    encode_rebalance,
    encode_remove_broker,
    encode_transfer_leader,
    encode_undrain_broker,
)
from lanner.errors import ConflictError, ValidationError
from lanner.forwarding.checks import check_partition
from lanner.wire import cluster as wire
from lanner.wire.cluster import (
    ChangeCluster,
    ClusterChanged,
    ClusterDescription,
    DescribeCluster,
    DescribePartitions,
    PartitionsDescription,
    Scrub,
    ScrubProgress,
)

_PLANS_SHOWN_MAX: Final = 100


class Overview(Desk):
    """What operators ask about the whole, and what they wish for it."""

    async def describe_cluster(self, call: DescribeCluster) -> Answer[ClusterDescription]:
        """The cluster as this broker has it; how far scrubs are is told of its own."""
        cluster = self._engine.cluster
        row = cluster.describe_cluster()
        brokers = [
            wire.BrokerState(
                found.name,
                found.node_id,
                found.rack,
                found.state,
                dict(found.addresses),
                found.replicas,
                found.leads,
                found.should_lead,
                found.metadata,
                self._peers.is_alive(found.node_id),
                _progress(found.drain),
                self._scrub_progress() if found.node_id == self.node_id else None,
            )
            for found in cluster.describe_brokers(self._known_leaders())
        ]
        return Answer(
            ClusterDescription(
                row.cluster_id or self.cluster_id,
                self._leaders.leader_of(METADATA_SET),
                row.feature_level,
                row.topics,
                row.partitions,
                row.replicas,
                row.replicas_missing,
                brokers,
                [wire.PlanProgress(*plan) for plan in cluster.describe_plans()[:_PLANS_SHOWN_MAX]],
                self.time_ahead_ms,
                row.feature_level_possible,
                list(row.behind),
            )
        )

    async def describe_partitions(self, call: DescribePartitions) -> Answer[PartitionsDescription]:
        """Where every replica is; how far those lag whose leader is this broker, and which of its own do not run."""
        if call.topic is not None:
            self._topic(call.topic)
        lags = self._steward.lags()
        stopped = self._outages.by_set()
        rows = self._engine.cluster.describe_partitions(call.topic, self._known_leaders(), lags)
        return Answer(PartitionsDescription([self._shown_partition(row, stopped) for row in rows]))

    def _shown_partition(self, row: PartitionRow, stopped: Mapping[int, str]) -> wire.PartitionReplicas:
        here = stopped.get(row.set_id, "")
        replicas = [wire.ReplicaState(*one[:8], here if one.node_id == self.node_id else "") for one in row.replicas]
        return wire.PartitionReplicas(*row[:5], replicas)

    async def scrub(self, call: Scrub) -> Answer[ScrubProgress]:
        """How far this broker is with reading what lies on its disk; begin a pass first, if wished."""
        if call.start:
            self._scrubbing.begin()
        return Answer(self._scrub_progress())

    def _scrub_progress(self) -> ScrubProgress:
        scrubbing = self._scrubbing
        found = scrubbing.present or scrubbing.latest or Pass()
        return ScrubProgress(
            scrubbing.present is not None,
            scrubbing.passes,
            found.entries,
            found.rows,
            found.read_bytes,
            found.damaged,
            found.expected_bytes,
        )

    def _known_leaders(self) -> dict[int, str]:
        leader_of = self._leaders.leader_of
        return {set_id: leader for set_id in self._engine.cluster.sets if (leader := leader_of(set_id))}

    # ------------------------------------------------------------------ wishes

    async def change_cluster(self, call: ChangeCluster) -> Answer[ClusterChanged]:
        """Carry out a wish, or begin to; the plan that it came to, if it takes one."""
        if call.action == "upgrade":
            await self._upgrade()
            return Answer(ClusterChanged())
        now_ms = self._clock.now_ms()
        commands: dict[str, Callable[[], bytes]] = {
            "drain": lambda: encode_drain_broker(self._named("broker", call.broker), now_ms),
            "undrain": lambda: encode_undrain_broker(self._named("broker", call.broker)),
            "remove": lambda: encode_remove_broker(self._named("broker", call.broker), now_ms),
            "rebalance": lambda: encode_rebalance(now_ms),
            "move": lambda: encode_move_replica(
                self._set_of(call), self._named("broker", call.broker), self._named("target", call.target), now_ms
            ),
            "transfer": lambda: encode_transfer_leader(self._set_of(call), self._named("target", call.target)),
            "cancel": lambda: encode_cancel_plan(call.plan_id),
        }
        encode = commands.get(call.action)
        if encode is None:
            raise ValidationError(
                f"{call.action!r} is not known; there are {', '.join((*commands, 'upgrade'))}", field="action"
            )
        return Answer(ClusterChanged(_progress(self._plan_of(await self._change_cluster(encode())))))

    async def _upgrade(self) -> None:
        """Raise the feature level to what this release brings; nothing happens when it is there already."""
        if self._engine.feature_level < features.HIGHEST:
            try:
                await self._change_cluster(encode_raise_feature_level(features.HIGHEST))
            except ConflictError:
                if self._engine.feature_level < features.HIGHEST:  # nobody else has raised it meanwhile
                    raise

    def _plan_of(self, result: Applied) -> Progress | None:
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
        return self._routes.broker_called(name).node_id

    def _set_of(self, call: ChangeCluster) -> int:
        if not call.topic or call.partition is None:
            raise ValidationError("name the topic and the partition", field="partition" if call.topic else "topic")
        found = self._topic(call.topic)
        check_partition(found, call.partition)
        return found.set_ids[call.partition]


def _progress(plan: Progress | None) -> wire.PlanProgress | None:
    return None if plan is None else wire.PlanProgress(*plan)
