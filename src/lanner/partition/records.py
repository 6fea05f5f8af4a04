"""What a partition's log holds: appends, which are batches, stages, which are batches without offsets yet, and
decisions, which are lists of facts.

An append is a 16-byte prefix (kind, version, the leader's append time) and the producer's batch, untouched. A stage has
a note between the two, which says whose it is; the prefix tells how long that is, so `batch_start` finds the batch of
either. A decision is two bytes (kind, version) and a msgpack array: leader time, the applied index the leader saw, and
facts in the order in which they are to be applied. A fact names explicit places, offsets, tokens and times. It never
names a policy, so the replica that applies it needs none.

Facts are past tense. Messages of a lease are named by a mask: bit n is the n-th message of the lease, little-endian.
A tag is never reused, and a field is only ever added at the end, with a default. From level 2 on `asked` says by which
kind of settle a holder wanted it so, and every replica remembers that; 0: nobody asked, time brought it about.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, NamedTuple, get_args

import msgspec

from lanner.errors import MalformedBatch, UnknownRecord, ValidationError
from lanner.limits import NAME_LENGTH_MAX, STAGE_NOTE_BYTES_MAX, TIME_MS_MAX
from lanner.model import LANES

APPEND_KIND: Final = 1
DECISION_KIND: Final = 2
STAGE_KIND: Final = 3
APPEND_VERSION: Final = 1
STAGE_VERSION: Final = 1
DECISION_VERSION: Final = 1
APPEND_PREFIX_BYTES: Final = 16
ATTEMPT_BYTES: Final = 16

_PREFIX: Final = struct.Struct("<BBHIq")
_DECISION_PREFIX: Final = bytes((DECISION_KIND, DECISION_VERSION))
assert _PREFIX.size == APPEND_PREFIX_BYTES


Lane = Annotated[int, msgspec.Meta(ge=0, lt=LANES)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
RowCount = Annotated[int, msgspec.Meta(ge=1, le=4_096)]  # a segment lies in one row of places
LanePlaces = Annotated[list[Natural], msgspec.Meta(min_length=LANES, max_length=LANES)]
Range = tuple[Lane, Natural, Natural]  # lane, place, count
Moment = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
ShortName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Attempt = Annotated[bytes, msgspec.Meta(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Counted(NamedTuple):
    """One line of a manifest: the attempt of a task that counts, and how many stages it has on the partition."""

    task: Natural
    attempt: Attempt
    stages: Positive


class StageNote(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Whose a staged batch is, and its number among the batches of its attempt on this partition: 0, 1, 2, …"""

    transaction: ShortName
    owner: ShortName
    sequence: Natural
    task: Natural
    attempt: Attempt
    number: Natural
    hold_ms: Moment  # so long after its latest stage an attempt is kept unprepared


class Segment(NamedTuple):
    """Messages that follow each other both in their lane and in the partition, delivered equally often."""

    first_offset: Natural
    lane: Lane
    place: Natural
    count: RowCount  # type: ignore[assignment]
    attempt: Natural


class Fact(msgspec.Struct, array_like=True, gc=False):
    """Something that happened. Applied in order, each exactly once."""


class GroupMade(Fact, tag=1):
    group: str
    kind: str
    start_offset: int
    nexts: LanePlaces  # queue: the first place to hand out, by lane


class GroupDropped(Fact, tag=2):
    group: str


class GroupTouched(Fact, tag=3):
    """A poll found nothing, but the group is in use."""

    group: str


class Committed(Fact, tag=4):
    """From level 2 on under the identity of the reader: one of its commits that comes again is known."""

    group: str
    offset: int
    reader: str = ""
    sequence: int = -1


class Sought(Fact, tag=5):
    group: str
    offset: int
    nexts: LanePlaces


class Leased(Fact, tag=6):
    group: str
    member: str
    sequence: int
    deadline_ms: int
    segments: list[Segment]


class Taken(Fact, tag=7):
    """Handed out and settled at once: polls that acknowledge by themselves."""

    group: str
    ranges: list[Range]


class Skipped(Fact, tag=8):
    """Settled without being handed out: expired, or before the group's start. Fresh places or retries."""

    group: str
    ranges: list[Range]


