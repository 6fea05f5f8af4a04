"""`lanner broker`: list, add, drain, undrain, remove, scrub, repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli.cluster import show_brokers
from lanner.cli.options import SERVERS_DEFAULT, AsJson, NoWait, Servers, Yes
from lanner.cli.screen import Screen, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.cluster import BrokerState, PlanProgress

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Brokers: list, add, drain, undrain, remove, scrub, repair."
)
Broker = Annotated[str, typer.Argument(help="The broker's name, or its node id.", metavar="BROKER")]


@app.command("list")
def list_all(servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """List the brokers: state, addresses, what they hold and lead, and how far each is with scrubbing its disk."""
    screen = Screen(as_json)
    found = screen.with_queue(servers, lambda queue: queue.admin.describe_cluster())
    if as_json:
        screen.document({"brokers": plain(found.brokers)})
    else:
        show_brokers(screen, found, scrubs=True)


@app.command("add")
def add(
    data: Annotated[str, typer.Option("--data", "-d", help="The folder for its data.", show_default="data-NAME")] = "",
    name: Annotated[str, typer.Option("--name", help="Its name.", show_default="the next free node-N")] = "",
    native: Annotated[str, typer.Option("--native", help="HOST:PORT.", show_default="a free port here")] = "",
    http: Annotated[str, typer.Option("--http", help="REST, HOST:PORT.", show_default="a free port here")] = "",
    grpc: Annotated[str, typer.Option("--grpc", help="gRPC, HOST:PORT.", show_default="a free port here")] = "",
    advertise: Annotated[
        str, typer.Option("--advertise", help="HOST:PORT where others reach it.", show_default="--native")
    ] = "",
    rack: Annotated[str, typer.Option("--rack", help="Replicas are spread over racks.")] = "",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Start a broker here that joins the cluster, and run it until Ctrl-C.

    It is `lanner up --join` with free ports chosen and the joining shown. The new broker takes partitions of new
    topics at once, and of those that exist when you say: lanner cluster rebalance

    \b
    Example: lanner broker add -s 10.0.0.1:7400 --native 0.0.0.0:7400 --advertise 10.0.0.4:7400
    """
    import asyncio

    from lanner.cli.joining import Wish, run

    screen = Screen(as_json)
    screen.need("server", "lanner broker add")
    wish = Wish(data, name, native, http, advertise, rack, grpc)
    screen.guard(lambda: asyncio.run(run(screen, servers, wish)))


@app.command("drain")
def drain(broker: Broker, no_wait: NoWait = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Move everything that a broker holds to the others, one replica after the other.

    It goes on serving meanwhile, and takes nothing new. Asking again takes up what was left.
    """
    screen = Screen(as_json)
    plan = screen.with_queue(servers, lambda queue: _drain(screen, queue, broker, no_wait))
    told = {"broker": broker, "plan": plain(plan)}
    if plan is not None and plan.state == "running":
        screen.say(f"{broker} is being drained, as plan {plan.plan_id}; see: lanner cluster", told)
    else:
        screen.say(f"{broker} is drained. To let it go: lanner broker remove {broker}", told)


async def _drain(screen: Screen, queue: Queue, broker: str, no_wait: bool) -> PlanProgress | None:
    from lanner.cli.watching import watch_plan

    await _find(queue, broker)
    plan = await queue.admin.drain(broker)
    if plan is None or no_wait:
        return plan
    return await watch_plan(screen, queue, plan, f"drain {broker}")


async def _find(queue: Queue, name: str) -> BrokerState:
    from lanner.cli.watching import broker_of
    from lanner.errors import NotFoundError

    found = await queue.admin.describe_cluster()
    broker = broker_of(found, name)
    if broker is None:
        known = ", ".join(one.name for one in found.brokers)
        raise NotFoundError(f"there is no broker {name!r}; there are: {known}", broker=name)
    return broker


@app.command("undrain")
def undrain(broker: Broker, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Let a drained broker take partitions again; what is still on its way off it is taken back."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> None:
        await _find(queue, broker)
        await queue.admin.undrain(broker)

    screen.with_queue(servers, work)
    screen.say(
        f"{broker} takes partitions again. To give it some of those that exist: lanner cluster rebalance",
        {"broker": broker, "undrained": True},
    )


@app.command("remove")
def remove(
    broker: Broker,
    yes: Yes = False,
    no_wait: NoWait = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a broker go for good; what it holds is moved to the others first.

    Its data directory may not come back: to use the machine again, start a broker with an empty one.
    """
    screen = Screen(as_json)
    holds = screen.with_queue(servers, lambda queue: _find(queue, broker)).replicas
    if holds and no_wait:
        screen.fail(
            f"{broker} holds {holds} replicas: drain it first (lanner broker drain {broker}), or leave --no-wait out",
            kind="ConflictError",
            replicas=holds,
        )
    first = f" The {holds} replicas it holds are moved first." if holds else ""
    screen.confirm(f"Remove {broker} from the cluster for good?{first}", yes)
    screen.with_queue(servers, lambda queue: _remove(screen, queue, broker, no_wait))
    if no_wait:
        screen.say(f"{broker} is on its way out; see: lanner broker list", {"broker": broker, "leaving": True})
    else:
        screen.say(f"{broker} is removed and ends by itself; its data can go.", {"broker": broker, "removed": True})


_REMOVE_SECONDS = 60.0


async def _remove(screen: Screen, queue: Queue, name: str, no_wait: bool) -> None:
    from lanner.cli.watching import broker_of, watch_until

    broker = await _find(queue, name)
    if not no_wait and (broker.replicas or broker.metadata == "voter") and broker.state != "joining":
        await _drain(screen, queue, name, no_wait=False)
    await queue.admin.remove(broker.node_id)

    async def is_gone() -> bool:
        return broker_of(await queue.admin.describe_cluster(), broker.node_id) is None

    if not no_wait:
        late = f"{name} is still on its way out after {_REMOVE_SECONDS:.0f} s; see `lanner cluster`"
        await watch_until(is_gone, _REMOVE_SECONDS, late)


@app.command("scrub")
def scrub(
    broker: Annotated[
        str, typer.Argument(help="Its name, or its node id.", metavar="[BROKER]", show_default="all of them")
    ] = "",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Read and verify what lies on a broker's disk, now; without a name on every broker, one after the other.

    Brokers do so by themselves, slowly. What is damaged is replaced from other copies. The exit code is 1 when
    something is damaged, or when a broker could not be asked.
    """
    from lanner.cli.scrubbing import run

    run(Screen(as_json), servers, broker)


@app.command("repair")
def repair(
    data: Annotated[str, typer.Option("--data", "-d", envvar="LANNER_DATA", help="The folder that holds its data.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without what no other broker has a copy of.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Repair the data of a broker that stopped because it is damaged. The broker must not run.

    Where there are other brokers, journal and table are set aside (renamed, never deleted), and the broker joins anew
    when it is started: its replicas are rebuilt from the others.

    A broker that stands alone has nobody to get it from. It is told what would be lost, and with --accept-loss the
    journal is cut where the damage is; what is cut is kept in files of its own.

    \b
    Example: lanner broker repair --data /var/lib/lanner
    """
    from lanner.cli.repairing import run

    run(Screen(as_json), data, accept_loss)
