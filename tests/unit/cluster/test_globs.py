from __future__ import annotations

import random
import re

import pytest

from lanner.cluster.globs import check_pattern, matches
from lanner.errors import ValidationError


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "ordersxeu", False),
        ("*", "anything", True),
        ("*.eu", "orders.eu", True),
        ("*.eu", "orders.eu.de", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*a", "a", False),
        ("**x**", "axa", True),
    ],
)
def test_a_star_is_any_characters_and_a_question_mark_is_one(pattern: str, name: str, found: bool) -> None:
    assert matches(pattern, name) is found


def test_what_is_found_is_what_the_plain_definition_finds() -> None:
    rng = random.Random(7)
    for _ in range(3_000):
        pattern = "".join(rng.choice("ab.*?") for _ in range(rng.randint(1, 7)))
        name = "".join(rng.choice("ab.") for _ in range(rng.randint(1, 9)))
        plain = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        assert matches(pattern, name) is (re.fullmatch(plain, name) is not None), (pattern, name)


@pytest.mark.parametrize("pattern", ["", "a b", "[ab]", "a" * 201, "ä"])
def test_nothing_else_is_a_pattern(pattern: str) -> None:
    with pytest.raises(ValidationError):
        check_pattern(pattern)
    assert check_pattern("a.*-_?9") == "a.*-_?9"
