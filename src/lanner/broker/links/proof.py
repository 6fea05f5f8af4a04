"""Whether somebody who says in HELLO that it is a broker of this cluster is one.

Another broker is believed who calls come from (FORWARD). So this judgement stands behind a port: a secret of the
cluster, or certificates, can take the place of what there is now without anybody else noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lanner.wire.messages import PeerHello


class PeerProof(Protocol):
    """Judges who is a peer."""

    def verify(self, hello: PeerHello) -> bool: ...


class SameCluster:
    """Believes a broker that names the id of this broker's cluster; while there is none, nobody."""

    def __init__(self, cluster_id: Callable[[], str]) -> None:
        self._cluster_id = cluster_id

    def verify(self, hello: PeerHello) -> bool:
        ours = self._cluster_id()
        return bool(ours) and hello.cluster_id == ours
