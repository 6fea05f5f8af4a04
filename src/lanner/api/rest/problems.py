"""Errors as REST tells them: `{type, message, details}` with the catalogue's status.

FalconQ's users know five types; the same cases keep them, so `type` follows from the status there. Everything finer has
the catalogue's own name as its type. `details.error` is that name in every case, and `details.retryable` says whether
the same call may succeed when it is repeated.
"""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

import msgspec

from lanner.api.rest.shapes import Problem
from lanner.errors import LannerError, ServerError, ValidationError

log = logging.getLogger("lanner.api.rest")

_FALCONQ_TYPES: Final = {
    400: "ValidationError",
    404: "NotFoundError",
    500: "ServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
}
_STATUSES_WITH_RETRY_AFTER: Final = frozenset({429, 503, 507})
_RETRY_AFTER_MS_DEFAULT: Final = 1_000
_PATH: Final = re.compile(r"^(?P<what>.*) - at `\$(?P<path>.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")
_encoder: Final = msgspec.json.Encoder()


class Answer(NamedTuple):
    """What goes back over HTTP."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


def answer_to(error: LannerError) -> Answer:
    """The reply that tells of an error."""
    status = error.http_status
    details = {"error": error.name, **error.details}
    headers: list[tuple[bytes, bytes]] = []
    if error.retryable:
        details["retryable"] = True
    if status in _STATUSES_WITH_RETRY_AFTER:
        wait_ms = error.retry_after_ms or _RETRY_AFTER_MS_DEFAULT
        headers.append((b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))))
    allowed = error.details.get("allowed")
    if isinstance(allowed, list):
        headers.append((b"allow", ", ".join(allowed).encode("ascii")))
    problem = Problem(type=_FALCONQ_TYPES.get(status, error.name), message=error.message, details=details)
    return Answer(status, _encoder.encode(problem), headers)


def answer_to_unexpected(error: Exception) -> Answer:
    """A fault of ours: the log has the whole of it, the caller a name for it."""
    log.error("a request failed in a way that it should not", exc_info=error)
    return answer_to(ServerError())


def explain(error: Exception, what: str) -> ValidationError:
    """A decoding error of msgspec in our words: which field, or at which byte."""
    text = str(error)
    if isinstance(error, RecursionError):
        return ValidationError(f"{what} is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return ValidationError(f"{what} is not UTF-8: {error.reason}; send such bytes as base64 with an encoding")
    if not isinstance(error, msgspec.ValidationError):
        hint = " or is empty" if "truncated" in text else ""
        return ValidationError(f"{what} is not valid JSON: {text}{hint}")
    path = ""
    if (found := _PATH.match(text)) is not None:
        text, path = found["what"], found["path"].lstrip(".")
    if (missing := _MISSING.match(text)) is not None:
        field = f"{path}.{missing['field']}" if path else missing["field"]
        return ValidationError(f"{what} lacks the field {field}", field=field)
    text = text[:1].lower() + text[1:].replace("`", "")
    if not path:
        return ValidationError(f"{what}: {text}")
    return ValidationError(f"{what}: {path}: {text}", field=path)
