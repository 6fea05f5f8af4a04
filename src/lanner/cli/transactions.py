"""`lanner transaction`: list, show, abort, claim, forget, clear."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Yes
from lanner.cli.screen import Screen, age_text, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.staging import OpenTry, TransactionState

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Transactions: list, show, abort, claim, forget, clear."
)

Name = Annotated[str, typer.Argument(help="The transaction's id.", metavar="ID")]
_PHASES = {1: "preparing", 2: "committed", 4: "aborted"}
_PAGE = 1_000


@app.command("list")
def list_all(
    open_only: Annotated[bool, typer.Option("--open", help="Only those with a commit under way.")] = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List transactions: who owns each, what it has committed, and the commit under way."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[list[TransactionState], int]:
        page = await queue.admin.transactions(open_only=open_only, limit=_PAGE)
        found = list(page.transactions)
        while page.next:
            page = await queue.admin.transactions(open_only=open_only, after=page.next, limit=_PAGE)
            found += page.transactions
        return found, page.forgotten

    found, forgotten = screen.with_queue(servers, work)
    if as_json:
        screen.document({"transactions": [described(row) for row in found], "forgotten": forgotten})
    elif not found:
        typer.echo("No commit is under way." if open_only else "There are no transactions yet.")
    else:
        screen.table(
            ["transaction", "owner", "committed", "under way", "since", "last used"],
            [
                (row.transaction, row.owner, _ranges(row), _under_way(row.open), _since(row.open), _age(row.used_ms))
                for row in found
            ],
        )


@app.command("show")
def show(transaction: Name, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show one transaction: its owner, what it has committed, and who is awaited in the commit under way."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[TransactionState, dict[str, str]]:
        names = {broker.node_id: broker.name for broker in (await queue.admin.cluster()).brokers}
        return await queue.admin.transaction(transaction), names

    row, names = screen.with_queue(servers, work)
    if as_json:
        screen.document(described(row))
        return
    once = ", used once" if row.once else ""
    typer.echo(f"{row.transaction}: owner {row.owner}{once}, last used {_age(row.used_ms)} ago")
    typer.echo(f"committed sequences: {_ranges(row)}")
    for one in row.ended:
        reason = f" ({one.reason})" if one.reason else ""
        typer.echo(f"commit {one.commit_id.hex()}: {_PHASES[one.phase]}{reason}")
    if row.open is None:
        typer.echo("No commit is under way.")
        return
    screen.table(
        ["partition", "state", "leader", "prepared bytes"],
        [
            (f"{part.topic}/{part.partition}", part.state or "-", names.get(part.leader) or "-", part.bytes)
            for part in row.open.partitions
        ],
        title=f"{_under_way(row.open)}, try {row.open.token}, begun {_age(row.open.begun_ms)} ago",
    )


@app.command("abort")
def abort(transaction: Name, yes: Yes = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Abort the commit under way. One that is decided cannot be aborted."""
    screen = Screen(as_json)
    screen.confirm(f"Abort the commit of {transaction} that is under way?", yes)
    state = screen.with_queue(servers, lambda queue: queue.admin.abort_transaction(transaction))
    aborted = _PHASES.get(state.phase) == "aborted"
    if not aborted:
        screen.fail(f"{transaction} is committed already: its partitions publish it", kind="ConflictError", code=1)
    screen.say(f"Aborted: nothing of it shows ({state.reason}).", {"transaction": transaction, "reason": state.reason})


@app.command("claim")
def claim(
    transaction: Name,
    owner: Annotated[str, typer.Option("--owner", help="Who may use it from now on.")],
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over: forget which sequences are committed.")
    ] = False,
    yes: Yes = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give a transaction to another owner; what the one before has not decided is aborted."""
    screen = Screen(as_json)
    if restart:
        screen.confirm(f"Let {owner} start {transaction} over? What was committed may then be published again.", yes)
    found = screen.with_queue(servers, lambda queue: queue.claim_transaction(transaction, owner, restart=restart))
    before = f", before: {found.owner_before}" if found.owner_before not in ("", owner) else ""
    latest = f", committed up to {found.latest}" if found.latest >= 0 else ""
    screen.say(f"{owner} has {transaction}{before}{latest}.", found._asdict())


@app.command("forget")
def forget(transaction: Name, yes: Yes = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Forget a transaction. Its id is refused from then on, until it is claimed with --restart."""
    screen = Screen(as_json)
    screen.confirm(f"Forget what {transaction} has committed?", yes)
    screen.with_queue(servers, lambda queue: queue.admin.forget_transaction(transaction))
    screen.say(f"Forgot {transaction}.", {"forgot": transaction})


@app.command("clear")
def clear(yes: Yes = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Let every id that was forgotten be used as a new one; for when there are too many of them."""
    screen = Screen(as_json)
    screen.confirm("Take late repeats of all forgotten transactions for new work, and publish it again?", yes)
    count = screen.with_queue(servers, lambda queue: queue.admin.clear_forgotten_transactions())
    screen.say(f"Cleared {count} forgotten transactions.", {"cleared": count})


def described(row: TransactionState) -> dict[str, Any]:
    found: dict[str, Any] = plain(row)
    found["committed"] = [list(one) for one in row.committed]
    found["ended"] = [
        {"commit_id": one.commit_id.hex(), "token": one.token, "outcome": _PHASES[one.phase], "reason": one.reason}
        for one in row.ended
    ]
    if row.open is not None:
        found["open"] = {
            **plain(row.open),
            "commit_id": row.open.commit_id.hex(),
            "phase": _PHASES[row.open.phase],
            "partitions": [plain(part) for part in row.open.partitions],
        }
    return found


def _ranges(row: TransactionState) -> str:
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in row.committed[-4:]) or "-"


def _under_way(found: OpenTry | None) -> str:
    if found is None:
        return "-"
    return f"{found.sequence} {_PHASES[found.phase]} on {found.participants} partitions"


def _since(found: OpenTry | None) -> str:
    return "-" if found is None else _age(found.decided_ms or found.begun_ms)


def _age(since_ms: int) -> str:
    return age_text(max(0.0, time.time() - since_ms / 1000))
