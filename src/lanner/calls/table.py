"""The table: one row for each call. A call without a row, a handler or a door fails a test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from lanner.calls import member_rows, merging
from lanner.calls.asking import Answer, Identity
from lanner.calls.rows import (
    Fresh,
    Repeat,
    Row,
    Where,
    always,
    as_it_is,
    its_name,
    its_partition,
    its_partitions,
    its_topic,
    its_wait,
)
from lanner.wire import administration, cluster, dead, messages, staging
from lanner.wire.messages import AnswerT, AnyCall, Call, Command

_LEADERS, _METADATA, _HERE = Where.LEADERS, Where.METADATA, Where.HERE
_NAMED, _LATEST = Fresh.NAMED, Fresh.LATEST
_READS, _SAME_END, _NUMBERED, _NEVER = Repeat.READS, Repeat.SAME_END, Repeat.NUMBERED, Repeat.NEVER

PUBLISH: Final = Row(
    command=Command.PUBLISH,
    call=messages.Publish,
    answer=messages.Published,
    action="publish",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    strict=True,
    partitions=its_partition,
    narrow=as_it_is,
)
STAGE: Final = Row(
    command=Command.STAGE,
    call=staging.Stage,
    answer=staging.Staged,
    action="publish",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    strict=True,
    partitions=its_partition,
    narrow=as_it_is,
)
POLL: Final = Row(
    command=Command.POLL,
    call=messages.Poll,
    answer=messages.Polled,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    waits=its_wait,
    partitions=its_partitions,
    sizes=lambda polled: [batch.size for batch in polled.batches],
)
BEST_PRIORITY: Final = Row(
    command=Command.BEST_PRIORITY,
    call=messages.BestPriority,
    answer=messages.BestPriorityFound,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    waits=its_wait,
    partitions=its_partitions,
)
SETTLE: Final = Row(
    command=Command.SETTLE,
    call=messages.Settle,
    answer=messages.Settled,
    action="settle",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    strict=True,
    while_draining=True,
    partitions=merging.settle_partitions,
    narrow=merging.settle_narrow,
    merge=merging.settle_merge,
    left_open=merging.settle_open,
    missed=merging.settle_missed,
)
RELEASE: Final = Row(
    command=Command.RELEASE,
    call=messages.Release,
    answer=messages.Settled,
    action="settle",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    strict=True,
    while_draining=True,
    partitions=merging.settle_partitions,
    narrow=merging.settle_narrow,
    merge=merging.settle_merge,
    left_open=merging.settle_open,
    missed=merging.settle_missed,
)
FETCH: Final = Row(
    command=Command.FETCH,
    call=messages.Fetch,
    answer=messages.Fetched,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    strict=True,
    waits=its_wait,
    partitions=its_partition,
    narrow=as_it_is,
    merge=merging.fetch_merge,
    sizes=lambda fetched: [batch.size for batch in fetched.batches],
)
FETCH_DEAD: Final = Row(
    command=Command.FETCH_DEAD,
    call=dead.FetchDead,
    answer=dead.FetchedDead,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    strict=True,
    waits=its_wait,
    partitions=its_partition,
    narrow=as_it_is,
    sizes=lambda fetched: [batch.size for batch in fetched.batches],
)
PEEK: Final = Row(
    command=Command.PEEK,
    call=messages.Peek,
    answer=messages.Peeked,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=merging.chosen_partitions,
    narrow=merging.chosen_narrow,
    merge=merging.peek_merge,
)
COMMIT: Final = Row(
    command=Command.COMMIT,
    call=messages.Commit,
    answer=messages.Empty,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NUMBERED,
    strict=True,
    partitions=merging.commit_partitions,
    narrow=merging.commit_narrow,
    identify=merging.commit_identify,
)
COMMITTED: Final = Row(
    command=Command.COMMITTED,
    call=messages.Committed,
    answer=messages.CommittedReply,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=its_partitions,
    merge=merging.committed_merge,
)
OFFSETS: Final = Row(
    command=Command.OFFSETS,
    call=messages.Offsets,
    answer=messages.OffsetsReply,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=its_partitions,
    merge=merging.offsets_merge,
)
METADATA: Final = Row(
    command=Command.METADATA,
    call=messages.Metadata,
    answer=messages.MetadataReply,
    action=lambda call: "publish" if call.create else "describe",
    where=_HERE,
    repeat=_READS,
)
OPEN_PRODUCER: Final = Row(
    command=Command.OPEN_PRODUCER,
    call=messages.OpenProducer,
    answer=messages.ProducerOpened,
    action="publish",
    where=_METADATA,
    repeat=_SAME_END,
    strict=True,
)
CREATE_TOPIC: Final = Row(
    command=Command.CREATE_TOPIC,
    call=administration.CreateTopic,
    answer=administration.TopicDescription,
    action="administer",
    topics=its_name,
    where=_METADATA,
    repeat=_NUMBERED,
)
ALTER_TOPIC: Final = Row(
    command=Command.ALTER_TOPIC,
    call=administration.AlterTopic,
    answer=administration.TopicDescription,
    action="administer",
    topics=its_name,
    where=_METADATA,
    fresh=_NAMED,
    repeat=_SAME_END,
)
DELETE_TOPIC: Final = Row(
    command=Command.DELETE_TOPIC,
    call=administration.DeleteTopic,
    answer=messages.Empty,
    action="administer",
    topics=its_name,
    where=_METADATA,
    fresh=_NAMED,
    repeat=_NEVER,
)
DESCRIBE_TOPIC: Final = Row(
    command=Command.DESCRIBE_TOPIC,
    call=administration.DescribeTopic,
    answer=administration.TopicDescription,
    action="describe",
    topics=its_name,
    where=_LEADERS,
    fresh=_LATEST,
    repeat=_READS,
    partitions=its_partitions,
    merge=merging.topic_merge,
)
LIST_TOPICS: Final = Row(
    command=Command.LIST_TOPICS,
    call=administration.ListTopics,
    answer=administration.TopicNames,
    action="describe",
    where=_HERE,
    fresh=_LATEST,
    repeat=_READS,
)
LIST_GROUPS: Final = Row(
    command=Command.LIST_GROUPS,
    call=administration.ListGroups,
    answer=administration.GroupsReply,
    action="describe",
    topics=its_name,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=its_partitions,
    merge=merging.groups_merge,
)
DESCRIBE_GROUP: Final = Row(
    command=Command.DESCRIBE_GROUP,
    call=administration.DescribeGroup,
    answer=administration.GroupDescription,
    action="describe",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=its_partitions,
    merge=merging.group_merge,
    absent=always,
)
DROP_GROUP: Final = Row(
    command=Command.DROP_GROUP,
    call=administration.DropGroup,
    answer=messages.Empty,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_SAME_END,
    partitions=its_partitions,
    absent=always,
    forgive=True,
)
SEEK: Final = Row(
    command=Command.SEEK,
    call=administration.Seek,
    answer=messages.Empty,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_SAME_END,
    partitions=merging.seek_partitions,
    narrow=merging.seek_narrow,
    absent=lambda call: call.offsets is None,
)
LIST_DEAD: Final = Row(
    command=Command.LIST_DEAD,
    call=administration.ListDead,
    answer=administration.DeadLetters,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=merging.chosen_partitions,
    narrow=merging.chosen_narrow,
    merge=merging.letters_merge,
    sizes=lambda page: [letter.size for letter in page.letters],
    absent=always,
)
REDRIVE: Final = Row(
    command=Command.REDRIVE,
    call=administration.RedriveDead,
    answer=administration.CountReply,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NEVER,
    partitions=merging.dead_partitions,
    narrow=merging.chosen_narrow,
    merge=merging.count_merge,
    absent=always,
)
DISCARD: Final = Row(
    command=Command.DISCARD,
    call=administration.DiscardDead,
    answer=administration.CountReply,
    action="consume",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_NEVER,
    partitions=merging.dead_partitions,
    narrow=merging.chosen_narrow,
    merge=merging.count_merge,
    absent=always,
)
DESCRIBE_CLUSTER: Final = Row(
    command=Command.DESCRIBE_CLUSTER,
    call=cluster.DescribeCluster,
    answer=cluster.ClusterDescription,
    action="describe",
    where=_HERE,
    fresh=_LATEST,
    repeat=_READS,
)
DESCRIBE_PARTITIONS: Final = Row(
    command=Command.DESCRIBE_PARTITIONS,
    call=cluster.DescribePartitions,
    answer=cluster.PartitionsDescription,
    action="describe",
    topics=lambda call: () if call.topic is None else (call.topic,),
    where=_HERE,
    fresh=_LATEST,
    repeat=_READS,
)
CHANGE_CLUSTER: Final = Row(
    command=Command.CHANGE_CLUSTER,
    call=cluster.ChangeCluster,
    answer=cluster.ClusterChanged,
    action="administer",
    topics=lambda call: (call.topic,) if call.topic else (),
    where=_METADATA,
    fresh=_LATEST,
    repeat=_NEVER,
)
RAFT_STATUS: Final = Row(
    command=Command.RAFT_STATUS,
    call=cluster.RaftStatus,
    answer=cluster.RaftStatusReply,
    action="describe",
    topics=its_topic,
    where=_LEADERS,
    fresh=_NAMED,
    repeat=_READS,
    partitions=its_partition,
    narrow=as_it_is,
)
SCRUB: Final = Row(
    command=Command.SCRUB,
    call=cluster.Scrub,
    answer=cluster.ScrubProgress,
    action=lambda call: "administer" if call.start else "describe",
    where=_HERE,
    repeat=_SAME_END,
    strict=True,
)
PREPARE: Final = Row(
    command=Command.PREPARE,
    call=staging.Prepare,
    answer=staging.PartitionOutcomes,
    action="publish",
    topics=lambda call: [one.topic for one in call.manifests],
    where=_HERE,
    repeat=_NUMBERED,
    strict=True,
)
DISCARD_STAGES: Final = Row(
    command=Command.DISCARD_STAGES,
    call=staging.DiscardStages,
    answer=staging.PartitionOutcomes,
    action="publish",
    topics=lambda call: [one.topic for one in call.items],
    where=_HERE,
    repeat=_SAME_END,
    strict=True,
)
BEGIN: Final = Row(
    command=Command.BEGIN,
    call=staging.Begin,
    answer=staging.CommitState,
    action="publish",
    topics=lambda call: [one.topic for one in call.participants],
    where=_METADATA,
    fresh=_NAMED,
    repeat=_NUMBERED,
)
END: Final = Row(
    command=Command.END,
    call=staging.End,
    answer=staging.CommitState,
    action="publish",
    where=_METADATA,
    repeat=_NUMBERED,
)
LOOK: Final = Row(
    command=Command.LOOK,
    call=staging.Look,
    answer=staging.Looked,
    action="publish",
    where=_HERE,
    # One that waits hears of everything in time; one that does not must find what its caller was told elsewhere.
    fresh=lambda call: Fresh.AS_KNOWN if call.wait_ms else _LATEST,
    repeat=_READS,
    waits=its_wait,
)
CLAIM: Final = Row(
    command=Command.CLAIM,
    call=staging.Claim,
    answer=staging.Claimed,
    action="publish",
    where=_METADATA,
    repeat=_SAME_END,
)
LIST_TRANSACTIONS: Final = Row(
    command=Command.LIST_TRANSACTIONS,
    call=staging.ListTransactions,
    answer=staging.TransactionList,
    action="describe",
    where=_HERE,
    fresh=_LATEST,
    repeat=_READS,
)
FORGET: Final = Row(
    command=Command.FORGET,
    call=staging.Forget,
    answer=administration.CountReply,
    action="administer",
    where=_METADATA,
    fresh=_LATEST,
    repeat=_SAME_END,
)

# What is registered by a call's type is typed by a test over annotations: no type can say it of a mapping.
Handlers = Mapping[type[AnyCall], Callable[..., Awaitable[Answer[Any]]]]
Ways = Mapping[type[AnyCall], Callable[[Identity, Any], Awaitable[Answer[Any]]]]
ROWS: Final[Mapping[type[AnyCall], Row[Any, Any]]] = {
    row.call: row for row in (*globals().values(), *vars(member_rows).values()) if isinstance(row, Row)
}


def row_of(call: Call[AnswerT]) -> Row[Call[AnswerT], AnswerT]:
    return ROWS[type(call)]
