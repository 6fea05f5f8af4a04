"""The one catalogue: every error can cross every door and comes out as itself."""

from __future__ import annotations

import pytest

from lanner import errors
from lanner.errors import LannerError

CATALOGUE = errors.catalogue()
KINDS = [pytest.param(kind, id=kind.__name__) for kind in CATALOGUE.values()]
GRPC_STATUSES = {
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNIMPLEMENTED",
}


def test_every_error_of_the_module_is_in_the_catalogue() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LannerError)}
    assert {*CATALOGUE.values(), *errors.BLAMING} == classes
    assert len(CATALOGUE) > 35


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_a_code_of_its_own_and_a_status_for_each_door(kind: type[LannerError]) -> None:
    assert "code" in vars(kind), "a code is never inherited"
    assert 0 < kind.code < 1_000  # 0 means success on the wire
    assert 400 <= kind.http_status < 600
    assert kind.grpc_status in GRPC_STATUSES


@pytest.mark.parametrize("kind", KINDS)
def test_the_docstring_is_the_default_message(kind: type[LannerError]) -> None:
    error = kind()
    assert vars(kind)["__doc__"], "a docstring is never inherited"
    assert error.message == str(error) == (kind.__doc__ or "").strip()
    assert error.message.endswith(".")
    assert error.name == kind.__name__


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_wire(kind: type[LannerError]) -> None:
    error = errors.from_wire(kind.code, "what happened", {"field": "topic", "retry_after_ms": 20})
    assert error.name == kind.__name__
    assert type(error) is (errors.LocalProtocolError if kind is errors.ProtocolError else kind)
    assert error.message == "what happened"
    assert error.details == {"field": "topic", "retry_after_ms": 20}
    assert error.retry_after_ms == 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_helps_only_where_the_status_says_so_too(kind: type[LannerError]) -> None:
    if kind.retryable:
        assert kind.http_status in (409, 429, 502, 503, 504, 507)
    else:
        assert kind.http_status not in (429, 502, 503, 504)


@pytest.mark.parametrize("kind", errors.BLAMING)
def test_who_is_to_blame_is_said_here_and_doors_tell_one_and_the_same_error(kind: type[LannerError]) -> None:
    assert kind().message == (kind.__doc__ or "").strip()
    assert (kind().name, kind.code) == ("ProtocolError", errors.ProtocolError.code)
    assert isinstance(kind(), errors.ProtocolError)


def test_what_a_peer_complains_of_is_the_fault_of_this_end() -> None:
    assert type(errors.from_wire(errors.ProtocolError.code, "no such command")) is errors.LocalProtocolError


def test_an_unknown_code_becomes_a_server_error() -> None:
    error = errors.from_wire(9_999, "from the future")
    assert type(error) is errors.ServerError
    assert error.message == "from the future"
    assert error.details == {}


def test_a_retry_hint_that_is_no_number_is_ignored() -> None:
    assert errors.Overloaded(retry_after_ms="soon").retry_after_ms is None
    assert errors.Overloaded().retry_after_ms is None


def test_two_errors_with_one_code_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.TopicFull, "code", errors.StorageFull.code)
    with pytest.raises(AssertionError, match="share the code"):
        errors.catalogue()


@pytest.mark.parametrize(
    ("code", "name"),
    [(10, "ValidationError"), (11, "MalformedBatch"), (31, "TopicNotFound"), (51, "LeaseLost"), (70, "Overloaded")],
)
def test_a_code_keeps_its_meaning(code: int, name: str) -> None:
    assert CATALOGUE[code].__name__ == name
