"""Queue's ids of partitions and messages: what they say, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.api.grpc.queue_ids import (
    MESSAGE_ID_BYTES_MAX,
    Receipt,
    check_consumer,
    parse_partition_id,
    parse_receipt,
    partition_id,
)
from lanner.errors import PartitionNotFound, ValidationError

names = st.from_regex(r"[A-Za-z0-9._-]{1,200}", fullmatch=True)
numbers = st.integers(0, 2**53 - 1)
consumers = st.text(
    st.characters(min_codepoint=32, blacklist_characters="\x7f", blacklist_categories=["Cs"]), min_size=1
)


@given(names, st.integers(0, 999))
def test_a_partition_id_says_topic_and_number_again(topic: str, partition: int) -> None:
    assert parse_partition_id(partition_id(topic, partition)) == (topic, partition)


@pytest.mark.parametrize(
    "text", ["", "orders", "orders-", "-1", "orders-01", "orders--1 ", "a/b-0", "orders-1\n", "x" * 900]
)
def test_what_is_no_partition_id_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="give TOPIC-N") as caught:
        parse_partition_id(text)
    assert caught.value.details["field"] == "partition_id"


def test_a_partition_that_no_topic_can_have_is_not_found() -> None:
    with pytest.raises(PartitionNotFound):
        parse_partition_id("orders-1000")


@given(names, numbers, numbers, numbers, names, consumers.filter(lambda text: len(text) <= 150))
def test_the_id_of_a_received_message_says_its_lease_again(
    topic: str, partition: int, offset: int, token: int, group: str, consumer: str
) -> None:
    receipt = Receipt(topic, partition, offset, token, group, consumer)
    data = receipt.to_bytes()
    if len(data) <= MESSAGE_ID_BYTES_MAX:
        assert parse_receipt(data) == receipt


def test_the_longest_names_fit_into_an_id() -> None:
    receipt = Receipt("t" * 200, 999, 2**53 - 1, 2**53 - 1, "g" * 200, "c" * 200)
    assert parse_receipt(receipt.to_bytes()) == receipt


@pytest.mark.parametrize(
    "data", [b"", b"99", b"\xff\xfe", b"orders/0/5#7#g#", b"orders/0/5#7#g#c\n", b"orders/0/5#07#g#c", b"x" * 10_000]
)
def test_an_id_that_was_never_given_out_is_refused(data: bytes) -> None:
    with pytest.raises(ValidationError, match="none that was given out"):
        parse_receipt(data)


def test_the_id_of_a_sent_message_is_told_apart() -> None:
    with pytest.raises(ValidationError, match="that was sent: ack the id under which it was received"):
        parse_receipt(b"orders/0/5")


@pytest.mark.parametrize("text", ["", "a\n", "a\x00b", "c" * 201])
def test_what_is_no_consumer_id_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        check_consumer(text)


def test_consumers_may_be_called_as_they_like() -> None:
    assert check_consumer("host-1:80 / größe") == "host-1:80 / größe"
