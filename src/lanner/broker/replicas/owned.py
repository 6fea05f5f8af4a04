"""Groups whose members own a partition, by this broker's copy of the metadata: they are not forgotten, however quiet.

Whether a group is one of them is looked up only when it would be forgotten otherwise, so nobody pays for it before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from lanner.broker.replicas.replica import Replica
from lanner.cluster import METADATA_SET, Cluster
from lanner.model import TopicSettings


class Owned:
    """The groups that own partitions, for an engine."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        settings_of: Callable[[int], TopicSettings],
        now_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._settings_of = settings_of
        self._now_ms = now_ms

    def of(self, set_id: int) -> Container[str]:
        """Return the groups of one partition, without a copy."""
        metadata = self._replicas.get(METADATA_SET)
        if metadata is None:
            return ()
        assert isinstance(metadata.machine, Cluster)
        return () if metadata.machine.outside is None else _OwnedGroups(self, metadata.machine, set_id)

    def is_owned(self, cluster: Cluster, group: str, set_id: int) -> bool:
        return cluster.is_owned(group, set_id, self._now_ms() - self._settings_of(set_id).group_idle_ms)


class _OwnedGroups:
    __slots__ = ("_cluster", "_owned", "_set_id")

    def __init__(self, owned: Owned, cluster: Cluster, set_id: int) -> None:
        self._owned = owned
        self._cluster = cluster
        self._set_id = set_id

    def __contains__(self, group: object) -> bool:
        return self._owned.is_owned(self._cluster, str(group), self._set_id)


__all__ = ["Owned"]
