from __future__ import annotations

import base64

import pytest

from lanner.api.rest.falconq import first_not_shown, group_of
from lanner.errors import NotLeader, PartitionNotFound
from lanner.forwarding.values import Delivered
from lanner.model import Message


def message(offset: int, value: bytes = b"v", partition: int = 0, priority: int = 4) -> Message:
    return Message("orders", partition, offset, value, priority=priority)


async def test_publish_answers_with_falconqs_fields(http, service):
    reply = await http.post("/topic/orders/publish", json={"message": "hi", "priority": "high"})
    assert reply.status_code == 200
    assert reply.json() == {
        "status": "message committed",
        "topic": "orders",
        "partitionID": 0,
        "offset": 0,
        "priority": "high",
    }
    assert service.published[0].value == b"hi"
    assert service.published[0].priority == 9
    assert service.published[0].key is None


@pytest.mark.parametrize(
    ("given", "number", "answered"),
    [("low", 0, "low"), ("normal", 4, "normal"), (7, 7, 7), ("7", 7, 7), ("HIGH", 9, "high"), (None, 4, "normal")],
)
async def test_a_priority_is_a_name_or_a_number(http, service, given, number, answered):
    body = {"message": "hi"} | ({} if given is None else {"priority": given})
    reply = await http.post("/topic/orders/publish", json=body)
    assert reply.json()["priority"] == answered
    assert service.published[0].priority == number


async def test_a_partition_key_becomes_the_messages_key(http, service):
    await http.post("/topic/orders/publish", json={"message": "hi", "partitionKey": "customer-7"})
    assert service.published[0].key == b"customer-7"


async def test_an_empty_message_is_a_message(http, service):
    assert (await http.post("/topic/orders/publish", json={"message": ""})).status_code == 200
    assert service.published[0].value == b""


async def test_a_base64_message_is_published_as_its_bytes(http, service):
    body = {"message": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}
    assert (await http.post("/topic/orders/publish", json=body)).status_code == 200
    assert service.published[0].value == b"\xff\x00"


async def test_what_is_not_base64_is_refused_by_name(http):
    reply = await http.post("/topic/orders/publish", json={"message": "%%%", "encoding": "base64"})
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == "message"


async def test_consume_takes_for_good_under_the_consumers_own_group(http, service):
    service.known["orders"] = 2
    service.floors["billing"] = [4, 2]
    service.deliveries = [Delivered(message(7, priority=9, partition=1), 5, 0), Delivered(message(3), 5, 0)]
    reply = await http.get("/topic/orders/consume", params={"consumerID": "billing", "batch": 2})
    wanted = service.asked("poll")[0]
    assert wanted.auto_ack is True
    assert wanted.wait_ms == 0
    assert wanted.group == "billing"
    assert wanted.partitions is None
    assert wanted.max_messages == 2
    assert reply.json() == {
        "topic": "orders",
        "consumerID": "billing",
        "startOffset": 3,
        "nextOffset": 2,
        "count": 2,
        "messages": [
            {"v": "v", "p": "high", "Offset": 7, "partitionID": 1, "id": "orders/1/7"},
            {"v": "v", "p": "normal", "Offset": 3, "partitionID": 0, "id": "orders/0/3"},
        ],
    }


async def test_who_only_wants_the_head_of_a_reply_takes_nothing(http, service):
    service.known["orders"] = 1
    reply = await http.head("/topic/orders/consume", params={"consumerID": "billing"})
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET")
    assert service.calls == []
    assert (await http.head("/topic/orders/peek")).status_code == 200


async def test_consume_of_one_partition_names_it_and_tells_that_partitions_progress(http, service):
    service.known["orders"] = 2
    service.floors["billing"] = [4, 2]
    reply = await http.get("/topic/orders/consume", params={"consumerID": "billing", "partitionID": 0})
    assert service.asked("poll")[0].partitions == [0]
    assert reply.json()["partitionID"] == 0
    assert (reply.json()["startOffset"], reply.json()["nextOffset"]) == (4, 4)


async def test_a_consumer_that_never_got_anything_stands_at_the_start(http, service):
    service.known["orders"] = 1
    reply = await http.get("/topic/orders/consume", params={"consumerID": "new"})
    assert reply.json()["nextOffset"] == 0
    assert reply.json()["messages"] == []


async def test_a_consume_is_a_poll_that_is_never_repeated(http, service):
    service.known["orders"] = 1
    await http.get("/topic/orders/consume", params={"consumerID": "billing"})
    assert service.asked("poll")[0].sequence == -1


