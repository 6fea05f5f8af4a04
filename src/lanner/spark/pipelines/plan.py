"""A pipeline as values: what a file without mistakes says, with everything that it left to us filled in.

Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_UNITS_MS: Final = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]+) *([a-z]+?)s?")

Options = dict[str, str | int | float | bool]


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str | None = None
    transactional_id: str | None = None
    parquet: str | None = None
    format: str | None = None
    path: str | None = None
    console: bool = False
    memory: str | None = None
    partition_by: list[str] = []
    options: Options = {}


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    columns: dict[str, str]
    invalid: Sink
    options: Options = {}


class DeadLetters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    group: str


class Watermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    column: str
    delay: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str | None = None
    topics: list[str] = []
    pattern: str | None = None
    dead_letters: DeadLetters | None = None
    format: str | None = None
    path: str | None = None
    columns: dict[str, str] = {}
    starting: str = "earliest"
    decode: Decode | None = None
    watermark: Watermark | None = None
    options: Options = {}


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    every: str | None = None
    available_now: bool = False


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: int = 5
    backoff: str = "1 second"
    backoff_max: str = "1 minute"


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sink: Sink
    sql: str | None = None
    python: str | None = None
    mode: str = "append"
    trigger: Trigger = Trigger()
    checkpoint: str | None = None
    restart: Restart = Restart()


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sources: dict[str, Source]
    queries: dict[str, Query]
    servers: str = "localhost:7400"
    checkpoints: str = "./checkpoints"
    spark: Options = {}

    def checkpoint_of(self, query: str) -> str:
        """Where a query keeps its progress."""
        given = self.queries[query].checkpoint if query in self.queries else None
        return given or f"{self.checkpoints.rstrip('/')}/{query}"


def invalid_query(source: str) -> str:
    """The name of the query that carries what a source could not decode."""
    return f"{source}__invalid"


def pipeline_of(value: Any) -> Pipeline:
    """The pipeline in a document that was checked."""
    return msgspec.convert(value, Pipeline)


def read_options(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """The options of a source that reads topics, as `format("lanner")` takes them."""
    options = {name: option_text(value) for name, value in source.options.items()}
    own = {"servers": pipeline.servers, "includeHeaders": "true"}
    if not any(name.lower().startswith("starting") for name in options):
        own["startingOffsets"] = source.starting
    if source.pattern is not None:
        own["subscribePattern"] = source.pattern
    elif source.dead_letters is not None:
        own |= {"subscribe": source.dead_letters.topic, "deadLettersOf": source.dead_letters.group}
    else:
        own["subscribe"] = source.topic or ",".join(source.topics)
    return own | options


def write_options(servers: str, sink: Sink) -> dict[str, str]:
    """The options of a sink that is a topic, as `format("lanner")` takes them."""
    assert sink.topic is not None
    options = {"servers": servers, "topic": sink.topic}
    options |= {name: option_text(value) for name, value in sink.options.items()}
    return options if sink.transactional_id is None else options | {"transactionalId": sink.transactional_id}


def is_duration(text: str) -> bool:
    """Whether it is a number and a unit, such as 5 minutes."""
    found = _DURATION.fullmatch(text.strip())
    return found is not None and found[2] in _UNITS_MS


def duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    assert found is not None, text
    return int(found[1]) * _UNITS_MS[found[2]]


def option_text(value: str | int | float | bool) -> str:
    """An option as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
