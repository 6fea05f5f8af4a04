"""A value that exists is valid."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner import limits, model
from lanner.errors import ValidationError
from lanner.model import FullPolicy, Message, Retention, TopicPartition, TopicSettings


@pytest.mark.parametrize(
    ("given_", "number"),
    [("low", 0), ("normal", 4), ("high", 9), ("HIGH", 9), ("7", 7), (0, 0), (9, 9), (None, 4)],
)
def test_a_priority_is_a_number_a_digit_or_a_name(given_: int | str | None, number: int) -> None:
    assert model.parse_priority(given_) == number


@pytest.mark.parametrize("given_", [-1, 10, True, "10", "", "urgent", "٣", "-1", 4.0, b"high", [4]])
def test_anything_else_is_no_priority(given_: Any) -> None:
    with pytest.raises(ValidationError, match="0 to 9, or low, normal or high") as caught:
        model.parse_priority(given_)
    assert caught.value.details["field"] == "priority"


def test_a_priority_with_a_name_is_shown_by_it() -> None:
    assert [model.priority_name(number) for number in (0, 1, 4, 9)] == ["low", 1, "normal", "high"]


@given(st.integers(0, 9))
def test_what_is_shown_can_be_given_again(number: int) -> None:
    assert model.parse_priority(model.priority_name(number)) == number


@pytest.mark.parametrize("name", ["orders", "a.b", "...", "x" * limits.NAME_LENGTH_MAX])
def test_a_name_is_returned_as_it_is(name: str) -> None:
    assert model.check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 201, None, 7, b"orders", "a\n"])
def test_what_is_no_name_is_refused_and_shown_in_short(name: Any) -> None:
    with pytest.raises(ValidationError, match=r"^topic ") as caught:
        model.check_name(name, "topic")
    assert caught.value.details["field"] == "topic"
    assert len(caught.value.message) < 300


def test_a_message_has_an_id() -> None:
    message = Message("orders", 2, 17, b"value")
    assert message.id == "orders/2/17"
    assert str(TopicPartition("orders", 2)) == "orders/2"
    assert (message.key, dict(message.headers), message.priority, message.attempt) == (None, {}, 4, 0)
    with pytest.raises(AttributeError):
        message.offset = 18  # type: ignore[misc]


def test_settings_survive_being_written_down() -> None:
    settings = TopicSettings(partitions=5, retention=Retention.ACKED, full_policy=FullPolicy.DROP_OLDEST)
    written = settings.to_dict()
    assert written["retention"] == "acked"
    assert type(written["retention"]) is str
    assert TopicSettings.from_dict(written) == settings


def test_settings_given_as_text_become_what_they_mean() -> None:
    settings = TopicSettings.from_dict({"retention": "acked"})
    assert settings.retention is Retention.ACKED
    assert settings.changed({"lease_ms": 500}).lease_ms == 500
    assert settings.lease_ms == 30_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", 0),
        ("partitions", 10_000),
        ("partitions", "3"),
        ("partitions", True),
        ("partitions", 2.0),
        ("lease_ms", 0),
        ("max_deliveries", 0),
        ("backoff_ms", -1),
        ("retention_ms", -1),
        ("message_bytes_max", limits.MESSAGE_BYTES_MAX + 1),
        ("priority_policy", "random"),
        ("retention", None),
        ("full_policy", "panic"),
        ("dead_full", 3),
    ],
)
def test_a_setting_out_of_its_bounds_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"^{name} is ") as caught:
        TopicSettings.from_dict({name: value})
    assert caught.value.details["field"] == name


def test_a_name_that_is_no_setting_gets_the_list_of_those_there_are() -> None:
    with pytest.raises(ValidationError, match="'colour' is not a topic setting; there are backoff_max_ms, "):
        TopicSettings.from_dict({"colour": "red"})


def test_a_backoff_beyond_its_cap_is_refused() -> None:
    with pytest.raises(ValidationError, match="larger than backoff_max_ms"):
        TopicSettings(backoff_ms=1_000, backoff_max_ms=500)


def test_every_number_among_the_settings_has_a_bound() -> None:
    for setting in dataclasses.fields(TopicSettings):
        if setting.type == "int":
            with pytest.raises(ValidationError):
                TopicSettings.from_dict({setting.name: -(2**70)})
            with pytest.raises(ValidationError):
                TopicSettings.from_dict({setting.name: 2**70})
