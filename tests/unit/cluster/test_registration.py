from __future__ import annotations

import pytest

from lanner import limits
from lanner.cluster import Registration
from lanner.cluster.registration import check_founders, check_registration
from lanner.errors import ValidationError


def test_what_makes_sense_is_taken_as_it_is() -> None:
    given = Registration("a", "n-1", {"native": "[::1]:7400", "peer": "host.example:7401"}, "rack-1", 1, 4)
    assert check_registration(given) is given


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", Registration("", "n", {})),
        ("node_id", Registration("a", "no de", {})),
        ("rack", Registration("a", "n", {}, "x/y")),
        ("addresses", Registration("a", "n", {"carrier-pigeon": "a:1"})),
        ("addresses", Registration("a", "n", {"http": "a"})),
        ("addresses", Registration("a", "n", {"http": "a b:1"})),
        ("addresses", Registration("a", "n", {"http": "a" * limits.ADDRESS_LENGTH_MAX + ":1"})),
        ("feature_max", Registration("a", "n", {}, "", 0, 1)),
        ("feature_max", Registration("a", "n", {}, "", 3, 2)),
        ("feature_max", Registration("a", "n", {}, "", 1, 2**40)),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(field: str, given: Registration) -> None:
    with pytest.raises(ValidationError) as caught:
        check_registration(given)
    assert caught.value.details["field"] == field


def test_founders_are_some_and_different() -> None:
    one, other = Registration("a", "n-1", {}), Registration("b", "n-2", {})
    assert check_founders([one, other]) == (one, other)
    for wrong in ([], [one, Registration("a", "n-2", {})], [one, Registration("b", "n-1", {})], [one] * 1_000):
        with pytest.raises(ValidationError):
            check_founders(wrong)
