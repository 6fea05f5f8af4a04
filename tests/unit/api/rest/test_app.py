from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from lanner import limits
from lanner.api.rest import build_app
from lanner.api.rest.operations import Call, Prepared, Raw, Streamed
from lanner.api.rest.routes import OPERATIONS
from lanner.errors import (
    BadGateway,
    LeaseLost,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    ServiceUnavailable,
    StorageFull,
    TopicFull,
    catalogue,
)
from tests.unit.api.rest.conftest import READY


async def publish(http, **named):
    return await http.post("/topic/orders/publish", **named)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_handler_takes_the_body_and_the_query_of_its_operation_and_gives_its_reply(operation):
    hints = get_type_hints(operation.handler)
    given = hints.pop("return")
    body = operation.body if operation.plain is None else operation.body | operation.plain
    assert hints == {"call": Call[body, operation.query]}
    told = given in (Prepared, Streamed, Raw) or given == Mapping[str, str] == Mapping[get_args(operation.reply)]
    assert told or (given is type(None) if operation.reply is None else given is operation.reply)


async def test_bad_json_is_400_and_says_where(http):
    reply = await publish(http, content=b'{"message" "x"}')
    assert reply.status_code == 400
    assert reply.json()["type"] == "ValidationError"
    assert "byte 11" in reply.json()["message"]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"message": "\xff"}', b'{"a":' + b"[" * 100_000])
async def test_a_body_that_is_no_request_is_400(http, content):
    reply = await publish(http, content=content)
    assert reply.status_code == 400
    assert reply.json()["type"] == "ValidationError"
    assert reply.json()["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"message": 5}, "message"),
        ({}, "message"),
        ({"message": "x", "priority": "urgent"}, "priority"),
        ({"message": "x", "priority": 10}, "priority"),
        ({"message": "x", "priority": True}, "priority"),
        ({"message": "x", "partitionKey": 3}, "partitionKey"),
        ({"message": "x", "encoding": "rot13"}, "encoding"),
    ],
)
async def test_a_wrong_field_is_named(http, body, field):
    reply = await publish(http, json=body)
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == field
    assert field in reply.json()["message"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "consumerID"),
        ("consumerID=", "consumerID"),
        ("consumerID=x&batch=0", "batch"),
        ("consumerID=x&batch=many", "batch"),
        ("consumerID=x&batch=-1", "batch"),
        ("consumerID=x&batch=99999999999999999999", "batch"),
        ("consumerID=x&partitionID=-1", "partitionID"),
        ("consumerID=x&consumerID=y", "consumerID"),
    ],
)
async def test_a_wrong_query_parameter_is_named(http, service, query, field):
    service.known["orders"] = 1
    reply = await http.get(f"/topic/orders/consume?{query}")
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == field


@pytest.mark.parametrize("name", ["a b", "ü", "%2e%2e", "x" * 201])
async def test_a_name_that_may_not_be_one_is_refused(http, service, name):
    reply = await http.post(f"/topic/{name}/publish", json={"message": "x"})
    assert reply.status_code in (400, 404)
    assert service.published == []


async def test_a_whole_number_may_be_written_with_a_fraction(http, service):
    assert (await publish(http, json={"message": "x", "priority": 7.0})).json()["priority"] == 7
    reply = await http.post("/v1/topics/orders/groups/g/commit", json={"offsets": {"1": 5.0}})
    assert reply.status_code == 204
    assert [call.offsets for call in service.asked("commit")] == [{1: 5}]
    assert (await publish(http, json={"message": "x", "priority": 7.5})).status_code == 400
    assert (await publish(http, json={"message": "x", "priority": 1e300})).status_code == 400


async def test_too_many_query_parameters_are_refused(http):
    reply = await http.get("/topic/orders/peek?" + "&".join(f"a{n}=1" for n in range(100)))
    assert reply.status_code == 400


async def test_an_announced_body_that_is_too_large_is_refused_unread(http, service):
    async def endless():
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)

    reply = await http.post(
        "/topic/orders/publish",
        content=endless(),
        headers={"content-length": str(limits.REST_BODY_BYTES_MAX + 1)},
    )
    assert reply.status_code == 413
    assert reply.json()["details"]["error"] == "MessageTooLarge"
    assert service.calls == []


