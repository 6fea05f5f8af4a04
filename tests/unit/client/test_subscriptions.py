"""What a consumer wants: names and patterns."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.client.subscriptions import Subscription, subscription_of
from lanner.errors import ValidationError


def test_names_are_told_from_patterns_and_each_counts_once() -> None:
    assert subscription_of("orders") == Subscription(("orders",), ())
    found = subscription_of(["refunds.*", "orders", "a?c", "orders"])
    assert found == Subscription(("orders",), ("a?c", "refunds.*"))
    assert str(found) == "orders, a?c, refunds.*"
    assert not found.is_one_topic and subscription_of("orders").is_one_topic
    assert not subscription_of("orders*").is_one_topic


def test_patterns_stand_for_whole_names_and_nothing_in_them_is_special_but_star_and_question_mark() -> None:
    names = ["abc", "abbc", "refunds", "refunds.eu", "xrefunds.eu", "orders"]
    assert subscription_of(["a?c", "refunds.*", "here"]).matching(names) == ["abc", "here", "refunds.eu"]


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ([], "at least one"),
        ("no spaces", "not valid"),
        ("a[b]*", "pattern .* not valid"),
        ("*" * 201, "not valid"),
        ([7], "not valid"),
        ([["orders"]], "not valid"),
        ([f"{number}*" for number in range(limits.SUBSCRIPTION_PATTERNS_MAX + 1)], "33 patterns"),
        ([str(number) for number in range(limits.SUBSCRIPTION_TOPICS_MAX + 1)], "1001 topics"),
    ],
)
def test_what_can_be_neither_is_refused(topics: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        subscription_of(topics)
