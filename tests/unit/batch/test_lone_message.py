"""A batch of one plain message is made by a short cut: nobody may be able to tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.batch import decode, encode
from lanner.batch.encoding import Fields, Rows, assemble
from lanner.batch.header import Codec
from lanner.errors import MessageTooLarge, ValidationError


@given(st.binary(max_size=100), st.integers(0, 9), st.integers(0, 2**53 - 1), st.integers(-1, 2**53 - 1))
def test_the_short_cut_gives_the_same_bytes(value: bytes, priority: int, producer_id: int, sequence: int) -> None:
    short = encode([value], priority=priority, producer_id=producer_id, sequence=sequence)
    fields = Fields(priority, Codec.NONE, producer_id, 0, sequence, 0, 0, b"")
    assert short == assemble(fields, Rows([value], None, None, None), None, None, None)
    found = decode(short)
    found.verify_messages()
    assert found.values() == [value]


def test_the_short_cut_checks_as_the_long_way_does() -> None:
    with pytest.raises(MessageTooLarge):
        encode([bytes(1_048_577)])
    with pytest.raises(ValidationError, match="each must be bytes"):
        encode([7])  # type: ignore[list-item]
    with pytest.raises(ValidationError, match="priority"):
        encode([b"x"], priority=10)
    with pytest.raises(ValidationError, match="producer_id"):
        encode([b"x"], producer_id=-1)
    with pytest.raises(ValidationError, match="sequence"):
        encode([b"x"], sequence=-2)
