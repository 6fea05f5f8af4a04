"""What can be said about a message, a producer, a consumer and a reader, under the names that every call knows.

The defaults are where the options are used: `Producer`, `Consumer`, `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from lanner.client.arguments import Moment, Text
from lanner.client.dead_reader import DeadHole, DeadStart
from lanner.client.fetching import Priorities
from lanner.client.member_ports import Callback
from lanner.client.stream import Hole

Start = str | int | datetime | Mapping[int, int]


class StagedMessageOptions(TypedDict, total=False):
    """Of one message, also in a transaction."""

    key: Text | None  # messages with the same key share a partition, and keep their order within a priority
    headers: Mapping[str, Text] | None
    priority: int | str  # 0 to 9, the most urgent; or low (0), normal (4), high (9)
    partition: int | None  # wins over the key
    delay_ms: float | None  # queue groups get it after so long; or give deliver_at
    deliver_at: Moment | None
    ttl_ms: float | None  # after so long queue groups no longer get it; or give expires_at
    expires_at: Moment | None


class MessageOptions(StagedMessageOptions, total=False):
    """Of one message outside a transaction, whose own name does a dedup id's work."""

    dedup_id: Text | None  # published again under the same id, it is not stored again


class StageColumnOptions(TypedDict, total=False):
    """Of many messages, given as columns: one key and one map of headers for each value; also in a transaction."""

    keys: Sequence[Text | None] | None
    headers: Sequence[Mapping[str, Text] | None] | None
    priority: int | str
    partition: int | None
    delay_ms: float | None
    deliver_at: Moment | None
    ttl_ms: float | None
    expires_at: Moment | None


class ColumnOptions(StageColumnOptions, total=False):
    """Of many messages outside a transaction."""

    return_errors: bool  # tell in the receipts what failed, instead of raising


class StageOptions(TypedDict, total=False):
    """Of a writer that stages one task's part of a transaction."""

    hold_ms: int  # so long after its latest batch a task's part is kept for the commit
    batch_bytes: int
    batch_messages: int
    codec: str  # none, lz4 or zstd


class ProducerOptions(TypedDict, total=False):
    """Of a producer with its own batching."""

    linger_ms: float  # how long a batch may wait for more messages
    batch_bytes: int
    batch_messages: int
    buffer_bytes_max: int  # beyond it `send` waits
    codec: str  # none, lz4 or zstd
    idempotent: bool  # without it what is repeated may be stored twice, so it is not repeated when in doubt
    timeout_ms: float | None  # for a message from `send` to its receipt
    timestamps: bool  # send the time at which a batch was begun, for readers and `lanner report`


class MemberOptions(TypedDict, total=False):
    """Of a consumer or reader that has joined its group."""

    assignor: str | None  # sticky, range or round_robin, or another of the brokers: how partitions are given to members
    instance: str | None  # a name that outlives the process: back within the session, it has the same partitions
    session_ms: int | None  # silent for so long it is no member any more; by default the group's
    rack: str | None  # prefer partitions with a copy in this rack
    on_assigned: Callback | None  # gets a list of TopicPartition; it may be a coroutine function, and is awaited
    on_revoked: Callback | None  # before they are given up
    on_lost: Callback | None  # they are another's already
    stall_ms: int  # a reader that does not come back for so long leaves its group


class ConsumerOptions(MemberOptions, total=False):
    """Of a member of a queue group."""

    register: bool  # in a group that is shared: join all the same, to be listed

    max_messages: int  # of one poll
    max_bytes: int
    lease_ms: int | None  # by default the topic's
    prefetch: int | None  # how many `async for` takes at a time; by default what it can handle in a tenth of a second
    partitions: Sequence[int] | None  # only these
    start: str  # earliest or latest: where a group begins that does not exist yet
    auto_ack: bool  # settled as it is handed out: at most once
    auto_extend: bool  # keep extending the leases of what is held
    member: str | None


class DeadReaderOptions(TypedDict, total=False):
    """Of a reader of dead letters."""

    partitions: Sequence[int] | int | None  # only these
    start: DeadStart  # earliest, latest, or numbers by partition
    until_end: bool  # stop at what is the end now
    page_bytes: int
    on_hole: Callable[[DeadHole], None] | None  # something was redriven or discarded before it was read


class ReaderOptions(MemberOptions, total=False):
    """Of a stream reader."""

    partitions: Sequence[int] | int | None  # only these; without, also those that are added later
    start: Start  # earliest, latest, committed, an offset, a datetime, or offsets by partition
    until_end: bool  # stop at what is the end now
    group: str | None  # where it has committed, that wins over the start
    priorities: Priorities | None  # only messages of these: numbers, or low, normal, high
    from_followers: bool  # also ask brokers that have a copy and do not lead; what they lack comes from the leader
    page_bytes: int
    buffer_bytes_max: int
    on_hole: Callable[[Hole], None] | None  # something cannot be read, and why
