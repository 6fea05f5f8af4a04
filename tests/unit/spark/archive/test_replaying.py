"""Which offsets a replay takes."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.errors import PartitionNotFound
from lanner.spark.archive.replaying import Source, _narrowed

BOUNDS = {0: (5, 100), 1: (0, 10)}


def test_starts_and_ends_narrow_what_there_is() -> None:
    assert _narrowed(Source("s", "orders", start={0: 17}, end={1: 4}), BOUNDS) == {0: (17, 100), 1: (0, 4)}
    assert _narrowed(Source("s", "orders", start={0: 3, 1: 50}), BOUNDS) == {0: (5, 100), 1: (50, 50)}


@pytest.mark.parametrize("given", [{"start": {9: 3}}, {"end": {2: 3}}])
def test_a_partition_that_is_not_there_is_no_wish_to_replay_everything(given: dict[str, dict[int, int]]) -> None:
    with pytest.raises(PartitionNotFound, match=r"there is no partition [29] of orders .*; there are 0, 1"):
        _narrowed(Source("s", "orders", **given), BOUNDS)  # type: ignore[arg-type]
