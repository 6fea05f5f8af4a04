"""Which call of a poll has its leases, when a member asks again."""

from __future__ import annotations

import pytest

from lanner.broker.desks.polling import Polling
from lanner.broker.desks.questions import Questions
from lanner.forwarding.batches import Router
from lanner.testing.flock import Flock


class Standing:
    def now_ms(self) -> int:
        return 0


@pytest.fixture
async def polling() -> Polling:
    engine = Flock("a", found=False).brokers["a"].engine
    return Polling(engine, Standing(), Router(), Questions(engine, lambda: None))


async def test_a_poll_that_was_asked_again_belongs_to_the_later_call(polling: Polling) -> None:
    first = polling.called("orders", "g", "m", 5)
    assert not polling.was_repeated("g", "m", 5, first)
    second = polling.called("orders", "g", "m", 5)
    assert polling.was_repeated("g", "m", 5, first)
    assert not polling.was_repeated("g", "m", 5, second)


async def test_a_poll_of_another_topic_under_the_same_names_and_sequence_is_no_repetition(polling: Polling) -> None:
    """Its leases would be released by nobody, and stay until they end."""
    first = polling.called("orders", "g", "m", 5)
    polling.called("payments", "g", "m", 5)
    assert not polling.was_repeated("g", "m", 5, first)
