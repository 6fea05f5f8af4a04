"""The operator's calls of the client over the scripted cluster; the blocking form runs the asynchronous one."""

from __future__ import annotations

import pytest

import lanner
from lanner.errors import ConnectionLost, NotFoundError, ValidationError


def test_the_cluster_is_described_and_changed(cluster):
    with lanner.sync.connect(cluster.address) as queue:
        admin = queue.admin
        assert [broker.name for broker in admin.describe_cluster().brokers] == ["node-1", "node-2", "node-3"]
        assert [one.partition for one in admin.describe_partitions("orders")] == [0]
        assert admin.drain("node-3").kind == "drain"
        assert admin.undrain("node-3") is None
        assert admin.rebalance().state == "running"
        assert admin.upgrade() == 2
        assert admin.move("orders", 0, "node-1", "node-2").kind == "move"
        assert admin.transfer("orders", 0, "node-2") is None
        assert admin.cancel(1).state == "cancelled"
        assert (admin.scrub("node-1").running, admin.scrub_progress(f"{1:032x}").read_bytes) == (True, 19 << 20)
        assert cluster.scrubs == [True, False]
        assert admin.raft_status("orders", 0, "node-2")["broker"] == "node-2"
    assert [change.action for change in cluster.changes] == [
        "drain",
        "undrain",
        "rebalance",
        "upgrade",
        "move",
        "transfer",
        "cancel",
    ]


def test_a_broker_that_is_not_there_is_an_error_of_the_catalogue(cluster):
    with lanner.sync.connect(cluster.address) as queue:
        with pytest.raises(NotFoundError, match="node-9"):
            queue.admin.remove("node-9")
        with pytest.raises(NotFoundError, match=r"node-9.*node-1, node-2, node-3"):
            queue.admin.scrub("node-9")
        with pytest.raises(ConnectionLost, match="there is no connection to"):
            queue.admin.scrub("node-2")
        with pytest.raises(ValidationError, match="broker"):
            queue.admin.drain("")
