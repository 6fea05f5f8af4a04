"""`lanner partition`: list, status, move, transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, NoWait, Servers
from lanner.cli.screen import Screen, coloured, count_text, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.cluster import ClusterDescription, PartitionReplicas, PlanProgress, ReplicaState

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Partitions: list, status, move, transfer.")
Where = Annotated[str, typer.Argument(help="TOPIC/PARTITION, such as orders/0.", metavar="TOPIC/PARTITION")]
_TRANSFER_SECONDS = 15.0


@app.command("list")
def list_all(
    topic: Annotated[str | None, typer.Argument(help="Only of this topic.", metavar="[TOPIC]")] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show who leads each partition, who has a copy, who lags, and whose copy does not run."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[list[PartitionReplicas], ClusterDescription]:
        return await queue.admin.describe_partitions(topic), await queue.admin.describe_cluster()

    found, cluster = screen.with_queue(servers, work)
    dead = {broker.node_id for broker in cluster.brokers if not broker.alive}
    if as_json:
        screen.document({"partitions": [described(one) for one in found]})
    elif not found:
        typer.echo("No topics yet. Make one: lanner topic create orders")
    else:
        _show(screen, found, dead)


def _show(screen: Screen, found: list[PartitionReplicas], dead: set[str]) -> None:
    screen.table(
        ["partition", "leader", "replicas", "lag", "health"],
        [
            (
                f"{one.topic}/{one.partition}",
                leader_name(one) or coloured("none", "red"),
                " ".join(_replica_text(replica) for replica in one.replicas),
                " ".join(f"{replica.name}:{count_text(replica.lag)}" for replica in one.replicas if replica.lag) or "-",
                _health(one, dead),
            )
            for one in found
        ],
    )


def _replica_text(replica: ReplicaState) -> str:
    return f"{replica.name} ({replica.role})" if replica.role != "voter" else replica.name


def _health(one: PartitionReplicas, dead: set[str]) -> Any:
    gone = [replica.name for replica in one.replicas if replica.node_id in dead]
    voters = sum(replica.role == "voter" for replica in one.replicas)
    steps = [f"{replica.step} on {replica.name}" for replica in one.replicas if replica.step]
    stopped = [f"stopped on {replica.name}: {replica.stopped}" for replica in one.replicas if replica.stopped]
    if not one.leader:
        return coloured("; ".join(["nobody leads it", *stopped]), "red")
    if stopped:
        return coloured("; ".join(stopped), "red")
    if steps:
        return coloured(", ".join(steps).replace("_", " "), "cyan")
    if gone:
        return coloured(f"{', '.join(gone)} unreachable", "yellow")
    if voters < one.replication:
        return coloured(f"{one.replication - voters} of {one.replication} replicas missing", "yellow")
    preferred = next((replica for replica in one.replicas if replica.preferred), None)
    if preferred is not None and not preferred.leads:
        return coloured(f"{preferred.name} should lead", "yellow")
    return coloured("good", "green")


@app.command("status")
def status(
    where: Where,
    broker: Annotated[str, typer.Option("--broker", "-b", help="Of this broker's replica, not the leader's.")] = "",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show what the Raft of one partition says: term, commit, applied, members."""
    screen = Screen(as_json)
    topic, partition = parsing.partition(where)
    found = screen.with_queue(servers, lambda queue: queue.admin.raft_status(topic, partition, broker))
    if as_json:
        screen.document({"topic": topic, "partition": partition, "status": found})
    else:
        screen.facts({name.replace("_", " "): _status_text(value) for name, value in found.items()})


def _status_text(value: Any) -> object:
    """Nested values on one line."""
    if isinstance(value, dict):
        inner = [f"{name}: {_status_text(one)}" for name, one in value.items()]
        return ("; " if any(isinstance(one, dict) for one in value.values()) else ", ").join(inner)
    return " ".join(map(str, value)) or "-" if isinstance(value, list) else value


@app.command("move")
def move(
    where: Where,
    source: Annotated[str, typer.Argument(help="The broker that has a replica.", metavar="FROM")],
    target: Annotated[str, typer.Argument(help="The broker that shall have it.", metavar="TO")],
    no_wait: NoWait = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move one replica from a broker to another. The partition serves on meanwhile.

    \b
    Example: lanner partition move orders/0 node-1 node-4
    """
    screen = Screen(as_json)
    topic, partition = parsing.partition(where)

    async def work(queue: Queue) -> PlanProgress | None:
        from lanner.cli.watching import watch_plan

        plan = await queue.admin.move(topic, partition, source, target)
        if plan is None or no_wait:
            return plan
        return await watch_plan(screen, queue, plan, f"move {where}")

    plan = screen.with_queue(servers, work)
    told = {"topic": topic, "partition": partition, "plan": plain(plan)}
    if plan is not None and plan.state == "running":
        screen.say(f"{where} is on its way to {target}, as plan {plan.plan_id}; see: lanner cluster", told)
    else:
        screen.say(f"{where} moved from {source} to {target}.", told)


@app.command("transfer")
def transfer(
    where: Where,
    target: Annotated[str, typer.Argument(help="The broker that shall lead.", metavar="TO")],
    no_wait: NoWait = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let another broker lead a partition; it must have a replica of it.

    \b
    Example: lanner partition transfer orders/0 node-2
    """
    screen = Screen(as_json)
    topic, partition = parsing.partition(where)

    async def work(queue: Queue) -> None:
        from lanner.cli.watching import broker_of, watch_until
        from lanner.errors import ConflictError

        async def leads() -> bool:
            return any(
                replica.leads and target in (replica.name, replica.node_id)
                for one in await queue.admin.describe_partitions(topic)
                for replica in one.replicas
                if one.partition == partition
            )

        found = broker_of(await queue.admin.describe_cluster(), target)
        if found is not None and not found.alive:
            raise ConflictError(f"{target} cannot be reached, so it cannot lead: start it first", broker=target)
        await queue.admin.transfer(topic, partition, target)
        late = f"{target} does not lead {where} yet; it will once it has caught up: lanner partition list {topic}"
        if not no_wait:
            await watch_until(leads, _TRANSFER_SECONDS, late)

    screen.with_queue(servers, work)
    done = "shall lead" if no_wait else "leads"
    screen.say(f"{target} {done} {where}.", {"topic": topic, "partition": partition, "leader": target})


def leader_name(one: PartitionReplicas) -> str:
    return next((replica.name for replica in one.replicas if replica.node_id == one.leader), one.leader[:8])


def described(one: PartitionReplicas) -> dict[str, Any]:
    return {**plain(one), "leader_name": leader_name(one) if one.leader else ""}
