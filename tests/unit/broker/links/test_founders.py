"""Clusters that are founded with more brokers than vote over the metadata."""

from __future__ import annotations

from lanner.cluster import METADATA_SET
from lanner.testing.flock import VOTERS_MAX, Flock


def test_founders_beyond_the_first_five_learn_the_metadata_and_serve_like_the_others() -> None:
    """Found by simulated clusters of seven: by the record they had a copy, and by the log nobody ever sent it."""
    flock = Flock("abcdefg")
    leader = flock.leader_of(METADATA_SET)
    assert leader is not None
    node = leader.replica(METADATA_SET).node
    assert len(node.voters) == VOTERS_MAX
    assert node.learners == {6, 7}
    sets = flock.create_topic("orders", partitions=7)
    assert {name for set_id in sets for name in flock.place(set_id)} == set("abcdefg")
    assert all(flock.publish(set_id, b"x").base_offset == 0 for set_id in sets)
