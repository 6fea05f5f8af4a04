"""What a description of a group says of the age of its oldest message."""

from __future__ import annotations

from lanner.client.admin import with_ages
from lanner.wire.administration import GroupDescription, GroupPartition


def described(*partitions: GroupPartition) -> GroupDescription:
    return GroupDescription("orders", "billing", "queue", list(partitions))


def test_the_age_is_the_brokers_where_it_says_it() -> None:
    found = described(GroupPartition(0, 1, 2, 3, 4, 5, 6, {}, 8_000, 70), GroupPartition(1, 0, 0, 0, 0, 0, 0))
    assert with_ages(found, 9_000) is found
    assert found.oldest_age_ms == 70


def test_for_an_older_broker_the_age_is_reckoned_here() -> None:
    found = with_ages(
        described(
            GroupPartition(0, 1, 2, 3, 4, 5, 6, {}, 8_000),
            GroupPartition(1, 0, 0, 0, 0, 0, 0),
            GroupPartition(2, 1, 2, 3, 4, 5, 6, {}, 99_000),
        ),
        9_000,
    )
    assert [part.oldest_age_ms for part in found.partitions] == [1_000, 0, 0]
    assert (found.oldest_age_ms, found.partitions[0].oldest_ms) == (1_000, 8_000)
