"""Settings from a file: what `--config FILE` reads, for operators who would rather not repeat flags.

The file holds the long options of the command, as TOML (`.toml`) or JSON (`.json`); dashes and underscores are one. A
flag wins over the environment, the environment over the file, the file over the defaults. A name that the command does
not have is refused: a misspelt setting must not be taken for the default.

Whatever is wrong with a value, also what is found only when the broker looks at it, is blamed on the place that it was
given at (`origin_of`): the file with its line, the variable, or the flag.
"""

from __future__ import annotations

import json
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

FILE_BYTES_MAX: Final = 1 << 20
_ORIGINS: Final = "lanner.config.origins"  # in the context: by parameter, the place in the file


def _take(context: typer.Context, path: str) -> str:
    """Let the file's values be the defaults of the other options. Runs before they are looked at."""
    if path and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **_read(context, Path(path))}
    return path


def origin_of(context: typer.Context, name: str) -> str:
    """Where a parameter got its value, as a person would look for it; empty: nobody gave one."""
    source = context.get_parameter_source(name)
    kind = "" if source is None else source.name
    (parameter,) = [one for one in context.command.params if one.name == name]
    if kind == "COMMANDLINE":
        return next(option for option in parameter.opts if option.startswith("--"))
    if kind == "ENVIRONMENT":
        return f"the variable {parameter.envvar}"
    return str(context.meta.get(_ORIGINS, {}).get(name, "")) if kind == "DEFAULT_MAP" else ""


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
    values, text = _load(path)
    origins = context.meta.setdefault(_ORIGINS, {})
    for given, value in values.items():
        name = given.replace("_", "-")
        where = f"{path}{_line_of(text, given)}: {given!r}"
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(known))}"
            raise typer.BadParameter(f"{where} is not a setting of this command{hint}")
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ",".join(value)
        if not isinstance(value, str | int | bool):
            raise typer.BadParameter(f"{where} must be text, a whole number, true or false, or a list of text")
        _check(context, known[name], value, where)
        found[known[name]] = value
        origins[known[name]] = where
    return found


def _line_of(text: str, given: str) -> str:
    """In which line of the file a setting stands, if it is plain to see."""
    key = re.escape(given)
    seen = re.search(rf"""^[ \t{{,]*(["']?){key}\1[ \t]*[=:]""", text, re.MULTILINE)
    return "" if seen is None else f", line {text.count(chr(10), 0, seen.start()) + 1}"


def _check(context: typer.Context, name: str, value: str | int | bool, where: str) -> None:
    """Blame the file for a value that the option would refuse; else the option is blamed, which nobody gave."""
    (parameter,) = [one for one in context.command.params if one.name == name]
    try:
        parameter.process_value(context, value)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise typer.BadParameter(f"{where}: {getattr(error, 'message', error)}") from None


def _load(path: Path) -> tuple[dict[str, Any], str]:
    """What the file says, and its text; or an error that names it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise typer.BadParameter(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no settings file")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(data.decode()), data.decode()
        if path.suffix == ".json":
            found = json.loads(data)
            if isinstance(found, dict):
                return found, data.decode(errors="replace")
            raise ValueError("it must hold one object")
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} does not parse: {error}") from None
    raise typer.BadParameter(f"{path}: name the file .toml or .json, so that it is clear how to read it")


__all__ = ["Config", "origin_of"]
