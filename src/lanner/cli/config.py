"""Settings from a file: what `--config FILE` reads, for operators who would rather not repeat flags.

The file holds the long options of the command, as TOML (`.toml`) or JSON (`.json`); dashes and underscores are one. A
flag wins over the environment, the environment over the file, the file over the defaults. A name that the command does
not have is refused: a misspelt setting must not be taken for the default.
"""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

FILE_BYTES_MAX: Final = 1 << 20


def _take(context: typer.Context, path: str) -> str:
    """Let the file's values be the defaults of the other options. Runs before they are looked at."""
    if path and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **_read(context, Path(path))}
    return path


Config = Annotated[
    str,
    typer.Option(
        "--config",
        envvar="LANNER_CONFIG",
        callback=_take,
        is_eager=True,
        help="A TOML or JSON file with any of these options; flags and LANNER_* win over it.",
    ),
]


def _read(context: typer.Context, path: Path) -> dict[str, Any]:
    known = {
        option.removeprefix("--"): parameter.name
        for parameter in context.command.params
        for option in parameter.opts
        if option.startswith("--") and option not in ("--config", "--help") and parameter.name
    }
    found: dict[str, Any] = {}
    for given, value in _load(path).items():
        name = given.replace("_", "-")
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(known))}"
            raise typer.BadParameter(f"{path}: {given!r} is not a setting of this command{hint}")
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ",".join(value)
        if not isinstance(value, str | int | bool):
            raise typer.BadParameter(
                f"{path}: {given!r} must be text, a whole number, true or false, or a list of text"
            )
        _check(context, known[name], value, f"{path}: {given!r}")
        found[known[name]] = value
    return found


def _check(context: typer.Context, name: str, value: str | int | bool, where: str) -> None:
    """Blame the file for a value that the option would refuse; else the option is blamed, which nobody gave."""
    (parameter,) = [one for one in context.command.params if one.name == name]
    try:
        parameter.process_value(context, value)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise typer.BadParameter(f"{where}: {getattr(error, 'message', error)}") from None


def _load(path: Path) -> dict[str, Any]:
    """What the file says, or an error that names it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise typer.BadParameter(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no settings file")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(data.decode())
        if path.suffix == ".json":
            found = json.loads(data)
            if isinstance(found, dict):
                return found
            raise ValueError("it must hold one object")
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} does not parse: {error}") from None
    raise typer.BadParameter(f"{path}: name the file .toml or .json, so that it is clear how to read it")


__all__ = ["Config"]