async def test_a_value_that_is_not_utf8_travels_as_base64(http, service):
    service.known["orders"] = 1
    service.deliveries = [Delivered(message(0, b"\xff\x00"), 1, 0)]
    reply = await http.get("/topic/orders/consume", params={"consumerID": "billing"})
    shown = reply.json()["messages"][0]
    assert shown["encoding"] == "base64"
    assert base64.b64decode(shown["v"]) == b"\xff\x00"


@pytest.mark.parametrize("path", ["/topic/nope/consume?consumerID=x", "/topic/nope/peek", "/topics/nope/partitions"])
async def test_looking_at_an_unknown_topic_is_404_and_creates_nothing(http, service, path):
    reply = await http.get(path)
    assert reply.status_code == 404
    assert reply.json()["type"] == "NotFoundError"
    assert reply.json()["details"]["error"] == "TopicNotFound"
    assert service.known == {}
    assert service.asked("ensure_topic") == []


async def test_an_unknown_partition_is_404(http, service):
    service.known["orders"] = 2
    reply = await http.get("/topic/orders/consume?consumerID=x&partitionID=2")
    assert reply.status_code == 404
    assert reply.json()["details"]["error"] == PartitionNotFound.__name__


async def test_peek_shows_what_the_service_found_and_the_first_offset_it_left_out(http, service):
    service.known["orders"] = 1
    service.peeked = [message(2, priority=9), message(0, priority=0)]
    reply = await http.get("/topic/orders/peek?batch=2")
    (asked,) = service.asked("peek")
    assert (asked.partition, asked.offset, asked.max_messages) == (None, 0, 2)
    answer = reply.json()
    assert [item["Offset"] for item in answer["messages"]] == [2, 0]
    assert (answer["startOffset"], answer["nextOffset"], answer["count"]) == (0, 1, 2)
    assert "consumerID" not in answer


def test_the_first_offset_not_shown_is_the_lowest_over_the_partitions():
    assert first_not_shown({0: 0}, []) == 0
    assert first_not_shown({0: 0}, [message(0), message(1), message(3)]) == 2
    assert first_not_shown({0: 5, 1: 5}, [message(5), message(6), message(5, partition=1)]) == 6
    assert first_not_shown({0: 0}, [message(1), message(2)]) == 0


def test_a_consumer_id_that_is_no_name_still_has_one_group():
    assert group_of("billing") == "billing"
    assert group_of("a b") == group_of("a b")
    assert group_of("a b") != group_of("a  b")
    assert group_of("..") != ".."
    assert len(group_of("ü" * 200)) <= 200


async def test_topics_and_partitions_have_falconqs_fields(http, service):
    service.known = {"b": 2, "a": 1}
    assert (await http.get("/topics")).json() == {"topics": ["a", "b"]}
    answer = (await http.get("/topics/b/partitions")).json()
    assert answer["topic"] == "b"
    assert [partition["id"] for partition in answer["partitions"]] == [0, 1]
    assert answer["partitions"][0]["highCount"] == 2
    assert answer["partitions"][0]["totalCount"] == 5
    assert answer["partitions"][0]["leaderName"] == "one"
    assert answer["partitions"][0]["replicas"] == ["one", "other"]
    assert answer["activePartitions"] == [{"id": 0}, {"id": 1}]
    assert answer["configuredPartitions"] == 2
    assert answer["partitionKeyStrategy"] == "consistent_hash+round_robin_fallback"


async def test_raft_stats_are_a_flat_map_of_text(http, service):
    service.known["orders"] = 1
    answer = (await http.get("/raft/stats?topic=orders&partitionID=0")).json()
    assert answer == {"state": "Leader", "term": "3", "num_peers": "0", "latest_configuration": "1", "vote": ""}


async def test_what_was_taken_goes_out_although_a_broker_cannot_say_what_comes_next(http, service):
    service.known["orders"] = 2
    service.deliveries = [
        Delivered(Message("orders", 0, 7, b"a", priority=9), 1, 0),
        Delivered(Message("orders", 0, 8, b"b"), 1, 0),
        Delivered(Message("orders", 1, 9, b"c"), 1, 0),
    ]

    def nobody(call):
        raise NotLeader("nobody leads orders/1")

    service._describe_group = nobody
    answer = await http.get("/topic/orders/consume?consumerID=x&batch=3")
    assert answer.status_code == 200
    assert [message["v"] for message in answer.json()["messages"]] == ["a", "b", "c"]
    assert (answer.json()["startOffset"], answer.json()["nextOffset"]) == (7, 9)
