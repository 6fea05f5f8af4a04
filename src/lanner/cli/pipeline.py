"""`lanner pipeline new|validate|run|status|package`: YAML files that Spark runs as streaming queries."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.screen import Screen, age_text, bytes_text, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, need_spark, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.pipelines.plan import Pipeline
    from lanner.spark.pipelines.status import PipelineStatus, QueryStatus

app = typer.Typer(help="Streaming queries over topics, from a YAML file.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The pipeline's YAML file.", metavar="FILE")]


@app.command("new")
def new(
    file: File,
    example: Annotated[str, typer.Option("--example", help="Which: example, dead-letters, report.")] = "example",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write an example with comments, and beside it the schema that editors complete from."""
    screen = Screen(as_json)
    need_spark(screen)
    from lanner.spark.pipelines.checking import SCHEMA_NAME, schema_text
    from lanner.spark.pipelines.example import NAMES, example_text

    if example not in NAMES:
        screen.fail(f"there is no example {example!r}; there are {', '.join(NAMES)}", kind="UsageError", code=2)

    def write() -> None:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(example_text(example, servers))
        (file.parent / SCHEMA_NAME).write_text(schema_text(), encoding="utf-8")

    screen.guard(write)
    screen.say(
        f"Wrote {file} and {file.parent / SCHEMA_NAME}. Next: lanner pipeline validate {file}", {"file": str(file)}
    )


@app.command("validate")
def validate(file: File, as_json: AsJson = False) -> None:
    """Find every mistake in a pipeline's file, without starting Spark."""
    screen = Screen(as_json)
    pipeline = _checked(screen, file)
    sources, queries = len(pipeline.sources), len(pipeline.queries)
    screen.say(
        f"{file} is in order: {sources} {'source' if sources == 1 else 'sources'}, "
        f"{queries} {'query' if queries == 1 else 'queries'}.",
        {"file": str(file), "valid": True},
    )


