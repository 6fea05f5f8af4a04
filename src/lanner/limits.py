"""Every bound in one place. A length, count or name from outside is checked against these before it is used."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
NAME_LENGTH_MAX: Final = 200
PARTITIONS_MAX: Final = 1_000
TOPICS_MAX: Final = 10_000
PARTITIONS_TOTAL_MAX: Final = 20_000
BROKERS_MAX: Final = 200
BROKERS_REMOVED_KEPT: Final = 1_000
REPLICATION_DEFAULT: Final = 3
REPLICATION_MAX: Final = 7
MOVES_PER_BROKER_MAX: Final = 2
MOVE_FAILURES_MAX: Final = 5
PLANS_FINISHED_KEPT: Final = 100
ADDRESS_LENGTH_MAX: Final = 260
FEATURE_LEVEL_MAX: Final = 1_000_000
GROUPS_PER_PARTITION_MAX: Final = 1_000
HOLD_GROUPS_MAX: Final = 16
DEDUP_ID_BYTES_MAX: Final = 200
DEDUP_IDS_PER_PARTITION_MAX: Final = 1_000_000  # inside their window; new ones wait until the oldest have left it
MEMBER_LENGTH_MAX: Final = 200
REASON_LENGTH_MAX: Final = 1_000
IDENTITY_LENGTH_MAX: Final = 64  # of a reader that commits, or of a create

GROUP_MEMBERS_MAX: Final = 1_000
MEMBERS_MAX: Final = 20_000  # of all groups
MEMBER_GROUPS_MAX: Final = 10_000  # groups that have, or lately had, members
SUBSCRIPTION_TOPICS_MAX: Final = 1_000
SUBSCRIPTION_PATTERNS_MAX: Final = 32
SUBSCRIPTION_BYTES_MAX: Final = 32 * KIB  # of its names and patterns: a join fits into one command
SUBSCRIPTIONS_PER_GROUP_MAX: Final = 64  # that differ
PATTERNS_MAX: Final = 10_000  # of all groups: each new topic is held against every one
SUBSCRIBED_PARTITIONS_MAX: Final = 1_000_000  # of all groups
OPAQUE_BYTES_MAX: Final = 16 * KIB  # of a member
OPAQUE_BYTES_TOTAL_MAX: Final = 32 * MIB
REBALANCES_KEPT: Final = 16  # of a group
REPLACED_IDS_KEPT: Final = 4  # of a static member
MEMBERS_HEARD_MAX: Final = 2 * MEMBERS_MAX  # that one pulse tells of
JOINS_PER_SECOND_MAX: Final = 2_000  # on a broker; heartbeats, leaves and releases are never refused
ASSIGN_AT_ONCE_PARTITIONS_MAX: Final = 2_000  # an assignor that is asked for more answers in a thread
GROUP_CHANGES_MAX: Final = 1_000  # in one command
RELEASES_MAX: Final = 1_000  # partitions that one heartbeat gives up
GROUP_MOVES_MAX: Final = 5_000  # in one command: two numbers each
SESSION_MS: Final = 10_000
SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 5 * 60_000
REVOKE_MS: Final = 60_000
REVOKE_MS_MAX: Final = 3_600_000
GROUP_IDLE_MS: Final = 7 * 24 * 3_600_000  # a group without members is forgotten after this time
COMMIT_METADATA_BYTES_MAX: Final = 4 * KIB
CLIENT_USES_MAX: Final = 64  # groups that are remembered of one connection; of more, those that were noted first go
CLIENT_LIST_BYTES_MAX: Final = 256 * KIB  # of one page of clients
CLIENT_HOLDERS_MAX: Final = 1_000  # whose leases are counted for one page, where others lead
CLIENT_LEASES_LOOKED_AT: Final = 100_000  # for one page; of what is beyond, it is not said how much is leased

MESSAGE_BYTES_MAX: Final = 1 * MIB
KEY_BYTES_MAX: Final = 64 * KIB
HEADERS_BYTES_MAX: Final = 64 * KIB
HEADER_COUNT_MAX: Final = 100
BATCH_BYTES_MAX: Final = 4 * MIB
BATCH_MESSAGES_MAX: Final = 65_535

FRAME_BYTES_MAX: Final = 16 * MIB
FRAME_BYTES_MAX_BEFORE_HELLO: Final = 4 * KIB
CONTROL_BYTES_MAX: Final = 1 * MIB
HELLO_DEADLINE_MS: Final = 5_000
FRAME_DEADLINE_MS: Final = 60_000  # from a frame's first byte to its last
BODY_DEADLINE_MS: Final = 30_000  # from the end of an HTTP request's head to that of its body
UNFINISHED_BYTES_MAX: Final = 256 * MIB  # of all frames and bodies that are not whole yet
CONTROLS_BYTES_MAX: Final = 64 * MIB  # of the control parts of all requests in hand; decoded they are larger
CONNECTION_INFLIGHT_MAX: Final = 1_024
CONNECTION_INFLIGHT_BYTES_MAX: Final = 64 * MIB
CONNECTION_UNSENT_BYTES_MAX: Final = 64 * MIB
CONNECTION_STALL_MS: Final = 30_000
CONNECTIONS_MAX: Final = 10_000
PEER_CONNECTIONS_RESERVED: Final = 1_000  # for other brokers, when clients have taken all there are
OPEN_FILES_WANTED: Final = 65_536
OPEN_FILES_OF_STORAGE: Final = 128  # segments that it keeps open
OPEN_FILES_OF_OTHERS: Final = 128  # the table, logs, listening sockets, lines to other brokers, the loop itself
PEER_SILENT_MS_MAX: Final = 5_000  # so long may bytes between brokers go unacknowledged

POLL_MESSAGES_MAX: Final = 10_000
POLL_BYTES_MAX: Final = 8 * MIB
POLL_WAIT_MS_MAX: Final = 60_000
POLL_PARTITIONS_MAX: Final = 1_000
FETCH_BYTES_MAX: Final = 8 * MIB
FETCH_BATCHES_LOOKED_AT: Final = 8_192  # of all priorities, for a fetch of some; and when bytes are counted
SETTLE_RANGES_MAX: Final = 10_000
LIST_ITEMS_MAX: Final = 1_000
LIST_BYTES_MAX: Final = 8 * MIB  # of messages in one page of a listing or a look; one always fits
READ_BYTES_MAX: Final = 64 * MIB  # what one call reads of the journal, however little of it is wanted
REST_BODY_BYTES_MAX: Final = 8 * MIB
REST_STREAMS_MAX: Final = 1_024  # open at once
REST_STREAMS_BYTES_MAX: Final = 32 * MIB  # of events that their clients have not read yet; beyond it a stream holds
REST_STREAM_BYTES_MIN: Final = 64 * KIB  # so much at most, or one event
GRPC_REQUEST_BYTES_MAX: Final = 8 * MIB
GRPC_RESPONSE_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX  # what a page or a poll holds, and what it is wrapped in
GRPC_CALLS_MAX: Final = 10_000  # in hand at once, over all connections; a subscription is one
GRPC_CALLS_PER_CONNECTION_MAX: Final = 1_024
GRPC_STREAMS_MAX: Final = 1_024  # of those, streams of requests, of each service
GRPC_ANSWER_MS: Final = 50  # before a caller's deadline a poll that waits is answered
GRPC_CONSUMERS_MAX: Final = 10_000  # of Queue's, that a broker remembers
GRPC_CLIENT_IDLE_MS: Final = 60_000  # gRPC does not tell that a client has gone: silent for so long, it has
GRPC_SEATS_SHARE: Final = 4  # one of so many connections of callers is for gRPC, which counts its own

LEASE_MS_MIN: Final = 10
LEASE_MS_MAX: Final = 12 * 3_600_000
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000
OUTSTANDING_MAX: Final = 10_000
PINNED_BYTES_MAX: Final = 256 * MIB
MAX_DELIVERIES_MAX: Final = 1_000
SETTLES_KEPT_MS: Final = 10 * 60_000  # so long a settle that is asked again gets its first answer
SETTLED_RANGES_KEPT: Final = 50_000  # per group and partition; of more, the oldest are forgotten before their time
COMMIT_READERS_KEPT: Final = 16  # per group and partition: whose latest commit is known when it is repeated
PRODUCER_RESULTS_KEPT: Final = 5
PRODUCER_IDLE_MS: Final = 7 * 24 * 3_600_000
PRODUCER_ID_BLOCK: Final = 1_000
PARTICIPANTS_MAX: Final = 1_000  # partitions of a try
TRANSACTION_TOPICS_MAX: Final = 100
OPEN_TRIES_MAX: Final = 10_000
OPEN_PARTICIPANTS_MAX: Final = 200_000  # partitions of all open tries together
TRANSACTIONS_KEPT: Final = 20_000
TRANSACTIONS_MAX: Final = 40_000  # until those beyond what is kept are forgotten
TRANSACTIONS_FORGOTTEN_AT_ONCE: Final = 256
TRIES_ENDED_AT_ONCE: Final = 1_000
TRANSACTIONS_FORGOTTEN_MAX: Final = 1_000_000  # of which a hash is kept
ONCE_KEPT_MS: Final = 24 * 3_600_000
COMMITTED_RANGES_KEPT: Final = 64  # of sequences, per transaction
ENDED_COMMITS_KEPT: Final = 8  # per transaction
ATTEMPTS_PER_PARTITION_MAX: Final = 10_000
MANIFEST_ATTEMPTS_MAX: Final = 4_096
MANIFEST_STAGES_MAX: Final = 65_536
STAGES_PER_ATTEMPT_MAX: Final = 4_096
STAGES_PER_PARTITION_MAX: Final = 1_000_000
STAGE_NOTE_BYTES_MAX: Final = 1 * KIB  # what stands before a staged batch
STAGED_BYTES_MAX: Final = 1 * GIB
STAGE_HOLD_MS: Final = 3_600_000
STAGE_HOLD_MS_MAX: Final = 24 * 3_600_000
COMMIT_TIMEOUT_MS: Final = 120_000
COMMIT_TIMEOUT_MS_MIN: Final = 1_000
COMMIT_TIMEOUT_MS_MAX: Final = 15 * 60_000
REPORT_ITEMS_MAX: Final = 1_000
TIME_MS_MAX: Final = 2**53 - 1
OFFSET_MAX: Final = 2**53 - 1

SEGMENT_BYTES: Final = 128 * MIB
SEGMENT_BYTES_MIN: Final = 4 * MIB
SEGMENTS_PER_DISK: Final = 160  # at least so many fit on a disk, where the smallest size allows it
SMALL_DISK_BYTES: Final = 20 * GIB  # on smaller ones segments are smaller, and so is the reserve
JOURNAL_RECORD_BYTES_MAX: Final = 64 * MIB
SAVE_INTERVAL_MS: Final = 1_000
UNCOMMITTED_BYTES_MAX_PER_PARTITION: Final = 32 * MIB
UNCOMMITTED_BYTES_MAX_PER_BROKER: Final = 256 * MIB
RAFT_ENTRIES_PER_MESSAGE_MAX: Final = 16_384
RAFT_ENTRY_BYTES_MAX: Final = 8 * MIB
RAFT_FRAME_MESSAGES_MAX: Final = 50_000
RAFT_FRAME_BYTES: Final = 256 * KIB
RAFT_MEMBERS_MAX: Final = 1_000
SCRUB_ASKED_BYTES_PER_SECOND: Final = 32 * MIB  # at least, where a person waits for it
SCRUB_ASKED_FACTOR: Final = 4  # so much faster than in the background
DISK_RESERVE_BYTES: Final = 1 * GIB
DISK_RESERVE_FRACTION: Final = 0.05

# ------------------------------------------------------------------ archives

ARCHIVE_STEP_MESSAGES: Final = 250_000  # of one partition, in one step
ARCHIVE_STEP_BYTES: Final = 64 * MIB  # the same, as the topic's average message has it
ARCHIVE_FILE_BYTES: Final = 128 * MIB  # of a merged file; a task that checks a file holds it in memory
ARCHIVE_SMALL_BYTES: Final = 32 * MIB  # a smaller file is merged with its neighbours
ARCHIVE_GRACE_MS: Final = 3_600_000  # merged files stay so long for those who still read them
ARCHIVE_VERSIONS_KEPT: Final = 20  # of the manifest
REPLAY_CHUNK_ROWS: Final = 20_000  # published as a whole, from one partition
REPLAY_CHUNK_BYTES: Final = 16 * MIB
REPLAY_CHUNK_BATCHES: Final = 2_000  # a chunk that would make more is halved
REPLAY_ID_LENGTH_MAX: Final = 100
REPORT_WINDOWS_MAX: Final = 1_000
AUDIT_RANGES_MAX: Final = 1_000  # of each kind and partition that an audit lists; all are counted


def storage_files_for(open_files: int) -> int:
    """How many segments storage may keep open in a process that may open so many files."""
    return min(OPEN_FILES_OF_STORAGE, open_files // 4)


def connections_for(open_files: int) -> int:
    """How many connections fit beside storage in such a process."""
    others = min(OPEN_FILES_OF_OTHERS, max(open_files // 4, 48))
    return max(8, open_files - storage_files_for(open_files) - others)


assert MESSAGE_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX < BATCH_BYTES_MAX
assert BATCH_BYTES_MAX + CONTROL_BYTES_MAX < POLL_BYTES_MAX <= FRAME_BYTES_MAX - CONTROL_BYTES_MAX
assert FETCH_BYTES_MAX <= FRAME_BYTES_MAX - CONTROL_BYTES_MAX
assert BATCH_BYTES_MAX < LIST_BYTES_MAX <= POLL_BYTES_MAX < READ_BYTES_MAX
assert FRAME_BYTES_MAX < CONNECTION_INFLIGHT_BYTES_MAX
assert FRAME_BYTES_MAX < CONNECTION_UNSENT_BYTES_MAX
assert BATCH_BYTES_MAX < GRPC_REQUEST_BYTES_MAX and 2 * GRPC_REQUEST_BYTES_MAX <= UNFINISHED_BYTES_MAX
assert POLL_BYTES_MAX < GRPC_RESPONSE_BYTES_MAX
assert 2 * FRAME_BYTES_MAX <= UNFINISHED_BYTES_MAX
assert 4 * CONTROL_BYTES_MAX <= CONTROLS_BYTES_MAX
assert BATCH_BYTES_MAX < UNCOMMITTED_BYTES_MAX_PER_PARTITION <= UNCOMMITTED_BYTES_MAX_PER_BROKER
assert BATCH_BYTES_MAX < JOURNAL_RECORD_BYTES_MAX <= SEGMENT_BYTES
assert SEGMENT_BYTES * SEGMENTS_PER_DISK == SMALL_DISK_BYTES
assert BATCH_BYTES_MAX < RAFT_ENTRY_BYTES_MAX <= FRAME_BYTES_MAX - CONTROL_BYTES_MAX
assert POLL_MESSAGES_MAX <= OUTSTANDING_MAX
assert STAGES_PER_ATTEMPT_MAX <= MANIFEST_STAGES_MAX and STAGE_HOLD_MS <= STAGE_HOLD_MS_MAX
assert REPLAY_CHUNK_BATCHES < STAGES_PER_ATTEMPT_MAX and REPLAY_CHUNK_BYTES < STAGED_BYTES_MAX
assert TRANSACTIONS_KEPT + OPEN_TRIES_MAX <= TRANSACTIONS_MAX
assert PARTICIPANTS_MAX <= OPEN_PARTICIPANTS_MAX
assert COMMIT_TIMEOUT_MS_MIN <= COMMIT_TIMEOUT_MS <= COMMIT_TIMEOUT_MS_MAX
assert PARTITIONS_MAX <= PARTITIONS_TOTAL_MAX
assert SUBSCRIPTION_BYTES_MAX + OPAQUE_BYTES_MAX < 64 * KIB - 4 * KIB
assert SESSION_MS_MIN <= SESSION_MS <= SESSION_MS_MAX and SESSION_MS <= REVOKE_MS <= REVOKE_MS_MAX
assert BROKERS_MAX <= RAFT_MEMBERS_MAX
assert 4 * BROKERS_MAX <= PEER_CONNECTIONS_RESERVED  # three from each, and one that is about to take another's place
assert REPLICATION_DEFAULT <= REPLICATION_MAX
