"""The one catalogue of errors.

Every error that can cross a door (native, REST, gRPC) is a class here, with its wire code, its HTTP and gRPC
status, and whether the same call may succeed when it is simply repeated. The docstring is the default message.
Rooms raise these; doors translate them and add nothing. A code is never reused for another meaning.
"""

from __future__ import annotations

import shlex
from typing import Any, ClassVar, Final


class LannerError(Exception):
    """Something went wrong inside Lanner."""

    code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.details = details
        super().__init__(self.message)

    @property
    def name(self) -> str:
        """The name under which every door reports this error."""
        return type(self).__name__

    @property
    def retry_after_ms(self) -> int | None:
        """How long the caller should wait before it tries again, when the broker knows."""
        value = self.details.get("retry_after_ms")
        return value if isinstance(value, int) else None


# ------------------------------------------------------------------ the caller's fault


class ValidationError(LannerError):
    """The request is not valid."""

    code = 10
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class MalformedBatch(ValidationError):
    """The batch does not decode."""

    code = 11


class MessageTooLarge(ValidationError):
    """The message is larger than the topic allows."""

    code = 12
    http_status = 413


class ProtocolError(ValidationError):
    """The frame does not follow the protocol."""

    code = 13

    @property
    def name(self) -> str:
        """The same for both kinds below: doors tell the other end, which knows itself as the one to blame."""
        return ProtocolError.__name__


class LocalProtocolError(ProtocolError):
    """This end did what the protocol does not allow; correct the code that called."""


class RemoteProtocolError(ProtocolError):
    """The other end did what the protocol does not allow; correct or upgrade it."""


class UnsupportedVersion(ValidationError):
    """The peer speaks a version of the protocol that this side does not know."""

    code = 14
    http_status = 505
    grpc_status = "FAILED_PRECONDITION"


class MethodNotAllowed(ValidationError):
    """This path does not know the method."""

    code = 15
    http_status = 405
    grpc_status = "UNIMPLEMENTED"


class RequestTimeout(ValidationError):
    """The request did not arrive whole in time; send it faster, or in smaller pieces."""

    code = 16
    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"


class Unauthenticated(LannerError):
    """The credentials are missing or wrong."""

    code = 20
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class PermissionDenied(LannerError):
    """The caller may not do this."""

    code = 21
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


# ------------------------------------------------------------------ what is named is not there, or is already


class NotFoundError(LannerError):
    """What the request names does not exist."""

    code = 30
    http_status = 404
    grpc_status = "NOT_FOUND"


class TopicNotFound(NotFoundError):
    """The topic does not exist; create it first, or let the broker create topics by itself."""

    code = 31


class PartitionNotFound(NotFoundError):
    """The topic has no such partition."""

    code = 32


class GroupNotFound(NotFoundError):
    """The group does not exist on this topic."""

    code = 33


class GroupExpired(NotFoundError):
    """The group had committed, and was not used for so long that this is forgotten; begin again somewhere."""

    code = 36


class DeadLetterNotFound(NotFoundError):
    """No dead letter of the group has this offset."""

    code = 34


class OffsetOutOfRange(NotFoundError):
    """The offset lies outside what the partition holds."""

    code = 35
    http_status = 416
    grpc_status = "OUT_OF_RANGE"


class MemberUnknown(NotFoundError):
    """The group has no such member: it left, or was silent for too long; join again under a new id."""

    code = 65


class TopicExists(LannerError):
    """A topic of this name exists already."""

    code = 40
    http_status = 409
    grpc_status = "ALREADY_EXISTS"


# ------------------------------------------------------------------ the state forbids it


class ConflictError(LannerError):
    """The request does not fit the present state."""

    code = 50
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class LeaseLost(ConflictError):
    """The lease has ended, or the message was leased again; the settle had no effect."""

    code = 51


class GroupKindConflict(ConflictError):
    """The group is of the other kind (stream or queue); use another group name."""

    code = 52


class ProducerFenced(ConflictError):
    """A newer epoch of this producer has published; this one must stop."""

    code = 53


class ProducerUnknown(ConflictError):
    """The broker no longer knows this producer's sequence; start again under a new producer id."""

    code = 54


class SequenceGap(ConflictError):
    """A batch before this one is missing; send the missing one first."""

    code = 55
    retryable = True


class StaleIncarnation(ConflictError):
    """The topic was deleted and created again since the caller looked it up."""

    code = 56


class FenceConflict(ConflictError):
    """Another owner has this transaction id; stop, or claim it for this one."""

    code = 57


class StageExpired(ConflictError):
    """Staged batches are gone before they were committed, and nothing of them shows; do the work again."""

    code = 58


class DeadLettersFull(ConflictError):
    """The group's dead letters are at their bound; redrive or discard some first."""

    code = 59


class BrokerRemoved(ConflictError):
    """The broker was removed from the cluster, or replaced under its name: what it holds no longer counts."""

    code = 60


class TransactionUnknown(ConflictError):
    """The transaction was forgotten; look at what was published, then claim it with restart."""

    code = 61