class Acked(Fact, tag=9):
    """Settled; also what expired while it was leased."""

    group: str
    token: int
    mask: bytes
    asked: int = 0


class Nacked(Fact, tag=10):
    """Waits for its retry until due_ms; ready at once when that is not after the decision's own time."""

    group: str
    token: int
    mask: bytes
    due_ms: int
    asked: int = 0


class Died(Fact, tag=11):
    group: str
    token: int
    mask: bytes
    reason: str
    asked: int = 0


class Extended(Fact, tag=12):
    group: str
    token: int
    mask: bytes
    deadline_ms: int
    asked: int = 0


class Released(Fact, tag=13):
    """Given back unseen: the attempt does not count."""

    group: str
    token: int
    mask: bytes


class LeaseEnded(Fact, tag=14):
    """The lease ran out; the attempt counts, and the messages are ready again."""

    group: str
    token: int
    mask: bytes


class WaitOver(Fact, tag=15):
    group: str
    places: list[tuple[Lane, Natural]]  # lane, first place of the waiting range


class Redriven(Fact, tag=16):
    group: str
    ranges: list[Range]


class Discarded(Fact, tag=17):
    group: str
    ranges: list[Range]


class DelayOver(Fact, tag=18):
    """These delayed batches enter their lanes, in this order, at the tail."""

    base_offsets: list[int]


class Trimmed(Fact, tag=19):
    """Retention passed these lanes' batches below the place. What groups still hold in them is kept."""

    bounds: list[tuple[Lane, Natural]]  # lane, first place that stays
    more: bool


class ProducersForgotten(Fact, tag=20):
    producers: list[tuple[int, int]]  # id, the last activity seen: one that published since stays
    refused_until_ms: Moment = 0  # from level 4 on: it was too early for these, and until then they are refused


class DedupForgotten(Fact, tag=21):
    until_ms: int  # ids appended at or before


class StagesPrepared(Fact, tag=22):
    """These attempts stay, whole, until the outcome of the try is acted on. Without effect unless each is here with
    exactly so many stages. Like the two that follow, it says which metadata the leader had seen."""

    token: Natural
    transaction: ShortName
    owner: ShortName
    sequence: Natural
    manifest: list[Counted]
    metadata_index: Natural


class StagesPublished(Fact, tag=23):
    """The try was committed: its next stages get offsets and places, in the order of the manifest."""

    token: Natural
    first: Natural  # only if so many are dealt with already
    count: Natural
    metadata_index: Natural


class StagesWithdrawn(Fact, tag=24):
    """The try was aborted: its next stages go."""

    token: Natural
    first: Natural
    count: Natural
    metadata_index: Natural


class StagesDropped(Fact, tag=25):
    """Attempts that nobody will commit; one that is prepared, or was staged to since, stays."""

    attempts: list[tuple[Attempt, int]]  # attempt, the last activity seen


class DeadNumbered(Fact, tag=30):
    """The group's dead letters have numbers now, and so has each that dies later. From level 3 on."""

    group: str


class Fenced(Fact, tag=31):
    """What this record accepts of the group lies at this fence; what lies below is refused from now on. From level 4
    on."""

    group: str
    number: Natural
    grant: Natural


class CommitNoted(Fact, tag=32):
    """What the commit before this fact brought along. From level 4 on."""

    group: str
    metadata: bytes


AnyFact = (
    GroupMade
    | GroupDropped
    | GroupTouched
    | Committed
    | Sought
    | Leased
    | Taken
    | Skipped
    | Acked
    | Nacked
    | Died
    | Extended
    | Released
    | LeaseEnded
    | WaitOver
    | Redriven
    | Discarded
    | DelayOver
    | Trimmed
    | ProducersForgotten
    | DedupForgotten
    | StagesPrepared
    | StagesPublished
    | StagesWithdrawn
    | StagesDropped
    | DeadNumbered
    | Fenced
    | CommitNoted
)


class Decision(msgspec.Struct, array_like=True, gc=False):
    now_ms: int
    seen_index: int
    facts: list[AnyFact]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Decision)
