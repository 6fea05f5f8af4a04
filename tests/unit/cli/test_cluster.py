from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from lanner.cli.app import app
from lanner.wire.cluster import ScrubProgress

NOBODY = "127.0.0.1:1"
COMMANDS = [
    ["cluster"],
    ["cluster", "status"],
    ["cluster", "rebalance"],
    ["cluster", "cancel", "1"],
    ["broker", "list"],
    ["broker", "add"],
    ["broker", "drain", "node-1"],
    ["broker", "undrain", "node-1"],
    ["broker", "remove", "node-1", "--yes"],
    ["broker", "scrub"],
    ["broker", "scrub", "node-1"],
    ["partition", "list"],
    ["partition", "status", "orders/0"],
    ["partition", "move", "orders/0", "node-1", "node-4"],
    ["partition", "transfer", "orders/0", "node-2"],
]


def lanner(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, f"{words}: {done.exit_code}\n{done.stdout}\n{done.stderr}\n{done.exception!r}"
    return done


def document(*words: str) -> Any:
    (only,) = lanner(*words, "--json").stdout.splitlines()
    return json.loads(only)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_cluster_a_command_says_so_in_one_line(command):
    done = lanner(*command, "-s", NOBODY, code=1)
    assert "ServiceUnavailable" in done.stderr
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_about_the_cluster_fails_in_json_too(command):
    done = lanner(*command, "-s", NOBODY, "--json", code=1)
    assert json.loads(done.stderr)["type"] == "ServiceUnavailable"


# ------------------------------------------------------------------ cluster


def test_the_cluster_is_shown_with_its_brokers_and_who_leads(cluster):
    shown = lanner("cluster").stdout
    assert "led by node-2" in shown
    assert "nothing" in shown
    for name in ("node-1", "node-2", "node-3", "127.0.0.1:7430", "127.0.0.1:7431"):
        assert name in shown


def test_the_cluster_is_told_whole_as_json(cluster):
    told = document("cluster")
    assert told == document("cluster", "status")
    assert [broker["name"] for broker in told["brokers"]] == ["node-1", "node-2", "node-3"]
    assert told["brokers"][0]["addresses"]["native"] == "127.0.0.1:7410"
    assert told["metadata_leader_name"] == "node-2"


def test_time_that_is_ahead_of_the_clock_is_shown(cluster):
    assert "ahead of the clock" not in lanner("cluster").stdout
    cluster.time_ahead_ms = 3_600_000
    assert "3600 s ahead of the clock: leases and delays wait" in lanner("cluster").stdout
    assert json.loads(lanner("cluster", "--json").stdout)["time_ahead_ms"] == 3_600_000


def test_the_level_is_shown_with_what_is_possible_and_raised_once(cluster):
    cluster.behind = ["node-2"]
    assert "1; node-2 must run a newer release" in lanner("cluster").stdout
    assert "not supported by node-2" in lanner("cluster", "upgrade", code=1).stderr
    cluster.behind = []
    assert "`lanner cluster upgrade` raises it" in lanner("cluster").stdout
    assert "at feature level 2 now; it was at 1" in lanner("cluster", "upgrade").stdout
    assert "cluster upgrade" not in lanner("cluster").stdout
    assert document("cluster", "upgrade") == {"feature_level": 2, "before": 2}
    assert "already" in lanner("cluster", "upgrade").stdout


def test_what_is_missing_is_said_with_the_next_step(cluster):
    cluster.replicas_missing = 2
    assert "lanner cluster rebalance" in lanner("cluster").stdout
    cluster.replicas_missing = 0
    cluster.brokers["node-3"] = msgspec.structs.replace(cluster.brokers["node-3"], alive=False)
    shown = lanner("cluster").stdout
    assert "node-3 cannot be reached" in shown
    assert "unreachable" in shown


def test_what_is_missing_and_on_its_way_needs_no_next_step(cluster):
    cluster.replicas_missing = 2
    lanner("cluster", "rebalance", "--no-wait")
    shown = lanner("cluster").stdout
    assert "being made now" in shown
    assert "lanner cluster rebalance" not in shown


def test_a_plan_that_runs_is_listed_and_one_that_is_done_is_not(cluster):
    lanner("cluster", "rebalance", "--no-wait")
    assert "rebalance" in lanner("cluster").stdout
    for _ in range(3):
        document("cluster")
    assert "rebalance" not in lanner("cluster").stdout


def test_a_rebalance_is_watched_until_it_is_done(cluster):
    done = lanner("cluster", "rebalance")
    assert "1 replicas moved or made" in done.stdout
    assert "2 of 3 steps" in done.stderr
    assert document("cluster", "rebalance")["plan"]["state"] == "done"


def test_a_plan_that_stalls_is_an_error_that_says_why(cluster):
    cluster.plan_ends = "stalled"
    done = lanner("cluster", "rebalance", code=1)
    assert "no room" in done.stderr
    assert "say the same again" in done.stderr


def test_a_plan_is_cancelled_by_its_number(cluster):
    lanner("cluster", "rebalance", "--no-wait")
    assert document("cluster", "cancel", "1")["plan"]["state"] == "cancelled"


def test_an_option_before_the_command_is_not_silently_ignored(cluster):
    assert "behind the command" in lanner("cluster", "-s", NOBODY, "rebalance", code=2).stderr
    assert cluster.changes == []


# ------------------------------------------------------------------ brokers


def test_brokers_are_listed_with_their_state(cluster):
    cluster.brokers["node-3"] = msgspec.structs.replace(
        cluster.brokers["node-3"], state="draining", replicas=0, leads=0, should_lead=2, rack="b"
    )
    shown = lanner("broker", "list").stdout
    assert "drained" in shown
    assert "0 (should: 2)" in shown
    assert [broker["rack"] for broker in document("broker", "list")["brokers"]] == ["", "", "b"]


def test_a_drain_is_watched_and_names_the_next_step(cluster):
    done = lanner("broker", "drain", "node-3")
    assert "lanner broker remove node-3" in done.stdout
    assert cluster.brokers["node-3"].replicas == 0


def test_a_drain_that_is_not_waited_for_returns_at_once(cluster):
    assert document("broker", "drain", "node-3", "--no-wait")["plan"]["steps_done"] == 0
    assert "plan 2" in lanner("broker", "drain", "node-3", "--no-wait").stdout


def test_a_broker_that_is_not_there_is_told_with_those_that_are(cluster):
    for command in ("drain", "undrain", "remove"):
        assert "there are: node-1, node-2, node-3" in lanner("broker", command, "node-9", code=1).stderr
    assert cluster.changes == []


def test_a_drained_broker_takes_partitions_again(cluster):
    assert "rebalance" in lanner("broker", "undrain", "node-2").stdout
    assert [(change.action, change.broker) for change in cluster.changes] == [("undrain", "node-2")]


def test_removing_a_broker_drains_it_first(cluster):
    assert document("broker", "remove", "node-3", "--yes") == {"broker": "node-3", "removed": True}
    assert [change.action for change in cluster.changes] == ["drain", "remove"]
    assert "node-3" not in cluster.brokers


def test_removing_a_broker_that_holds_nothing_moves_nothing(cluster):
    cluster.brokers["node-3"] = msgspec.structs.replace(cluster.brokers["node-3"], replicas=0, metadata="learner")
    lanner("broker", "remove", "node-3", "--yes")
    assert [change.action for change in cluster.changes] == ["remove"]


def test_removing_without_waiting_refuses_what_would_have_to_be_drained(cluster):
    done = lanner("broker", "remove", "node-3", "--yes", "--no-wait", code=1)
    assert "lanner broker drain node-3" in done.stderr
    assert cluster.changes == []


def test_removing_asks_where_somebody_can_answer(cluster):
    assert "--yes" in lanner("broker", "remove", "node-3", code=2).stderr
    assert cluster.changes == []


# ------------------------------------------------------------------ partitions


def test_partitions_are_listed_with_who_leads_and_who_lags(cluster):
    cluster.lags = {"node-1": 0, "node-3": 1_200}
    shown = lanner("partition", "list").stdout
    assert "orders/0" in shown
    assert "node-3:1,200" in shown
    assert "good" in shown
    assert document("partition", "list", "orders")["partitions"][0]["leader_name"] == "node-1"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"leader": ""}, "nobody leads it"),
        ({"leader": "node-2"}, "node-1 should lead"),
        ({"steps": {"node-3": "catch_up"}}, "catch up on node-3"),
        ({"stopped": {"node-3": "record 99 is not known"}}, "stopped on node-3: record 99 is not known"),
        ({"leader": "", "stopped": {"node-2": "damaged"}}, "nobody leads it; stopped on node-2: damaged"),
    ],
)
def test_what_is_wrong_with_a_partition_is_said(cluster, change, words):
    for name, value in change.items():
        setattr(cluster, name, value)
    assert words in lanner("partition", "list").stdout


