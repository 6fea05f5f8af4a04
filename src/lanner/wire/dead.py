"""The dead letters of a group as a stream: one struct each, by the rules of `messages`."""

from __future__ import annotations

from lanner.wire.messages import Call, Control, Name, Number, PartitionId


class FetchDead(Call["FetchedDead"]):
    """What died in a group on a partition, in the order of the decisions. From feature level 3 on."""

    topic: Name
    partition: PartitionId
    group: Name
    number: Number = 0  # the first to read: deaths are numbered from 0, per group and partition
    max_letters: Number = 1_000  # 0: only where the stream begins and ends
    max_bytes: Number = 1 << 20
    wait_ms: Number = 0  # wait so long for a death at `number` when it is the end
    incarnation: Number = 0  # of the topic; 0: whatever topic has this name now
    group_id: Number = 0  # FetchedDead.group_id of an earlier page; 0: whatever group has this name now


class DeadRun(Control):
    """Messages that follow each other in the partition and died together; their numbers follow each other too."""

    number: int
    first_offset: int
    count: int
    attempts: int
    reason: str
    died_ms: int


class DeadBatch(Control):
    """Dead letters that were published in one batch. The bytes are an extract of exactly the messages in `runs`."""

    base_offset: int  # of the batch: the positions in the extract count from here
    append_ms: int
    priority: int
    size: int  # bytes of the extract in the bulk part; 0: they cannot be read
    runs: list[DeadRun]  # in the order of their numbers, which here is that of their offsets too


class FetchedDead(Control):
    """Bulk: the extracts one after the other."""

    first_number: int  # the lowest that is still dead
    end_number: int  # which the next message to die gets
    next_number: int  # ask for this next
    batches: list[DeadBatch]
    holes: list[tuple[int, int]]  # first and next number of what was redriven or discarded meanwhile
    incarnation: int = 0
    group_id: int = 0  # of this group on this partition; another one was dropped, and made again. 0: it is not here yet
