"""Leased batches as polls bring them, for tests of the replies that doors write of them."""

from __future__ import annotations

from hypothesis import strategies as st

from lanner import batch
from lanner.forwarding.delivery import DeliveredBatches, Opened
from lanner.forwarding.values import LeasedBatch, Range

BASES = st.sampled_from([0, 1, 7, 98, 126, 16_380, 10**9 - 2])
COLUMNS = st.sampled_from(["", "", "keys", "headers", "timestamps"])


@st.composite
def opened_batches(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> Opened:
    """A batch of a few messages, or an extract of one, of which some are leased."""
    given = draw(st.lists(values, min_size=1, max_size=8))
    column, count = draw(COLUMNS), len(given)
    data = batch.encode(
        given,
        keys=[b"key", *[None] * (count - 1)] if column == "keys" else None,
        headers=[{"h": b"\xffv"}] * count if column == "headers" else None,
        timestamps=list(range(count)) if column == "timestamps" else None,
        priority=draw(st.integers(0, 9)),
        deliver_at_ms=draw(st.sampled_from([0, 5])),
        expires_at_ms=draw(st.sampled_from([0, 900])),
    )
    if draw(st.booleans()):
        data = batch.extract(data, sorted(draw(st.sets(st.integers(0, count - 1), min_size=1))))
    base, first = draw(BASES), draw(st.integers(0, count - 1))
    cut = draw(st.integers(first, count - 1))
    ranges = [Range(base + first, cut - first, 1), Range(base + cut, count - cut, 2)]
    leased = LeasedBatch(draw(st.integers(0, 300)), 9, base, 1_000, 31_000, 4, data, [one for one in ranges if one[1]])
    return Opened(leased, batch.decode(data))


def delivered(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[DeliveredBatches]:
    """What a poll hands out."""
    return st.lists(opened_batches(values), max_size=3).map(lambda found: DeliveredBatches("orders", found))
