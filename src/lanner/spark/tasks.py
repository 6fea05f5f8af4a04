"""What runs in Spark's tasks: a span of one partition of one topic, from the broker to record batches.

A task that meets a hole in its span decides what that means: with `failOnDataLoss` it is an error, else it is logged
and passed by. A batch read takes what there is, so in one only what was lost since it was planned counts: a hole that
the log's own beginning has passed.

Spark's Python workers run one task after the other, so a connection is kept from one to the next: opening it and
learning who leads what would cost a small task more than its messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from lanner.client.stream import RETENTION
from lanner.errors import OffsetOutOfRange
from lanner.spark.columns import gather
from lanner.spark.dead import DeadLog, gather_letters, log_for
from lanner.spark.log import Missing, TopicLog
from lanner.spark.offsets import Span
from lanner.spark.options import ReadOptions

_log: Final = logging.getLogger("lanner.spark")

_kept: dict[tuple[int, str, str], TopicLog] = {}  # by process, servers and group; at most one


@contextmanager
def _connected(options: ReadOptions) -> Iterator[TopicLog]:
    """The connection that the last task here left, or a new one. After an error it is closed."""
    key = os.getpid(), options.servers, options.dead_letters_of
    log = _kept.pop(key, None)
    if log is None:
        log = log_for(options).__enter__()
    try:
        yield log
    except BaseException:
        log.close()
        raise
    for (process, _, _), other in _kept.items():
        if process == os.getpid():
            other.close()
    _kept.clear()
    _kept[key] = log


class LannerPartition(InputPartition):
    """One task: a span of one partition of one topic."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def read_span(options: ReadOptions, partition: InputPartition, *, strict: bool) -> Iterator[Any]:
    """The record batches of one task. `strict`: every hole is a loss."""
    if not isinstance(partition, LannerPartition):  # what Spark makes of a plan without partitions
        return
    span = partition.span

    def missing(hole: Missing) -> None:
        if strict or hole.overtaken or hole.reason != RETENTION:
            _lose(options, hole)

    columns = {"include_headers": options.include_headers, "include_metadata": options.include_metadata}
    with _connected(options) as log:
        if isinstance(log, DeadLog):
            yield from gather_letters(log, span, **columns)
            return
        yield from gather(
            span.topic,
            span.partition,
            log.batches(span, missing, options.lanes, options.from_followers),
            span.start_offset,
            span.end_offset,
            **columns,
        )


def _lose(options: ReadOptions, hole: Missing) -> None:
    where = f"{hole.span.topic}/{hole.span.partition}: offsets {hole.first_offset} to {hole.next_offset - 1}"
    why = "retention took them" if hole.reason == RETENTION else f"they are {hole.reason}"
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f'{where} cannot be read: {why}. To go on without them, say .option("failOnDataLoss", "false")'
        )
    _log.warning("%s are passed by: %s", where, why)
