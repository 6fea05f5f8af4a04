from __future__ import annotations

import pytest

from lanner import limits

POLL = "/v1/topics/orders/groups/workers/poll"
MESSAGES = "/v1/topics/orders/messages"


@pytest.mark.parametrize(
    ("path", "body", "field", "meant"),
    [
        ("/v1/topics", {"name": "t", "partitions": 5}, "partitions", "settings.partitions"),
        ("/v1/topics", {"nme": "t"}, "nme", "name"),
        (MESSAGES, {"messages": [{"value": "x"}, {"value": "x", "prioritty": 9}]}, "messages[1].prioritty", "priority"),
        (MESSAGES, {"messages": [{"value": "x", "delay": 5}]}, "messages[0].delay", "delay_ms"),
        (MESSAGES, {"messages": [{"value": "x"}], "priority": 9}, "priority", "messages.priority"),
        (POLL, {"max_mesages": 5}, "max_mesages", "max_messages"),
        (POLL, {"maxMessages": 5}, "maxMessages", "max_messages"),
    ],
)
async def test_an_unknown_field_is_refused_and_the_nearest_is_named(service, http, path, body, field, meant):
    reply = await http.post(path, json=body)
    assert reply.status_code == 400
    assert reply.json()["type"] == "ValidationError"
    assert reply.json()["details"]["field"] == field
    assert f"did you mean {meant}?" in reply.json()["message"]
    assert service.calls == []


async def test_a_field_that_is_like_none_is_refused_with_those_there_are(http):
    reply = await http.post("/v1/topics/orders/groups/workers/commit", json={"xyz": 1, "offsets": {"0": 1}})
    assert reply.status_code == 400
    assert "it knows offsets" in reply.json()["message"]


async def test_a_polled_message_can_be_settled_as_it_came(service, http):
    message = {
        "id": "orders/0/1",
        "partition": 0,
        "offset": 1,
        "value": "x",
        "priority": 4,
        "timestamp_ms": 1,
        "attempt": 1,
        "token": 7,
        "lease_until_ms": 5,
    }
    path = "/v1/topics/orders/groups/workers/ack"
    assert (await http.post(path, json={"messages": [message]})).status_code == 200
    refused = await http.post(path, json={"messages": [{**message, "conut": 5}]})
    assert "did you mean count?" in refused.json()["message"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/topics/orders/partitions/0/messages?ofset=5", "did you mean offset?"),
        ("/v1/topics/orders/groups/workers/dead?max=5", "it knows partition, start_offset, limit"),
        ("/v1/topics?limit=5", "it takes none"),
        ("/v1/brokers?x=1", "it takes none"),
    ],
)
async def test_an_unknown_query_name_is_refused(http, path, told):
    reply = await http.get(path)
    assert reply.status_code == 400
    assert told in reply.json()["message"]


async def test_falconq_refuses_near_misses_only(service, http):
    service.known["orders"] = 1
    reply = await http.post("/topic/orders/publish", json={"message": "x", "prioritty": "high"})
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, "prioritty")
    assert "did you mean priority?" in reply.json()["message"]
    reply = await http.get("/topic/orders/consume?consumerId=me")
    assert "did you mean consumerID?" in reply.json()["message"]
    reply = await http.get("/topic/orders/consume?consumerID=me&partition=0")
    assert "did you mean partitionID?" in reply.json()["message"]
    assert service.calls == []
    assert (await http.post("/topic/orders/publish", json={"message": "x", "delay": 5})).status_code == 200
    assert (await http.get("/topic/orders/consume?consumerID=me&trace=1")).status_code == 200
    assert (await http.get("/topics?x=1")).status_code == 200
    assert (await http.get("/healthz?x=1")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (MESSAGES, {"messages": [{"value": "x" * (limits.MESSAGE_BYTES_MAX * 2)}]}, "messages[0].value"),
        (MESSAGES, {"messages": [{"value": "", "key": "x" * (limits.KEY_BYTES_MAX * 2)}]}, "messages[0].key"),
        ("/topic/orders/publish", {"message": "x" * (limits.MESSAGE_BYTES_MAX * 2)}, "message"),
    ],
)
async def test_what_is_too_long_is_told_so(http, path, body, field):
    reply = await http.post(path, json=body)
    assert reply.status_code == 413
    assert reply.json()["details"]["error"] == "MessageTooLarge"
    assert reply.json()["details"]["field"] == field


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/topic/orders/publish", rb'{"message": "\ud800"}', "message"),
        ("/topic/orders/publish", rb'{"message": "x", "partitionKey": "a\udc00b"}', "partitionKey"),
        (MESSAGES, rb'{"messages": [{"value": "x"}, {"value": "\udfff x"}]}', "messages[1].value"),
        (MESSAGES, rb'{"messages": [{"value": "x", "headers": {"h": "\ud83d"}}]}', "messages[0].headers.h"),
        (POLL, b'{"lease_ms": -5}', "lease_ms"),
        (POLL, b'{"max_messages": "ten"}', "max_messages"),
    ],
)
async def test_what_is_wrong_is_named(service, http, path, body, field):
    reply = await http.post(path, content=body)
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == field
    assert field in reply.json()["message"]
    assert service.calls == []


async def test_an_error_has_one_name_and_falconq_keeps_its_own(http):
    own = await http.get("/v1/topics/missing")
    assert (own.json()["type"], own.json()["details"]["error"]) == ("TopicNotFound", "TopicNotFound")
    falconq = await http.get("/topics/missing/partitions")
    assert (falconq.json()["type"], falconq.json()["details"]["error"]) == ("NotFoundError", "TopicNotFound")
