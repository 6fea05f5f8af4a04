"""`lanner cluster`: how it stands, rebalance, cancel, upgrade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, NoWait, Servers
from lanner.cli.screen import Screen, coloured, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.cluster import BrokerState, ClusterDescription, PlanProgress

app = typer.Typer(
    rich_markup_mode=None,
    invoke_without_command=True,
    help="The cluster: brokers, leaders, what is missing, what moves. Without a command: status.",
)
_COLOURS = {"active": "green", "joining": "cyan", "draining": "yellow", "lost": "red"}
_PLAN_COLOURS = {"running": "cyan", "stalled": "red"}


@app.callback()
def cluster(context: typer.Context, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        status(servers, as_json)
    elif any(str(context.get_parameter_source(name)).endswith("COMMANDLINE") for name in ("servers", "as_json")):
        raise typer.BadParameter(f"write options behind the command: lanner cluster {context.invoked_subcommand} ...")


@app.command("status")
def status(servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show brokers, leaders, missing replicas and running plans."""
    screen = Screen(as_json)
    found = screen.with_queue(servers, lambda queue: queue.admin.describe_cluster())
    names = {broker.node_id: broker.name for broker in found.brokers}
    leader = names.get(found.metadata_leader, found.metadata_leader)
    if as_json:
        screen.document({**plain(found), "metadata_leader_name": leader})
        return
    ahead = found.time_ahead_ms / 1_000
    screen.facts(
        {
            "cluster": found.cluster_id,
            "metadata": coloured(f"led by {leader}", "green") if leader else coloured("nobody leads it", "red"),
            "topics": f"{found.topics} with {found.partitions} partitions and {found.replicas} replicas",
            "missing": _missing(found),
            **(
                {"time": coloured(f"{ahead:.0f} s ahead of the clock: leases and delays wait", "yellow")}
                if ahead > 1
                else {}
            ),
            "level": _level(found),
        }
    )
    show_brokers(screen, found)
    plans = [plan for plan in found.plans if plan.state in _PLAN_COLOURS]
    if plans:
        show_plans(screen, plans, names)


def _missing(found: ClusterDescription) -> Any:
    dead = [broker.name for broker in found.brokers if not broker.alive]
    if found.replicas_missing and any(plan.state == "running" and plan.moves_running for plan in found.plans):
        return coloured(f"{found.replicas_missing} replicas, some of which are being made now", "yellow")
    if found.replicas_missing:
        return coloured(
            f"{found.replicas_missing} replicas; if there are brokers for them, `lanner cluster rebalance` makes them",
            "red",
        )
    if dead:
        return coloured(f"no replica, but {', '.join(dead)} cannot be reached", "yellow")
    return coloured("nothing", "green")


def _level(found: ClusterDescription) -> Any:
    level, possible = found.feature_level, found.feature_level_possible
    if possible > level:
        return coloured(f"{level}; every broker supports {possible}: `lanner cluster upgrade` raises it", "yellow")
    if found.behind:
        return coloured(
            f"{level}; {', '.join(found.behind)} must run a newer release before it can be raised", "yellow"
        )
    return str(level)


@app.command("upgrade")
def upgrade(servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Raise the feature level, once every broker runs the new release. There is no way back to an older one then."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[int, int]:
        before = (await queue.admin.describe_cluster()).feature_level
        return before, await queue.admin.upgrade()

    before, level = screen.with_queue(servers, work)
    told = {"feature_level": level, "before": before}
    if level == before:
        screen.say(f"The cluster is at feature level {level} already.", told)
    else:
        screen.say(f"The cluster is at feature level {level} now; it was at {before}.", told)


@app.command("rebalance")
def rebalance(no_wait: NoWait = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Make missing replicas, and spread all of them evenly over the brokers."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> PlanProgress | None:
        from lanner.cli.watching import watch_plan

        plan = await queue.admin.rebalance()
        if plan is None or no_wait:
            return plan
        return await watch_plan(screen, queue, plan, "rebalance")

    plan = screen.with_queue(servers, work)
    told = {"plan": plain(plan)}
    if plan is None or not plan.moves_total:
        screen.say("Nothing to move: replicas are spread evenly.", told)
    elif plan.state == "running":
        screen.say(f"Begun, as plan {plan.plan_id} with {plan.moves_total} moves; see: lanner cluster", told)
    else:
        screen.say(f"Done: {plan.moves_done} replicas moved or made.", told)


@app.command("cancel")
def cancel(
    plan_id: Annotated[int, typer.Argument(help="As `lanner cluster` shows it.", metavar="PLAN", min=1)],
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Stop a plan: what has not begun is dropped, what can be taken back is."""
    screen = Screen(as_json)
    plan = screen.with_queue(servers, lambda queue: queue.admin.cancel(plan_id))
    screen.say(
        f"Plan {plan_id} is cancelled; moves that are past their turning point still end.", {"plan": plain(plan)}
    )


def show_brokers(screen: Screen, found: ClusterDescription, *, scrubs: bool = False) -> None:
    racks = any(broker.rack for broker in found.brokers)
    columns = ["broker", "state", "leads", "replicas", "metadata", "native", "REST"]
    more = [*(["rack"] if racks else []), *(["scrub"] if scrubs else [])]
    screen.table(
        [*columns, *more],
        [
            (*_row(broker, found.metadata_leader, racks), *([_scrub_text(broker)] if scrubs else []))
            for broker in found.brokers
        ],
    )


def _scrub_text(broker: BrokerState) -> object:
    """How far a broker is with reading what lies on its disk, and what came of it the last time."""
    found = broker.scrub
    if found is None or not (found.running or found.passes):
        return "-"
    done = f"{min(found.read_bytes * 100 // max(found.expected_bytes, 1), 99)}% read" if found.running else "done"
    if found.damaged:
        return coloured(f"{done}, {found.damaged} damaged", "red")
    return done if found.running else coloured(f"{done}, nothing damaged", "green")


def _row(broker: BrokerState, metadata_leader: str, racks: bool) -> tuple[object, ...]:
    state = coloured(broker.state, _COLOURS.get(broker.state, ""))
    if not broker.alive:
        state = coloured(f"{broker.state}, unreachable", "red")
    elif broker.drain is not None and broker.drain.state != "done":
        state = coloured(f"draining, {broker.drain.moves_done} of {broker.drain.moves_total}", "yellow")
    elif broker.drain is not None or (broker.state == "draining" and not broker.replicas):
        state = coloured("drained", "yellow")
    return (
        broker.name,
        state,
        broker.leads if broker.leads == broker.should_lead else f"{broker.leads} (should: {broker.should_lead})",
        broker.replicas,
        "leader" if broker.node_id == metadata_leader else broker.metadata or "-",
        broker.addresses.get("native", "-"),
        broker.addresses.get("http") or "-",
        *([broker.rack or "-"] if racks else []),
    )


def show_plans(screen: Screen, plans: list[PlanProgress], names: dict[str, str]) -> None:
    screen.table(
        ["plan", "what", "broker", "state", "steps", "moves", "reason"],
        [
            (
                plan.plan_id,
                plan.kind,
                names.get(plan.node_id, plan.node_id[:8]) or "-",
                coloured(plan.state, _PLAN_COLOURS.get(plan.state, "")),
                f"{plan.steps_done} of {plan.steps_total}",
                f"{plan.moves_done} of {plan.moves_total}, {plan.moves_running} under way, {plan.moves_failed} failed",
                plan.reason or "-",
            )
            for plan in plans
        ],
    )
