"""Partitions that a broker cannot serve: what the operator is told to do, and when the broker refuses to go on."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from lanner.broker.outages import Outages
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.steward import DAMAGE_LEVEL
from lanner.errors import LannerError, StorageDamaged, UnknownRecord

HERE, ELSEWHERE = "node-a", "node-b"
ERROR = StorageDamaged("entry 7 of set 3 does not match its checksum")


class Bench:
    """The outages of a broker whose engine is a few values."""

    def __init__(self, *voters: str, has_peers: bool = True) -> None:
        record = SimpleNamespace(
            set_id=3, shown="orders/0", voters=[SimpleNamespace(node_id=node_id) for node_id in voters]
        )
        self.engine: Any = SimpleNamespace(
            stopped={},
            feature_level=DAMAGE_LEVEL,
            on_stopped=None,
            cluster=SimpleNamespace(sets={3: record}),
            replicas={CLUSTER_SET: SimpleNamespace(has_peers=has_peers)},
            ledger=SimpleNamespace(damaged={}),
            damages=SimpleNamespace(told=[], sets={}),
        )
        self.failed: list[LannerError] = []
        self.outages = Outages(self.engine, HERE, self.failed.append)

    def close(self) -> None:
        """The copy of set 3 here is not served any more."""
        self.engine.ledger.damaged[3] = SimpleNamespace(error=ERROR)

    def advise(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            self.outages.advise()
        return [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("voters", "closed", "level", "advice"),
    [
        ((HERE, ELSEWHERE), True, DAMAGE_LEVEL, "being replaced from the other brokers' copies"),
        ((HERE, ELSEWHERE), False, DAMAGE_LEVEL - 1, "lanner cluster upgrade"),
        ((HERE,), True, DAMAGE_LEVEL, "restore its data directory from a backup, or delete the topic"),
        ((HERE,), False, DAMAGE_LEVEL, "readers are told of a hole"),
    ],
)
def test_the_next_step_depends_on_other_copies_on_the_release_and_on_how_bad_it_is(
    voters: tuple[str, ...], closed: bool, level: int, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(*voters)
    bench.engine.feature_level = level
    bench.engine.damages.sets[3] = ERROR
    if closed:
        bench.close()
    (said,) = bench.advise(caplog)
    assert said.startswith("orders/0: ") and advice in said


def test_damage_is_spoken_of_once_and_again_when_it_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(HERE, ELSEWHERE)
    bench.engine.damages.sets = {3: ERROR, 9: ERROR}  # of 9 the metadata does not know yet
    assert len(bench.advise(caplog)) == 1
    assert bench.advise(caplog) == []
    bench.engine.damages.sets = {}
    assert bench.advise(caplog) == []
    bench.engine.damages.sets = {3: ERROR}
    assert len(bench.advise(caplog)) == 1


def test_a_broker_that_is_alone_does_not_start_without_its_only_copy() -> None:
    bench = Bench(HERE, has_peers=False)
    bench.outages.refuse_alone()
    bench.close()
    with pytest.raises(StorageDamaged):
        bench.outages.refuse_alone()
    assert bench.failed == [ERROR]


def test_a_broker_that_is_not_alone_starts() -> None:
    bench = Bench(HERE, ELSEWHERE)
    bench.close()
    bench.outages.refuse_alone()
    assert bench.failed == []


def test_damage_of_the_metadata_ends_the_broker_and_of_a_partition_does_not() -> None:
    bench = Bench(HERE)
    (tell,) = bench.engine.damages.told
    tell(3, ERROR)
    assert bench.failed == []
    tell(CLUSTER_SET, ERROR)
    assert bench.failed == [ERROR]


def test_what_does_not_run_is_named_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(HERE)
    bench.engine.stopped = {9: UnknownRecord("a record of kind 250")}
    bench.close()
    assert bench.outages.stopped == {"set 9": "a record of kind 250", "orders/0": ERROR.message}
    with caplog.at_level(logging.ERROR):
        bench.engine.on_stopped(9, bench.engine.stopped[9])
    assert "the replica of set 9 on this broker has stopped: a record of kind 250" in caplog.text
    bench.engine.replicas.clear()  # before the metadata is known here
    assert set(bench.outages.stopped) == {"set 9", "set 3"}