_note_decoder: Final = msgspec.msgpack.Decoder(StageNote)
_loose_decoder: Final = msgspec.msgpack.Decoder()
_TAGS: Final = frozenset(kind.__struct_config__.tag for kind in get_args(AnyFact))


def encode_append(append_ms: int, batch: bytes | memoryview) -> bytes:
    """The raft payload of an append: the batch's own bytes begin where `batch_start` says."""
    return _PREFIX.pack(APPEND_KIND, APPEND_VERSION, 0, 0, append_ms) + batch


def encode_stage(append_ms: int, note: StageNote, batch: bytes | memoryview) -> bytes:
    """The raft payload of a stage: prefix, note, padding to 8 bytes, and the batch's own bytes."""
    noted = _encoder.encode(note)
    padding = -len(noted) % 8
    if len(noted) + padding > STAGE_NOTE_BYTES_MAX:
        raise ValidationError(f"the names of a stage take {len(noted)} bytes; {STAGE_NOTE_BYTES_MAX} are allowed")
    prefix = _PREFIX.pack(STAGE_KIND, STAGE_VERSION, len(noted) + padding, padding, append_ms)
    return b"".join((prefix, noted, bytes(padding), batch))


def batch_start(payload: bytes | memoryview) -> int:
    """Where the batch of an append or a stage begins in its payload."""
    return APPEND_PREFIX_BYTES + int.from_bytes(payload[2:4], "little")


def decode_append(payload: bytes) -> int:
    """The append time of an append."""
    return _decode_prefix(payload, "an append", APPEND_VERSION)


def decode_stage(payload: bytes) -> tuple[int, StageNote]:
    """The append time of a stage, and whose it is."""
    append_ms = _decode_prefix(payload, "a stage", STAGE_VERSION)
    padding = int.from_bytes(payload[4:8], "little")
    try:
        return append_ms, _note_decoder.decode(
            memoryview(payload)[APPEND_PREFIX_BYTES : batch_start(payload) - padding]
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBatch(f"the note of a stage does not decode: {error}", field="note") from None


def _decode_prefix(payload: bytes, what: str, known: int) -> int:
    if len(payload) < APPEND_PREFIX_BYTES:
        raise MalformedBatch(f"{what} is {len(payload)} bytes long, shorter than its prefix", field="prefix")
    _, version, _, _, append_ms = _PREFIX.unpack_from(payload)
    if version != known:
        raise UnknownRecord(f"the log holds {what} of version {version}; {known} is known here")
    if not 0 <= append_ms <= TIME_MS_MAX:
        raise MalformedBatch(f"the append time {append_ms} is not a time", field="append_ms")
    return int(append_ms)


def encode_decision(now_ms: int, seen_index: int, facts: list[AnyFact]) -> bytes:
    return _DECISION_PREFIX + _encoder.encode(Decision(now_ms, seen_index, facts))


def decode_decision(payload: bytes) -> Decision:
    if payload[1:2] != _DECISION_PREFIX[1:]:
        raise UnknownRecord(
            f"the log holds a decision of version {payload[1:2].hex()}; {DECISION_VERSION} is known here"
        )
    try:
        decision = _decoder.decode(memoryview(payload)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        strange = _unknown_tags(payload)
        if strange:
            raise UnknownRecord(f"the log holds facts with the tags {strange}, which are not known here") from None
        raise ValidationError(f"the decision does not decode: {error}") from None
    if not 0 <= decision.now_ms <= TIME_MS_MAX:
        raise ValidationError(f"the decision's time {decision.now_ms} is not a time")
    return decision


def _unknown_tags(payload: bytes) -> list[int]:
    """The tags of facts that this release does not have, in a decision that does not decode."""
    try:
        _, _, facts = _loose_decoder.decode(memoryview(payload)[2:])[:3]
        tags = {fact[0] for fact in facts}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError, LookupError):
        return []  # no decision of any release
    return sorted(tag for tag in tags if isinstance(tag, int) and tag not in _TAGS)


def mask_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) >> 3, "little")


def mask_of(data: bytes) -> int:
    return int.from_bytes(data, "little")