def _checked(screen: Screen, file: Path) -> Pipeline:
    """The pipeline of a file; with mistakes in it, all of them are told, and the command ends."""
    need_spark(screen)
    from lanner.spark.pipelines.meaning import validate

    def read(path: str) -> str | None:
        try:
            return (file.parent / path).read_text(encoding="utf-8")
        except OSError:
            return None

    if not file.exists():
        screen.fail(f"there is no file {file}: `lanner pipeline new {file}` writes an example", kind="NotFoundError")
    text = screen.guard(lambda: file.read_text(encoding="utf-8", errors="replace"))
    pipeline, mistakes = validate(text, read)
    if pipeline is not None:
        return pipeline
    if screen.as_json:
        told = [{"line": one.line, "what": one.what} for one in mistakes]
        screen.document({"file": str(file), "valid": False, "mistakes": told})
    else:
        for one in mistakes:
            typer.secho(f"{file}:{one.line}: {one.what}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


@app.command("run")
def run(
    file: File,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C, or until its queries have read what there is. Ctrl-C lets each batch end first."""
    screen = Screen(as_json)
    pipeline = _checked(screen, file)
    settings = [f"{name}={value}" for name, value in pipeline.spark.items()]

    def work(spark: SparkSession) -> bool:
        from lanner.spark.pipelines.running import Runner

        runner = Runner(spark, pipeline, file)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: runner.stop())
        with _Shown(screen, file) as shown:
            return runner.run(shown.tell)

    if not with_spark(screen, master, [*settings, *(conf or [])], package, work):
        raise typer.Exit(1)


class _Shown:
    """What `run` shows: a table that moves on a terminal, else a line of JSON for whatever is new."""

    def __init__(self, screen: Screen, file: Path) -> None:
        from lanner.spark.pipelines.status import status_path

        self._screen = screen
        self._path = status_path(file, os.environ)
        self._live: Any = None
        self._told: dict[str, tuple[str, int, int]] = {}
        self._last: PipelineStatus | None = None

    def __enter__(self) -> _Shown:
        if not self._screen.as_json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(console=self._screen.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def tell(self, status: PipelineStatus) -> None:
        from lanner.spark.pipelines.status import write_status

        self._last = status
        write_status(self._path, status)
        if self._live is not None:
            self._live.update(_table(status), refresh=True)
            return
        for one in status.queries:
            seen = (one.state, one.batch, one.restarts)
            if self._told.get(one.name) != seen:
                self._told[one.name] = seen
                self._screen.document({"time": round(time.time(), 3), "pipeline": status.name, **_plain(one)})

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            if self._last is not None:
                self._screen.console.print(_table(self._last))
                _say_errors(self._last)


@app.command("status")
def status(file: File, as_json: AsJson = False) -> None:
    """How a pipeline that runs elsewhere on this machine is doing. Exit code 1: it does not run."""
    screen = Screen(as_json)
    need_spark(screen)
    from lanner.spark.pipelines.status import read_status, status_path

    found = read_status(status_path(file, os.environ))
    if found is None:
        screen.fail(f"{file} was never run here: lanner pipeline run {file}", kind="NotFoundError")
    over = all(one.state in ("ended", "failed", "stopped") for one in found.queries)
    alive = not over and found.is_alive(time.time())
    if screen.as_json:
        screen.document({"name": found.name, "running": alive, "queries": [_plain(one) for one in found.queries]})
    else:
        screen.console.print(_table(found))
        _say_errors(found)
        age = age_text(time.time() - (found.started_s if alive else found.updated_s))
        typer.echo(
            f"{found.name} has been running for {age}."
            if alive
            else f"{found.name} does not run; it was last seen {age} ago."
        )
    if not alive:
        raise typer.Exit(1)


@app.command("package")
def package(
    file: Annotated[Path, typer.Argument(help="The archive to write.", metavar="FILE")] = Path(
        "lanner-executors.tar.gz"
    ),
    python: Annotated[
        str, typer.Option("--python", help="Python of the executors, such as 3.12.", show_default="as here")
    ] = "",
    platform: Annotated[
        str, typer.Option("--platform", help="linux-x86_64 or linux-aarch64.", show_default="as here")
    ] = "",
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A package that executors have already; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one archive of what Spark's executors need: the client, the Spark room and their packages.

    Nothing of a broker is in it, nor Spark, which the cluster has. Executors of another platform or Python than this
    machine's get the same versions, fetched with pip or uv.

    \b
    Example: lanner pipeline package
    Example: lanner pipeline package --platform linux-aarch64 --without pyarrow
    """
    screen = Screen(as_json)
    need_spark(screen)
    from lanner.cli import packaging
    from lanner.cli.progress import Bar

    with Bar(screen, "looking") as bar:
        made = screen.guard(
            lambda: packaging.package(file, packaging.target_of(python, platform), without or (), bar.tell)
        )
    if as_json:
        told = {"file": made.file, "bytes": made.size, **made.target._asdict()}
        screen.document({**told, "packages": made.packages, "settings": made.settings})
        return
    names = ", ".join(f"{name} {version}" for name, version in made.packages.items())
    typer.echo(
        f"Wrote {made.file} ({bytes_text(made.size)}), for Python {made.target.python} on {made.target.platform}."
    )
    typer.echo(f"In it: {names}. To use it:")
    for name, value in made.settings.items():
        typer.secho(f"  --conf {name}={value}", fg=typer.colors.CYAN)


def _plain(one: QueryStatus) -> dict[str, Any]:
    return {
        "query": one.name,
        "state": one.state,
        "batch": one.batch,
        "rows": one.rows,
        "rows_per_second": one.rows_per_second,
        "batch_ms": one.batch_ms,
        "lag": one.lag,
        "restarts": one.restarts,
        "error": one.error,
    }


def _table(status: PipelineStatus) -> Any:
    from rich import box
    from rich.table import Table

    names = ["query", "state", "batch", "rows", "rows/s", "batch ms", "lag", "restarts"]
    table = Table(*names, title=status.name, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for one in status.queries:
        lag = ", ".join(f"{source} {count_text(count)}" for source, count in one.lag.items())
        batch = str(one.batch) if one.batch >= 0 else "-"
        numbers = (batch, count_text(one.rows), count_text(one.rows_per_second), count_text(one.batch_ms))
        table.add_row(one.name, one.state, *numbers, lag or "-", str(one.restarts))
    return table


def _say_errors(status: PipelineStatus) -> None:
    for one in status.queries:
        if one.error:
            typer.secho(f"{one.name}: {one.error}", fg=typer.colors.RED, err=True)
