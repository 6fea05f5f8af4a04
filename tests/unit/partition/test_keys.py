from __future__ import annotations

from lanner.partition import keys


def test_keys_sort_as_their_numbers_do() -> None:
    made = [keys.integer_key(b"b", number) for number in (0, 1, 255, 256, 2**40)]
    assert made == sorted(made)
    assert [keys.integer_of(b"b", key) for key in made] == [0, 1, 255, 256, 2**40]


def test_a_prefix_ends_after_all_its_keys_and_before_the_next_table() -> None:
    assert keys.integer_key(b"b", 2**63) < keys.prefix_end(b"b") <= b"c"
    assert keys.prefix_end(b"l\x03") == b"l\x04"


def test_tables_do_not_share_letters() -> None:
    letters = [
        keys.HEADER,
        keys.BATCHES,
        keys.LANES,
        keys.KEPT,
        keys.GROUPS,
        keys.LEASES,
        keys.PLACES,
        keys.PRODUCERS,
        keys.DEDUP,
    ]
    assert len(set(letters)) == len(letters)


def test_rows_of_a_group_are_kept_apart_from_those_of_another() -> None:
    assert keys.lease_key(1, 7) != keys.lease_key(2, 7)
    assert keys.places_key(1, 2, 3) != keys.places_key(1, 3, 3)
    assert keys.group_key(5) == b"g" + (5).to_bytes(8, "big")
