"""The metadata machine: which topics there are, with which settings, and which replica sets carry their partitions.

It is the machine of replica set 0. It knows names, settings and counters; it refuses to know where a partition's bytes
are, who leads it and what time it is. Commands are decided when they are applied, by fixed rules over this state alone,
so that every copy decides alike. What is handed out (incarnations, set ids, producer ids) comes from counters that only
rise: a recreated topic inherits nothing.
"""

from lanner.cluster.commands import (
    encode_allocate_producers,
    encode_alter_topic,
    encode_create_topic,
    encode_delete_topic,
)
from lanner.cluster.machine import Cluster, Outcome, Rows, Topic

__all__ = [
    "Cluster",
    "Outcome",
    "Rows",
    "Topic",
    "encode_allocate_producers",
    "encode_alter_topic",
    "encode_create_topic",
    "encode_delete_topic",
]
