"""The commands, put together."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lanner.cli import (
    archive,
    audit,
    bench,
    brokers,
    clients,
    cluster,
    dead,
    dev,
    groups,
    letters,
    messages,
    partitions,
    pipeline,
    proxy,
    replay,
    report,
    settings,
    topics,
    transactions,
    up,
    version,
)
from lanner.cli.options import SERVERS_VARIABLE
from lanner.cli.screen import Screen


class Commands(TyperGroup):
    """All commands: what goes wrong in any of them is one line, and a reader that has gone is no failure."""

    def make_context(self, *words: Any, **extra: Any) -> Any:  # which shows help and version
        return Screen("--json" in sys.argv).guard(partial(super().make_context, *words, **extra))

    def invoke(self, ctx: Any) -> Any:
        return Screen("--json" in sys.argv).guard(partial(super().invoke, ctx))


app = typer.Typer(
    name="lanner",
    cls=Commands,
    help="Lanner, a durable message queue with priorities. Start with: lanner up, or lanner dev for three brokers",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich help would double the time to the first line
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def lanner(
    context: typer.Context,
    servers: Annotated[
        str,
        typer.Option(
            "--servers",
            "--server",
            "-s",
            help="Broker addresses for the command; it may have them behind it, too.",
            metavar="ADDRESSES",
        ),
    ] = "",
    shown: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=version.show_and_end, help="Show the version and exit."),
    ] = False,
) -> None:
    if servers:  # for whatever command comes; one that is given its own goes by that
        before = os.environ.get(SERVERS_VARIABLE)
        os.environ[SERVERS_VARIABLE] = servers
        context.call_on_close(partial(_put_back, before))


def _put_back(servers: str | None) -> None:
    if servers is None:
        del os.environ[SERVERS_VARIABLE]
    else:
        os.environ[SERVERS_VARIABLE] = servers


app.command("up")(up.up)
app.command("dev")(dev.dev)
app.command("proxy")(proxy.proxy)
app.command("publish")(messages.publish)
app.command("consume")(messages.consume)
app.command("peek")(messages.peek)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(clients.app, name="client")
app.add_typer(dead.app, name="dlq")
app.add_typer(cluster.app, name="cluster")
app.add_typer(brokers.app, name="broker")
app.add_typer(partitions.app, name="partition")
app.add_typer(transactions.app, name="transaction")
app.add_typer(settings.app, name="config")
app.command("archive")(archive.archive)
app.command("audit")(audit.audit)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.add_typer(pipeline.app, name="pipeline")
app.command("dead-letters")(letters.dead_letters)
app.command("bench")(bench.bench)
app.command("version")(version.version)


def run() -> None:
    """Run the command of this process. Usage errors are told as JSON too where JSON is asked for."""
    if "--json" not in sys.argv:
        app()
        return
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        code = 1
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        try:
            Screen(as_json=True).fail(error.format_message(), kind="UsageError", code=2)
        except typer.Exit as end:
            code = end.exit_code
    sys.exit(code or 0)
