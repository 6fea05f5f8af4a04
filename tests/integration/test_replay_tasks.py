"""What a task of a replay publishes, to a real broker, when it ends half-way, is run again, or is not alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import pyarrow

import lanner
from lanner import limits
from lanner.errors import ConflictError
from lanner.spark.archive import lanes
from lanner.spark.archive.files import TIMES
from lanner.spark.archive.publishing import Pace, Publication, Published, published
from lanner.testing.process import BrokerProcess
from tests.brokers import blocking_queue, broker_process

__all__ = ["blocking_queue", "broker_process"]

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
ROWS = 1_000


@pytest.fixture
def topic(queue: lanner.sync.Queue, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:60]
    queue.admin.create_topic(name, partitions=2)
    return str(name)


def publication(broker: BrokerProcess, topic: str, **changed: Any) -> Publication:
    made = Publication(broker.native, topic, f"monday-{topic}"[:100], "work", None, None, NOW_MS, False)
    return made._replace(**changed)


def batches(first: int = 0, last: int = ROWS, **columns: list[Any]) -> Iterator[Any]:
    """Two partitions, in record batches of 128 rows; priorities alternate from row to row."""
    for partition in range(2):
        for start in range(first, last, 128):
            offsets = list(range(start, min(start + 128, last)))
            times = {name: [given[offset] for offset in offsets] for name, given in columns.items()}
            rows = {
                "key": [b"k%d" % (offset % 7) for offset in offsets],
                "value": [b"%d/%d" % (partition, offset) for offset in offsets],
                "partition": [partition] * len(offsets),
                "offset": offsets,
                "priority": [offset % 10 for offset in offsets],
                "headers": [[{"key": "h", "value": b"%d" % offset}] for offset in offsets],
                **{name: times.get(name, [None] * len(offsets)) for name in TIMES},
            }
            yield pyarrow.RecordBatch.from_pydict(rows, schema=lanes.SCHEMA)


def run(publication: Publication, rows: Iterator[Any]) -> Published:
    parts = list(published(publication, rows))
    return Published(
        sum(one.messages for one in parts), sum(one.expired for one in parts), any(one.resumed for one in parts)
    )


def found(queue: lanner.sync.Queue, topic: str) -> list[Any]:
    with queue.reader(topic, until_end=True) as reader:
        return sorted(reader, key=lambda message: (message.partition, message.offset))


def check_whole(messages: list[Any], first: int = 0, last: int = ROWS) -> None:
    """Each once, in its partition, each priority in its order, with all that belongs to it."""
    assert len(messages) == 2 * (last - first)
    for partition in range(2):
        for priority in range(10):
            mine = [one for one in messages if (one.partition, one.priority) == (partition, priority)]
            offsets = [offset for offset in range(first, last) if offset % 10 == priority]
            assert [one.value for one in mine] == [b"%d/%d" % (partition, offset) for offset in offsets]
            assert [one.headers["h"] for one in mine] == [b"%d" % offset for offset in offsets]
            assert [one.key for one in mine] == [b"k%d" % (offset % 7) for offset in offsets]


def broken(rows: Iterator[Any], after: int) -> Iterator[Any]:
    """As if the task had died behind so many record batches."""
    for number, one in enumerate(rows):
        if number == after:
            raise InterruptedError("killed")
        yield one


def test_a_task_that_died_is_run_again_and_publishes_what_is_missing_though_its_chunks_are_others(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows_max, after in ((100, 3), (70, 5), (333, 11)):
        monkeypatch.setattr(limits, "REPLAY_CHUNK_ROWS", rows_max)
        with pytest.raises(InterruptedError):
            run(publication(broker, topic), broken(batches(), after))
    before = len(found(queue, topic))
    assert ROWS < before < 2 * ROWS
    monkeypatch.setattr(limits, "REPLAY_CHUNK_ROWS", 128)
    messages, _, resumed = run(publication(broker, topic), batches())
    assert (messages, resumed) == (2 * ROWS - before, True)
    check_whole(found(queue, topic))
    assert run(publication(broker, topic), batches())[0] == 0  # all is there
    assert run(publication(broker, topic), batches(0, ROWS + 10))[0] == 20  # it goes on with what came later
    check_whole(found(queue, topic), 0, ROWS + 10)


def test_of_two_runs_under_one_id_the_earlier_one_ends_and_nothing_is_doubled(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLAY_CHUNK_ROWS", 100)
    part = publication(broker, topic)

    def meanwhile() -> Iterator[Any]:
        for number, one in enumerate(batches()):
            if number == 4:
                assert run(part, batches())[2]
            yield one

    with pytest.raises(ConflictError, match=r"another run of the replay 'monday-.*' has begun"):
        run(part, meanwhile())
    check_whole(found(queue, topic))


def test_other_work_under_the_same_id_is_other_work(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str
) -> None:
    assert run(publication(broker, topic), batches())[0] == 2 * ROWS
    assert run(publication(broker, topic, work="other"), batches())[0] == 2 * ROWS
    assert len(found(queue, topic)) == 4 * ROWS


def test_a_chunk_whose_messages_cannot_share_batches_is_divided(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPLAY_CHUNK_BATCHES", 50)
    expires = [NOW_MS + HOUR_MS + offset for offset in range(ROWS)]
    assert run(publication(broker, topic), batches(expires_at=expires)) == (2 * ROWS, 0, False)
    messages = found(queue, topic)
    check_whole(messages)
    assert {one.expires_at_ms for one in messages} == set(expires)


def test_times_are_restored_a_delay_that_is_over_is_none_and_what_has_expired_is_left_out_unless_asked_for(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str
) -> None:
    sent = [NOW_MS - HOUR_MS + offset if offset % 2 else None for offset in range(ROWS)]
    delivered = [NOW_MS + HOUR_MS if offset % 20 == 3 else NOW_MS - 1 for offset in range(ROWS)]
    expires = [NOW_MS - 1 if offset % 50 == 7 else None for offset in range(ROWS)]
    times = {"producer_timestamp": sent, "deliver_at": delivered, "expires_at": expires}
    assert run(publication(broker, topic), batches(**times)) == (2 * ROWS - 40, 40, False)
    messages = found(queue, topic)
    assert len(messages) == 2 * ROWS - 40
    for one in messages:
        offset = int(one.value.split(b"/")[1])
        assert offset % 50 != 7
        assert one.producer_timestamp_ms == sent[offset]
        assert one.deliver_at_ms == (NOW_MS + HOUR_MS if offset % 20 == 3 else 0)
    again = publication(broker, topic, work="expired-too", expired_too=True)
    assert run(again, batches(**times)) == (2 * ROWS, 0, False)
    assert all(one.expires_at_ms == 0 for one in found(queue, topic))


def test_where_the_partitions_differ_keys_decide(broker: BrokerProcess, queue: lanner.sync.Queue, topic: str) -> None:
    queue.admin.create_topic(f"{topic}-five", partitions=5)
    part = publication(broker, f"{topic}-five", partitions=5)
    assert run(part, batches())[0] == 2 * ROWS
    messages = found(queue, f"{topic}-five")
    places = {key: {one.partition for one in messages if one.key == key} for key in {one.key for one in messages}}
    assert all(len(partitions) == 1 for partitions in places.values())
    assert sorted(one.value for one in messages) == sorted(
        b"%d/%d" % (partition, offset) for partition in range(2) for offset in range(ROWS)
    )


def test_a_pace_waits_as_long_as_its_rate_asks_and_never_less_than_nothing() -> None:
    pace = Pace(100, began=50.0)
    assert pace.wait_seconds(10, now=50.04) == pytest.approx(0.06)
    assert pace.wait_seconds(10, now=50.5) == 0
    assert pace.wait_seconds(60, now=50.5) == pytest.approx(0.3)


def test_the_sequence_of_a_chunk_is_the_offset_after_it(
    broker: BrokerProcess, queue: lanner.sync.Queue, topic: str
) -> None:
    part = publication(broker, topic)
    run(part, batches())
    state = queue.admin.transaction(part.transaction(1))
    assert max(last for _, last in state.committed) == ROWS
