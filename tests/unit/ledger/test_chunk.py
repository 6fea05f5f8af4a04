from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.errors import StorageDamaged
from lanner.ledger.chunk import CHUNK_ENTRIES, Chunk, Part, Run

KEY = (1, 2, 3)
NUMBERS = st.integers(0, 2**32 - 1)


def run(first: int, count: int, file: int = 4) -> Run:
    numbers = range(count)
    return Run(
        first,
        file,
        [100 * n for n in numbers],
        [n + 1 for n in numbers],
        [n * 7 for n in numbers],
        [9] * count,
        [1] * count,
    )


def columns(chunk: Chunk) -> list[tuple[Any, ...]]:
    return [
        (
            slot,
            chunk.files[slot],
            chunk.offsets[slot],
            chunk.lengths[slot],
            chunk.crcs[slot],
            chunk.terms[slot],
            chunk.kinds[slot],
            chunk.wanted[slot],
            chunk.parts.get(slot),
        )
        for slot in chunk.slots()
    ]


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    chunk = Chunk(KEY)
    slot = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 40))
        values = st.lists(NUMBERS, min_size=count, max_size=count)
        terms = draw(
            st.one_of(st.just([7] * count), st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
        )
        chunk.extend(Run(slot, draw(st.integers(1, 3)), draw(values), draw(values), draw(values), terms, [2] * count))
        slot += count
    for slot in draw(st.lists(st.sampled_from(chunk.slots()), unique=True)):
        if len(chunk.slots()) > 1 and draw(st.booleans()):
            chunk.clear(slot)
        else:
            chunk.wanted[slot] = 1
            if draw(st.booleans()):
                chunk.parts[slot] = Part(draw(st.binary(max_size=20)), draw(NUMBERS))
    return chunk


@given(chunks())
def test_a_chunk_survives_its_row(chunk: Chunk) -> None:
    again = Chunk.decode(KEY, chunk.encode())
    assert columns(again) == columns(chunk)
    assert again.encode() == chunk.encode()


@given(chunks(), st.data())
def test_a_row_that_was_cut_short_is_damage_never_a_shorter_chunk(chunk: Chunk, data: st.DataObject) -> None:
    row = chunk.encode()
    with pytest.raises(StorageDamaged, match="replica set 1"):
        Chunk.decode(KEY, row[: data.draw(st.integers(0, len(row) - 1))])


def test_a_row_of_another_version_or_of_no_entries_is_damage() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(0, 3))
    row = chunk.encode()
    for broken in (b"\x09" + row[1:], row[:2] + b"\x00\x00" + row[4:], row[:2] + b"\xff\xff" + row[4:]):
        with pytest.raises(StorageDamaged):
            Chunk.decode(KEY, broken)


def test_a_dense_chunk_of_one_file_and_term_is_small() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(0, CHUNK_ENTRIES))
    assert len(chunk.encode()) == 7 + 4 + 8 + CHUNK_ENTRIES * (3 * 4 + 2)


def test_empty_slots_in_front_do_not_make_a_chunk_slow_or_large() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(0, 100))
    chunk.clear_range(0, 60)
    assert len(chunk.encode()) == 7 + 4 + 8 + 40 * (3 * 4 + 2)
    assert Chunk.decode(KEY, chunk.encode()).slots() == list(range(60, 100))


def test_cutting_forgets_everything_from_a_slot_on() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(3, 10))
    chunk.parts[5] = Part(b"a", 1)
    chunk.parts[9] = Part(b"b", 1)
    chunk.cut(9)
    assert chunk.slots() == [3, 4, 5, 6, 7, 8]
    assert list(chunk.parts) == [5]
    chunk.cut(0)
    assert chunk.is_empty
    assert len(chunk) == 0


def test_clearing_leaves_the_others_where_they_are() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(0, 6))
    chunk.wanted[2] = 1
    chunk.parts[2] = Part(b"", 1)
    chunk.clear(2)
    chunk.clear_range(3, 5)
    assert chunk.slots() == [0, 1, 5]
    assert not chunk.holds(2)
    assert not chunk.holds(6)
    assert chunk.parts == {}


def test_part_of_a_run_keeps_each_entrys_own_place() -> None:
    part = run(10, 5).part(2, 4)
    assert part == Run(12, 4, [200, 300], [3, 4], [14, 21], [9, 9], [1, 1])


def test_a_run_must_go_behind_what_is_there() -> None:
    chunk = Chunk(KEY)
    chunk.extend(run(0, 6))
    with pytest.raises(AssertionError):
        chunk.extend(run(5, 1))
