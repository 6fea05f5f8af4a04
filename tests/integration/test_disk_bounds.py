"""The disk stays bounded: a few messages that stay must not hold back the space of all that went through.

The bound is 1.5 × the live bytes plus six segments, for the whole data directory, at every moment after the flow has
begun. Short forms use small segments, save more often and flow at a pace, because what was acked goes within a second
or two and six small segments hold less than that; the long ones (`make chaos`) let 10 GB through at full speed, with
everything as shipped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import lanner
from lanner.testing.process import BrokerProcess

MIB = 1 << 20
VALUE_BYTES = 4_000
MESSAGE_BYTES = VALUE_BYTES + 150  # what a stored message takes, rounded up
BATCH = 200


@dataclass
class Form:
    segment_bytes: int
    flow_bytes: int
    save_interval_ms: int
    bytes_per_second: float = float("inf")

    @property
    def rounds(self) -> int:
        return self.flow_bytes // (BATCH * VALUE_BYTES)

    def ahead_seconds(self, rounds: int, since: float) -> float:
        """How long to wait until so many rounds are due."""
        return max(0.0, since + rounds * BATCH * VALUE_BYTES / self.bytes_per_second - time.monotonic())

    def bound(self, live_bytes: int) -> int:
        return int(1.5 * live_bytes) + 6 * self.segment_bytes


def form_of(chaos: bool) -> Form:
    return Form(128 * MIB, 10_000 * 1_000_000, 1_000) if chaos else Form(8 * MIB, 96_000_000, 50, 12e6)


class Sampler:
    """Looks at the data directory now and then, and keeps the worst moment."""

    def __init__(self, broker: BrokerProcess, form: Form) -> None:
        self._broker = broker
        self._form = form
        self.worst = 0.0
        self.seen = ""

    def look(self, live_bytes: int) -> None:
        size, bound = self._broker.disk_bytes(), self._form.bound(live_bytes)
        if size / bound > self.worst:
            self.worst = size / bound
            self.seen = f"{size / MIB:.0f} MiB on disk, {live_bytes / MIB:.0f} MiB live, bound {bound / MIB:.0f} MiB"


def values(count: int, number: int) -> list[bytes]:
    return [f"{number}-{step}".encode().ljust(VALUE_BYTES, b".") for step in range(count)]


def started(folder: Path, form: Form) -> BrokerProcess:
    settings = {
        "segment_bytes": form.segment_bytes,
        "save_interval_ms": form.save_interval_ms,
        "disk_reserve_bytes": 0,
    }
    return BrokerProcess(folder / "data", settings=settings).start()


def test_one_message_never_acked_and_one_dead_letter_do_not_hold_back_the_disk(tmp_path: Path, chaos: bool) -> None:
    form = form_of(chaos)
    broker = started(tmp_path, form)
    sampler = Sampler(broker, form)
    began = time.monotonic()
    try:
        with lanner.sync.connect(broker.native) as queue:
            queue.admin.create_topic("flow", partitions=1, retention="acked", lease_ms=3_600_000)
            queue.publish_many("flow", values(2, 0))
            with queue.consumer("flow", group="workers") as consumer:
                never, dead = consumer.poll(2, wait_ms=5_000)
                dead.reject("it stays as a dead letter")
                for number in range(1, form.rounds + 1):
                    queue.publish_many("flow", values(BATCH, number))
                    messages = consumer.poll(BATCH, wait_ms=5_000)
                    assert len(messages) == BATCH
                    consumer.ack(messages)
                    time.sleep(form.ahead_seconds(number, began))
                    if number % 10 == 0:
                        sampler.look((2 + BATCH) * MESSAGE_BYTES)
                time.sleep(3.0)
                sampler.look(2 * MESSAGE_BYTES)
                print(f"worst moment: {sampler.seen}")
                assert sampler.worst < 1.0, sampler.seen
                (letter,) = queue.admin.dead_letters("flow", "workers").letters
                assert letter.message.offset == dead.offset and letter.message.value == dead.value
                never.ack()
    finally:
        broker.kill()


async def test_the_disk_stays_bounded_when_three_of_ten_messages_stay(tmp_path: Path, chaos: bool) -> None:
    form = form_of(chaos)
    broker = started(tmp_path, form)
    sampler = Sampler(broker, form)
    began = time.monotonic()
    kept = 0
    try:
        async with lanner.connect(broker.native) as queue:
            await queue.admin.create_topic(
                "flow", partitions=1, retention="acked", pinned_bytes_max=2 * form.flow_bytes
            )
            async with queue.consumer("flow", group="workers") as consumer:
                for number in range(1, form.rounds + 1):
                    await queue.publish_many("flow", values(BATCH, number))
                    messages = await consumer.poll(BATCH, wait_ms=5_000)
                    assert len(messages) == BATCH
                    settled = []
                    for place, message in enumerate(messages):
                        stays = place % 10 in (1, 4, 8)
                        settled.append(message.reject("it stays") if stays else message.ack())
                        kept += stays
                    for one in settled:
                        await one
                    await asyncio.sleep(form.ahead_seconds(number, began))
                    if number % 10 == 0:
                        sampler.look((kept + BATCH) * MESSAGE_BYTES)
            await asyncio.sleep(3.0)
            sampler.look(kept * MESSAGE_BYTES)
            print(f"worst moment: {sampler.seen}")
            assert sampler.worst < 1.0, sampler.seen
            group = await queue.admin.group("flow", "workers")
            assert group.partitions[0].dead == kept
    finally:
        broker.kill()
