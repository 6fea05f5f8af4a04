"""The commands of the native protocol by their codes. A code is never used again for another meaning."""

from __future__ import annotations

from enum import IntEnum


class Command(IntEnum):
    HELLO = 0x01
    PING = 0x02
    METADATA = 0x03
    OPEN_PRODUCER = 0x04
    PUBLISH = 0x10
    FETCH = 0x11
    POLL = 0x12
    SETTLE = 0x13
    COMMIT = 0x14
    COMMITTED = 0x15
    PEEK = 0x16
    OFFSETS = 0x17
    RELEASE = 0x18
    BEST_PRIORITY = 0x19
    STAGE = 0x1A
    PREPARE = 0x1B
    DISCARD_STAGES = 0x1C
    FETCH_DEAD = 0x1D
    CLAIM_PARTITIONS = 0x1E
    CREATE_TOPIC = 0x20
    DELETE_TOPIC = 0x21
    ALTER_TOPIC = 0x22
    DESCRIBE_TOPIC = 0x23
    LIST_TOPICS = 0x24
    LIST_GROUPS = 0x30
    DESCRIBE_GROUP = 0x31
    DROP_GROUP = 0x32
    SEEK = 0x33
    JOIN_GROUP = 0x34
    HEARTBEAT = 0x35
    LEAVE_GROUP = 0x36
    LIST_MEMBERS = 0x37
    ALTER_GROUP = 0x38
    EVICT_MEMBER = 0x39
    MAKE_GROUP = 0x3A
    LIST_DEAD = 0x40
    REDRIVE = 0x41
    DISCARD = 0x42
    DESCRIBE_CLUSTER = 0x50
    DESCRIBE_PARTITIONS = 0x51
    CHANGE_CLUSTER = 0x52
    RAFT_STATUS = 0x53
    SCRUB = 0x54
    BEGIN = 0x55
    END = 0x56
    LOOK = 0x57
    CLAIM = 0x58
    LIST_TRANSACTIONS = 0x59
    FORGET = 0x5A
    LIST_CLIENTS = 0x5B
    PEER_INFO = 0x60  # from here on: brokers among themselves
    PROPOSE = 0x61
    RAFT = 0x62
    SNAPSHOT = 0x63
    PULSE = 0x64
    REPORT = 0x65
    FORWARD = 0x66
