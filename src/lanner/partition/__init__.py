"""One partition's machine: offsets, lanes, groups, leases, retries, dead letters, producers, retention.

Pure: no clock, no chance, no I/O. `Partition.apply` carries out entries of the log, `Partition.decide` makes the next
one from everything that waits. See `machine` for the driver's view, `records` for what the log holds, `places` for how
progress is kept.
"""

from lanner.partition.appends import HeaderLike
from lanner.partition.batches import BatchRef, Rows
from lanner.partition.dead import DeadRun, DeadStretch
from lanner.partition.fences import NO_FENCE, Fence
from lanner.partition.holds import HoldState
from lanner.partition.machine import Partition
from lanner.partition.reads import Stretch
from lanner.partition.records import STAGE_KIND, Counted, StageNote, batch_start, encode_append, encode_stage
from lanner.partition.requests import (
    WAIT,
    Answer,
    Appended,
    Claim,
    Claimed,
    CommitOffset,
    DeadEntry,
    Decided,
    Discard,
    DropGroup,
    DropStages,
    GroupState,
    Lease,
    MakeGroup,
    NumberDead,
    Outcome,
    Poll,
    PollAnswer,
    Prepare,
    Prepared,
    PublishStages,
    Redrive,
    Release,
    Request,
    Result,
    Seek,
    Settle,
    SettleItem,
    SettleKind,
    Staged,
    Tick,
    Wait,
    WithdrawStages,
)

__all__ = [
    "NO_FENCE",
    "STAGE_KIND",
    "WAIT",
    "Answer",
    "Appended",
    "BatchRef",
    "Claim",
    "Claimed",
    "CommitOffset",
    "Counted",
    "DeadEntry",
    "DeadRun",
    "DeadStretch",
    "Decided",
    "Discard",
    "DropGroup",
    "DropStages",
    "Fence",
    "GroupState",
    "HeaderLike",
    "HoldState",
    "Lease",
    "MakeGroup",
    "NumberDead",
    "Outcome",
    "Partition",
    "Poll",
    "PollAnswer",
    "Prepare",
    "Prepared",
    "PublishStages",
    "Redrive",
    "Release",
    "Request",
    "Result",
    "Rows",
    "Seek",
    "Settle",
    "SettleItem",
    "SettleKind",
    "StageNote",
    "Staged",
    "Stretch",
    "Tick",
    "Wait",
    "WithdrawStages",
    "batch_start",
    "encode_append",
    "encode_stage",
]
