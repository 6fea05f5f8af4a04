"""Room on the disk: how a small disk is divided, and when there is too little of it."""

from __future__ import annotations

import logging

import pytest

from lanner.broker.room import Room
from lanner.broker.settings import BrokerSettings
from lanner.limits import GIB, MIB


@pytest.mark.parametrize(
    ("disk", "segment", "reserve"),
    [
        (64 * MIB, 4 * MIB, 8 * MIB),
        (200 * MIB, 4 * MIB, 10 * MIB),
        (1 * GIB, 4 * MIB, GIB // 20),
        (10 * GIB, 64 * MIB, 512 * MIB),
        (20 * GIB - 1, 64 * MIB, GIB - 1),
        (20 * GIB, 128 * MIB, GIB),
        (100 * GIB, 128 * MIB, 5 * GIB),
    ],
)
def test_a_small_disk_has_small_segments_and_a_small_reserve(disk: int, segment: int, reserve: int) -> None:
    settings = BrokerSettings()
    assert settings.segment_size(disk) == segment
    assert settings.reserve_bytes(disk) in (reserve, reserve + 1)
    assert settings.reserve_bytes(disk) >= 2 * segment


def test_what_the_operator_gives_counts_on_every_disk() -> None:
    settings = BrokerSettings(segment_bytes=7 * MIB, disk_reserve_bytes=0)
    assert (settings.segment_size(MIB), settings.reserve_bytes(MIB)) == (7 * MIB, 0)


def test_what_is_missing_is_said_once_while_a_write_waits_although_bytes_are_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room(128 * MIB)
    with caplog.at_level(logging.WARNING, "lanner.broker"):
        for _ in range(5):  # the write is tried again, and the disk is looked at, in turn
            room.ran_out("commit")
            room.look(100 * MIB, 200 * MIB, 0)
            assert room.is_full
    assert caplog.messages == [
        "the disk has 100 MiB of 200 MiB free; 0 MiB are kept in reserve, and a new segment takes 128 MiB: publishing "
        "is refused until there is room; free some space"
    ]
    assert "a new segment takes 128 MiB" in room.missing
    assert room.wrote("commit")
    assert not room.wrote("commit")
    room.look(150 * MIB, 200 * MIB, 0)
    assert not room.is_full
    assert room.missing == ""
    assert caplog.messages[1:] == ["the disk has 150 MiB free: publishing is possible again"]


def test_below_the_reserve_it_is_full_and_above_it_is_not() -> None:
    room = Room(4 * MIB)
    room.look(9 * MIB, 200 * MIB, 10 * MIB)
    assert room.is_full
    room.look(10 * MIB, 200 * MIB, 10 * MIB)
    assert not room.is_full


def test_work_that_gave_up_is_tried_again_when_there_is_room_for_it(caplog: pytest.LogCaptureFixture) -> None:
    room = Room(4 * MIB)
    with caplog.at_level(logging.WARNING, "lanner.broker"):
        room.gave_up()
        for _ in range(3):
            room.look(13 * MIB, 200 * MIB, 10 * MIB)
            assert room.is_full
        room.look(14 * MIB, 200 * MIB, 10 * MIB)
    assert not room.is_full
    assert len(caplog.messages) == 2
