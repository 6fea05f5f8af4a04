"""Every error of the catalogue as a status with trailers that programs can read."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from lanner.api.grpc.problems import problem_of
from lanner.errors import LannerError, LeaseLost, Overloaded, ValidationError, catalogue


def details_of(error: LannerError) -> Status:
    return Status.FromString(dict(problem_of(error).trailers)["grpc-status-details-bin"])


@pytest.mark.parametrize("kind", catalogue().values(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_status_and_its_name(kind: type[LannerError]) -> None:
    problem = problem_of(kind())
    trailers = dict(problem.trailers)
    assert problem.code is grpc.StatusCode[kind.grpc_status]
    assert problem.code is not grpc.StatusCode.OK
    assert (trailers["lanner-error"], trailers["lanner-code"]) == (kind.__name__, str(kind.code))
    assert ("lanner-retryable" in trailers) is kind.retryable
    status = details_of(kind())
    assert status.code == problem.code.value[0]
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (kind.__name__, "lanner")


def test_details_say_which_field_and_when_to_try_again() -> None:
    status = details_of(ValidationError("topic is missing", field="topic", given=7))
    info, bad = ErrorInfo(), BadRequest()
    assert status.details[0].Unpack(info)
    assert dict(info.metadata) == {"field": "topic", "given": "7"}
    assert status.details[1].Unpack(bad)
    assert [(one.field, one.description) for one in bad.field_violations] == [("topic", "topic is missing")]
    retry = RetryInfo()
    assert details_of(Overloaded(retry_after_ms=1_500)).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1_500


def test_trailers_stay_within_what_clients_take() -> None:
    details = {f"name-{number}" * 100: "ö" * 10_000 for number in range(100)}
    problem = problem_of(LeaseLost("ö" * 10_000, field="f" * 10_000, **details))
    message = quote(problem.message)  # as it travels, and what is binary in base 64
    trailers = [
        name + (value if isinstance(value, str) else b64encode(value).decode()) for name, value in problem.trailers
    ]
    assert len(message) + sum(map(len, trailers)) < 8_000
