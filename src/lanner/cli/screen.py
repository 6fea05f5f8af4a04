"""What a command shows: tables and colours for people, JSON for programs, and one line for what went wrong."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from lanner.client import Queue

Result = TypeVar("Result")

EXIT_REMOVED: Final = 3  # of `lanner up`: the cluster has let go of this broker; starting it again changes nothing
EXIT_DAMAGED: Final = 4  # of `lanner up`: what is on disk is damaged; starting it again changes nothing
EXIT_DIFFERENT: Final = 3  # of `lanner audit`: it was done, and not everything is as it should be
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_WIDE = 1_000
_NARROW_COLUMN: Final = 8  # a column that is narrower than this and than its words is no longer read
_BETWEEN_COLUMNS: Final = 3
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Screen:
    """The terminal of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            class Quiet(Console):
                def on_broken_pipe(self) -> None:
                    raise BrokenPipeError  # rich would end with an error; `guard` knows better

            # A table in a file or a pipe has no edge of a screen to keep to.
            self._console = Quiet(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)
        return self._console

    def document(self, value: Any) -> None:
        """One JSON document on one line."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()

    def say(self, text: str, value: Any) -> None:
        """A sentence for people, or the same as a document."""
        if self.as_json:
            self.document(value)
        else:
            typer.echo(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
        from rich import box
        from rich.table import Column, Table

        cells = [[_cell(value) for value in row] for row in rows]
        if self.console.is_terminal and _width_of(columns, cells) > self.console.width:
            self._list(columns, cells, title)
            return
        folding = [Column(name, overflow="fold") for name in columns]  # an address cut short is worth nothing
        table = Table(*folding, title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for row in cells:
            table.add_row(*row)
        self.console.print(table)

    def _list(self, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], title: str | None) -> None:
        """The rows of a table one below the other, where the screen is too narrow for them."""
        if title:
            self.console.print(title, style="italic", markup=False)
        for row in rows:
            self.console.print()
            self._pairs(zip(columns, row, strict=True))

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names and values, one a line."""
        self._pairs((name, _cell(value)) for name, value in facts.items())

    def _pairs(self, pairs: Iterable[tuple[str, str | Text]]) -> None:
        from rich.table import Column, Table

        table = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
        for name, value in pairs:
            table.add_row(f"[dim]{name}[/dim]", value)
        self.console.print(table)

    def fail(self, message: str, *, kind: str = "Error", code: int = 1, **details: object) -> NoReturn:
        """Say what was wrong and what to do, and end."""
        sys.stdout.flush()
        if self.as_json:
            problem = {"type": kind, "message": message, "details": details}
            sys.stderr.write(json.dumps(problem, ensure_ascii=False, default=str) + "\n")
        else:
            typer.secho(f"{kind}: {harmless(message)}", fg=typer.colors.RED, err=True)
        raise typer.Exit(code)

    def guard(self, work: Callable[[], Result]) -> Result:
        """Run something; an error of the catalogue or of the system becomes one line."""
        from lanner.errors import LannerError

        try:
            return work()
        except LannerError as error:
            self.fail(error.message, kind=error.name, **error.details)
        except BrokenPipeError:
            # The reader of our output has gone: no failure of ours. What is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            known = error.filename is not None and error.strerror
            self.fail(f"{error.filename}: {error.strerror}" if known else str(error), kind=type(error).__name__)
        except UnicodeEncodeError as error:
            text = error.object[error.start : error.end]
            self.fail(f"{text!r} cannot be written as {error.encoding}: {error.reason}", kind="ValidationError")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    def need(self, extra: str, what: str) -> None:
        """End with what to type where an extra that a command stands on is not installed."""
        from lanner.extras import need

        self.guard(lambda: need(extra, what))

    def with_queue(self, servers: str, work: Callable[[Queue], Awaitable[Result]]) -> Result:
        """Run something over a connection to the brokers. SIGTERM ends it in order, as Ctrl-C does: what it holds goes
        back, and a member leaves its group."""
        import asyncio

        from lanner.client import connect
        from lanner.net.loop import run

        async def connected() -> Result:
            task = asyncio.current_task()
            assert task is not None
            with suppress(NotImplementedError, ValueError):  # where there are no signals, or in another thread
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            async with connect(servers, client_name="lanner-cli") as queue:
                return await work(queue)

        def until_told() -> Result:
            try:
                return run(connected())
            except asyncio.CancelledError:
                raise typer.Exit(EXIT_TERMINATED) from None

        return self.guard(until_told)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something that cannot be undone; where nobody can answer, --yes must have."""
        if yes:
            return
        if self.as_json or not sys.stdin.isatty():
            self.fail(f"{question} Say --yes to do it.", kind="NotConfirmed", code=2)
        typer.confirm(question, abort=True)


def harmless(text: str) -> str:
    """Text of others, with control characters written out: what a message holds must not drive a terminal.

    Ends of lines and tabs stay; marks that turn the direction of writing count as control characters.
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def text_of(value: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as text and the encoding that needs, as REST does it."""
    if value is None:
        return None, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii"), "base64"


def time_text(time_ms: int) -> str:
    """A moment for people, in UTC."""
    if not time_ms:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def age_text(seconds: float) -> str:
    """How long, in the unit that suits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def count_text(count: float) -> str:
    return f"{count:,.0f}"


def bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plain(value: Any) -> Any:
    """A struct of the protocol as JSON has it: fields by name."""
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return {name: plain(getattr(value, name)) for name in fields}
    return [plain(one) for one in value] if isinstance(value, list) else value


def coloured(value: object, style: str) -> Text:
    """A cell of a table, in colour."""
    from rich.text import Text

    return Text(count_text(value) if isinstance(value, int) else str(value), style=style)


def _cell(value: object) -> str | Text:
    from rich.markup import escape
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return escape(count_text(value) if isinstance(value, int) and not isinstance(value, bool) else harmless(str(value)))


def _width_of(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> int:
    """What a table needs so that its words can be read."""
    width = 0
    for place, name in enumerate(columns):
        words = [*name.split(), *(word for row in rows for word in str(row[place]).split())]
        width += min(max(map(len, words), default=0), _NARROW_COLUMN) + _BETWEEN_COLUMNS
    return width
