"""What a write can be told: the options, their names, and which of them go together.

Pure, like the options of a read: an option that is unknown, cannot be meant, or contradicts another one is an error
that names it and says how to write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lanner import limits
from lanner.model import check_name
from lanner.spark.option_values import SERVERS, check_known, choice, duration_ms, refuse, required, whole_number

TOPIC: Final = "topic"
VALUE_FORMAT: Final = "valueFormat"
TRANSACTION: Final = "transactionalId"
SEQUENCE: Final = "transactionSequence"
STAGE_TIMEOUT: Final = "stageTimeout"
COMMIT_TIMEOUT: Final = "commitTimeout"
CODEC: Final = "codec"
KNOWN: Final = (SERVERS, TOPIC, VALUE_FORMAT, TRANSACTION, SEQUENCE, STAGE_TIMEOUT, COMMIT_TIMEOUT, CODEC)
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})  # a writer is told these, too


class WriteOptions(NamedTuple):
    """The options of a write, checked."""

    servers: str
    topic: str  # empty: the column says
    value_format: str  # empty: bytes as they are, text as UTF-8
    transaction: str
    sequence: int  # -1: not given
    hold_ms: int
    commit_ms: int
    codec: str


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    options = {name.lower(): value for name, value in given.items() if name.lower() not in _OF_SPARK}
    check_known(options, KNOWN, "option of a write")
    transaction = options.get(TRANSACTION.lower(), "").strip()
    numbered = whole_number(options, SEQUENCE, lowest=0)
    sequence = -1 if numbered is None else numbered
    if streaming and sequence >= 0:
        refuse(SEQUENCE, "a streaming write numbers its batches itself: leave it away")
    if not streaming and bool(transaction) != (sequence >= 0):
        refuse(SEQUENCE if transaction else TRANSACTION, f"a batch write needs both, {TRANSACTION} and {SEQUENCE}")
    topic = options.get(TOPIC, "").strip()
    return WriteOptions(
        required(options, SERVERS, "localhost:7400"),
        check_name(topic, "topic") if TOPIC in options else "",
        choice(options, VALUE_FORMAT, ("bytes", "text", "json")) if VALUE_FORMAT.lower() in options else "",
        check_name(transaction, TRANSACTION) if TRANSACTION.lower() in options else "",
        sequence,
        _bounded(options, STAGE_TIMEOUT, limits.STAGE_HOLD_MS, 1_000, limits.STAGE_HOLD_MS_MAX),
        _bounded(
            options,
            COMMIT_TIMEOUT,
            limits.COMMIT_TIMEOUT_MS,
            limits.COMMIT_TIMEOUT_MS_MIN,
            limits.COMMIT_TIMEOUT_MS_MAX,
        ),
        choice(options, CODEC, ("none", "lz4", "zstd")),
    )


def _bounded(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    found = duration_ms(options, name, default)
    if not low <= found <= high:
        refuse(name, f"it is {found} ms; give a time from {low // 1000}s to {high // 1000}s")
    return found
