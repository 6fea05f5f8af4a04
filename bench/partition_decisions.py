"""What a decision costs: poll 100 + ack 100, decided and applied, with a small backlog and with a large one.

Both partitions carry the same clutter: 5 lanes, 3 groups, 5,000 single messages left between alternate acks, 10,000
nacks that wait. The large one holds 1,000,000 batches, the small one 1,000. Rounds are interleaved, so that
a noisy machine is noisy for both. Run: python bench/partition_decisions.py [--batches N] [--messages N]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from lanner import features
from lanner.model import TopicSettings
from lanner.partition import Partition, Poll, PollAnswer, Settle, encode_append

LANES = (0, 2, 4, 6, 9)
GROUPS = ("billing", "audit", "mail")
POLL_MESSAGES = 100
SETTINGS = TopicSettings(outstanding_max=100_000)


class Header(NamedTuple):
    count: int  # type: ignore[assignment]
    priority: int
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = -1
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    dedup_id: bytes = b""


class TableRows:
    """Saved rows, as a table would serve them."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(key for key in self.rows if start <= key < stop):
            yield key, self.rows[key]


class Subject:
    """One partition with its clutter, and a consumer that polls and acks."""

    def __init__(self, batches: int, messages: int) -> None:
        self.rows = TableRows()
        self.messages = messages
        self.headers = {lane: Header(messages, lane) for lane in LANES}
        self.partition = Partition(self.rows, lambda data: self.headers[data[0]])
        self.index = 0
        self.sequence = 0
        self.append_us = self._fill(batches)
        self._clutter()
        self.held: list[tuple[int, list[tuple[int, int]]]] = []
        self.save()

    def apply(self, payload: bytes) -> int:
        self.index += 1
        self.partition.apply(self.index, payload)
        return self.index

    def _fill(self, batches: int) -> float:
        payloads = [encode_append(1_000, bytes((lane,)) * 100) for lane in LANES]
        blocks: list[float] = []
        for first in range(0, batches, 100):
            started = time.perf_counter()
            for number in range(first, min(first + 100, batches)):
                self.apply(payloads[number * 7 % len(payloads)])
            blocks.append((time.perf_counter() - started) * 1e4)
            if first % 50_000 == 49_900:
                self.save()
        return statistics.median(blocks)

    def save(self) -> None:
        for key, value in self.partition.take_dirty().items():
            if value is None:
                self.rows.rows.pop(key, None)
            else:
                self.rows.rows[key] = value

    def ask(self, *requests: Any) -> tuple[int, list[Any]]:
        decided = self.partition.decide(requests, SETTINGS, 2_000, features.HIGHEST)
        assert decided.record is not None
        return self.apply(decided.record), decided.answers

    def poll(self, group: str, messages: int) -> tuple[int, list[tuple[int, int]]]:
        self.sequence += 1
        token, [answer] = self.ask(Poll(group, "m", self.sequence, messages, 1 << 30, 3_600_000))
        assert isinstance(answer, PollAnswer), answer
        return token, [(lease.first_offset, lease.count) for lease in answer.leases]

    def _clutter(self) -> None:
        """Alternate acks, one by one, and nacks that wait: as much as a small backlog has room for."""
        room = min(1.0, self.partition.end_offset / 100_000)
        for group in GROUPS:
            for _ in range(5):
                token, ranges = self.poll(group, max(2, int(2_000 * room)))
                singles = [first + at for first, count in ranges for at in range(count)]
                self.ask(Settle(group, [(token, offset, 1, 1, -1, "") for offset in singles[::2]]))
        for _ in range(5):
            token, ranges = self.poll(GROUPS[0], max(2, int(2_000 * room)))
            nacks = [(token, first + at, 1, 2, 3_600_000, "") for first, count in ranges for at in range(count)]
            self.ask(Settle(GROUPS[0], nacks))

    def round(self) -> float:
        """One decision: ack what the last one leased, lease 100 more. Gives back microseconds."""
        group = GROUPS[0]
        self.sequence += 1
        requests: list[Any] = [Poll(group, "m", self.sequence, POLL_MESSAGES, 1 << 30, 3_600_000)]
        if self.held:
            token, ranges = self.held.pop()
            requests.append(Settle(group, [(token, first, count, 1, -1, "") for first, count in ranges]))
        started = time.perf_counter()
        decided = self.partition.decide(requests, SETTINGS, 2_000, features.HIGHEST)
        assert decided.record is not None
        token = self.apply(decided.record)
        spent = (time.perf_counter() - started) * 1e6
        answer = decided.answers[0]
        assert isinstance(answer, PollAnswer)
        self.held.append((token, [(lease.first_offset, lease.count) for lease in answer.leases]))
        return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=100, help="messages a batch")
    parser.add_argument("--rounds", type=int, default=400)
    given = parser.parse_args()
    small = Subject(1_000, given.messages)
    large = Subject(given.batches, given.messages)
    gc.collect()
    gc.freeze()
    spent: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(given.rounds):
        spent["small"].append(small.round())
        spent["large"].append(large.round())
    print(f"append, applied: {small.append_us:.1f} µs small, {large.append_us:.1f} µs large")
    for name, subject in (("small", small), ("large", large)):
        times = sorted(spent[name])
        state = subject.partition.describe_group(GROUPS[0], 2_000)
        print(
            f"{name}: {subject.partition.batch_count:,} batches of {given.messages}, leased {state.leased:,}, "
            f"waiting {state.waiting:,}: p50 {statistics.median(times):.1f} µs, p99 {times[len(times) * 99 // 100]:.1f}"
        )
    ratio = statistics.median(spent["large"]) / statistics.median(spent["small"])
    print(f"large / small: {ratio:.2f}")


if __name__ == "__main__":
    main()
