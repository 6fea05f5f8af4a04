"""Queue's consumers: who is remembered, and who is forgotten."""

from __future__ import annotations

import pytest

from lanner.api.grpc.consumers import Consumer, Consumers
from lanner.errors import NotFoundError
from lanner.wire.members import GrantedPartition, MemberView


def test_the_latest_connect_of_a_consumer_counts() -> None:
    consumers = Consumers()
    consumers.connect(Consumer("a", "g", ("orders",), 1))
    consumers.connect(Consumer("a", "h", ("refunds",), 2))
    found = consumers.heard("a", 3)
    assert (found.group, found.topics, found.heard_ms) == ("h", ("refunds",), 3)
    assert consumers.of_group("g") == []


def test_a_consumer_that_is_not_connected_is_told_so() -> None:
    with pytest.raises(NotFoundError, match="call Connect here first"):
        Consumers().heard("a", 1)


def test_the_one_that_was_silent_for_the_longest_is_forgotten() -> None:
    consumers = Consumers(count_max=2)
    consumers.connect(Consumer("a", "g", ("t",), 1))
    consumers.connect(Consumer("b", "g", ("t",), 2))
    consumers.heard("a", 3)
    consumers.connect(Consumer("c", "g", ("t",), 4))
    assert [one.id for one in consumers.of_group("g")] == ["a", "c"]
    with pytest.raises(NotFoundError):
        consumers.heard("b", 5)


def test_a_view_that_is_older_than_the_last_is_not_believed() -> None:
    consumer = Consumer("a", "g", ("t",), 1, "m1")
    consumer.see(MemberView(7, 5, 1, 30_000, [GrantedPartition("t", 1, 0, 5)], []))
    consumer.see(MemberView(7, 4, 1, 30_000, [GrantedPartition("t", 1, 1, 4)], []))
    assert (consumer.held, consumer.generation, consumer.shared) == ({("t", 0)}, 5, False)
    consumer.see(MemberView(7, 6, 1, 30_000, [], [], news=False))
    assert (consumer.held, consumer.generation) == ({("t", 0)}, 5)


def test_a_consumer_that_connected_anew_is_not_forgotten_for_what_it_was() -> None:
    consumers = Consumers()
    old, new = Consumer("a", "g", ("t",), 1, "m1"), Consumer("a", "g", ("t",), 2, "m2")
    consumers.connect(old)
    consumers.connect(new)
    consumers.forget(old)
    assert consumers.find("a") is new
    consumers.forget(new)
    assert consumers.find("a") is None
