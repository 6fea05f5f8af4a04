"""From a pipeline's values to frames and streaming writers of Spark.

What a source cannot decode is told apart by Spark's own decoders, in permissive mode: they give back the text that did
not fit. The same stream is then read twice, once for the rows that fit and once, as a query of its own, for the others.

What goes to a topic goes there exactly once, through the sink of `format("lanner")`. Spark lets that sink append only;
queries of other modes hand each of their batches to a batch write under the same names, which is done once as well.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lanner import sync
from lanner.errors import ServerError, ValidationError
from lanner.spark.pipelines.plan import (
    Decode,
    Pipeline,
    Query,
    Sink,
    Source,
    invalid_query,
    option_text,
    read_options,
    write_options,
)
from lanner.spark.sink import QUERY_ID

_DECODED: Final = "__decoded"
_BROKEN: Final = "__broken"
_MESSAGE: Final = ("key", "topic", "partition", "offset", "timestamp", "priority", "headers")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_OF_MESSAGE: Final = {
    "key": "binary", "priority": "int", "headers": _HEADERS, "deliver_at": "timestamp", "expires_at": "timestamp",
}  # fmt: skip
_DEATH: Final = ("number", "attempts", "reason", "died_at")


def raw_stream(spark: SparkSession, pipeline: Pipeline, source: Source, folder: Path) -> DataFrame:
    """A source before anything is decoded."""
    if source.format is not None:
        options = {name: option_text(value) for name, value in source.options.items()}
        reader = spark.readStream.format(source.format).options(**options)
        if source.columns:
            reader = reader.schema(", ".join(f"`{name}` {kind}" for name, kind in source.columns.items()))
        return reader.load() if source.path is None else reader.load(located(source.path, folder))
    return spark.readStream.format("lanner").options(**read_options(pipeline, source)).load()


def located(path: str, folder: Path) -> str:
    """A path of the file: relative ones count from where the file is."""
    return path if "://" in path or path.startswith("/") else str(folder / path)


def _decoding(frame: DataFrame, decode: Decode) -> DataFrame:
    """With the decoded columns as one struct, in which a text that does not fit is given back."""
    columns = ", ".join(f"`{name}` {kind}" for name, kind in decode.columns.items())
    options = {name: option_text(value) for name, value in decode.options.items()}
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    text = sql.col("value").cast("string")
    schema = f"{columns}, {_BROKEN} string"
    made = sql.from_json(text, schema, options) if decode.format == "json" else sql.from_csv(text, schema, options)
    return frame.withColumn(_DECODED, made)


def _fits() -> Any:
    return sql.col(_DECODED).isNotNull() & sql.col(f"{_DECODED}.{_BROKEN}").isNull()


def valid_rows(frame: DataFrame, source: Source) -> DataFrame:
    """What the queries see: the decoded columns, then those of the message that no decoded one has the name of."""
    if source.decode is not None:
        decoded = [sql.col(f"{_DECODED}.`{name}`").alias(name) for name in source.decode.columns]
        names = {name.lower() for name in source.decode.columns}
        others = _MESSAGE if source.dead_letters is None else (*_MESSAGE, *_DEATH)
        rest = [sql.col(name) for name in others if name not in names]
        frame = _decoding(frame, source.decode).where(_fits()).select(*decoded, *rest)
    if source.watermark is not None:
        frame = frame.withWatermark(source.watermark.column, source.watermark.delay)
    return frame


def invalid_rows(frame: DataFrame, decode: Decode) -> DataFrame:
    """What did not decode, as it came."""
    return _decoding(frame, decode).where(~_fits()).drop(_DECODED)


class Builder:
    """Makes the queries of a pipeline, as often as they must be started."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._folder = folder
        self._frames: dict[str, DataFrame] = {}
        for name, source in pipeline.sources.items():
            self._frames[name] = valid_rows(raw_stream(spark, pipeline, source, folder), source)
            self._frames[name].createOrReplaceTempView(name)

    def names(self) -> list[str]:
        """All queries: those of the file, and one for what each decoding source could not decode."""
        sides = [invalid_query(name) for name, one in self._pipeline.sources.items() if one.decode is not None]
        return [*self._pipeline.queries, *sides]

    def writer(self, name: str) -> DataStreamWriter:
        """A query, ready to be started."""
        query = self._pipeline.queries.get(name)
        if query is None:
            source = self._pipeline.sources[name.removesuffix(invalid_query(""))]
            assert source.decode is not None
            frame = invalid_rows(raw_stream(self._spark, self._pipeline, source, self._folder), source.decode)
            first = next(iter(self._pipeline.queries.values()))
            query = Query(source.decode.invalid, trigger=first.trigger, restart=first.restart)
        else:
            frame = self._frame(query)
        writer = written(frame, query, self._pipeline.servers, self._folder).queryName(query.sink.memory or name)
        writer = writer.option("checkpointLocation", located(self._pipeline.checkpoint_of(name), self._folder))
        if query.trigger.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=query.trigger.every or "0 seconds")

    def _frame(self, query: Query) -> DataFrame:
        if query.sql is not None:
            return self._spark.sql(query.sql)
        assert query.python is not None
        made: DataFrame = _function(query.python, self._folder)(self._spark, dict(self._frames))
        return made


