"""Pages of single messages out of fetched batches, bounded by what is read."""

from __future__ import annotations

from lanner import batch, limits
from lanner.api.reading import page_of
from lanner.calls import Answer
from lanner.wire.messages import Fetch, Fetched, FetchedBatch


def test_headers_count_for_what_a_page_holds() -> None:
    headers = {"trace": b"x" * (limits.HEADERS_BYTES_MAX - limits.KIB)}
    data = batch.encode([b"v"] * 50, headers=[headers] * 50)
    batches = [FetchedBatch(50 * number, 50, 0, len(data)) for number in range(8)]
    answer = Answer(Fetched(0, 400, 400, batches), [data] * 8)
    page = page_of(Fetch("orders", 0, 0, limits.MIB), answer, limits.LIST_ITEMS_MAX)
    held = sum(len(message.headers["trace"]) for message in page.messages)
    assert limits.LIST_BYTES_MAX // 2 < held <= limits.LIST_BYTES_MAX
    assert page.next_offset == len(page.messages)
