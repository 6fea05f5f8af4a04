"""The dead letters of a group as Spark reads them: by number, in the order in which they died.

What elsewhere is an offset is a number here: deaths are counted per group and partition, and that count is what a
checkpoint keeps. A letter that was redriven and died again has another number and comes again; one that was redriven or
discarded before it was read leaves a hole, which is no loss. The rows are those of the messages, with how they died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow

from lanner import batch, limits
from lanner.client.routing import Route
from lanner.errors import GroupNotFound, TopicNotFound
from lanner.spark.columns import TIME, RowGatherer, StoredBatch, rises, spread
from lanner.spark.log import LOOK_MS, PAGE_BYTES, TopicLog
from lanner.spark.offsets import Held, Span
from lanner.spark.options import ReadOptions
from lanner.wire.dead import DeadBatch, DeadRun, FetchDead, FetchedDead

_log: Final = logging.getLogger("lanner.spark")

FIELDS: Final = tuple(
    pyarrow.schema(
        [
            ("number", pyarrow.int64()),
            ("attempts", pyarrow.int32()),
            ("reason", pyarrow.string()),
            ("died_at", TIME),
        ]
    )
)


class DeadLog(TopicLog):
    """A connection to the brokers that sees the dead letters of one group instead of the topic's messages."""

    def __init__(self, servers: str, group: str) -> None:
        super().__init__(servers)
        self._group = group

    def held(self, topics: Iterable[str], *, missing_ok: bool = False) -> dict[str, dict[int, Held]]:
        """The numbers that each partition has now."""
        return self._thread.call(self._held(list(topics), missing_ok))

    async def _held(self, topics: list[str], missing_ok: bool) -> dict[str, dict[int, Held]]:
        found: dict[str, dict[int, Held]] = {}
        for topic in topics:
            try:
                self._routing.forget(topic)  # it may have more partitions by now, or be another one
                route: Route = await self._routing.route(topic)
            except TopicNotFound:
                if not missing_ok:
                    raise
                continue
            pages = await asyncio.gather(
                *(self._fetch(Span(topic, one, 0, 0, route.incarnation), 0, 0) for one in range(route.partitions))
            )
            if not any(page.group_id for page, _ in pages):
                raise GroupNotFound(
                    f"option deadLettersOf: there is no group {self._group!r} on {topic!r}", group=self._group
                )
            found[topic] = {
                one: Held(page.first_number, page.end_number, route.incarnation, page.group_id)
                for one, (page, _) in enumerate(pages)
            }
        return found

    async def _fetch(
        self, span: Span, number: int, letters_max: int, wait_ms: int = 0, timeout_ms: float | None = LOOK_MS
    ) -> tuple[FetchedDead, memoryview]:
        asked = FetchDead(
            span.topic, span.partition, self._group, number, letters_max, PAGE_BYTES, wait_ms, span.incarnation,
            span.group_id,
        )  # fmt: skip
        return await self._leaders.request(span.topic, span.partition, asked, timeout_ms=timeout_ms)

    async def _await_news(self, topic: str, partition: int, end_offset: int, wait_ms: int, lanes: int) -> None:
        await self._fetch(Span(topic, partition, 0, 0), end_offset, 0, wait_ms)

    def letters(self, span: Span) -> Iterator[tuple[DeadBatch, memoryview]]:
        """Dead letters with numbers of the span, batch by batch; the last may reach beyond it."""
        number = span.start_offset
        while number < span.end_offset:
            ask = self._fetch(span, number, limits.LIST_ITEMS_MAX, timeout_ms=None)
            page, bulk = self._thread.call(ask)
            place = 0
            for one in page.batches:
                yield one, bulk[place : place + one.size]
                place += one.size
            if page.next_number <= number:  # everything behind was redriven or discarded
                return
            number = page.next_number


class DeadGatherer(RowGatherer):
    """Collects dead letters, with how they died."""

    def _clear(self) -> None:
        super()._clear()
        self._runs_taken: list[DeadRun] = []

    def add_letters(self, dead: DeadBatch, data: memoryview, start_number: int, end_number: int) -> None:
        """Take those whose number lies in [start_number, end_number): rows that follow each other in the extract."""
        runs: list[DeadRun] = []
        first = place = 0  # the first row that is taken, and that of the run
        for run in dead.runs:
            skipped = max(start_number - run.number, 0)
            count = min(end_number - run.number, run.count) - skipped
            if count > 0:
                first = first if runs else place + skipped
                number, first_offset = run.number + skipped, run.first_offset + skipped
                runs.append(msgspec.structs.replace(run, number=number, first_offset=first_offset, count=count))
            place += run.count
        if not runs:
            return
        if not dead.size:
            _log.warning("dead letters from offset %d on cannot be read any more", runs[0].first_offset)
            return
        stored = StoredBatch(dead.base_offset, dead.append_ms, data, runs[-1].died_ms)
        decoded = batch.decode(data, rises)
        decoded.verify_messages()
        self._take_rows(decoded, stored, first, sum(run.count for run in runs))
        self._runs_taken += runs

    def _more_columns(self) -> list[tuple[Any, Any]]:
        runs = self._runs_taken
        numbers = [number for run in runs for number in range(run.number, run.number + run.count)]
        counts = [run.count for run in runs]
        columns = [
            pyarrow.array(numbers, pyarrow.int64()),
            spread([run.attempts for run in runs], counts, pyarrow.int32()),
            spread([run.reason for run in runs], counts, pyarrow.string()),
            spread([run.died_ms * 1_000 for run in runs], counts, TIME),
        ]
        return list(zip(FIELDS, columns, strict=True))


def gather_letters(log: DeadLog, span: Span, *, include_headers: bool, include_metadata: bool) -> Iterator[Any]:
    """The record batches of a span of numbers."""
    gatherer = DeadGatherer(
        span.topic, span.partition, include_headers=include_headers, include_metadata=include_metadata
    )
    for dead, data in log.letters(span):
        gatherer.add_letters(dead, data, span.start_offset, span.end_offset)
        if gatherer.is_enough:
            yield gatherer.take()
    rest = gatherer.take()
    if rest is not None:
        yield rest


def log_for(options: ReadOptions) -> TopicLog:
    """What a read with these options reads from; not open yet."""
    group = options.dead_letters_of
    return DeadLog(options.servers, group) if group else TopicLog(options.servers)
