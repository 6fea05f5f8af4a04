"""Topics as the archive's commands look at them: what they hold, and some offsets of them as a frame of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lanner import sync
from lanner.errors import OffsetOutOfRange
from lanner.spark.archive.files import COLUMNS
from lanner.spark.archive.planning import Held, HeldTopic
from lanner.spark.archive.ranges import Range

TRIES_MAX: Final = 5
Result = TypeVar("Result")


def held_topics(servers: str, topics: Iterable[str]) -> dict[str, HeldTopic]:
    """What the topics hold now. An unknown one is TopicNotFound."""
    found = {}
    with sync.connect(servers, client_name="lanner-archive") as queue:
        for topic in topics:
            described = queue.admin.describe(topic)
            found[topic] = HeldTopic(
                described.incarnation,
                {one.id: Held(one.first_offset, one.end_offset, one.bytes) for one in described.partitions},
            )
    return found


def again_when_trimmed(work: Callable[[], Result]) -> Result:
    """Do work that reads a topic; do it again when retention took the first offsets between the look and the read."""
    for _ in range(TRIES_MAX - 1):
        try:
            return work()
        except AnalysisException as error:
            if OffsetOutOfRange.__name__ not in str(error):
                raise
    return work()


def topic_frame(spark: SparkSession, servers: str, topic: str, spans: Mapping[int, Range]) -> DataFrame:
    """These offsets of these partitions, as far as the topic still has them."""
    starting: dict[str, int] = {}
    ending: dict[str, int] = {}
    for partition, held in held_topics(servers, [topic])[topic].partitions.items():
        start, end = spans.get(partition, (held.end_offset, held.end_offset))
        ending[str(partition)] = max(end, held.first_offset)
        starting[str(partition)] = min(max(start, held.first_offset), ending[str(partition)])
    options: dict[str, Any] = {
        "servers": servers,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: starting}),
        "endingOffsets": json.dumps({topic: ending}),
        "includeHeaders": "true",
        "includeMetadata": "true",
        "failOnDataLoss": "false",  # what is gone is found and told by the caller
    }
    return spark.read.format("lanner").options(**options).load().select(*COLUMNS.names)
