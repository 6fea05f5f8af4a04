from __future__ import annotations

import random
from typing import Any

import pytest

from lanner import limits
from lanner.cluster import (
    Cluster,
    Topic,
    encode_allocate_producers,
    encode_alter_topic,
    encode_create_topic,
    encode_delete_topic,
)
from lanner.errors import LannerError, Overloaded, TopicExists, TopicNotFound, ValidationError
from lanner.model import TopicSettings
from tests.unit.cluster.world import StoredRows


class Driven:
    """A machine fed with entry after entry; its invariants are checked after each."""

    def __init__(self) -> None:
        self.machine = Cluster(StoredRows())
        self.index = 0

    def apply(self, payload: bytes | None) -> Any:
        self.index += 1
        outcome = self.machine.apply(self.index, payload)
        assert (outcome.live, outcome.released, outcome.deliverable) == (False, (), False)
        self.machine.check()
        return outcome.result

    def create(self, name: str, **settings: Any) -> Any:
        return self.apply(encode_create_topic(name, TopicSettings.from_dict(settings), 1_000))


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_a_created_topic_has_its_settings_and_a_set_for_each_partition(driven: Driven) -> None:
    topic = driven.create("orders", partitions=4, lease_ms=5_000)
    settings = TopicSettings(partitions=4, replication=1, lease_ms=5_000)
    assert topic == Topic("orders", 1, settings, (1, 2, 3, 4), 1_000)
    assert driven.machine.topics == {"orders": topic}
    assert driven.machine.partition_count == 4


def test_a_second_topic_of_the_same_name_is_refused_and_takes_nothing(driven: Driven) -> None:
    driven.create("orders", partitions=2)
    assert isinstance(driven.create("orders"), TopicExists)
    assert driven.create("payments", partitions=1).set_ids == (3,)


def test_a_recreated_topic_inherits_nothing(driven: Driven) -> None:
    first = driven.create("orders")
    assert driven.apply(encode_delete_topic("orders")) == first
    second = driven.create("orders")
    assert second.incarnation > first.incarnation
    assert not set(first.set_ids) & set(second.set_ids)


def test_of_two_creates_of_the_same_moment_one_wins_and_may_ask_again(driven: Driven) -> None:
    mine, theirs = (
        encode_create_topic("orders", TopicSettings(), 1_000, create_id) for create_id in ("mine", "theirs")
    )
    made = driven.apply(mine)
    assert made.incarnation == 1
    assert isinstance(driven.apply(theirs), TopicExists)
    assert driven.apply(mine) == made
    assert isinstance(driven.apply(encode_create_topic("orders", TopicSettings(), 1_000)), TopicExists)
    driven.apply(encode_alter_topic("orders", {"partitions": 9}))
    assert driven.apply(mine).incarnation == 1


def test_creates_without_an_id_are_all_others(driven: Driven) -> None:
    command = encode_create_topic("orders", TopicSettings(), 1_000)
    driven.apply(command)
    assert isinstance(driven.apply(command), TopicExists)


def test_deleting_what_is_not_there_is_an_error(driven: Driven) -> None:
    assert isinstance(driven.apply(encode_delete_topic("orders")), TopicNotFound)


def test_altering_merges_with_what_the_topic_has(driven: Driven) -> None:
    driven.create("orders", lease_ms=5_000)
    topic = driven.apply(encode_alter_topic("orders", {"max_deliveries": 9}))
    assert (topic.settings.lease_ms, topic.settings.max_deliveries) == (5_000, 9)
    assert driven.machine.topics["orders"] == topic


def test_partitions_grow_under_new_sets_and_keep_the_old_ones(driven: Driven) -> None:
    driven.create("orders", partitions=2)
    driven.create("payments", partitions=1)
    assert driven.apply(encode_alter_topic("orders", {"partitions": 4})).set_ids == (1, 2, 4, 5)


def test_partitions_never_shrink(driven: Driven) -> None:
    driven.create("orders", partitions=3)
    refused = driven.apply(encode_alter_topic("orders", {"partitions": 2}))
    assert isinstance(refused, ValidationError)
    assert "cannot shrink" in refused.message
    assert len(driven.machine.topics["orders"].set_ids) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"nonsense": 1},
        {"lease_ms": -1},
        {"lease_ms": "soon"},
        {"retention": []},
        {"backoff_ms": 400_000},
        {"partitions": 0},
    ],
)
def test_settings_that_make_no_sense_are_a_result_and_change_nothing(driven: Driven, settings: dict[str, Any]) -> None:
    before = driven.create("orders")
    assert isinstance(driven.apply(encode_alter_topic("orders", settings)), ValidationError)
    assert driven.machine.topics["orders"] == before


