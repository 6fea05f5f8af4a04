"""`lanner dead-letters`: what died, why and when, as a table; and redriving what a condition in SQL selects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from lanner import sync
from lanner.errors import DeadLetterNotFound

_REDRIVEN_AT_ONCE: Final = 1_000


class Counted(NamedTuple):
    """The dead letters of a group that died for the same reason in the same hour."""

    group: str
    reason: str
    hour: str  # UTC
    letters: int
    attempts: int  # of the one that was tried most


def dead_letters(
    spark: SparkSession, servers: str, topic: str, groups: Sequence[str] = (), where: str | None = None
) -> DataFrame:
    """The dead letters of some groups of a topic, or of all, with the column `group`; only what `where` selects."""
    frames = []
    for group in groups or _groups(servers, topic):
        read = spark.read.format("lanner").option("servers", servers).option("subscribe", topic)
        frame = read.option("deadLettersOf", group).option("includeHeaders", True).load()
        frames.append(frame.withColumn("group", sql.lit(group)))
    if not frames:
        raise DeadLetterNotFound(f"no group of {topic} has dead letters")
    found = reduce(DataFrame.unionByName, frames)
    return found if where is None else found.where(where)


def _groups(servers: str, topic: str) -> list[str]:
    """The groups that have dead letters now."""
    with sync.connect(servers, client_name="lanner-dead-letters") as queue:
        described = [queue.admin.group(topic, name) for name in queue.admin.groups(topic)]
    return [one.group for one in described if any(part.dead for part in one.partitions)]


def counted(letters: DataFrame) -> list[Counted]:
    """How many died by group, reason and hour; the newest hour first."""
    hour = sql.floor(sql.unix_millis("died_at") / sql.lit(3_600_000)).cast("bigint")
    rows = letters.groupBy("group", "reason", hour.alias("hour")).agg(
        sql.count("*").alias("letters"), sql.max("attempts").alias("attempts")
    )
    # A moment as text in UTC, whatever time zone the session has.
    shown = sql.concat(
        sql.date_add(sql.lit("1970-01-01").cast("date"), sql.floor(sql.col("hour") / 24).cast("int")).cast("string"),
        sql.lit(" "),
        sql.lpad((sql.col("hour") % 24).cast("string"), 2, "0"),
        sql.lit(":00"),
    )
    ordered = rows.orderBy(sql.desc("hour"), "group", "reason").select("group", "reason", shown, "letters", "attempts")
    return [Counted(*row) for row in ordered.collect()]


def redrive(letters: DataFrame, servers: str, topic: str) -> int:
    """Deliver these again; how many. One that is not dead any more is passed over."""
    chosen: dict[tuple[str, int], list[int]] = {}
    for group, partition, offset in letters.select("group", "partition", "offset").distinct().collect():
        chosen.setdefault((group, partition), []).append(offset)
    count = 0
    with sync.connect(servers, client_name="lanner-dead-letters") as queue:
        for (group, partition), offsets in sorted(chosen.items()):
            for first in range(0, len(offsets), _REDRIVEN_AT_ONCE):
                some = sorted(offsets)[first : first + _REDRIVEN_AT_ONCE]
                with suppress(DeadLetterNotFound):  # none of these is dead any more
                    count += queue.admin.redrive(topic, group, partition=partition, offsets=some)
    return count