def _function(given: str, folder: Path) -> Any:
    """The function that a file names: it takes the session and the sources by name, and gives a frame."""
    where, _, name = given.rpartition(":")
    if where.endswith(".py"):
        path = Path(located(where, folder))
        found = importlib.util.spec_from_file_location(f"lanner_pipeline_{path.stem}", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function = getattr(module, name, None)
    if function is None:
        raise ValidationError(f"{where} has no function {name!r}", field="python")
    return function


def written(frame: DataFrame, query: Query, servers: str, folder: Path) -> DataStreamWriter:
    """A writer into a query's sink."""
    sink = query.sink
    if sink.topic is not None:
        return _to_topic(as_messages(frame), sink, servers, query.mode)
    options = {name: option_text(value) for name, value in sink.options.items()}
    kind, path = sink.format or "parquet", sink.path or sink.parquet
    if sink.console:
        kind, path = "console", None
    elif sink.memory is not None:
        kind, path = "memory", None
    writer = frame.writeStream.format(kind).options(**options).outputMode(query.mode)
    if path is not None:
        writer = writer.option("path", located(path, folder))
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def as_messages(frame: DataFrame) -> DataFrame:
    """Rows as messages: the columns that a message has. Without a column "value" the others become one document."""
    types: Mapping[str, str] = dict(frame.dtypes)
    if "value" in types:
        kind = types["value"]
        value = sql.to_json("value") if kind.startswith(("struct", "array", "map")) else sql.col("value")
    else:
        names = [name for name in types if name not in _OF_MESSAGE]
        if not names:
            raise ValidationError("it selects no column value, and none to make one of", field="sql")
        value = sql.to_json(sql.struct(*names))
    others = [sql.col(name).cast(kind).alias(name) for name, kind in _OF_MESSAGE.items() if name in types]
    return frame.select(value.cast("binary").alias("value"), *others)


def _to_topic(messages: DataFrame, sink: Sink, servers: str, mode: str) -> DataStreamWriter:
    """Each batch once: under the query's id, or the transactional id of the file, and the number of the batch."""
    assert sink.topic is not None
    with sync.connect(servers, client_name="lanner-pipeline") as queue:
        queue.admin.create_topic(sink.topic, exist_ok=True)
    options = write_options(servers, sink)
    if mode == "append":
        return messages.writeStream.format("lanner").options(**options).outputMode(mode)
    return messages.writeStream.foreachBatch(_batch_write(options)).outputMode(mode)


def _batch_write(options: Mapping[str, str]) -> Any:
    def write(frame: DataFrame, batch: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise ServerError("Spark does not say which query this is")
        named = {"transactionalId": f"spark-{query_id}", **options, "transactionSequence": str(batch)}
        frame.write.format("lanner").options(**named).mode("append").save()

    return write
