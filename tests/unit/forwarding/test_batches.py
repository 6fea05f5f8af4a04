"""Messages handed in one by one become as few batches as their differences allow."""

from __future__ import annotations

import pytest

from lanner import batch, limits
from lanner.errors import MessageTooLarge, PartitionNotFound, ValidationError
from lanner.forwarding.batches import Router, group_messages
from lanner.forwarding.values import NewMessage, PlainMessages
from lanner.model import TopicSettings

SETTINGS = TopicSettings()


def test_messages_alike_share_one_batch_in_the_order_given() -> None:
    messages = [NewMessage(b"a", partition=1), NewMessage(b"b", partition=1), NewMessage(b"c", partition=1)]
    (group,) = group_messages(messages, 3, SETTINGS, Router())
    assert group.partition == 1
    assert group.places == [0, 1, 2]
    assert batch.decode(group.encode()).values() == [b"a", b"b", b"c"]


def test_each_priority_gets_its_own_batch() -> None:
    messages = [NewMessage(b"low", priority=0, partition=0), NewMessage(b"high", priority=9, partition=0)]
    groups = group_messages(messages, 1, SETTINGS, Router())
    assert [(batch.read_header(group.encode()).priority, group.places) for group in groups] == [(0, [0]), (9, [1])]


def test_a_key_chooses_its_partition_and_an_explicit_one_wins() -> None:
    expected = batch.partition_for_key(b"customer-7", 8)
    other = (expected + 1) % 8
    messages = [NewMessage(b"a", key=b"customer-7"), NewMessage(b"b", key=b"customer-7", partition=other)]
    groups = group_messages(messages, 8, SETTINGS, Router())
    assert [group.partition for group in groups] == [expected, other]


def test_a_dedup_id_chooses_the_partition_where_no_key_does() -> None:
    message = NewMessage(b"a", dedup_id=b"order-1")
    first, second = (group_messages([message], 8, SETTINGS, Router()) for _ in range(2))
    assert first[0].partition == second[0].partition == batch.partition_for_key(b"order-1", 8)


def test_without_key_calls_go_round_the_partitions() -> None:
    router = Router()
    chosen = [group_messages([NewMessage(b"a")], 3, SETTINGS, router)[0].partition for _ in range(6)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2]


def test_what_does_not_mind_stays_together_beside_what_does() -> None:
    router = Router()
    router.turn()
    keyed = batch.partition_for_key(b"customer-7", 8)
    messages = [NewMessage(b"a"), NewMessage(b"b", key=b"customer-7"), NewMessage(b"c", partition=5), NewMessage(b"d")]
    groups = group_messages(messages, 8, SETTINGS, router)
    assert {group.partition: group.places for group in groups} == {1: [0, 3], keyed: [1], 5: [2]}


def test_headers_count_for_what_a_batch_holds() -> None:
    headers = {"trace": b"x" * (limits.HEADERS_BYTES_MAX - limits.KIB)}
    messages = [NewMessage(b"%d" % number, headers=headers, partition=0) for number in range(100)]
    groups = group_messages(messages, 3, SETTINGS, Router())
    assert [place for group in groups for place in group.places] == list(range(100))
    assert len(groups) > 1 and all(len(group.encode()) < limits.BATCH_BYTES_MAX for group in groups)


def test_a_call_larger_than_a_batch_is_divided() -> None:
    value = bytes(limits.MIB)
    groups = group_messages([NewMessage(value, partition=0)] * 5, 1, SETTINGS, Router())
    assert [len(group.places) for group in groups] == [2, 2, 1]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (NewMessage(bytes(11)), MessageTooLarge),
        (NewMessage(b"", priority=10), ValidationError),
        (NewMessage(b"", priority=-1), ValidationError),
        (NewMessage(b"", partition=3), PartitionNotFound),
        (NewMessage(b"", partition=-1), PartitionNotFound),
        (NewMessage(b"", deliver_at_ms=-1), ValidationError),
        (NewMessage(b"", expires_at_ms=limits.TIME_MS_MAX + 1), ValidationError),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is(message: NewMessage, error: type[Exception]) -> None:
    with pytest.raises(error):
        group_messages([NewMessage(b"fine"), message], 3, TopicSettings(message_bytes_max=10), Router())


def test_an_empty_call_and_one_too_many_are_refused() -> None:
    for count in (0, limits.LIST_ITEMS_MAX + 1):
        with pytest.raises(ValidationError, match="messages a call"):
            group_messages([NewMessage(b"a")] * count, 3, SETTINGS, Router())


@pytest.mark.parametrize(
    "sizes", [[0], [10, 20, 30], [limits.BATCH_BYTES_MAX // 4] * 5, [1_000_000, 5, 900_000, 200_000]]
)
def test_messages_that_are_only_values_are_grouped_as_any_others_are(sizes: list[int]) -> None:
    values = [bytes(size) for size in sizes]
    plain = group_messages(PlainMessages(values), 3, SETTINGS, Router())
    others = group_messages([NewMessage(value) for value in values], 3, SETTINGS, Router())
    assert [(one.kind, list(one.places)) for one in plain] == [(one.kind, list(one.places)) for one in others]
    assert [one.encode(7, 1) for one in plain] == [one.encode(7, 1) for one in others]


def test_a_value_that_is_too_large_is_refused_among_plain_ones() -> None:
    settings = TopicSettings(message_bytes_max=10)
    with pytest.raises(MessageTooLarge, match="11 bytes"):
        group_messages(PlainMessages([b"fine", bytes(11)]), 3, settings, Router())
    with pytest.raises(ValidationError, match="1 to"):
        group_messages(PlainMessages([]), 3, settings, Router())
