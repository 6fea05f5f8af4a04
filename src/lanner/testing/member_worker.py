"""A member of a group in a process of its own: it consumes, acks, and writes down what it was told.

It takes a file and one JSON argument (see `MemberWorker`). It writes a history to the file, piece by piece: a line
`begun` before each poll, then what came of it. What a killed process wrote is whole up to its last `kept` or `done`
line; `history_of` adds what its killer knows: a poll whose answer was not heard, acks that may have taken effect.

SIGTERM lets it finish what it has in hand and leave. The clock is the machine's, so that histories of several
processes can be put together.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import lanner
from lanner.testing.history import Event, History, Polled, Settled, Status
from lanner.testing.workload import Workload

Span = tuple[float, float]
KILLED: Final = float("inf")  # when a round ended that nothing is known of


class Round(NamedTuple):
    """One poll of a worker, and what it did with the messages."""

    begun: float
    ended: float  # KILLED: it was killed meanwhile
    events: list[Event]


class MemberWorker(Workload):
    """The consuming half of a workload, which writes its history as it goes."""

    def __init__(self, path: Path, given: dict[str, Any]) -> None:
        super().__init__(given["address"], given["topic"], partitions=given["partitions"], lease_ms=given["lease_ms"])
        self.consumer_options = given["options"]
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._work_seconds: float = given.get("work_seconds", 0.0)

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
        self.start(0, 1)
        await self.until_left()
        self._write([json.dumps({"failures": dict(self.failures)})])

    async def _consume_some(self, consumer: lanner.Consumer) -> None:
        self._write([json.dumps({"begun": time.monotonic()})])
        try:
            await super()._consume_some(consumer)
        finally:
            self._keep("done")

    async def work(self) -> None:
        """What was polled is written down before it is worked on."""
        self._keep("kept")
        await asyncio.sleep(self._work_seconds)

    def _keep(self, mark: str) -> None:
        self._write([*list(self.history.lines())[1:], json.dumps({mark: time.monotonic()})])
        self.history.events.clear()

    def _write(self, lines: Sequence[str]) -> None:
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


def read_worker(path: Path) -> tuple[list[Round], dict[str, int]]:
    """The rounds of a worker, the last perhaps cut off, and its failures if it left by itself."""
    rounds: list[Round] = []
    failures: dict[str, int] = {}
    written: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else ():
        if not line.endswith("\n"):
            break
        given = json.loads(line)
        if "begun" in given:
            rounds.append(Round(given["begun"], KILLED, []))
        elif "kept" in given or "done" in given:
            rounds[-1].events.extend(History.from_lines(['{"rules": {}}', *written]).events)
            if "done" in given:
                rounds[-1] = rounds[-1]._replace(ended=given["done"])
        elif "failures" in given:
            failures = given["failures"]
        else:
            written.append(line)
            continue
        written = []
    return rounds, failures


def history_of(rounds: Sequence[Round], group: str, partitions: int, disturbed: Sequence[Span]) -> list[Event]:
    """What the rounds say, and what nobody heard: answers that a killed worker did not write down, and polls that may
    have been asked twice because a broker was away."""
    events: list[Event] = []
    for one in rounds:
        events += one.events
        unheard = one.ended == KILLED and not one.events
        if unheard or any(since <= one.ended and one.begun <= until for since, until in disturbed):
            events += [Polled(one.begun, None, Status.UNKNOWN, group, partition) for partition in range(partitions)]
        if one.ended == KILLED:
            events += _unanswered(one.events, group)
    return events


def _unanswered(events: Sequence[Event], group: str) -> list[Event]:
    """Acks that may have been sent, of which nobody wrote down an answer: a moment after the messages had come."""
    answered = {
        (one.partition, one.token, offset) for one in events if isinstance(one, Settled) for offset in one.offsets
    }
    found: list[Event] = []
    for one in events:
        if isinstance(one, Polled) and one.returned is not None:
            soon = math.nextafter(one.returned, KILLED)
            found += [
                Settled(soon, None, Status.UNKNOWN, group, one.partition, one.token, (handed.offset,), "ack")
                for handed in one.messages
                if (one.partition, one.token, handed.offset) not in answered
            ]
    return found


def main(path: str, given: str) -> None:
    import uvloop

    uvloop.run(MemberWorker(Path(path), json.loads(given)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
