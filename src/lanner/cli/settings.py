"""`lanner config`: what a broker or a proxy would be started with, and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

import typer
from typer.core import TyperCommand

from lanner.cli import proxy, up
from lanner.cli.config import origin_of, source_of, unread_variables
from lanner.cli.screen import Screen

app = typer.Typer(help="The settings of a broker or a proxy.", no_args_is_help=True)
_NARROW: Final = 64  # columns of a screen on which a table would tear the names of settings
_of_proxy = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def config() -> None: ...


class _Show(TyperCommand):
    """`show`, and `show proxy` in its place: what a proxy takes must not be read as a broker's, nor the other way."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == ["proxy"]:
            instead = typer.main.get_command(_of_proxy)
            return instead.make_context(f"{info_name} proxy", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _as(started: Callable[..., None]) -> Callable[[Callable[[typer.Context], None]], Callable[..., None]]:
    """Take every option of the command that starts it, so that the same words give the same settings."""

    def decorate(command: Callable[[typer.Context], None]) -> Callable[..., None]:
        @wraps(started)
        def taken(context: typer.Context, **_: Any) -> None:
            command(context)

        taken.__doc__ = command.__doc__
        return taken

    return decorate


@app.command("show", cls=_Show)
@_as(up.up)
def show(context: typer.Context) -> None:
    """Show each setting of `lanner up`, its value, and where it comes from: a flag, a variable, a file or the default.

    It takes the options of `lanner up`, reads the same variables and the same --config, and refuses what that refuses.
    Nothing is started. The settings of `lanner proxy`: lanner config show proxy

    \b
    Example: lanner config show --config lanner.yaml
    Example: LANNER_HTTP=0.0.0.0:8080 lanner config show --json
    """
    _show(context, up.settings_of)


@_of_proxy.command()
@_as(proxy.proxy)
def show_proxy(context: typer.Context) -> None:
    """Show each setting of `lanner proxy`, its value, and where it comes from: a flag, a variable, a file or the
    default.

    It takes the options of `lanner proxy`, reads the same variables and the same --config, and refuses what that
    refuses. Nothing is started.

    \b
    Example: lanner config show proxy --config proxy.yaml
    """
    _show(context, proxy.settings_of)


def _show(context: typer.Context, settings_of: Callable[[typer.Context], object]) -> None:
    screen = Screen(context.params["as_json"])
    screen.need("server", "lanner config show")
    screen.guard(lambda: settings_of(context))
    rows = [
        (option, context.params[name], source_of(context, name), origin_of(context, name) or "the default")
        for name, option in _options(context)
    ]
    unread = dict(unread_variables(up.variables_of(context), os.environ))
    if screen.as_json:
        names = ("name", "value", "source", "origin")
        screen.document({"settings": [dict(zip(names, row, strict=True)) for row in rows], "unread": unread})
        return
    columns, cells = (
        ("setting", "value", "comes from"),
        [(name, _shown(value), origin) for name, value, _, origin in rows],
    )
    if screen.console.is_terminal and screen.console.width < _NARROW:
        for row in cells:
            typer.echo()
            screen.facts(dict(zip(columns, row, strict=True)))
    else:
        screen.table(columns, cells)
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