async def test_a_body_that_turns_out_too_large_is_refused(http, service):
    async def large():
        for _ in range(limits.REST_BODY_BYTES_MAX // 65_536 + 2):
            yield b"x" * 65_536

    reply = await http.post("/topic/orders/publish", content=large())
    assert reply.status_code == 413
    assert service.calls == []


async def test_large_bodies_are_bounded_together(http, service, monkeypatch):
    monkeypatch.setattr("lanner.api.rest.bodies.BODIES_BYTES_MAX", 100)
    reply = await publish(http, json={"message": "x" * 200})
    assert (reply.status_code, reply.json()["type"]) == (429, "Overloaded")
    for _ in range(5):
        assert (await publish(http, json={"message": "x" * 40})).status_code == 200


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Overloaded(retry_after_ms=1_500), 429, "Overloaded"),
        (TopicFull(), 429, "TopicFull"),
        (StorageFull(), 507, "StorageFull"),
        (ServiceUnavailable(), 503, "ServiceUnavailable"),
        (NotLeader(), 503, "ServiceUnavailable"),
        (BadGateway(), 502, "BadGateway"),
        (LeaseLost(), 409, "LeaseLost"),
        (OffsetOutOfRange(), 416, "OffsetOutOfRange"),
    ],
)
async def test_a_catalogue_error_keeps_falconqs_type_and_its_own_name(http, service, failure, status, kind):
    service.failure = failure
    reply = await publish(http, json={"message": "x"})
    assert reply.status_code == status
    assert reply.json()["type"] == kind
    assert reply.json()["details"]["error"] == failure.name
    assert reply.json()["details"].get("retryable", False) is failure.retryable


@pytest.mark.parametrize("kind", catalogue().values(), ids=lambda kind: kind.__name__)
async def test_every_error_has_its_status_and_its_name(http, service, kind):
    service.failure = kind(partition=3)
    reply = await http.post("/v1/topics/orders/messages", json={"messages": [{"value": "x"}]})
    assert (reply.status_code, reply.json()["type"]) == (kind.http_status, kind.__name__)
    details = {"error": kind.__name__, "partition": 3} | ({"retryable": True} if kind.retryable else {})
    assert reply.json()["details"] == details
    assert reply.json()["message"] == kind().message


async def test_an_overloaded_broker_says_when_to_come_back(http, service):
    service.failure = Overloaded(retry_after_ms=1_500)
    assert (await publish(http, json={"message": "x"})).headers["retry-after"] == "2"
    service.failure = Overloaded()
    assert (await publish(http, json={"message": "x"})).headers["retry-after"] == "1"


async def test_a_fault_of_ours_is_a_server_error_that_tells_nothing_private(http, service, caplog):
    service.failure = RuntimeError("secret")
    reply = await publish(http, json={"message": "x"})
    assert reply.status_code == 500
    assert reply.json()["type"] == "ServerError"
    assert "secret" not in reply.text
    assert "secret" in caplog.text


async def test_an_unknown_path_is_404_and_points_to_the_docs(http):
    reply = await http.get("/nope")
    assert reply.status_code == 404
    assert reply.json()["type"] == "NotFoundError"
    assert "/docs" in reply.json()["message"]


async def test_an_unknown_method_is_405_with_those_there_are(http):
    reply = await http.delete("/topic/orders/publish")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    assert (await http.post("/openapi.json")).status_code == 405


async def test_head_is_answered_where_get_is(http):
    assert (await http.head("/healthz")).status_code == 200


async def test_health_and_readiness_differ(http, service):
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    service.stopped_partitions = {"orders/1": "a record of tomorrow"}
    assert (await http.get("/readyz")).json() == {"status": "ready", "stopped": {"orders/1": "a record of tomorrow"}}
    service.facts = READY._replace(draining=True)
    assert (await http.get("/healthz")).status_code == 200
    assert "the broker is not ready: it is draining" in (await http.get("/readyz")).json()["message"]
    assert "lanner_ready 0" in (await http.get("/metrics")).text
    service.facts = READY._replace(leaderless=1, disk_full="the disk has 3 MiB of 96 MiB free")
    assert "the disk has 3 MiB" in (await http.get("/readyz")).json()["message"]
    reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert reply.json()["type"] == "ServiceUnavailable"
    assert reply.headers["retry-after"] == "1"


async def test_a_slow_disk_is_told_and_sends_callers_elsewhere_if_others_are_faster(http, service):
    slow = "disk slow: a sync has been under way for 3.0 s"
    service.facts = READY._replace(disk_slow=slow)
    reply = await http.get("/readyz")
    assert (reply.status_code, reply.json()) == (200, {"status": f"ready, {slow}"})
    assert "lanner_disk_slow 1" in (await http.get("/metrics")).text
    service.facts = READY._replace(disk_slow=slow, others_may_lead=True)
    reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert slow in reply.text