class TransactionAborted(ConflictError):
    """The commit was aborted and nothing of it shows; do the work again, or stop."""

    code = 62


class TransactionBusy(ConflictError):
    """The commit before this one is not confirmed everywhere yet; try again soon."""

    code = 63
    retryable = True


class SequencePassed(ConflictError):
    """A later sequence was committed and this one was not: its data is not published."""

    code = 64


class MemberFenced(ConflictError):
    """The partition belongs to another member, or to this one under a newer grant; stop, and release it."""

    code = 66


class InstanceFenced(ConflictError):
    """A newer process joined under the same instance; stop this one, or give each its own instance."""

    code = 67


class MembershipRequired(ConflictError):
    """The group hands its partitions to members; join it first."""

    code = 68


class AssignorConflict(ConflictError):
    """The group has members and another assignor; use that one, or alter the group."""

    code = 69


class GroupInUse(ConflictError):
    """The group has members; stop them first, or use force."""

    code = 80


class GroupFull(ConflictError):
    """There are as many members, groups or subscriptions as there may be; stop some, then join again."""

    code = 81


class IdempotencyConflict(ConflictError):
    """The idempotency key was used for other messages; repeat exactly those, or choose a new key."""

    code = 82


# ------------------------------------------------------------------ not now


class Overloaded(LannerError):
    """The broker has more in hand than it may hold; try again a little later."""

    code = 70
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    retryable = True


class StorageFull(LannerError):
    """The broker's disk is below its reserve; publishing goes on once there is room."""

    code = 71
    http_status = 507
    grpc_status = "RESOURCE_EXHAUSTED"
    retryable = True


class TopicFull(LannerError):
    """The topic is at its byte limit and its policy is to reject."""

    code = 72
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    retryable = True


class ServiceUnavailable(LannerError):
    """The broker is starting, draining or stopped."""

    code = 73
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class NotLeader(LannerError):
    """Another broker leads this partition."""

    code = 74
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class DeadlineExceeded(LannerError):
    """The deadline passed before the outcome was known; it may still take effect."""

    code = 75
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    retryable = True


class BadGateway(LannerError):
    """The broker that should answer did not."""

    code = 76
    http_status = 502
    grpc_status = "UNAVAILABLE"
    retryable = True


class ConnectionLost(LannerError):
    """The connection ended before the answer came."""

    code = 77
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class GenerationAhead(LannerError):
    """This broker has not yet heard of what the member has seen; try again soon, or ask another broker."""

    code = 78
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


# ------------------------------------------------------------------ the environment's fault


class ServerError(LannerError):
    """The broker failed; its log says more."""

    code = 90


class NotSupported(LannerError):
    """This broker does not offer this yet."""

    code = 91
    http_status = 501
    grpc_status = "UNIMPLEMENTED"


class StorageDamaged(ServerError):
    """What is on disk does not match its checksum."""

    code = 92

    def at(self, directory: str) -> StorageDamaged:
        """The same, with the command that repairs this directory; raised by the room that knows which one it is.

        What only a later release can read is not damaged: it has the detail `newer`, and stays as it is.
        """
        if self.details.get("newer") or "repair" in self.details:
            return self
        command = f"lanner broker repair --data {shlex.quote(directory)}"
        return StorageDamaged(f"{self.message}. To repair it: {command}", **self.details, repair=command)


class StorageFailed(ServerError):
    """A write could not be made durable; the broker stops."""

    code = 93


class DataDirectoryRefused(ServerError):
    """The data directory is locked, belongs to another node, or was written by a newer version."""

    code = 94


class UnknownRecord(ServerError):
    """A committed record is of a kind or version that this release does not know; its replica stops there."""

    code = 95


class NotInstalled(LannerError):
    """A package that this needs is not installed; the message says what to type."""

    code = 97
    http_status = 501
    grpc_status = "UNIMPLEMENTED"


BLAMING: Final = (LocalProtocolError, RemoteProtocolError)  # they say whose fault it was, here, and cross doors as one


def catalogue() -> dict[int, type[LannerError]]:
    """Every error by its wire code."""
    found: dict[int, type[LannerError]] = {}
    waiting: list[type[LannerError]] = [LannerError]
    while waiting:
        kind = waiting.pop()
        if kind.code in found:
            raise AssertionError(f"{kind.__name__} and {found[kind.code].__name__} share the code {kind.code}")
        found[kind.code] = kind
        waiting.extend(below for below in kind.__subclasses__() if below not in BLAMING)
    return found


def from_wire(code: int, message: str, details: dict[str, Any] | None = None) -> LannerError:
    """The error a peer reported, as the same class here; an unknown code becomes ServerError.

    A peer that reports a ProtocolError complains of what this end sent: the fault is here.
    """
    kind = _REPORTED.get(code, ServerError)
    return kind(message, **(details or {}))


_REPORTED: Final[dict[int, type[LannerError]]] = {**catalogue(), ProtocolError.code: LocalProtocolError}
