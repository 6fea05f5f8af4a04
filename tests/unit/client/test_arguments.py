"""What callers hand in, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lanner import limits
from lanner.client.arguments import (
    check_bound,
    checked_column,
    column_bytes,
    dedup_bytes,
    deliver_moment,
    expiry_moment,
    header_map,
    key_bytes,
    moment_ms,
    split_by_size,
    value_bytes,
)
from lanner.errors import MessageTooLarge, ValidationError


def noon() -> int:
    return 1_000_050


def test_text_becomes_utf8_and_buffers_become_bytes() -> None:
    assert value_bytes("ä") == b"\xc3\xa4"
    assert value_bytes(bytearray(b"a")) == b"a"
    assert value_bytes(memoryview(b"a")) == b"a"
    assert key_bytes(None) is None
    assert key_bytes("k") == b"k"
    assert dedup_bytes(None) == b""
    assert header_map(None) is None
    assert header_map({"a": "b", "c": b"d"}) == {"a": b"b", "c": b"d"}


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: value_bytes(7), "value is int"),
        (lambda: key_bytes(bytes(limits.KEY_BYTES_MAX + 1)), "key has 65537 bytes"),
        (lambda: dedup_bytes(""), "dedup_id is empty"),
        (lambda: dedup_bytes(bytes(201)), "dedup_id has 201"),
        (lambda: header_map({str(n): b"" for n in range(101)}), "101 entries"),
        (lambda: header_map({7: b""}), "header name 7"),  # type: ignore[dict-item]
        (lambda: header_map({"a": 7}), "header 'a' is int"),  # type: ignore[dict-item]
        (lambda: header_map({"a": bytes(40_000), "b": bytes(40_000)}), "headers have"),
        (lambda: moment_ms(-1, "deliver_at"), "deliver_at is -1"),
        (lambda: moment_ms(True, "deliver_at"), "deliver_at is True"),
        (lambda: moment_ms(datetime(2030, 1, 1), "deliver_at"), "no time zone"),
        (lambda: deliver_moment(1, 1, noon), "choose one"),
        (lambda: deliver_moment(-1, None, noon), "delay_ms is -1"),
        (lambda: expiry_moment(1, 1, noon), "choose one"),
        (lambda: expiry_moment(0, None, noon), "expire before"),
        (lambda: column_bytes([]), "values is empty"),
        (lambda: column_bytes([b"a", 7]), "value is int"),  # type: ignore[list-item]
        (lambda: check_bound("linger_ms", -1, 0, 5), "linger_ms is -1"),
        (lambda: checked_column("keys", [b"a"], 2, key_bytes), "1 entries for 2"),
    ],
)
def test_a_refusal_names_the_argument(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        refused()


def test_a_message_too_large_has_its_own_error() -> None:
    with pytest.raises(MessageTooLarge):
        value_bytes(bytes(limits.MESSAGE_BYTES_MAX + 1))


def test_delays_are_rounded_up_by_less_than_a_tenth_of_a_second() -> None:
    assert deliver_moment(None, None, noon) == 0
    assert deliver_moment(0, None, noon) == 0
    assert deliver_moment(1, None, noon) == 1_000_100
    assert deliver_moment(50, None, noon) == 1_000_100
    assert deliver_moment(51, None, noon) == 1_000_200
    assert deliver_moment(None, 1_000_001, noon) == 1_000_001
    assert deliver_moment(None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), noon) == 1_000


def test_an_expiry_is_kept_to_the_millisecond() -> None:
    assert expiry_moment(None, None, noon) == 0
    assert expiry_moment(1, None, noon) == 1_000_051
    assert expiry_moment(None, 7, noon) == 7


def test_columns_of_text_are_converted_and_columns_of_bytes_are_not_touched() -> None:
    assert column_bytes(["a", b"b"]) == [b"a", b"b"]
    assert column_bytes((b"a", b"b")) == [b"a", b"b"]


def test_columns_are_cut_by_count_and_by_size() -> None:
    assert split_by_size([1, 1, 1], 10, 10) == [(0, 3)]
    assert split_by_size([1] * 5, 10, 2) == [(0, 2), (2, 4), (4, 5)]
    assert split_by_size([4, 4, 4, 20, 1], 8, 10) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert split_by_size([1] * 7, 3, 5) == [(0, 3), (3, 6), (6, 7)]
