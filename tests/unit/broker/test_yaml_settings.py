"""Settings as YAML: every value is text or a list of text, with its line; what is something else is said to be."""

from __future__ import annotations

import pytest

from lanner.broker.yaml_settings import read_settings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("# only a comment\n", []),
        ("http: 8080\n", [("http", "8080", 1)]),
        ("name: no\nrack: 'a b'\n", [("name", "no", 1), ("rack", "a b", 2)]),
        ("\nseeds: [a:1, b:2]\n", [("seeds", ["a:1", "b:2"], 2)]),
        ("seeds:\n  - a:1\n  - 7\n", [("seeds", ["a:1", "7"], 1)]),
        ("rack:\n", [("rack", None, 1)]),
        ("rack: ~\n", [("rack", None, 1)]),
        ("rack: {a: b}\n", [("rack", None, 1)]),
        ("seeds: [[a], b]\n", [("seeds", None, 1)]),
        ("rack: !!python/object/apply:os.system [ls]\n", [("rack", None, 1)]),
    ],
)
def test_a_value_is_taken_as_it_is_written_and_nothing_is_made_of_it(
    text: str, found: list[tuple[str, str | list[str] | None, int]]
) -> None:
    assert list(read_settings(text)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n- b\n", "names and values"),
        ("only text\n", "names and values"),
        ("a: b\n  c: d\n", r"line 2"),
        ("a: [b\n", r"line 2"),
        ("a: \x00\n", "special characters"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(read_settings(text))
