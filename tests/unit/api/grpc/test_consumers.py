"""Queue's consumers: who is remembered, and who is forgotten."""

from __future__ import annotations

import pytest

from lanner.api.grpc.consumers import Consumers
from lanner.errors import NotFoundError


def test_the_latest_connect_of_a_consumer_counts() -> None:
    consumers = Consumers()
    consumers.connect("a", "g", ["orders"], 1)
    consumers.connect("a", "h", ["refunds"], 2)
    found = consumers.heard("a", 3)
    assert (found.group, found.topics, found.heard_ms) == ("h", ("refunds",), 3)
    assert consumers.of_group("g") == []


def test_a_consumer_that_is_not_connected_is_told_so() -> None:
    with pytest.raises(NotFoundError, match="call Connect here first"):
        Consumers().heard("a", 1)


def test_the_one_that_was_silent_for_the_longest_is_forgotten() -> None:
    consumers = Consumers(count_max=2)
    consumers.connect("a", "g", ["t"], 1)
    consumers.connect("b", "g", ["t"], 2)
    consumers.heard("a", 3)
    consumers.connect("c", "g", ["t"], 4)
    assert [one.id for one in consumers.of_group("g")] == ["a", "c"]
    with pytest.raises(NotFoundError):
        consumers.heard("b", 5)
