"""When a pass begins, how fast it is, and that there is one at a time; what it finds is in tests/integration."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lanner import limits
from lanner.broker import scrubbing
from lanner.broker.scrubbing import Scrubbing
from lanner.ledger.seals import seal

ROW = (b"m-key", seal(b"m-key", b"x" * 1_000))
SIZE = len(ROW[0]) + len(ROW[1])


class Bench:
    """A scrubber over a table of one row; what it spawns waits until it is run, and what it would sleep is noted."""

    def __init__(self, bytes_per_second: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spawned: list[Coroutine[Any, Any, Any]] = []
        self.slept: list[float] = []
        ledger = SimpleNamespace(sets=dict, live_bytes=77)
        table = SimpleNamespace(unchecked=SimpleNamespace(scan=lambda start, end: iter([ROW])))
        self.scrubbing = Scrubbing(
            cast(Any, SimpleNamespace(ledger=ledger)),
            cast(Any, None),
            cast(Any, table),
            self._in_reader,
            bytes_per_second,
            pytest.fail,
            self.spawned.append,
        )
        monkeypatch.setattr(scrubbing.time, "perf_counter", lambda: 0.0)
        monkeypatch.setattr(scrubbing.asyncio, "sleep", self._sleep)

    async def _in_reader(self, work: Callable[[], Any]) -> Any:
        return work()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_one_that_is_under_way_counts_when_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limits.MIB, monkeypatch)
    bench.scrubbing.begin()
    assert bench.scrubbing.present is not None and bench.scrubbing.present.expected_bytes == 77
    bench.scrubbing.begin()
    (only,) = bench.spawned
    await only
    assert (bench.scrubbing.present, bench.scrubbing.passes) == (None, 1)
    assert bench.scrubbing.latest is not None and bench.scrubbing.latest.rows == 1
    bench.scrubbing.begin()
    assert len(bench.spawned) == 2
    await bench.spawned[1]


@pytest.mark.parametrize(
    ("background", "asked"), [(0, 32 * limits.MIB), (limits.MIB, 32 * limits.MIB), (limits.GIB, 4 * limits.GIB)]
)
async def test_it_is_faster_while_somebody_waits_and_only_then(
    background: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(background, monkeypatch)
    bench.scrubbing.begin()
    await bench.spawned[0]
    await bench.scrubbing.scrub()
    assert bench.slept == [SIZE / asked, SIZE / background if background else 0.0]


async def test_the_background_begins_none_while_one_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limits.MIB, monkeypatch)
    bench.scrubbing.begin()
    (forever,) = bench.scrubbing.tasks()

    async def sleep(seconds: float) -> None:
        bench.slept.append(seconds)
        if len(bench.slept) == 2:
            raise StopAsyncIteration

    monkeypatch.setattr(scrubbing.asyncio, "sleep", sleep)
    with pytest.raises((RuntimeError, StopAsyncIteration)):
        await forever
    assert bench.slept == [scrubbing.FIRST_PAUSE_SECONDS, scrubbing.PAUSE_SECONDS]
    assert bench.scrubbing.passes == 0
    bench.spawned[0].close()
