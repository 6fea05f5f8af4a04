"""`lanner client`: who is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.screen import Screen, age_text, harmless, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.members import ClientState, ClientUse

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Clients: who is connected, and what they hold.")

_PAGE: Final = 1_000
_IDLE_MS: Final = 60_000  # a use that was silent for longer is said to be idle


@app.command("list")
def list_all(
    group: Annotated[str, typer.Option("--group", "-g", help="Only those that use this group.")] = "",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List who is connected to which broker, which groups each uses, and what it holds leased for how long.

    A native client connects to each broker that leads something for it; what it holds is told with each connection.
    gRPC does not tell when a client goes: it is listed for a minute after its last call.
    """
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[list[ClientState], list[str]]:
        page = await queue.admin.clients(group=group, limit=_PAGE)
        found, missing = list(page.clients), {*page.missing}
        while page.next is not None:
            page = await queue.admin.clients(group=group, after=page.next, limit=_PAGE)
            found += page.clients
            missing |= {*page.missing}
        return found, sorted(missing)

    found, missing = screen.with_queue(servers, work)
    if as_json:
        screen.document({"clients": [plain(one) for one in found], "missing": missing})
        return
    if found:
        screen.table(
            ["client", "door", "address", "broker", "since", "uses"],
            [(one.client or "-", one.door, one.address, one.broker, _since(one), _uses(one, group)) for one in found],
        )
    else:
        typer.echo(f"No connected client uses group {group}." if group else "No client is connected.")
    if missing:
        names = harmless(", ".join(missing))
        typer.secho(f"Not listed are the clients of {names}: no answer from there.", fg=typer.colors.YELLOW, err=True)


def _since(client: ClientState) -> str:
    return age_text(client.age_ms / 1000)


def _uses(client: ClientState, group: str) -> str:
    now_ms = client.since_ms + client.age_ms  # by its broker's clock, as the leases are
    shown = [use for use in client.uses if group in ("", use.group)]
    at_work = {(use.group, use.member_id) for use in shown if use.topic}
    return (
        "\n".join(_use(use, now_ms) for use in shown if use.topic or (use.group, use.member_id) not in at_work) or "-"
    )


def _use(use: ClientUse, now_ms: int) -> str:
    where = f"{use.group} on {use.topic}" if use.topic else f"{use.group}, heartbeats"
    who = use.member_id or use.member  # as `lanner group members` has it, of those that have joined
    told = f"{where} as {who}" if who else where
    if use.leased > 0:
        told += f", {use.leased:,} leased for {age_text(max(0, use.until_ms - now_ms) / 1000)}"
    elif use.leased < 0:
        told += ", leases not counted"
    return told + (f", idle for {age_text(use.idle_ms / 1000)}" if use.idle_ms >= _IDLE_MS else "")
