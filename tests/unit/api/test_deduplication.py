"""A request under one key: each batch that it becomes has an id of its own, the same each time."""

from __future__ import annotations

from lanner import limits
from lanner.api.deduplication import dedup_ids
from lanner.forwarding.batches import Router, group_messages
from lanner.forwarding.values import NewMessage
from lanner.model import TopicSettings

LARGE = {"trace": b"x" * (limits.HEADERS_BYTES_MAX - limits.KIB)}


def test_two_batches_never_share_an_id_whatever_makes_them_large() -> None:
    """The second would pass for a repetition of the first, and its messages would be lost."""
    messages = [NewMessage(b"%d" % number, headers=LARGE, partition=0) for number in range(100)]
    marked = dedup_ids(b"key", messages)
    assert marked == dedup_ids(b"key", messages)
    groups = group_messages(marked, 3, TopicSettings(), Router())
    assert len({group.dedup_id for group in groups}) == len(groups) > 1
    assert sum(len(group.messages) for group in groups) == 100
    assert all(len(group.encode()) < limits.BATCH_BYTES_MAX for group in groups)
