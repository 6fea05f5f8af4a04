"""The commands of the metadata machine as bytes: a kind, a version, then a msgpack array.

Encoding bounds what it is given, because it speaks for a caller. Decoding trusts nothing: whatever lies in the log,
it answers with a command or with an error of the catalogue, and never with anything else.

Time and names come in with the commands (`now_ms`, node ids made by the brokers themselves); numbers that the machine
hands out (sets, replicas, moves, plans, producers) are given when a command applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from lanner import features, limits
from lanner.cluster.group_changes import Change, ChangeGroups, decode_changes, encode_changes
from lanner.cluster.registration import Registration, check_founders, check_registration
from lanner.cluster.settings import written
from lanner.cluster.staged import AbortReason, Participants, check_commit, check_commit_id, check_parties
from lanner.cluster.values import Action
from lanner.errors import UnknownRecord, ValidationError
from lanner.model import TopicSettings, check_name

VERSION: Final = 1
_PREFIX_BYTES: Final = 2
COMMAND_BYTES_MAX: Final = 64 * limits.KIB
PRODUCERS_PER_COMMAND_MAX: Final = 1_000_000


class Kind(IntEnum):
    CREATE_TOPIC = 1
    DELETE_TOPIC = 2
    ALTER_TOPIC = 3
    ALLOCATE_PRODUCERS = 4
    FOUND_CLUSTER = 5
    REGISTER_BROKER = 6
    UPDATE_BROKER = 7
    DRAIN_BROKER = 8
    UNDRAIN_BROKER = 9
    REMOVE_BROKER = 10
    REBALANCE = 11
    MOVE_REPLICA = 12
    TRANSFER_LEADER = 13
    FINISH_STEP = 14
    FAIL_STEP = 15
    CANCEL_PLAN = 16
    RAISE_FEATURE_LEVEL = 17
    REPORT_DAMAGE = 18  # from feature level 2 on
    BEGIN_TRY = 19  # this and what follows: from feature level 3 on
    END_TRIES = 20
    ABORT_COMMIT = 21
    CLAIM_TRANSACTION = 22
    FORGET_TRANSACTIONS = 23
    CHANGE_GROUPS = 24  # from feature level 4 on


class CreateTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    settings: dict[str, Any]
    created_ms: int
    create_id: str = ""  # from level 2 on: a create that comes again is known by it


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str


class AlterTopic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    settings: dict[str, Any]
    now_ms: int = 0


class AllocateProducers(msgspec.Struct, array_like=True, frozen=True):
    count: int


class FoundCluster(msgspec.Struct, array_like=True, frozen=True):
    cluster_id: str
    founders: tuple[Registration, ...]
    now_ms: int


class RegisterBroker(msgspec.Struct, array_like=True, frozen=True):
    registration: Registration
    now_ms: int
    replaces: bool = True


class UpdateBroker(msgspec.Struct, array_like=True, frozen=True):
    node_id: str
    rack: str | None
    addresses: dict[str, str] | None
    feature_min: int | None
    feature_max: int | None


class DrainBroker(msgspec.Struct, array_like=True, frozen=True):
    node_id: str
    now_ms: int


class UndrainBroker(msgspec.Struct, array_like=True, frozen=True):
    node_id: str


class RemoveBroker(msgspec.Struct, array_like=True, frozen=True):
    node_id: str
    now_ms: int


class Rebalance(msgspec.Struct, array_like=True, frozen=True):
    now_ms: int


class MoveReplica(msgspec.Struct, array_like=True, frozen=True):
    set_id: int
    source_node: str
    target_node: str
    now_ms: int


class TransferLeader(msgspec.Struct, array_like=True, frozen=True):
    set_id: int
    node_id: str


class FinishStep(msgspec.Struct, array_like=True, frozen=True):
    move_id: int
    position: int
    action: Action


class FailStep(msgspec.Struct, array_like=True, frozen=True):
    move_id: int
    position: int
    action: Action
    reason: str


class CancelPlan(msgspec.Struct, array_like=True, frozen=True):
    plan_id: int


class RaiseFeatureLevel(msgspec.Struct, array_like=True, frozen=True):
    level: int


class ReportDamage(msgspec.Struct, array_like=True, frozen=True):
    set_id: int
    replica_id: int
    node_id: str


class BeginTry(msgspec.Struct, array_like=True, frozen=True):
    transaction: str
    owner: str
    sequence: int
    commit_id: bytes
    participants: Participants
    timeout_ms: int
    once: bool
    now_ms: int


class EndTries(msgspec.Struct, array_like=True, frozen=True):
    commits: tuple[int, ...]
    aborts: tuple[tuple[int, AbortReason], ...]
    finished: tuple[int, ...]
    now_ms: int


class AbortCommit(msgspec.Struct, array_like=True, frozen=True):
    transaction: str
    owner: str
    commit_id: bytes
    now_ms: int


class ClaimTransaction(msgspec.Struct, array_like=True, frozen=True):
    transaction: str
    owner: str
    restart: bool
    now_ms: int


class ForgetTransactions(msgspec.Struct, array_like=True, frozen=True):
    seen: tuple[tuple[str, int], ...]  # (transaction, when it was used last)
    hashes_too: bool = False  # of all that were forgotten ever


Command = (
    CreateTopic
    | DeleteTopic
    | AlterTopic
    | AllocateProducers
    | FoundCluster
    | RegisterBroker
    | UpdateBroker
    | DrainBroker
    | UndrainBroker
    | RemoveBroker
    | Rebalance
    | MoveReplica
    | TransferLeader
    | FinishStep
    | FailStep
    | CancelPlan
    | RaiseFeatureLevel
    | ReportDamage
    | BeginTry
    | EndTries
    | AbortCommit
    | ClaimTransaction
    | ForgetTransactions
    | ChangeGroups
)

_KINDS: Final[Mapping[Kind, type[Command]]] = {
    Kind.CREATE_TOPIC: CreateTopic,
    Kind.DELETE_TOPIC: DeleteTopic,
    Kind.ALTER_TOPIC: AlterTopic,
    Kind.ALLOCATE_PRODUCERS: AllocateProducers,
    Kind.FOUND_CLUSTER: FoundCluster,
    Kind.REGISTER_BROKER: RegisterBroker,
    Kind.UPDATE_BROKER: UpdateBroker,
    Kind.DRAIN_BROKER: DrainBroker,
    Kind.UNDRAIN_BROKER: UndrainBroker,
    Kind.REMOVE_BROKER: RemoveBroker,
    Kind.REBALANCE: Rebalance,
    Kind.MOVE_REPLICA: MoveReplica,
    Kind.TRANSFER_LEADER: TransferLeader,
    Kind.FINISH_STEP: FinishStep,
    Kind.FAIL_STEP: FailStep,
    Kind.CANCEL_PLAN: CancelPlan,
    Kind.RAISE_FEATURE_LEVEL: RaiseFeatureLevel,
    Kind.REPORT_DAMAGE: ReportDamage,
    Kind.BEGIN_TRY: BeginTry,
    Kind.END_TRIES: EndTries,
    Kind.ABORT_COMMIT: AbortCommit,
    Kind.CLAIM_TRANSACTION: ClaimTransaction,
    Kind.FORGET_TRANSACTIONS: ForgetTransactions,
}
_DECODERS: Final[Mapping[int, Callable[[bytes], Command]]] = {
    **{kind: msgspec.msgpack.Decoder(command).decode for kind, command in _KINDS.items()},
    Kind.CHANGE_GROUPS: decode_changes,
}

# ------------------------------------------------------------------ topics and producers


def encode_create_topic(name: str, settings: TopicSettings, created_ms: int, create_id: str = "") -> bytes:
    """`create_id`: chosen at random by the caller that wants the topic, and given again when this is asked again."""
    check_time(created_ms, "created_ms")
    if len(create_id) > limits.IDENTITY_LENGTH_MAX:
        raise ValidationError(
            f"the id of the create is longer than {limits.IDENTITY_LENGTH_MAX} characters", field="create_id"
        )
    command = CreateTopic(check_name(name, "topic"), written(settings), created_ms, create_id)
    return _encode(Kind.CREATE_TOPIC, command)


def encode_delete_topic(name: str) -> bytes:
    return _encode(Kind.DELETE_TOPIC, DeleteTopic(check_name(name, "topic")))


def encode_alter_topic(name: str, settings: Mapping[str, Any], now_ms: int = 0) -> bytes:
    """Only what changes is given; it is merged with what the topic has when the command applies."""
    return _encode(Kind.ALTER_TOPIC, AlterTopic(check_name(name, "topic"), dict(settings), check_time(now_ms)))


def encode_allocate_producers(count: int) -> bytes:
    if not 1 <= count <= PRODUCERS_PER_COMMAND_MAX:
        raise ValidationError(
            f"{count} producer ids cannot be had at once: ask for 1 to {PRODUCERS_PER_COMMAND_MAX}", field="count"
        )
    return _encode(Kind.ALLOCATE_PRODUCERS, AllocateProducers(count))


# ------------------------------------------------------------------ brokers


def encode_found_cluster(cluster_id: str, founders: Sequence[Registration], now_ms: int) -> bytes:
    """The first command of a cluster: who it is, and the brokers it starts with.

    The order counts: the first is replica 1 of the metadata's set, and so on. The first five vote there.
    """
    checked = check_founders(founders)
    return _encode(Kind.FOUND_CLUSTER, FoundCluster(check_name(cluster_id, "cluster_id"), checked, check_time(now_ms)))


def encode_register_broker(registration: Registration, now_ms: int, *, replaces: bool = True) -> bytes:
    """A broker comes. Under a known name with another node id it replaces that one, whose disk is then given up.

    A broker that proposes this sees first that the other one is not alive, and else says that it replaces nothing.
    """
    checked = check_registration(registration)
    return _encode(Kind.REGISTER_BROKER, RegisterBroker(checked, check_time(now_ms), replaces))


def encode_update_broker(
    node_id: str,
    *,
    rack: str | None = None,
    addresses: Mapping[str, str] | None = None,
    feature_min: int | None = None,
    feature_max: int | None = None,
) -> bytes:
    """Change what a broker said of itself; what is None stays."""
    given = None if addresses is None else dict(addresses)
    return _encode(
        Kind.UPDATE_BROKER, UpdateBroker(check_name(node_id, "node_id"), rack, given, feature_min, feature_max)
    )


def encode_drain_broker(node_id: str, now_ms: int) -> bytes:
    return _encode(Kind.DRAIN_BROKER, DrainBroker(check_name(node_id, "node_id"), check_time(now_ms)))


def encode_undrain_broker(node_id: str) -> bytes:
    return _encode(Kind.UNDRAIN_BROKER, UndrainBroker(check_name(node_id, "node_id")))


def encode_remove_broker(node_id: str, now_ms: int) -> bytes:
    return _encode(Kind.REMOVE_BROKER, RemoveBroker(check_name(node_id, "node_id"), check_time(now_ms)))


def encode_raise_feature_level(level: int) -> bytes:
    return _encode(Kind.RAISE_FEATURE_LEVEL, RaiseFeatureLevel(level))


# ------------------------------------------------------------------ replicas


def encode_rebalance(now_ms: int) -> bytes:
    return _encode(Kind.REBALANCE, Rebalance(check_time(now_ms)))


def encode_move_replica(set_id: int, source_node: str, target_node: str, now_ms: int) -> bytes:
    source, target = check_name(source_node, "source_node"), check_name(target_node, "target_node")
    return _encode(Kind.MOVE_REPLICA, MoveReplica(set_id, source, target, check_time(now_ms)))


def encode_transfer_leader(set_id: int, node_id: str) -> bytes:
    return _encode(Kind.TRANSFER_LEADER, TransferLeader(set_id, check_name(node_id, "node_id")))


def encode_finish_step(move_id: int, position: int, action: Action) -> bytes:
    """The step that `next_steps` named has been done; repeating this changes nothing."""
    return _encode(Kind.FINISH_STEP, FinishStep(move_id, position, action))


def encode_fail_step(move_id: int, position: int, action: Action, reason: str) -> bytes:
    """The step could not be done. It will be named again, until it has failed too often and the move is taken back."""
    return _encode(Kind.FAIL_STEP, FailStep(move_id, position, action, reason[: limits.REASON_LENGTH_MAX]))


def encode_report_damage(set_id: int, replica_id: int, node_id: str) -> bytes:
    """This broker's copy of a set is damaged: it is to be replaced, there, by a new one."""
    return _encode(Kind.REPORT_DAMAGE, ReportDamage(set_id, replica_id, check_name(node_id, "node_id")))


