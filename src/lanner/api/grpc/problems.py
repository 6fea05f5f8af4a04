"""Errors as gRPC tells them: the catalogue's status code, its message, and trailers for programs.

`lanner-error` names the error of the catalogue and `lanner-code` its number; `grpc-status-details-bin` holds the same
as google.rpc.Status, with ErrorInfo (the details), RetryInfo (when it is worth trying again) and BadRequest (which
field).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from lanner.errors import LannerError

DOMAIN: Final = "lanner"
# In bytes. What ends a call, encoded, must stay below the 8 KiB of headers that clients take.
_MESSAGE_MAX: Final = 800
_VALUE_MAX: Final = 160
_DETAILS_MAX: Final = 8  # how many


class Problem(NamedTuple):
    """How a call ends that did not succeed."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


def problem_of(error: LannerError) -> Problem:
    """The status and the trailers that tell of an error."""
    code = grpc.StatusCode[error.grpc_status]
    message = _cut(error.message, _MESSAGE_MAX)
    number: int = code.value[0]
    status = Status(code=number, message=_cut(message), details=[_packed(one) for one in _details(error)])
    trailers: list[tuple[str, str | bytes]] = [
        ("lanner-error", error.name),
        ("lanner-code", str(error.code)),
        ("grpc-status-details-bin", status.SerializeToString()),
    ]
    if error.retryable:
        trailers.append(("lanner-retryable", "true"))
    return Problem(code, message, tuple(trailers))


def _details(error: LannerError) -> Iterator[Message]:
    shown = list(error.details.items())[:_DETAILS_MAX]
    metadata = {_cut(str(name)): _cut(str(value)) for name, value in shown}
    if error.retryable:
        metadata["retryable"] = "true"
    yield ErrorInfo(reason=error.name, domain=DOMAIN, metadata=metadata)
    if error.retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        yield RetryInfo(retry_delay=delay)
    field = error.details.get("field")
    if isinstance(field, str):
        violation = BadRequest.FieldViolation(field=_cut(field), description=_cut(error.message))
        yield BadRequest(field_violations=[violation])


def _cut(text: str, bytes_max: int = _VALUE_MAX) -> str:
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