async def test_metrics_count_requests_by_operation_and_status(http):
    await publish(http, json={"message": "x"})
    await publish(http, json={})
    text = (await http.get("/metrics")).text
    assert 'lanner_rest_requests_total{operation="publish",status="200"} 1' in text
    assert 'lanner_rest_requests_total{operation="publish",status="400"} 1' in text
    assert "lanner_ready 1" in text
    assert "lanner_time_ahead_ms 0" in text
    assert "lanner_connections_max 10000" in text
    assert "lanner_unfinished_bytes 0" in text
    assert "lanner_forwarded_calls_total 17" in text
    assert 'lanner_fetched_bytes_total{role="leader"} 50' in text
    assert 'lanner_fetched_bytes_total{role="follower"} 60' in text
    assert 'lanner_group_fenced_total{call="commit"} 3' in text


async def test_metrics_tell_of_transactions_in_units_that_prometheus_expects(http):
    text = (await http.get("/metrics")).text
    for line in (
        "lanner_transactions_open 3",
        "lanner_transactions_staged_bytes 1000",
        "lanner_transactions_stages_expired_total 8",
        "lanner_transactions_stages_dropped_total 9",
        "lanner_transactions_repeated_total 2",
        "lanner_transactions_committed_total 7",
        'lanner_transactions_aborted_total{reason="deadline"} 1',
        'lanner_transactions_oldest_seconds{waits_for="outcome"} 1.2',
        "lanner_transactions_outcome_seconds_sum 2.5",
        "lanner_transactions_visible_seconds_count 5",
    ):
        assert f"\n{line}\n" in text
    named = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(named)) == len(named)


async def test_metrics_tell_of_groups_with_members(http):
    text = (await http.get("/metrics")).text
    for line in (
        'lanner_group_members{group="billing"} 3',
        'lanner_group_generation{group="billing"} 41',
        'lanner_group_partitions_unowned{group="billing"} 2',
        'lanner_group_handovers_waiting{group="billing"} 1',
        'lanner_group_heartbeat_lag_seconds{group="billing"} 1.2',
        "lanner_group_partitions_moved_total 9",
        "lanner_group_forced_total 1",
        'lanner_group_rebalances_total{reason="joined"} 5',
        'lanner_group_rebalances_total{reason="left"} 0',
        'lanner_group_evictions_total{reason="silent"} 4',
        'lanner_group_evictions_total{reason="operator"} 0',
        "lanner_group_handover_seconds_sum 0.5",
        "lanner_group_handover_seconds_count 2",
        "lanner_group_assign_seconds_sum 7e-05",
        "lanner_group_records_bytes_total 0",
    ):
        assert f"\n{line}\n" in text


async def test_the_document_lists_every_operation_once(http):
    document = (await http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    listed = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(operation.path, operation.method) for operation in OPERATIONS}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    settings = document["components"]["schemas"]["CreateTopicRequest"]["properties"]["settings"]["properties"]
    assert settings["partitions"] == {"type": "integer", "minimum": 1, "maximum": limits.PARTITIONS_MAX, "default": 3}


async def test_the_docs_page_needs_nothing_from_elsewhere(http):
    page = (await http.get("/docs")).text
    assert "/openapi.json" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "src=" not in page


async def asked(service, scope, *events):
    """One request over bare ASGI: what was sent back."""
    sent = []
    waiting = list(events)

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(event):
        sent.append(event)

    defaults = {"type": "http", "method": "GET", "path": "/topics", "query_string": b"", "headers": []}
    await build_app(service)({**defaults, **scope}, receive, send)
    return sent


async def test_a_call_that_takes_too_long_ends_at_its_deadline(service, monkeypatch):
    hasty = tuple(replace(operation, deadline_ms=20) for operation in OPERATIONS)
    monkeypatch.setattr("lanner.api.rest.app.OPERATIONS", hasty)
    service.poll_gate = asyncio.Event()
    scope = {"method": "POST", "path": "/v1/topics/orders/groups/g/poll"}
    start, body = await asked(service, scope, {"type": "http.request", "body": b"{}"})
    assert start["status"] == 504
    assert b"DeadlineExceeded" in body["body"]
    assert service.asked("poll cancelled") == [None]


async def test_a_client_that_leaves_within_its_body_is_not_answered(service):
    half = {"type": "http.request", "body": b'{"mess', "more_body": True}
    assert await asked(service, {"method": "POST", "path": "/topic/orders/publish"}, half) == []
    assert service.calls == []


async def test_a_query_that_is_not_utf8_is_refused(service):
    for query in (b"consumerID=%ff", b"consumerID=\xff"):
        start, _ = await asked(service, {"path": "/topic/orders/consume", "query_string": query})
        assert start["status"] == 400


async def test_what_is_not_http_is_ignored(service):
    assert await asked(service, {"type": "lifespan"}) == []