def encode_cancel_plan(plan_id: int) -> bytes:
    return _encode(Kind.CANCEL_PLAN, CancelPlan(plan_id))


# ------------------------------------------------------------------ staged publish


def encode_begin_try(
    transaction: str,
    owner: str,
    sequence: int,
    commit_id: bytes,
    participants: Sequence[tuple[str, int, Sequence[int]]],
    *,
    timeout_ms: int,
    once: bool = False,
    now_ms: int,
) -> bytes:
    """A commit is asked for; `participants`: the partitions with stages of it, as (topic, incarnation, partitions).

    The same commit id again finds the same try, or how it ended.
    """
    named = tuple((topic, incarnation, tuple(partitions)) for topic, incarnation, partitions in participants)
    check_parties(transaction, owner)
    check_commit_id(commit_id)
    check_commit(sequence, named, timeout_ms)
    command = BeginTry(transaction, owner, sequence, commit_id, named, timeout_ms, once, check_time(now_ms))
    return _encode(Kind.BEGIN_TRY, command)


def encode_end_tries(
    commits: Sequence[int], aborts: Sequence[tuple[int, AbortReason]], finished: Sequence[int], now_ms: int
) -> bytes:
    """Outcomes, many in one entry; only the conductor proposes this. What is decided already stays as it is."""
    command = EndTries(tuple(commits), tuple(aborts), tuple(finished), check_time(now_ms))
    return _encode(Kind.END_TRIES, command)