def test_altering_what_is_not_there_is_an_error(driven: Driven) -> None:
    assert isinstance(driven.apply(encode_alter_topic("orders", {"lease_ms": 100})), TopicNotFound)


def test_the_number_of_topics_is_bounded(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    driven.create("a")
    driven.create("b")
    assert isinstance(driven.create("c"), Overloaded)
    driven.apply(encode_delete_topic("a"))
    assert isinstance(driven.create("c"), Topic)


def test_the_number_of_partitions_is_bounded_over_all_topics(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_TOTAL_MAX", 5)
    driven.create("a", partitions=3)
    assert isinstance(driven.create("b", partitions=3), Overloaded)
    driven.create("b", partitions=2)
    assert isinstance(driven.apply(encode_alter_topic("a", {"partitions": 4})), Overloaded)
    assert driven.machine.topics["a"].settings.partitions == 3


def test_producer_ids_are_handed_out_once_and_zero_never(driven: Driven) -> None:
    assert driven.apply(encode_allocate_producers(1_000)) == 1
    assert driven.apply(encode_allocate_producers(10)) == 1_001
    assert driven.apply(encode_allocate_producers(1)) == 1_011


def test_producer_ids_run_out_with_an_error(driven: Driven) -> None:
    driven.machine._counters.next_producer_id = limits.OFFSET_MAX - 5
    assert isinstance(driven.apply(encode_allocate_producers(100)), ValidationError)
    assert driven.apply(encode_allocate_producers(2)) == limits.OFFSET_MAX - 5


def test_an_empty_entry_moves_only_the_index(driven: Driven) -> None:
    assert driven.apply(None) is None
    assert driven.machine.applied_index == 1


def test_an_entry_is_applied_once(driven: Driven) -> None:
    driven.apply(None)
    with pytest.raises(AssertionError, match="applied before"):
        driven.machine.apply(1, None)


def test_dirty_rows_are_what_changed_since_the_last_time(driven: Driven) -> None:
    driven.create("a")
    driven.create("b")
    assert set(driven.machine.take_dirty()) == {b"c", b"ta", b"tb"}
    assert driven.machine.take_dirty() == {}
    driven.apply(encode_delete_topic("a"))
    assert driven.machine.take_dirty()[b"ta"] is None


def random_command(rng: random.Random) -> bytes | None:
    name = rng.choice(["a", "b", "c.d", "e_f"])
    choice = rng.randrange(7)
    if choice == 0:
        return None
    if choice <= 2:
        return encode_create_topic(name, TopicSettings(partitions=rng.randint(1, 4)), rng.randrange(10_000))
    if choice == 3:
        return encode_delete_topic(name)
    if choice == 4:
        return encode_allocate_producers(rng.randint(1, 50))
    if choice == 5:
        return encode_alter_topic(name, {"partitions": rng.randint(1, 6), "retention": rng.choice(["time", "acked"])})
    return bytes((rng.randrange(1, 18), 1)) + rng.randbytes(rng.randrange(20))


@pytest.mark.parametrize("seed", range(30))
def test_loading_rows_and_replaying_the_tail_gives_the_same_state_byte_for_byte(seed: int) -> None:
    rng = random.Random(seed)
    driven = Driven()
    log: list[bytes | None] = []
    stored = StoredRows()
    saved = 0
    for _ in range(120):
        log.append(random_command(rng))
        driven.apply(log[-1])
        if rng.random() < 0.1:
            stored.put(driven.machine.take_dirty())
            saved = driven.index
    again = Cluster(stored)
    assert again.applied_index == saved
    for index, payload in enumerate(log[saved:], start=saved + 1):
        again.apply(index, payload)
    again.check()
    assert again.all_rows() == driven.machine.all_rows()
    stored.put(again.take_dirty())
    assert stored.rows == driven.machine.all_rows()


@pytest.mark.parametrize("seed", range(20))
def test_no_entry_in_the_log_can_stop_the_machine(seed: int) -> None:
    rng = random.Random(seed)
    driven = Driven()
    driven.create("orders")
    valid = [
        encode_create_topic("x", TopicSettings(), 5),
        encode_alter_topic("orders", {"lease_ms": 100}),
        encode_allocate_producers(5),
    ]
    for _ in range(200):
        payload = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            payload[rng.randrange(2, len(payload))] = rng.randrange(256)  # what is of no known kind does stop it
        result = driven.apply(bytes(payload[: rng.randint(0, len(payload))]) if rng.random() < 0.3 else bytes(payload))
        assert isinstance(result, Topic | int | LannerError)