def test_a_partition_on_a_dead_broker_says_so(cluster):
    cluster.brokers["node-3"] = msgspec.structs.replace(cluster.brokers["node-3"], alive=False)
    assert "node-3 unreachable" in lanner("partition", "list").stdout


def test_a_partition_with_too_few_replicas_says_so(cluster):
    del cluster.brokers["node-3"]
    assert "1 of 3 replicas missing" in lanner("partition", "list").stdout


def test_the_raft_status_of_one_replica_is_shown(cluster):
    assert document("partition", "status", "orders/0")["status"]["term"] == 4
    shown = lanner("partition", "status", "orders/0", "--broker", "node-2").stdout
    for words in ("node-2", "voters: 1 2, learners: -", "2: state: probe, match: 7"):
        assert words in shown


def test_a_replica_is_moved_by_hand(cluster):
    assert "moved from node-1 to node-3" in lanner("partition", "move", "orders/0", "node-1", "node-3").stdout
    (change,) = cluster.changes
    assert (change.topic, change.partition, change.broker, change.target) == ("orders", 0, "node-1", "node-3")


def test_a_broker_is_scrubbed_and_what_was_read_is_told(cluster):
    shown = lanner("broker", "scrub", "node-1").stdout
    assert shown == "node-1: 1,204 entries and 391 rows (38.0 MiB) read, nothing is damaged\n"
    assert cluster.scrubs == [True, False, False]
    (told,) = document("broker", "scrub", "node-1")["brokers"]
    assert (told["broker"], told["entries"], told["damaged"], told["passes"]) == ("node-1", 1_204, 0, 2)
    assert "there are: node-1" in lanner("broker", "scrub", "node-9", code=1).stderr


