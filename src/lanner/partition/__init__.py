"""One partition's machine: offsets, lanes, groups, leases, retries, dead letters, producers, retention.

Pure: no clock, no chance, no I/O. `Partition.apply` carries out entries of the log, `Partition.decide` makes the next
one from everything that waits. See `machine` for the driver's view, `records` for what the log holds, `places` for how
progress is kept.
"""

from lanner.partition.batches import BatchRef, Rows
from lanner.partition.changes import HeaderLike
from lanner.partition.machine import Partition
from lanner.partition.records import APPEND_PREFIX_BYTES, encode_append
from lanner.partition.requests import (
    WAIT,
    Answer,
    Appended,
    CommitOffset,
    DeadEntry,
    Decided,
    Discard,
    DropGroup,
    GroupState,
    Lease,
    MakeGroup,
    Outcome,
    Poll,
    PollAnswer,
    Redrive,
    Release,
    Request,
    Seek,
    Settle,
    SettleItem,
    SettleKind,
    Tick,
    Wait,
)

__all__ = [
    "APPEND_PREFIX_BYTES",
    "WAIT",
    "Answer",
    "Appended",
    "BatchRef",
    "CommitOffset",
    "DeadEntry",
    "Decided",
    "Discard",
    "DropGroup",
    "GroupState",
    "HeaderLike",
    "Lease",
    "MakeGroup",
    "Outcome",
    "Partition",
    "Poll",
    "PollAnswer",
    "Redrive",
    "Release",
    "Request",
    "Rows",
    "Seek",
    "Settle",
    "SettleItem",
    "SettleKind",
    "Tick",
    "Wait",
    "encode_append",
]
