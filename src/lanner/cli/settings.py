"""`lanner config`: what a broker would be started with, and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import typer

from lanner.cli.config import origin_of, source_of, unread_variables
from lanner.cli.screen import Screen
from lanner.cli.up import settings_of, up, variables_of

app = typer.Typer(help="The settings of a broker.", no_args_is_help=True)


@app.callback()
def config() -> None: ...


def _as_up(command: Callable[[typer.Context], None]) -> Callable[..., None]:
    """Take every option of `lanner up`, so that the same words give the same settings."""

    @wraps(up)
    def taken(context: typer.Context, **_: Any) -> None:
        command(context)

    taken.__doc__ = command.__doc__
    return taken


@app.command("show")
@_as_up
def show(context: typer.Context) -> None:
    """Show each setting of `lanner up`, its value, and where it comes from: a flag, a variable, a file or the default.

    It takes the options of `lanner up`, reads the same variables and the same --config, and refuses what that refuses.
    Nothing is started.

    \b
    Example: lanner config show --config lanner.yaml
    Example: LANNER_HTTP=0.0.0.0:8080 lanner config show --json
    """
    screen = Screen(context.params["as_json"])
    screen.need("server", "lanner config show")
    screen.guard(lambda: settings_of(context))
    rows = [
        (option, context.params[name], source_of(context, name), origin_of(context, name) or "the default")
        for name, option in _options(context)
    ]
    unread = dict(unread_variables(variables_of(context), os.environ))
    if screen.as_json:
        names = ("name", "value", "source", "origin")
        screen.document({"settings": [dict(zip(names, row, strict=True)) for row in rows], "unread": unread})
        return
    screen.table(["setting", "value", "comes from"], [(name, _shown(value), origin) for name, value, _, origin in rows])
    for variable, meant in unread.items():
        typer.secho(f"The variable {variable} is not read{f'; did you mean {meant}?' if meant else '.'}", fg="yellow")


def _options(context: typer.Context) -> Iterator[tuple[str, str]]:
    """The parameters of the command that are settings, each with its option without the dashes."""
    for parameter in context.command.params:
        long = [option for option in parameter.opts if option.startswith("--")]
        if parameter.name and parameter.envvar and long:
            yield parameter.name, long[0].removeprefix("--")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if value != "" else "(empty)"
