"""Stages on a broker: kept like batches, read like batches once they are published, and gone when they are let go."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import batch, features
from lanner.broker.replicas.keeping import transform
from lanner.cluster import encode_raise_feature_level
from lanner.errors import LannerError
from lanner.partition import (
    Prepare,
    PublishStages,
    Staged,
    StageNote,
    WithdrawStages,
    batch_start,
    encode_stage,
)
from tests.unit.broker.replicas.test_engine import Broker

ATTEMPT = b"an attempt of it"


def note(number: int) -> StageNote:
    return StageNote("t", "o", 1, 0, ATTEMPT, number, 60_000)


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.engine.propose(0, encode_raise_feature_level(features.STAGES), lambda _result: None)
    broker.work()
    return broker


def stage(broker: Broker, number: int, *values: bytes) -> int:
    told: list[Any] = []
    payload = encode_stage(broker.now_ms, note(number), batch.encode(list(values)))
    index = broker.engine.propose(1, payload, told.append)
    broker.work()
    assert told == [Staged(number, len(values), False)]
    return index


def ask(broker: Broker, request: Any) -> Any:
    told = broker.ask(1, request)
    broker.work()
    assert not isinstance(told[0][0], LannerError), told
    return told[0][0]


def prepare(broker: Broker, stages: int) -> None:
    assert ask(broker, Prepare(5, "t", "o", 1, [(0, ATTEMPT, stages)], 5)) is None


def is_kept(broker: Broker, index: int) -> bool:
    broker.save()
    try:
        broker.engine.ledger.locate(1, index)
    except KeyError:
        return False
    return True


def test_the_memory_of_payloads_takes_no_stage(broker: Broker) -> None:
    told = broker.publish(1, b"read soon")
    broker.work()
    index = stage(broker, 0, b"not read soon")
    assert told and broker.engine.payload_from_memory(1, index - 1) is not None
    assert broker.engine.cache.get(1, index) is None


def test_a_stage_stays_readable_until_it_is_published_and_after(broker: Broker) -> None:
    index = stage(broker, 0, b"one", b"two")
    assert is_kept(broker, index)
    prepare(broker, 1)
    assert is_kept(broker, index)
    assert ask(broker, PublishStages(5, 6)) == 0
    assert is_kept(broker, index)
    answer, _ = broker.poll()
    assert [lease.ref.index for lease in answer.leases] == [index]


def test_a_stage_that_is_withdrawn_is_let_go_of(broker: Broker) -> None:
    index = stage(broker, 0, b"one")
    prepare(broker, 1)
    assert ask(broker, WithdrawStages(5, 6)) == 0
    assert not is_kept(broker, index)


def test_a_rewrite_keeps_the_note_of_a_published_stage_and_the_messages_still_wanted() -> None:
    payload = encode_stage(5, note(0), batch.encode([b"a", b"b", b"c"]))
    rewritten = transform(1, payload, b"\x01\x00\x00\x00")
    start = batch_start(payload)
    assert start > 16 and batch_start(rewritten) == start and rewritten[:start] == payload[:start]
    assert batch.decode(rewritten[start:]).values() == [b"b"]
