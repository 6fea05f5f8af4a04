from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NewMessage(_message.Message):
    __slots__ = ("value", "key", "headers", "priority", "priority_name", "partition", "delay_ms", "ttl_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.ScalarMap[str, bytes]
    priority: int
    priority_name: str
    partition: int
    delay_ms: int
    ttl_ms: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., priority: _Optional[int] = ..., priority_name: _Optional[str] = ..., partition: _Optional[int] = ..., delay_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topic", "messages", "idempotency_key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    idempotency_key: str
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("id", "partition", "offset", "timestamp_ms", "duplicate")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    id: str
    partition: int
    offset: int
    timestamp_ms: int
    duplicate: bool
    def __init__(self, id: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "topic", "partition", "offset", "value", "key", "headers", "priority", "timestamp_ms", "producer_timestamp_ms", "deliver_at_ms", "expires_at_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes
    headers: _containers.ScalarMap[str, bytes]
    priority: int
    timestamp_ms: int
    producer_timestamp_ms: int
    deliver_at_ms: int
    expires_at_ms: int
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., priority: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., producer_timestamp_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ...) -> None: ...

class LeasedMessage(_message.Message):
    __slots__ = ("message", "token", "attempt", "lease_until_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    message: Message
    token: int
    attempt: int
    lease_until_ms: int
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ..., token: _Optional[int] = ..., attempt: _Optional[int] = ..., lease_until_ms: _Optional[int] = ...) -> None: ...

class ReceiveMessagesRequest(_message.Message):
    __slots__ = ("topic", "group", "max_messages", "max_bytes", "wait_ms", "lease_ms", "partitions", "start", "auto_ack", "member_id", "number", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    max_messages: int
    max_bytes: int
    wait_ms: int
    lease_ms: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    start: str
    auto_ack: bool
    member_id: str
    number: int
    generation: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., start: _Optional[str] = ..., auto_ack: _Optional[bool] = ..., member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ReceiveMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[LeasedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[LeasedMessage, _Mapping]]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("topic", "group", "max_messages", "max_bytes", "lease_ms", "partitions", "start", "auto_ack", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    max_messages: int
    max_bytes: int
    lease_ms: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    start: str
    auto_ack: bool
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., lease_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., start: _Optional[str] = ..., auto_ack: _Optional[bool] = ..., member_id: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("partition", "offset", "token", "count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    token: int
    count: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., token: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("topic", "group", "leases", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., member_id: _Optional[str] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("topic", "group", "leases", "delay_ms", "reason", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    delay_ms: int
    reason: str
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("topic", "group", "leases", "lease_ms", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    lease_ms: int
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., lease_ms: _Optional[int] = ..., member_id: _Optional[str] = ...) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("topic", "group", "leases", "reason", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    reason: str
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., reason: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("partition", "offset", "count", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    count: int
    error: str
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., count: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("settled", "failed", "leases")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    settled: int
    failed: int
    leases: _containers.RepeatedCompositeFieldContainer[Settled]
    def __init__(self, settled: _Optional[int] = ..., failed: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[Settled, _Mapping]]] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "max_messages", "max_bytes", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    max_messages: int
    max_bytes: int
    after: PeekPlace
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., after: _Optional[_Union[PeekPlace, _Mapping]] = ...) -> None: ...

class PeekPlace(_message.Message):
    __slots__ = ("priority", "partition", "offset")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    priority: int
    partition: int
    offset: int
    def __init__(self, priority: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("messages", "next")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    next: PeekPlace
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., next: _Optional[_Union[PeekPlace, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "max_messages", "wait_ms", "priorities", "group", "member_id", "number", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    max_messages: int
    wait_ms: int
    priorities: _containers.RepeatedScalarFieldContainer[int]
    group: str
    member_id: str
    number: int
    generation: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ..., priorities: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("first_offset", "next_offset", "reason")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    next_offset: int
    reason: str
    def __init__(self, first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("messages", "first_offset", "end_offset", "next_offset", "holes")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    first_offset: int
    end_offset: int
    next_offset: int
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., holes: _Optional[_Iterable[_Union[Hole, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("topic", "group", "offsets", "reader", "sequence", "member_id", "number", "generation", "metadata")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    offsets: _containers.ScalarMap[int, int]
    reader: str
    sequence: int
    member_id: str
    number: int
    generation: int
    metadata: _containers.ScalarMap[int, bytes]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., offsets: _Optional[_Mapping[int, int]] = ..., reader: _Optional[str] = ..., sequence: _Optional[int] = ..., member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., metadata: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommittedRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class CommittedResponse(_message.Message):
    __slots__ = ("offsets", "metadata")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    metadata: _containers.ScalarMap[int, bytes]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ..., metadata: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("topic", "group", "place", "time_ms", "offsets", "force")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    place: str
    time_ms: int
    offsets: PartitionOffsets
    force: bool
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., place: _Optional[str] = ..., time_ms: _Optional[int] = ..., offsets: _Optional[_Union[PartitionOffsets, _Mapping]] = ..., force: _Optional[bool] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class SeekResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("group", "kind", "member_id", "topics", "patterns", "assignor", "instance", "session_ms", "rack", "client", "start")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    group: str
    kind: str
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    assignor: str
    instance: str
    session_ms: int
    rack: str
    client: str
    start: str
    def __init__(self, group: _Optional[str] = ..., kind: _Optional[str] = ..., member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., patterns: _Optional[_Iterable[str]] = ..., assignor: _Optional[str] = ..., instance: _Optional[str] = ..., session_ms: _Optional[int] = ..., rack: _Optional[str] = ..., client: _Optional[str] = ..., start: _Optional[str] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("topic", "incarnation", "partition", "grant", "first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    partition: int
    grant: int
    first: bool
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., partition: _Optional[int] = ..., grant: _Optional[int] = ..., first: _Optional[bool] = ...) -> None: ...

class MemberView(_message.Message):
    __slots__ = ("member_id", "number", "generation", "session_ms", "assignor", "shared", "unchanged", "held", "revoked")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    number: int
    generation: int
    session_ms: int
    assignor: str
    shared: bool
    unchanged: bool
    held: _containers.RepeatedCompositeFieldContainer[Grant]
    revoked: _containers.RepeatedCompositeFieldContainer[Grant]
    def __init__(self, member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., session_ms: _Optional[int] = ..., assignor: _Optional[str] = ..., shared: _Optional[bool] = ..., unchanged: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., revoked: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "number", "generation", "released", "wait_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    number: int
    generation: int
    released: _containers.RepeatedCompositeFieldContainer[Grant]
    wait_ms: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., released: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClaimPartitionsRequest(_message.Message):
    __slots__ = ("topic", "group", "member_id", "number", "generation", "partitions", "start")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    member_id: str
    number: int
    generation: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    start: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., number: _Optional[int] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., start: _Optional[str] = ...) -> None: ...

class ClaimedPartition(_message.Message):
    __slots__ = ("partition", "error", "offset", "committed", "metadata", "sequence")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error: str
    offset: int
    committed: bool
    metadata: bytes
    sequence: int
    def __init__(self, partition: _Optional[int] = ..., error: _Optional[str] = ..., offset: _Optional[int] = ..., committed: _Optional[bool] = ..., metadata: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class ClaimPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ClaimedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ClaimedPartition, _Mapping]]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("group", "after", "limit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    after: int
    limit: int
    def __init__(self, group: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class PartitionRange(_message.Message):
    __slots__ = ("topic", "first", "last")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    first: int
    last: int
    def __init__(self, topic: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class HandOver(_message.Message):
    __slots__ = ("topic", "partition", "heir", "waiting_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HEIR_FIELD_NUMBER: _ClassVar[int]
    WAITING_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    heir: str
    waiting_ms: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., heir: _Optional[str] = ..., waiting_ms: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("member_id", "number", "instance", "client", "door", "rack", "session_ms", "joined_ms", "joined_age_ms", "held", "revoked", "home", "heard_ms", "topics", "patterns")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    number: int
    instance: str
    client: str
    door: str
    rack: str
    session_ms: int
    joined_ms: int
    joined_age_ms: int
    held: _containers.RepeatedCompositeFieldContainer[PartitionRange]
    revoked: _containers.RepeatedCompositeFieldContainer[HandOver]
    home: str
    heard_ms: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member_id: _Optional[str] = ..., number: _Optional[int] = ..., instance: _Optional[str] = ..., client: _Optional[str] = ..., door: _Optional[str] = ..., rack: _Optional[str] = ..., session_ms: _Optional[int] = ..., joined_ms: _Optional[int] = ..., joined_age_ms: _Optional[int] = ..., held: _Optional[_Iterable[_Union[PartitionRange, _Mapping]]] = ..., revoked: _Optional[_Iterable[_Union[HandOver, _Mapping]]] = ..., home: _Optional[str] = ..., heard_ms: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., patterns: _Optional[_Iterable[str]] = ...) -> None: ...

class Rebalance(_message.Message):
    __slots__ = ("begun_ms", "reason", "moved", "partitions", "took_ms")
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    begun_ms: int
    reason: str
    moved: int
    partitions: int
    took_ms: int
    def __init__(self, begun_ms: _Optional[int] = ..., reason: _Optional[str] = ..., moved: _Optional[int] = ..., partitions: _Optional[int] = ..., took_ms: _Optional[int] = ...) -> None: ...

class GroupMembers(_message.Message):
    __slots__ = ("group", "number", "kind", "assignor", "generation", "session_ms", "revoke_ms", "state", "count", "partitions", "unowned", "members", "rebalances", "next")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKE_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNOWNED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REBALANCES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    group: str
    number: int
    kind: str
    assignor: str
    generation: int
    session_ms: int
    revoke_ms: int
    state: str
    count: int
    partitions: int
    unowned: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    rebalances: _containers.RepeatedCompositeFieldContainer[Rebalance]
    next: int
    def __init__(self, group: _Optional[str] = ..., number: _Optional[int] = ..., kind: _Optional[str] = ..., assignor: _Optional[str] = ..., generation: _Optional[int] = ..., session_ms: _Optional[int] = ..., revoke_ms: _Optional[int] = ..., state: _Optional[str] = ..., count: _Optional[int] = ..., partitions: _Optional[int] = ..., unowned: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., rebalances: _Optional[_Iterable[_Union[Rebalance, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class AlterGroupRequest(_message.Message):
    __slots__ = ("group", "assignor", "session_ms", "revoke_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    assignor: str
    session_ms: int
    revoke_ms: int
    def __init__(self, group: _Optional[str] = ..., assignor: _Optional[str] = ..., session_ms: _Optional[int] = ..., revoke_ms: _Optional[int] = ...) -> None: ...

class AlterGroupResponse(_message.Message):
    __slots__ = ("number", "generation")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    number: int
    generation: int
    def __init__(self, number: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class EvictMemberRequest(_message.Message):
    __slots__ = ("group", "member_id", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class EvictMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "group", "partition", "limit", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partition: int
    limit: int
    after: DeadPlace
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., limit: _Optional[int] = ..., after: _Optional[_Union[DeadPlace, _Mapping]] = ...) -> None: ...

class DeadPlace(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("partition", "offset", "priority", "attempts", "reason", "died_at_ms", "message")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_at_ms: int
    message: Message
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., priority: _Optional[int] = ..., attempts: _Optional[int] = ..., reason: _Optional[str] = ..., died_at_ms: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters", "total", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    total: int
    next: DeadPlace
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., total: _Optional[int] = ..., next: _Optional[_Union[DeadPlace, _Mapping]] = ...) -> None: ...

class DeadLetterChoice(_message.Message):
    __slots__ = ("topic", "group", "partition", "offsets", "all")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partition: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., all: _Optional[bool] = ...) -> None: ...

class DeadLetterCount(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("topic", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("topic", "time_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    time_ms: int
    def __init__(self, topic: _Optional[str] = ..., time_ms: _Optional[int] = ...) -> None: ...

class OffsetsOfPartition(_message.Message):
    __slots__ = ("partition", "first_offset", "end_offset", "at_time")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_TIME_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first_offset: int
    end_offset: int
    at_time: int
    def __init__(self, partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., at_time: _Optional[int] = ...) -> None: ...

class OffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetsOfPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OffsetsOfPartition, _Mapping]]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "incarnation", "settings", "partitions")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    settings: _containers.ScalarMap[str, str]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("id", "leader", "first_offset", "end_offset", "bytes", "depth")
    class DepthEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    id: int
    leader: str
    first_offset: int
    end_offset: int
    bytes: int
    depth: _containers.ScalarMap[int, int]
    def __init__(self, id: _Optional[int] = ..., leader: _Optional[str] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., depth: _Optional[_Mapping[int, int]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class GroupPartition(_message.Message):
    __slots__ = ("partition", "offset", "lag", "ready", "leased", "waiting", "dead", "oldest_age_ms", "depth")
    class DepthEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    oldest_age_ms: int
    depth: _containers.ScalarMap[int, int]
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., lag: _Optional[int] = ..., ready: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., dead: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., depth: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("topic", "group", "kind", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    kind: str
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartition]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., kind: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[GroupPartition, _Mapping]]] = ...) -> None: ...

class DropGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DropGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "name", "rack", "state", "addresses", "replicas", "leads", "alive")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    rack: str
    state: str
    addresses: _containers.ScalarMap[str, str]
    replicas: int
    leads: int
    alive: bool
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., rack: _Optional[str] = ..., state: _Optional[str] = ..., addresses: _Optional[_Mapping[str, str]] = ..., replicas: _Optional[int] = ..., leads: _Optional[int] = ..., alive: _Optional[bool] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("id", "metadata_leader", "feature_level", "topics", "partitions", "replicas", "replicas_missing", "brokers", "plans", "feature_level_possible", "behind")
    ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_LEADER_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MISSING_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    id: str
    metadata_leader: str
    feature_level: int
    topics: int
    partitions: int
    replicas: int
    replicas_missing: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    plans: _containers.RepeatedCompositeFieldContainer[Plan]
    feature_level_possible: int
    behind: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., metadata_leader: _Optional[str] = ..., feature_level: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., replicas: _Optional[int] = ..., replicas_missing: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., plans: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ..., feature_level_possible: _Optional[int] = ..., behind: _Optional[_Iterable[str]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("id", "kind", "broker", "state", "steps_done", "steps_total", "moves_done", "moves_total", "moves_running", "moves_failed", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MOVES_DONE_FIELD_NUMBER: _ClassVar[int]
    MOVES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MOVES_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MOVES_FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    broker: str
    state: str
    steps_done: int
    steps_total: int
    moves_done: int
    moves_total: int
    moves_running: int
    moves_failed: int
    reason: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., broker: _Optional[str] = ..., state: _Optional[str] = ..., steps_done: _Optional[int] = ..., steps_total: _Optional[int] = ..., moves_done: _Optional[int] = ..., moves_total: _Optional[int] = ..., moves_running: _Optional[int] = ..., moves_failed: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DescribePartitionsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("id", "broker_id", "broker", "role", "leads", "preferred", "lag", "step", "stopped")
    ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    id: int
    broker_id: str
    broker: str
    role: str
    leads: bool
    preferred: bool
    lag: int
    step: str
    stopped: str
    def __init__(self, id: _Optional[int] = ..., broker_id: _Optional[str] = ..., broker: _Optional[str] = ..., role: _Optional[str] = ..., leads: _Optional[bool] = ..., preferred: _Optional[bool] = ..., lag: _Optional[int] = ..., step: _Optional[str] = ..., stopped: _Optional[str] = ...) -> None: ...

class PartitionReplicas(_message.Message):
    __slots__ = ("topic", "partition", "leader", "replication", "replicas")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    leader: str
    replication: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., replication: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class DescribePartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReplicas]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionReplicas, _Mapping]]] = ...) -> None: ...

class RaftStatusRequest(_message.Message):
    __slots__ = ("topic", "partition", "broker")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    broker: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker: _Optional[str] = ...) -> None: ...

class RaftProgress(_message.Message):
    __slots__ = ("state", "match_index", "next_index")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    state: str
    match_index: int
    next_index: int
    def __init__(self, state: _Optional[str] = ..., match_index: _Optional[int] = ..., next_index: _Optional[int] = ...) -> None: ...

class RaftState(_message.Message):
    __slots__ = ("state", "broker", "leader_broker", "replicas", "term", "vote", "leader", "commit_index", "applied_index", "last_log_index", "last_log_term", "durable_index", "compacted_index", "uncommitted_bytes", "staged_bytes", "prepared_bytes", "voters", "learners", "progress")
    class ProgressEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: RaftProgress
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[RaftProgress, _Mapping]] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LEADER_BROKER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREPARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    state: str
    broker: str
    leader_broker: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    term: int
    vote: int
    leader: int
    commit_index: int
    applied_index: int
    last_log_index: int
    last_log_term: int
    durable_index: int
    compacted_index: int
    uncommitted_bytes: int
    staged_bytes: int
    prepared_bytes: int
    voters: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    progress: _containers.MessageMap[int, RaftProgress]
    def __init__(self, state: _Optional[str] = ..., broker: _Optional[str] = ..., leader_broker: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., vote: _Optional[int] = ..., leader: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_log_index: _Optional[int] = ..., last_log_term: _Optional[int] = ..., durable_index: _Optional[int] = ..., compacted_index: _Optional[int] = ..., uncommitted_bytes: _Optional[int] = ..., staged_bytes: _Optional[int] = ..., prepared_bytes: _Optional[int] = ..., voters: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ..., progress: _Optional[_Mapping[int, RaftProgress]] = ...) -> None: ...

class ChangeClusterRequest(_message.Message):
    __slots__ = ("action", "broker", "target", "topic", "partition", "plan_id")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    action: str
    broker: str
    target: str
    topic: str
    partition: int
    plan_id: int
    def __init__(self, action: _Optional[str] = ..., broker: _Optional[str] = ..., target: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., plan_id: _Optional[int] = ...) -> None: ...

class ChangeClusterResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("group", "limit", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    limit: int
    after: ClientPlace
    def __init__(self, group: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[_Union[ClientPlace, _Mapping]] = ...) -> None: ...

class ClientPlace(_message.Message):
    __slots__ = ("broker_id", "number")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    number: int
    def __init__(self, broker_id: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ClientUse(_message.Message):
    __slots__ = ("group", "topic", "member", "member_id", "leased", "leased_until_ms", "idle_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LEASED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    member: str
    member_id: str
    leased: int
    leased_until_ms: int
    idle_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., member: _Optional[str] = ..., member_id: _Optional[str] = ..., leased: _Optional[int] = ..., leased_until_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("broker_id", "broker", "number", "door", "address", "client", "since_ms", "age_ms", "uses")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    broker: str
    number: int
    door: str
    address: str
    client: str
    since_ms: int
    age_ms: int
    uses: _containers.RepeatedCompositeFieldContainer[ClientUse]
    def __init__(self, broker_id: _Optional[str] = ..., broker: _Optional[str] = ..., number: _Optional[int] = ..., door: _Optional[str] = ..., address: _Optional[str] = ..., client: _Optional[str] = ..., since_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., uses: _Optional[_Iterable[_Union[ClientUse, _Mapping]]] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "next", "missing")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    next: ClientPlace
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., next: _Optional[_Union[ClientPlace, _Mapping]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...
