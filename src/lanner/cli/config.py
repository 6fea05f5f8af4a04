"""Settings from a file: what `--config FILE` reads, for operators who would rather not repeat flags.

The file holds the long options of the command, as YAML (`.yaml`, `.yml`), TOML (`.toml`) or JSON (`.json`); dashes and
underscores are one. A flag wins over the environment, the environment over the file, the file over the defaults. A name
that the command does not have is refused: a misspelt setting must not be taken for the default.

Whatever is wrong with a value, also what is found only when the broker looks at it, is blamed on the place that it was
given at (`origin_of`): the file with its line, the variable, or the flag.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from lanner.errors import NotInstalled

FILE_BYTES_MAX: Final = 1 << 20
PREFIX: Final = "LANNER_"
_ORIGINS: Final = "lanner.config.origins"  # in the context: by parameter, the place in the file
_SOURCES: Final = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}


class Entry(NamedTuple):
    """One setting as a file gives it."""

    name: str
    value: Any
    line: int | None


def _take(context: typer.Context, path: str) -> str:
    """Let the file's values be the defaults of the other options. Runs before they are looked at."""
    if path and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **_read(context, Path(path))}
    return path


def source_of(context: typer.Context, name: str) -> str:
    """What gave a parameter its value: flag, environment, file or default."""
    source = context.get_parameter_source(name)
    return _SOURCES.get("" if source is None else source.name, "default")


def origin_of(context: typer.Context, name: str) -> str:
    """Where a parameter got its value, as a person would look for it; empty: it is the default."""
    source = source_of(context, name)
    (parameter,) = [one for one in context.command.params if one.name == name]
    if source == "flag":
        return next(option for option in parameter.opts if option.startswith("--"))
    if source == "environment":
        return f"the variable {parameter.envvar}"
    return str(context.meta.get(_ORIGINS, {}).get(name, "")) if source == "file" else ""


def unread_variables(known: Iterable[str], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The LANNER_ variables of the environment that no command reads, each with the one that was meant, if any is near.

    Others may well set some: a container's platform names a service's addresses after it.
    """
    names = [name.removeprefix(PREFIX) for name in known]
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in names:
            near = get_close_matches(name, names, 1, cutoff=0.75)
            yield variable, PREFIX + near[0] if near else ""


Config = Annotated[
    str,
    typer.Option(
        "--config",
        envvar="LANNER_CONFIG",
        callback=_take,
        is_eager=True,
        help="A YAML, TOML or JSON file with any of these options; flags and LANNER_* win over it.",
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
    origins = context.meta.setdefault(_ORIGINS, {})
    for given, value, line in _load(path):
        name = given.replace("_", "-")
        where = f"{path}{'' if line is None else f', line {line}'}: {given!r}"
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(known))}"
            raise typer.BadParameter(f"{where} is not a setting of this command{hint}")
        if known[name] in found:
            raise typer.BadParameter(f"{where} is given twice")
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ",".join(value)
        if not isinstance(value, str | int | bool):
            raise typer.BadParameter(f"{where} must be text, a whole number, true or false, or a list of text")
        _check(context, known[name], value, where)
        found[known[name]] = value
        origins[known[name]] = where
    return found


def _line_of(text: str, given: str) -> int | None:
    """In which line of the file a setting stands, if it is plain to see."""
    key = re.escape(given)
    seen = re.search(rf"""^[ \t{{,]*(["']?){key}\1[ \t]*[=:]""", text, re.MULTILINE)
    return None if seen is None else text.count("\n", 0, seen.start()) + 1


def _check(context: typer.Context, name: str, value: str | int | bool, where: str) -> None:
    """Blame the file for a value that the option would refuse; else the option is blamed, which nobody gave."""
    (parameter,) = [one for one in context.command.params if one.name == name]
    if isinstance(value, bool) and not getattr(parameter, "is_flag", False):
        raise typer.BadParameter(f"{where} is {str(value).lower()}, and no switch: write text in quotes")
    try:
        parameter.process_value(context, value)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise typer.BadParameter(f"{where}: {getattr(error, 'message', error)}") from None


def _load(path: Path) -> list[Entry]:
    """What the file says; or an error that names it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise typer.BadParameter(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no settings file")
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise typer.BadParameter(f"{path}: name the file .yaml, .toml or .json, so that it is clear how to read it")
    try:
        return list(reader(data.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} does not parse: {error}") from None
    except NotInstalled as error:
        raise typer.BadParameter(f"{path}: {error.message}") from None


def _toml(text: str) -> Iterator[Entry]:
    for name, value in tomllib.loads(text).items():
        yield Entry(name, value, _line_of(text, name))


def _json(text: str) -> Iterator[Entry]:
    found = json.loads(text, object_pairs_hook=tuple)
    if not isinstance(found, tuple):
        raise ValueError("it must hold one object")
    for name, value in found:
        yield Entry(name, value, _line_of(text, name))


def _yaml(text: str) -> Iterator[Entry]:
    from lanner.extras import need

    need("server", "a settings file in YAML")
    from lanner.broker.yaml_settings import read_settings

    for name, value, line in read_settings(text):
        yield Entry(name, value, line)


_READERS: Final = {".toml": _toml, ".json": _json, ".yaml": _yaml, ".yml": _yaml}

__all__ = ["Config", "origin_of", "source_of", "unread_variables"]
