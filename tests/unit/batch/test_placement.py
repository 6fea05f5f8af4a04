"""Keys spread evenly over partitions, and stay where they are when a topic grows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from lanner import batch, limits
from lanner.errors import ValidationError

KEYS = [b"customer-%d" % number for number in range(20_000)]


@given(st.binary(max_size=50), st.integers(1, limits.PARTITIONS_MAX))
def test_a_key_has_one_partition_of_those_there_are(key: bytes, partitions: int) -> None:
    chosen = batch.partition_for_key(key, partitions)
    assert 0 <= chosen < partitions
    assert (
        chosen == batch.partition_for_key(key, partitions) == batch.partition_for_hash(xxh64_intdigest(key), partitions)
    )


@given(st.binary(max_size=50), st.integers(1, limits.PARTITIONS_MAX - 1))
def test_a_key_stays_or_moves_to_the_new_partition(key: bytes, partitions: int) -> None:
    before = batch.partition_for_key(key, partitions)
    assert batch.partition_for_key(key, partitions + 1) in (before, partitions)


@pytest.mark.parametrize("partitions", [2, 3, 10, 31])
def test_keys_spread_evenly(partitions: int) -> None:
    share = Counter(batch.partition_for_key(key, partitions) for key in KEYS)
    expected = len(KEYS) / partitions
    assert set(share) == set(range(partitions))
    assert all(abs(count - expected) < 5 * expected**0.5 for count in share.values())


@pytest.mark.parametrize("partitions", [1, 3, 9, 30])
def test_growing_by_one_moves_its_share_of_the_keys(partitions: int) -> None:
    moved = sum(
        batch.partition_for_key(key, partitions) != batch.partition_for_key(key, partitions + 1) for key in KEYS
    )
    expected = len(KEYS) / (partitions + 1)
    assert abs(moved - expected) < 5 * expected**0.5


def test_the_choice_never_changes() -> None:
    """Clients of other versions must find the same partitions: these were written down on the first day."""
    assert [batch.partition_for_key(b"customer-%d" % number, 12) for number in range(8)] == GOLDEN
    assert batch.partition_for_key(b"", 12) == GOLDEN_EMPTY


GOLDEN = [7, 0, 8, 5, 4, 1, 3, 2]
GOLDEN_EMPTY = 7


@pytest.mark.parametrize("partitions", [0, -1, limits.PARTITIONS_MAX + 1])
def test_a_number_of_partitions_that_no_topic_has_is_refused(partitions: int) -> None:
    with pytest.raises(ValidationError, match="partitions"):
        batch.partition_for_key(b"key", partitions)
