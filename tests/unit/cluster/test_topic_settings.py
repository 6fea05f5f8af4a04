from __future__ import annotations

import msgspec
import pytest

from lanner import features
from lanner.cluster import commands, encode_alter_topic, encode_raise_feature_level
from lanner.cluster.settings import SETTING_LEVELS, written
from lanner.errors import NotSupported
from lanner.limits import STAGED_BYTES_MAX
from lanner.model import TopicSettings
from tests.unit.cluster.world import World

KNOWN_TO_LEVEL_2 = {
    "partitions",
    "replication",
    "priority_policy",
    "lease_ms",
    "max_deliveries",
    "backoff_ms",
    "backoff_max_ms",
    "retention",
    "retention_ms",
    "retention_bytes",
    "max_bytes",
    "full_policy",
    "outstanding_max",
    "pinned_bytes_max",
    "dead_full",
    "dedup_window_ms",
    "group_idle_ms",
    "message_bytes_max",
}


def test_what_is_written_at_its_default_is_known_to_the_release_before() -> None:
    """It refuses a name that it does not know: such a create, or such a row in a snapshot, would part the copies."""
    assert set(TopicSettings().to_dict()) - KNOWN_TO_LEVEL_2 == set(SETTING_LEVELS)
    create = commands.decode(commands.encode_create_topic("a", TopicSettings(), 1))
    assert isinstance(create, commands.CreateTopic) and set(create.settings) == KNOWN_TO_LEVEL_2
    world = World()
    world.create("a")
    row = msgspec.msgpack.decode(world.machine.all_rows()[b"ta"])
    assert set(row[1]) == KNOWN_TO_LEVEL_2


@pytest.mark.parametrize("value", [5, STAGED_BYTES_MAX])
def test_a_newer_setting_is_refused_below_its_level_even_at_its_default(value: int) -> None:
    world = World()
    world.create("a")
    before = world.machine.all_rows()
    refused = world.apply(encode_alter_topic("a", {"lease_ms": 77, "staged_bytes_max": value}))
    assert isinstance(refused, NotSupported) and "lanner cluster upgrade" in refused.message
    assert world.machine.topics["a"].settings == TopicSettings(
        replication=world.machine.topics["a"].settings.replication
    )
    assert {key: row for key, row in world.machine.all_rows().items() if key[:1] == b"t"} == {
        key: row for key, row in before.items() if key[:1] == b"t"
    }


def test_a_newer_setting_is_taken_from_its_level_on_and_kept() -> None:
    world = World()
    assert isinstance(world.create("b", staged_bytes_max=7), NotSupported)
    world.apply(encode_raise_feature_level(features.STAGES))
    assert world.create("b", staged_bytes_max=7).settings.staged_bytes_max == 7
    assert written(world.machine.topics["b"].settings)["staged_bytes_max"] == 7
    row = msgspec.msgpack.decode(world.machine.all_rows()[b"tb"])
    assert row[1]["staged_bytes_max"] == 7
