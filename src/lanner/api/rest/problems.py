"""Errors as REST tells them: `{type, message, details}` with the catalogue's status.

An error has one name, that of the catalogue, here as in Python and on the command line: it is the `type`, and
`details.error`. FalconQ's users know five types; on its routes the same cases keep them, so `type` follows from the
status there. `details.retryable` says whether the same call may succeed when it is repeated.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final, NamedTuple

import msgspec

from lanner import limits
from lanner.api.rest.names import unknown_name
from lanner.api.rest.shapes import Problem
from lanner.errors import LannerError, MessageTooLarge, ServerError, ValidationError

log = logging.getLogger("lanner.api.rest")

_FALCONQ_TYPES: Final = {
    400: "ValidationError",
    404: "NotFoundError",
    500: "ServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
}
OWN_PATHS: Final = "/v1/"
_STATUSES_WITH_RETRY_AFTER: Final = frozenset({429, 503, 507})
_RETRY_AFTER_MS_DEFAULT: Final = 1_000
_PATH: Final = re.compile(r"^(?P<what>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_LONG: Final = re.compile(r"^Expected `str` of length <= (?P<length>\d+)")
_CONTENT: Final = re.compile(r"(^|\.)(value|key|message|partitionKey|headers\[[^\]]*\])$")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")
_BEGINNINGS: Final = {
    b"\x1f\x8b": "; it is compressed: send it as it is",
    b"\xef\xbb\xbf": "; it begins with a byte order mark: leave that out",
    b"\xff\xfe": "; it is UTF-16: send UTF-8",
    b"\xfe\xff": "; it is UTF-16: send UTF-8",
}
_encoder: Final = msgspec.json.Encoder()


class Answer(NamedTuple):
    """What goes back over HTTP."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


def answer_to(error: LannerError, path: str = "") -> Answer:
    """The reply that tells of an error to a request of this path."""
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
    name = error.name if path.startswith(OWN_PATHS) else _FALCONQ_TYPES.get(status, error.name)
    problem = Problem(type=name, message=error.message, details=details)
    return Answer(status, _encoder.encode(problem), headers)


def answer_to_unexpected(error: Exception, path: str = "") -> Answer:
    """A fault of ours: the log has the whole of it, the caller a name for it."""
    log.error("a request failed in a way that it should not", exc_info=error)
    return answer_to(ServerError(), path)


def explain(error: Exception, what: str, kind: type[msgspec.Struct], raw: bytes = b"") -> ValidationError:
    """A decoding error of msgspec in our words: which field, or at which byte."""
    text = str(error)
    if isinstance(error, RecursionError):
        return ValidationError(f"{what} is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return ValidationError(f"{what} is not UTF-8: {error.reason}; send such bytes as base64 with an encoding")
    if not isinstance(error, msgspec.ValidationError):
        if (field := _lone_surrogate(raw)) is not None:
            return not_text(field)
        hint = next((hint for beginning, hint in _BEGINNINGS.items() if raw.startswith(beginning)), "")
        if "truncated" in text:
            hint = " or is empty"
        return ValidationError(f"{what} is not valid JSON: {text}{hint}")
    path = ""
    if (found := _PATH.match(text)) is not None:
        text, path = found["what"], found["path"].lstrip(".")
    if (missing := _MISSING.match(text)) is not None:
        field = f"{path}.{missing['field']}" if path else missing["field"]
        return ValidationError(f"{what} lacks the field {field}", field=field)
    if (unknown := _UNKNOWN.match(text)) is not None:
        return unknown_name(unknown["field"], path, what, kind)
    if (long := _LONG.match(text)) is not None and _CONTENT.search(path):
        return MessageTooLarge(
            f"{path} is longer than a message may be: at most {limits.MESSAGE_BYTES_MAX} bytes, and "
            f"{limits.KEY_BYTES_MAX} of a key",
            field=path,
            length_max=int(long["length"]),
        )
    text = text[:1].lower() + text[1:].replace("`", "")
    if found is not None and found["key"]:
        text = f"a key: {text}"
    if not path:
        return ValidationError(f"{what}: {text}")
    return ValidationError(f"{what}: {path}: {text}", field=path)


def not_text(field: str) -> ValidationError:
    """Half a surrogate pair stands for nothing: no bytes can be made of it."""
    return ValidationError(
        f"{field} holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no text: "
        "send bytes as base64 with an encoding",
        field=field,
    )


def _lone_surrogate(raw: bytes) -> str | None:
    """Where a body holds half a surrogate pair; the fast decoder says only that it does not like it."""
    if b"\\u" not in raw:
        return None
    try:
        waiting: list[tuple[str, object]] = [("", json.loads(raw))]
    except (ValueError, RecursionError):
        return None
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{name}".lstrip("."), inner) for name, inner in value.items()]
            waiting += [(path or "a name", name) for name in value]
        elif isinstance(value, list):
            waiting += [(f"{path}[{place}]", inner) for place, inner in enumerate(value)]
        elif isinstance(value, str) and _SURROGATE.search(value):
            return _SURROGATE.sub("?", path)
    return None