def test_the_list_of_brokers_tells_how_far_each_has_scrubbed(cluster):
    for name, told in {
        "node-1": ScrubProgress(True, 0, 10, 0, 300, 0, 1_000),
        "node-2": ScrubProgress(False, 2, 90, 5, 1_000, 3, 1_000),
        "node-3": ScrubProgress(False, 1, 90, 5, 1_000, 0, 1_000),
    }.items():
        cluster.brokers[name] = msgspec.structs.replace(cluster.brokers[name], scrub=told)
    shown = lanner("broker", "list").stdout
    lines = [line.rstrip() for line in shown.splitlines() if "node-" in line]
    for line, words in zip(lines, ("30% read", "done, 3 damaged", "done, nothing damaged"), strict=True):
        assert line.endswith(words)
    (first, *_) = document("broker", "list")["brokers"]
    assert first["scrub"]["read_bytes"] == 300 and first["scrub"]["running"]
    assert "scrub" not in lanner("cluster").stdout


def test_damage_that_a_scrub_finds_is_the_exit_code(cluster):
    cluster.scrub_damaged = 1
    shown = lanner("broker", "scrub", "node-1", code=1).stdout
    assert "read, 1 is damaged: see its log and lanner cluster" in shown
    cluster.scrub_damaged = 2
    assert "2 are damaged" in lanner("broker", "scrub", "node-1", code=1).stdout


def test_every_broker_is_scrubbed_and_those_that_cannot_be_reached_are_named(cluster):
    first, second, third = lanner("broker", "scrub", code=1).stdout.splitlines()
    assert first.startswith("node-1: 1,204 entries")
    assert second.startswith("node-2: not scrubbed: there is no connection to 127.0.0.1:1")
    assert third.startswith("node-3: not scrubbed: ")
    told = json.loads(lanner("broker", "scrub", "--json", code=1).stdout)["brokers"]
    assert [one.get("error") for one in told] == [None, "ConnectionLost", "ConnectionLost"]


def test_a_broker_that_was_started_anew_meanwhile_is_not_called_whole(cluster):
    cluster.scrub_restarts = True
    assert "node-1: not scrubbed: it was started anew" in lanner("broker", "scrub", "node-1", code=1).stdout


def test_leadership_is_handed_to_another_broker(cluster):
    assert lanner("partition", "transfer", "orders/0", "node-2").stdout.strip() == "node-2 leads orders/0."


def test_leadership_is_not_handed_to_a_broker_that_is_dead(cluster):
    cluster.brokers["node-2"] = msgspec.structs.replace(cluster.brokers["node-2"], alive=False)
    assert "start it first" in lanner("partition", "transfer", "orders/0", "node-2", code=1).stderr
    assert cluster.changes == []


def test_a_hand_over_that_takes_too_long_says_where_to_look(cluster, monkeypatch):
    monkeypatch.setattr("lanner.cli.partitions._TRANSFER_SECONDS", 0.05)
    cluster.transfers = False
    assert "lanner partition list orders" in lanner("partition", "transfer", "orders/0", "node-2", code=1).stderr
    assert "shall lead" in lanner("partition", "transfer", "orders/0", "node-2", "--no-wait").stdout


@pytest.mark.parametrize("where", ["orders", "orders/x", "/0"])
def test_a_partition_is_written_with_its_topic(cluster, where):
    assert "orders/0" in lanner("partition", "status", where, code=2).stderr


# ------------------------------------------------------------------ topics


def test_topics_show_their_leaders_and_replicas(cluster):
    (listed,) = document("topic", "list")["topics"]
    assert (listed["name"], listed["partitions"], listed["replicas"]) == ("orders", 1, 3)
    assert (listed["leaders"], listed["leaderless"]) == ({"node-1": 1}, 0)
    assert (listed["messages"], listed["bytes"]) == (5, 100)
    (partition,) = document("topic", "show", "orders")["partitions"]
    assert (partition["leader_name"], partition["replicas"]) == ("node-1", ["node-1", "node-2", "node-3"])
    shown = lanner("topic", "describe", "orders").stdout
    assert "node-1 node-2 node-3" in shown
    assert partition["holds"] == [{"group": "archive", "offset": 2, "behind": 3, "held_bytes": 60}]
    assert "held for" in shown and "archive" in shown


def test_a_topic_without_a_leader_is_marked(cluster):
    cluster.leader = ""
    assert "no leader" in lanner("topic", "list").stdout
