"""Writers that stage, as the simulators play them."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from lanner.errors import NotLeader
from lanner.testing.staged_traffic import StagedPort, StagedTraffic, Told


class Starting:
    """A broker that refuses everything for a while, and says so at once."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.claimed = 0

    def now_ms(self) -> int:
        return 1

    def change(self, command: bytes, told: Told) -> None:
        if self.left:
            self.left -= 1
            raise NotLeader("the broker is starting")
        self.claimed += 1


def test_a_claim_that_is_refused_is_made_again_in_its_own_turn() -> None:
    port = Starting(5_000)
    traffic = StagedTraffic(Random(1), cast(StagedPort, port), cast(Any, None))
    traffic._claim()
    assert port.left == 4_999, "not at once, or a broker that is starting would never get on"
    while port.left:
        assert traffic.act()
    assert traffic.act()
    assert port.claimed == 1
