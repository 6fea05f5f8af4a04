from __future__ import annotations

from typing import Any

from lanner.partition.kept import KeptBatches, kept_size


def test_pinned_bytes_follow_the_share_that_is_kept(make_ref: Any) -> None:
    kept = KeptBatches()
    ref = make_ref(0, 10, size=1_000, kept=(1, 2, 3))
    kept.put(ref)
    assert kept.pinned_bytes == 300 == kept_size(ref)
    kept.put(ref._replace(kept=(3,)))
    assert kept.pinned_bytes == 100 and len(kept) == 1
    kept.remove(ref)
    assert kept.pinned_bytes == 0 and len(kept) == 0
    assert kept_size(ref._replace(kept=None)) == 0


def test_kept_batches_are_found_by_offset_and_range(make_ref: Any) -> None:
    kept = KeptBatches()
    for base in (40, 0, 20):
        kept.put(make_ref(base, 10, kept=(0,)))
    assert [ref.base_offset for ref in kept] == [0, 20, 40]
    found = kept.get(25)
    assert found is not None and found.base_offset == 20
    assert kept.get(15) is None and kept.get(-1) is None
    assert [ref.base_offset for ref in kept.between(5, 20)] == [0, 20]
    assert [ref.base_offset for ref in kept.between(15, 5)] == []
    assert [ref.base_offset for ref in kept.between(49, 100)] == [40]


def test_kept_batches_survive_their_rows(make_ref: Any, empty_rows: Any) -> None:
    kept = KeptBatches()
    kept.put(make_ref(0, 10, kept=(0, 5)))
    kept.put(make_ref(20, 10, kept=(1,)))
    taken: dict[bytes, bytes | None] = {}
    kept.take_dirty(taken)
    empty_rows.put(taken)
    again = KeptBatches()
    again.load(empty_rows)
    assert list(again) == list(kept) and again.pinned_bytes == kept.pinned_bytes
    rows: dict[bytes, bytes] = {}
    again.all_rows(rows)
    assert rows == dict(empty_rows)
    again.remove(make_ref(0, 10))
    taken = {}
    again.take_dirty(taken)
    assert list(taken.values()) == [None]
