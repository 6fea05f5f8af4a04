"""Who is believed to be a broker of this cluster."""

from __future__ import annotations

from lanner.broker.links.proof import SameCluster
from lanner.wire.messages import PeerHello


def test_a_broker_of_the_same_cluster_is_believed_and_no_other() -> None:
    ours = ["c1"]
    proof = SameCluster(lambda: ours[0])
    assert proof.verify(PeerHello("c1", "n", "a", ""))
    assert not proof.verify(PeerHello("c2", "n", "a", ""))
    assert not proof.verify(PeerHello("", "n", "a", ""))
    ours[0] = ""
    assert not proof.verify(PeerHello("", "n", "a", "")), "while there is no cluster, nobody belongs to it"
