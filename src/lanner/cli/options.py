"""Options that many commands share, with one wording."""

from __future__ import annotations

from typing import Annotated

import typer

SERVERS_VARIABLE = "LANNER_SERVERS"
Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        "--server",
        "-s",
        envvar=SERVERS_VARIABLE,
        help="Broker addresses, HOST:PORT, with commas between; any one that answers is enough.",
        metavar="ADDRESSES",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON only, for programs: no colours, no tables.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once; `lanner cluster` shows how far it is.")]
Topic = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]
Group = Annotated[str, typer.Argument(help="The group's name.", metavar="GROUP")]
Partition = Annotated[int | None, typer.Option("--partition", min=0, help="This partition only.")]

SERVERS_DEFAULT = "localhost:7400"
