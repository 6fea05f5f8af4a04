"""Mistakes in a pipeline file that its schema cannot see: what it names and does not have, what does not go together.

Pure but for one thing: the text of Python files that it names is asked for, through a function that the caller gives.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from posixpath import normpath
from typing import Any, Final

from lanner.errors import ValidationError
from lanner.spark.options import parse_options
from lanner.spark.pipelines import checking
from lanner.spark.pipelines.document import Document, Mistake, Path, read
from lanner.spark.pipelines.plan import (
    Pipeline,
    Query,
    Sink,
    Source,
    invalid_query,
    pipeline_of,
    read_options,
    write_options,
)
from lanner.spark.write_options import parse_write_options

_NEEDS_COLUMNS: Final = frozenset({"json", "csv", "parquet", "orc", "avro", "xml"})
_FILES: Final = frozenset({*_NEEDS_COLUMNS, "text"})
_MESSAGE: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "priority", "headers")
_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_TABLE: Final = re.compile(r"\b(?:from|join)\s+(?:lateral\s+)?`?([A-Za-z_]\w*)(?!\w)`?(?!\s*[(.])", re.IGNORECASE)
_NAMED: Final = re.compile(
    r"(?:\bwith|,)\s*(?:recursive\s+)?`?([A-Za-z_]\w*)`?\s*(?:\([^()]*\)\s*)?as\s*\(", re.IGNORECASE
)
_NOT_A_TABLE: Final = re.compile(
    r"\bdistinct\s+from\b|\b(?:extract|trim|substring|substr|overlay|position)\s*\([^()]*\)", re.IGNORECASE
)

ReadText = Callable[[str], str | None]  # a file's text by its path, None where there is none


def validate(text: str, read_text: ReadText) -> tuple[Pipeline | None, list[Mistake]]:
    """The pipeline that a text says, or every mistake in it."""
    document = read(text)
    mistakes = checking.check(document)
    if mistakes:
        return None, mistakes
    pipeline = pipeline_of(document.value)
    found = sorted(set(_Meaning(document, pipeline, read_text).mistakes()))
    return (None, found) if found else (pipeline, [])


class _Meaning:
    def __init__(self, document: Document, pipeline: Pipeline, read_text: ReadText) -> None:
        self._document = document
        self._pipeline = pipeline
        self._read_text = read_text

    def mistakes(self) -> Iterator[Mistake]:
        for name, source in self._pipeline.sources.items():
            yield from self._source(("sources", name), name, source)
        for name, query in self._pipeline.queries.items():
            yield from self._query(("queries", name), name, query)
        yield from self._alike()
        yield from self._checkpoints()
        yield from self._transactions()

    def _at(self, path: Path, what: str) -> Mistake:
        return Mistake(self._document.line(path), what)

    def _source(self, path: Path, name: str, source: Source) -> Iterator[Mistake]:
        if name in self._pipeline.queries:
            yield self._at(path, f"{name!r} is a source and a query: give one of them another name")
        if source.pattern is not None:
            try:
                re.compile(source.pattern)
            except re.error as error:
                yield self._at((*path, "pattern"), f"pattern is not a regular expression: {error}")
        from_topics = source.format is None
        if from_topics and (source.path is not None or source.columns):
            wrong = "path" if source.path is not None else "columns"
            hint = "columns of messages go under decode" if wrong == "columns" else "path is for files"
            yield self._at((*path, wrong), f"{name} reads a topic, so {wrong} means nothing here: {hint}")
        if source.format in _FILES and source.path is None:
            yield self._at((*path, "format"), f"{name} reads files: say which folder with path")
        if source.format in _NEEDS_COLUMNS and not source.columns:
            yield self._at(
                (*path, "format"), f"{name} needs columns: a stream of {source.format} files has them declared"
            )
        if not from_topics and "starting" in self._value(path):
            yield self._at((*path, "starting"), "starting is for topics")
        if source.decode is not None:
            yield from self._decode((*path, "decode"), source)
            if not from_topics:
                yield self._at((*path, "decode"), "decode is for the values of messages; files have columns")
        if from_topics:
            yield from self._options(path, lambda: parse_options(read_options(self._pipeline, source), "stream"))
        yield from self._watermark(path, name, source)

    def _decode(self, path: Path, source: Source) -> Iterator[Mistake]:
        assert source.decode is not None
        yield from self._sink((*path, "invalid"), source.decode.invalid)
        yield from self._alike_names((*path, "columns"), source.decode.columns, "a column")
        own = source.dead_letters.topic if source.dead_letters is not None else source.topic
        if source.decode.invalid.topic in (own, *source.topics) and source.decode.invalid.topic is not None:
            told = "what does not decode would go into the topic it is read from"
            yield self._at((*path, "invalid", "topic"), f"{told}: they would be read again, and come back for ever")

    def _options(self, path: Path, check: Callable[[], object]) -> Iterator[Mistake]:
        """What `format("lanner")` would refuse once Spark runs."""
        try:
            check()
        except ValidationError as error:
            field = str(error.details.get("field", "")).lower()
            given = next((name for name in self._value(path).get("options", ()) if name.lower() == field), "")
            yield self._at((*path, "options", given), error.message)

    def _alike(self) -> Iterator[Mistake]:
        """Names that are one to SQL: the view of a source would take the place of another's."""
        yield from self._alike_names(("sources",), self._pipeline.sources, "a source")
        known = {name.lower(): (name, "a source") for name in self._pipeline.sources}
        for path, sink in self._sinks():
            if sink.memory is not None and (first := known.get(sink.memory.lower())) is not None:
                yield self._at((*path, "memory"), _one_to_sql(*first))
            if sink.memory is not None:
                known.setdefault(sink.memory.lower(), (sink.memory, "a table in memory"))

    def _alike_names(self, path: Path, names: Iterable[str], what: str) -> Iterator[Mistake]:
        known: dict[str, str] = {}
        for name in names:
            if (first := known.setdefault(name.lower(), name)) != name:
                yield self._at((*path, name), _one_to_sql(first, what))

    def _watermark(self, path: Path, name: str, source: Source) -> Iterator[Mistake]:
        columns = known_columns(source)
        if source.watermark is None or columns is None:
            return
        column = source.watermark.column
        if column not in columns:
            yield self._at(
                (*path, "watermark", "column"), f"{name} has no column {column!r}; it has {', '.join(columns)}"
            )
        elif not columns[column].strip().startswith("timestamp"):
            yield self._at(
                (*path, "watermark", "column"), f"a watermark goes by a timestamp, and {column!r} is {columns[column]}"
            )

    def _query(self, path: Path, name: str, query: Query) -> Iterator[Mistake]:
        if query.sql is not None:
            yield from self._sql((*path, "sql"), query.sql)
        if query.python is not None:
            yield from self._python((*path, "python"), query.python)
        yield from self._sink((*path, "sink"), query.sink)
        sink = query.sink
        files = sink.parquet is not None or (sink.format in _FILES)
        if files and query.mode != "append":
            yield self._at((*path, "mode"), f"files can only be appended to: {name} has mode {query.mode}")

    def _sql(self, path: Path, sql: str) -> Iterator[Mistake]:
        """Tables that are nowhere. Spark says the rest, once it runs."""
        if not sql.strip():
            yield self._at(path, "sql is empty")
        known = {one.lower() for one in self._pipeline.sources}
        first = self._document.line(path)
        plain = _QUOTED.sub(_blank, _COMMENT.sub(_blank, sql))
        plain = _NOT_A_TABLE.sub(_blank, plain)
        known |= {one.lower() for one in _NAMED.findall(plain)}
        for found in _TABLE.finditer(plain):
            table = found[1]
            if table.lower() not in known and table.lower() not in ("values", "select", "table"):
                line = (
                    first + plain[: found.start(1)].count("\n") + (1 if "\n" in sql else 0)
                )  # a block begins below its name
                there = ", ".join(self._pipeline.sources)
                yield Mistake(line, f"there is no source {table!r}; there are {there}")

    def _python(self, path: Path, given: str) -> Iterator[Mistake]:
        where, _, function = given.rpartition(":")
        if not where.endswith(".py"):
            try:
                known = find_spec(where) is not None
            except (ImportError, ValueError):
                known = False
            if not known:
                yield self._at(path, f"there is no Python module {where!r}; a file ends with .py")
            return
        text = self._read_text(where)
        if text is None:
            yield self._at(path, f"there is no file {where}")
            return
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            yield self._at(path, f"{where} is not Python: line {error.lineno}: {error.msg}")
            return
        if not any(isinstance(one, ast.FunctionDef) and one.name == function for one in tree.body):
            yield self._at(path, f"{where} has no function {function!r}")

    def _sink(self, path: Path, sink: Sink) -> Iterator[Mistake]:
        if sink.format in _FILES and sink.path is None and "path" not in sink.options:
            yield self._at((*path, "format"), f"say where the {sink.format} files go with path")
        if sink.partition_by and (sink.topic is not None or sink.console or sink.memory is not None):
            yield self._at((*path, "partition_by"), "partition_by is for files")
        if sink.transactional_id is not None and sink.topic is None:
            yield self._at((*path, "transactional_id"), "transactional_id is for topics")
        if sink.topic is not None:
            servers = self._pipeline.servers
            yield from self._options(path, lambda: parse_write_options(write_options(servers, sink), streaming=True))

    def _checkpoints(self) -> Iterator[Mistake]:
        """No two queries may share one: each would go on from the other's progress."""
        decoding = {invalid_query(name): name for name, one in self._pipeline.sources.items() if one.decode is not None}
        first: dict[str, str] = {}
        for name in [*decoding, *self._pipeline.queries]:
            if name in decoding and name in self._pipeline.queries:
                yield self._at(
                    ("queries", name), f"what {decoding[name]} cannot decode is written by {name}: choose another name"
                )
                continue
            given = self._pipeline.checkpoint_of(name)
            place = given if "://" in given else normpath(given)
            if place in first:
                yield self._at(("queries", name, "checkpoint"), f"{first[place]} has the same checkpoint: {given}")
            first.setdefault(place, name)

    def _sinks(self) -> Iterator[tuple[Path, Sink]]:
        for name, source in self._pipeline.sources.items():
            if source.decode is not None:
                yield ("sources", name, "decode", "invalid"), source.decode.invalid
        for name, query in self._pipeline.queries.items():
            yield ("queries", name, "sink"), query.sink

    def _transactions(self) -> Iterator[Mistake]:
        """No two sinks may share one: the brokers would take the batches of one for repeats of the other's."""
        first: dict[str, Path] = {}
        for path, sink in self._sinks():
            given = sink.transactional_id
            if given is None:
                continue
            if given in first:
                other = ".".join(map(str, first[given]))
                yield self._at((*path, "transactional_id"), f"{other} has the same transactional_id: {given}")
            first.setdefault(given, path)

    def _value(self, path: Path) -> Any:
        value = self._document.value
        for part in path:
            value = value[part]
        return value


def known_columns(source: Source) -> dict[str, str] | None:
    """The columns of a source and their types, as SQL sees them; None where only Spark knows."""
    if source.format is not None:
        return dict(source.columns) or None
    types = ("binary", "binary", "string", "int", "bigint", "timestamp", "int", "array")
    message = dict(zip(_MESSAGE, types, strict=True))
    if source.dead_letters is not None:
        message |= {"number": "bigint", "attempts": "int", "reason": "string", "died_at": "timestamp"}
    if source.decode is None:
        return message
    del message["value"]
    names = {name.lower() for name in source.decode.columns}
    return {name: kind for name, kind in message.items() if name not in names} | source.decode.columns


def _one_to_sql(name: str, what: str) -> str:
    return f"{name} is {what}, too, and SQL does not tell capitals and small letters apart"


def _blank(found: re.Match[str]) -> str:
    """As many lines as there were."""
    return " " + "\n" * found[0].count("\n")
