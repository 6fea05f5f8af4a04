from __future__ import annotations

import pytest
import typer

from lanner.cli import parsing


def test_settings_are_numbers_where_they_look_like_numbers():
    assert parsing.settings(["partitions=6", "retention=acked", "max_bytes=-1"]) == {
        "partitions": 6,
        "retention": "acked",
        "max_bytes": -1,
    }


def test_a_value_may_hold_an_equals_sign():
    assert parsing.pairs(["a=b=c"], "--header") == {"a": "b=c"}


@pytest.mark.parametrize("word", ["partitions", "=6", ""])
def test_a_word_that_is_no_pair_is_refused(word):
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        parsing.pairs([word], "settings")


def test_offsets_are_by_partition():
    assert parsing.offsets(["0=5", "2=7"]) == {0: 5, 2: 7}
    with pytest.raises(typer.BadParameter, match="PARTITION=OFFSET"):
        parsing.offsets(["0=-5"])


@pytest.mark.parametrize("word", ["²", "--5", "-", "1_000", " 5", "٣", "9" * 5_000])
def test_what_only_looks_like_a_number_is_none(word):
    assert parsing.settings([f"lease_ms={word}"]) == {"lease_ms": word}
    with pytest.raises(typer.BadParameter, match="PARTITION=OFFSET"):
        parsing.offsets([f"{word}=1"])
    with pytest.raises(typer.BadParameter, match="TOPIC/PARTITION"):
        parsing.partition(f"orders/{word}")
    with pytest.raises(typer.BadParameter, match="PARTITION/OFFSET"):
        parsing.message_ids([f"{word}/1"])
    with pytest.raises(typer.BadParameter, match="PARTITION/OFFSET"):
        parsing.place(f"{word}/1", "--from")
    with pytest.raises(typer.BadParameter, match="not a time"):
        parsing.moment(word)


def test_an_id_may_name_its_topic():
    assert parsing.message_ids(["0/17", "orders/0/18", "1/2"]) == {0: [17, 18], 1: [2]}


@pytest.mark.parametrize("word", ["17", "a/b", "0/", ""])
def test_what_is_no_id_is_refused(word):
    with pytest.raises(typer.BadParameter, match="PARTITION/OFFSET"):
        parsing.message_ids([word])


def test_a_moment_is_a_date_or_milliseconds():
    assert parsing.moment("1500") == 1500
    assert parsing.moment("1970-01-01T00:00:02") == 2000
    assert parsing.moment("1970-01-01T01:00:02+01:00") == 2000
    with pytest.raises(typer.BadParameter, match="not a time"):
        parsing.moment("yesterday")