def encode_abort_commit(transaction: str, owner: str, commit_id: bytes, now_ms: int) -> bytes:
    """A commit is given up, whether it has begun or not; it may turn out to be committed."""
    check_parties(transaction, owner)
    check_commit_id(commit_id)
    return _encode(Kind.ABORT_COMMIT, AbortCommit(transaction, owner, commit_id, check_time(now_ms)))


def encode_claim_transaction(transaction: str, owner: str, *, restart: bool, now_ms: int) -> bytes:
    """Another owner takes a transaction over; `restart`: and knows of no sequence that is committed."""
    check_parties(transaction, owner)
    return _encode(Kind.CLAIM_TRANSACTION, ClaimTransaction(transaction, owner, restart, check_time(now_ms)))


def encode_forget_transactions(seen: Sequence[tuple[str, int]], *, hashes_too: bool = False) -> bytes:
    """Those that have no open try and were not used since; each leaves a hash, unless it is one that is used once."""
    return _encode(Kind.FORGET_TRANSACTIONS, ForgetTransactions(tuple(seen), hashes_too))


# ------------------------------------------------------------------ members of groups


def encode_change_groups(changes: Sequence[Change], now_ms: int) -> bytes:
    """Changes of groups, each of which is decided by itself when the command applies."""
    return _framed(Kind.CHANGE_GROUPS, encode_changes(changes, check_time(now_ms)), "changes")


# ------------------------------------------------------------------ bytes


def check_time(now_ms: int, field: str = "now_ms") -> int:
    if not 0 <= now_ms <= limits.TIME_MS_MAX:
        raise ValidationError(f"{field} is {now_ms}: it must lie in 0 to {limits.TIME_MS_MAX}", field=field)
    return now_ms


def is_known(payload: bytes) -> bool:
    """Whether this release has such a command, whatever is in it: only those may be proposed."""
    return len(payload) > _PREFIX_BYTES and payload[0] in _DECODERS and payload[1] == VERSION


def decode(payload: bytes) -> Command:
    """The command in a log entry, or a catalogue error that says why it is none; UnknownRecord: of a newer release."""
    if not _PREFIX_BYTES < len(payload) <= COMMAND_BYTES_MAX:
        raise ValidationError(f"a command of {len(payload)} bytes is too short or too long")
    kind, version = payload[0], payload[1]
    if not is_known(payload):
        raise UnknownRecord(
            f"the metadata holds command {kind} in version {version}, which is not known here; {features.START_NEWER}"
        )
    try:
        return _DECODERS[kind](payload[_PREFIX_BYTES:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise ValidationError(f"the command does not decode: {error}") from None


def _encode(kind: Kind, command: Command) -> bytes:
    what = "settings" if kind in (Kind.CREATE_TOPIC, Kind.ALTER_TOPIC) else "values"
    try:
        body = msgspec.msgpack.encode(command)
    except (TypeError, OverflowError, RecursionError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise ValidationError(f"the {what} cannot be stored: {error}", field=what) from None
    return _framed(kind, body, what)


def _framed(kind: Kind, body: bytes, what: str) -> bytes:
    if len(body) + _PREFIX_BYTES > COMMAND_BYTES_MAX:
        raise ValidationError(f"the {what} take {len(body)} bytes, more than can be stored", field=what)
    return bytes((kind, VERSION)) + body
