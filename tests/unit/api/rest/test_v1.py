from __future__ import annotations

import asyncio
import base64

import httpx
import pytest

from lanner import batch
from lanner.api.rest import build_app
from lanner.errors import LeaseLost
from lanner.forwarding.values import Delivered, NewMessage, PlainMessages
from lanner.model import Message
from lanner.wire.administration import AlterTopic, DiscardDead, ListDead, RedriveDead, Seek
from lanner.wire.messages import SettledItem, SettleItem
from tests.spoilt import undecodable
from tests.unit.api.rest.conftest import dead_page, fetched_page


def leased(offset: int, **named) -> Delivered:
    return Delivered(Message("orders", 1, offset, b"v", attempt=2, timestamp_ms=7, **named), 42, 99_000)


async def test_topics_are_made_described_changed_and_deleted(http, service):
    made = await http.post("/v1/topics", json={"name": "orders", "settings": {"partitions": 2}})
    assert made.status_code == 201
    assert len(made.json()["partitions"]) == 2
    assert (await http.get("/v1/topics")).json() == {"topics": ["orders"]}
    assert (await http.get("/v1/topics/orders")).json()["settings"]["max_deliveries"] == 5
    changed = await http.patch("/v1/topics/orders", json={"settings": {"lease_ms": 5_000, "retention": "acked"}})
    assert changed.status_code == 200
    assert service.asked("alter_topic") == [AlterTopic("orders", {"lease_ms": 5_000, "retention": "acked"})]
    gone = await http.delete("/v1/topics/orders")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await http.get("/v1/topics/orders")).status_code == 404


@pytest.mark.parametrize("settings", [{"partitions": 10_000}, {"partitions": 0}, {"speed": 1}, {"retention": "never"}])
async def test_a_setting_that_cannot_be_is_named(http, settings):
    reply = await http.post("/v1/topics", json={"name": "orders", "settings": settings})
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == next(iter(settings))


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 201])
async def test_a_topic_name_that_may_not_be_one_is_refused(http, name):
    reply = await http.post("/v1/topics", json={"name": name})
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == "name"


async def test_messages_are_published_in_one_call(http, service):
    given = [
        {"value": "a", "priority": "high", "key": "k", "headers": {"h": "1"}},
        {"value": base64.b64encode(b"\xff").decode(), "encoding": "base64", "partition": 2},
        {"value": "c", "delay_ms": 60_000, "ttl_ms": 120_000},
        {"value": "d", "key": "/w==", "key_encoding": "base64", "headers": {"h": "/w=="}, "headers_encoding": "base64"},
    ]
    reply = await http.post("/v1/topics/orders/messages", json={"messages": given})
    assert reply.status_code == 200
    assert [item["offset"] for item in reply.json()["messages"]] == [0, 1, 2, 3]
    assert reply.json()["messages"][0]["id"] == "orders/0/0"
    first, second, third, fourth = service.published
    assert (first.priority, first.key, first.headers) == (9, b"k", {"h": b"1"})
    assert (second.value, second.partition) == (b"\xff", 2)
    assert third.expires_at_ms - third.deliver_at_ms == 60_000
    assert (fourth.key, fourth.headers) == (b"\xff", {"h": b"\xff"})
    assert all(message.dedup_id == b"" for message in service.published)


async def test_messages_that_are_only_values_are_taken_as_one_column(http, service):
    given = [{"value": "ä"}, {"value": ""}, {"headers": {}, "value": "c"}]
    reply = await http.post("/v1/topics/orders/messages", json={"messages": given})
    assert [item["offset"] for item in reply.json()["messages"]] == [0, 1, 2]
    assert service.published == [NewMessage("ä".encode()), NewMessage(b""), NewMessage(b"c")]
    assert service.published_as is PlainMessages
    await http.post("/v1/topics/orders/messages", json={"messages": [*given, {"value": "d", "headers": {"h": "1"}}]})
    assert service.published[-1].headers == {"h": b"1"} and service.published_as is list


async def test_a_wrong_message_among_many_is_named(http):
    reply = await http.post("/v1/topics/orders/messages", json={"messages": [{"value": "a"}, {"value": 1}]})
    assert reply.status_code == 400
    assert "messages" in reply.json()["details"]["field"]
    reply = await http.post(
        "/v1/topics/orders/messages", json={"messages": [{"value": "a"}, {"value": "?", "encoding": "base64"}]}
    )
    assert reply.json()["details"]["field"] == "messages[1].value"


async def test_headers_beyond_their_bound_are_refused(http):
    given = [{"value": "a", "headers": {"h": "x" * 70_000}}]
    assert (await http.post("/v1/topics/orders/messages", json={"messages": given})).status_code == 413
    given = [{"value": "a", "headers": {f"h{n}": "" for n in range(200)}}]
    assert (await http.post("/v1/topics/orders/messages", json={"messages": given})).status_code == 400


async def test_an_idempotency_key_becomes_the_same_dedup_ids_each_time(http, service):
    given = [{"value": "a", "priority": 1}, {"value": "b", "priority": 2, "delay_ms": 5}, {"value": "c", "priority": 1}]
    for _ in range(2):
        await http.post("/v1/topics/orders/messages", json={"messages": given}, headers={"Idempotency-Key": "abc"})
    ids = [message.dedup_id for message in service.published]
    assert ids[:3] == ids[3:]
    assert ids[0] == ids[2] != ids[1]
    assert all(identity.startswith(b"abc\0") for identity in ids)


async def test_a_slice_too_large_for_one_batch_gets_a_dedup_id_of_its_own(http, service):
    given = [{"value": "x" * 700_000}] * 3
    await http.post("/v1/topics/orders/messages", json={"messages": given}, headers={"Idempotency-Key": "abc"})
    assert len({message.dedup_id for message in service.published}) == 3


async def test_two_idempotency_keys_are_refused(http, service):
    keys = [(b"Idempotency-Key", b"abc"), (b"Idempotency-Key", b"def")]
    for path in ("/v1/topics/orders/messages", "/topic/orders/publish"):
        reply = await http.post(path, json={"messages": [{"value": "x"}]}, headers=keys)
        assert (reply.status_code, reply.json()["details"]["field"]) == (400, "idempotency-key")
    assert service.published == []


@pytest.mark.parametrize("key", ["k" * 201, "a b", "", "\xfc"])
async def test_an_idempotency_key_is_bounded(http, key):
    reply = await http.post(
        "/topic/orders/publish", json={"message": "x"}, headers={b"Idempotency-Key": key.encode("latin-1")}
    )
    assert reply.status_code == 400
    assert reply.json()["details"]["field"] == "Idempotency-Key"


async def test_a_poll_hands_out_leases(http, service):
    service.deliveries = [leased(3, key=b"k", headers={"h": b"\xff"}, priority=9)]
    reply = await http.post(
        "/v1/topics/orders/groups/billing/poll",
        json={"max_messages": 5, "lease_ms": 1_000, "partitions": [1], "start": "latest"},
    )
    wanted = service.asked("poll")[0]
    assert (wanted.lease_ms, wanted.partitions, wanted.start) == (1_000, [1], "latest")
    assert reply.json()["messages"] == [
        {
            "id": "orders/1/3",
            "partition": 1,
            "offset": 3,
            "value": "v",
            "key": "k",
            "headers": {"h": "/w=="},
            "headers_encoding": "base64",
            "priority": 9,
            "timestamp_ms": 7,
            "attempt": 2,
            "token": 42,
            "lease_until_ms": 99_000,
        }
    ]


async def test_an_empty_body_object_polls_with_the_defaults(http, service):
    await http.post("/v1/topics/orders/groups/billing/poll", json={})
    wanted = service.asked("poll")[0]
    assert (wanted.lease_ms, wanted.partitions, wanted.auto_ack) == (-1, None, False)


@pytest.mark.parametrize(
    ("verb", "extra", "kind", "delay_ms", "reason"),
    [
        ("ack", {}, 1, -1, ""),
        ("nack", {"delay_ms": 50, "reason": "busy"}, 2, 50, "busy"),
        ("nack", {}, 2, -1, ""),
        ("extend", {"lease_ms": 9_000}, 3, 9_000, ""),
        ("reject", {"reason": "bad"}, 4, -1, "bad"),
    ],
)
async def test_a_settle_says_which_and_how(http, service, verb, extra, kind, delay_ms, reason):
    polled = {"partition": 1, "offset": 3, "token": 42, "value": "other fields may stay"}
    reply = await http.post(f"/v1/topics/orders/groups/billing/{verb}", json={"messages": [polled], **extra})
    assert reply.json() == {
        "settled": 1,
        "failed": 0,
        "messages": [{"partition": 1, "offset": 3, "count": 1}],
    }
    (item,) = service.asked("settle")[0].items
    assert item == SettleItem(1, 42, 3, 1, kind, delay_ms, reason)


async def test_a_lost_lease_is_told_beside_the_others(http, service):
    service.settled = [SettledItem(0, 1), SettledItem(LeaseLost.code, 0)]
    targets = [{"partition": 0, "offset": offset, "token": 1} for offset in (1, 3)]
    answer = (await http.post("/v1/topics/orders/groups/billing/ack", json={"messages": targets})).json()
    assert (answer["settled"], answer["failed"]) == (1, 1)
    assert answer["messages"][1]["error"] == "LeaseLost"


async def poll_and_leave(service, leave: asyncio.Event, body: bytes = b'{"wait_ms": 5000}'):
    """A poll over bare ASGI whose client leaves when told."""
    sent = []

    async def receive():
        if not sent_body.is_set():
            sent_body.set()
            return {"type": "http.request", "body": body, "more_body": False}
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(event):
        sent.append(event)

    sent_body = asyncio.Event()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/topics/orders/groups/billing/poll",
        "query_string": b"",
        "headers": [(b"content-length", str(len(body)).encode())],
    }
    await build_app(service)(scope, receive, send)


@pytest.mark.parametrize("body", [b'{"wait_ms": 5000}', b'{"wait_ms": 5000, "auto_ack": true}'])
async def test_a_client_that_leaves_ends_its_poll(service, body):
    service.poll_gate = asyncio.Event()
    leave = asyncio.Event()
    polling = asyncio.create_task(poll_and_leave(service, leave, body))
    while not service.asked("poll"):
        await asyncio.sleep(0)
    leave.set()
    await asyncio.wait_for(polling, 5)
    assert service.asked("poll cancelled") == [None]
    assert service.unheard == 0


async def test_what_a_client_that_left_would_have_got_is_given_back(service):
    service.deliveries = [leased(3), leased(4)]
    leave = asyncio.Event()
    leave.set()
    await asyncio.wait_for(poll_and_leave(service, leave), 5)
    assert service.unheard == 1


async def test_a_name_within_a_map_that_is_wrong_is_refused_with_the_maps_name(http):
    reply = await http.post("/v1/topics/orders/groups/billing/seek", json={"offsets": {"first": 1}})
    assert reply.status_code == 400
    assert reply.json()["message"] == "the body: offsets: a key: expected int, got str"
    assert reply.json()["details"]["field"] == "offsets"


async def test_groups_tell_lag_depth_and_age(http, service):
    service.known["orders"] = 2
    service.floors["billing"] = [4, 2]
    assert (await http.get("/v1/topics/orders/groups")).json() == {"topic": "orders", "groups": ["billing"]}
    answer = (await http.get("/v1/topics/orders/groups/billing")).json()
    assert (answer["lag"], answer["ready"], answer["leased"], answer["waiting"], answer["dead"]) == (8, 4, 2, 2, 2)
    assert answer["depth"] == {"4": 2, "9": 2}
    assert answer["oldest_age_ms"] > 0
    assert [partition["offset"] for partition in answer["partitions"]] == [4, 2]
    assert (await http.get("/v1/topics/orders/groups/nope")).json()["details"]["error"] == "GroupNotFound"
    assert (await http.delete("/v1/topics/orders/groups/billing")).status_code == 204


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"to": "earliest"}, Seek("orders", "billing", to="earliest")),
        ({"time_ms": 5}, Seek("orders", "billing", time_ms=5)),
        ({"offsets": {"0": 3}}, Seek("orders", "billing", {0: 3})),
    ],
)
async def test_a_seek_goes_one_way(http, service, body, asked):
    assert (await http.post("/v1/topics/orders/groups/billing/seek", json=body)).status_code == 204
    assert service.asked("seek") == [asked]


@pytest.mark.parametrize("body", [{}, {"to": "earliest", "time_ms": 5}, {"offsets": {"0": -1}}, {"to": "middle"}])
async def test_a_seek_that_is_not_clear_is_refused(http, service, body):
    assert (await http.post("/v1/topics/orders/groups/billing/seek", json=body)).status_code == 400
    assert service.asked("seek") == []


async def test_stream_progress_is_committed_and_told(http, service):
    reply = await http.post("/v1/topics/orders/groups/billing/commit", json={"offsets": {"0": 3, "1": 7}})
    assert reply.status_code == 204
    assert [call.offsets for call in service.asked("commit")] == [{0: 3, 1: 7}]
    answer = (await http.get("/v1/topics/orders/groups/billing/committed")).json()
    assert answer["offsets"] == {"0": 3, "1": 7}


async def test_a_commit_may_say_whose_it_is(http, service):
    body = {"offsets": {"0": 3}, "reader": "r", "sequence": 4}
    assert (await http.post("/v1/topics/orders/groups/billing/commit", json=body)).status_code == 204
    (call,) = service.asked("commit")
    assert (call.offsets, call.reader, call.sequence) == ({0: 3}, "r", 4)


@pytest.mark.parametrize("part", [{"reader": "r"}, {"sequence": 4}, {"reader": "r" * 65, "sequence": 1}])
async def test_half_an_identity_is_refused(http, service, part):
    reply = await http.post("/v1/topics/orders/groups/billing/commit", json={"offsets": {"0": 3}, **part})
    assert reply.status_code == 400
    assert service.asked("commit") == []


async def test_offsets_are_told_with_and_without_a_time(http, service):
    service.known["orders"] = 1
    plain = (await http.get("/v1/topics/orders/offsets")).json()
    assert plain["partitions"] == [{"partition": 0, "first_offset": 0, "end_offset": 10}]
    timed = (await http.get("/v1/topics/orders/offsets?time_ms=1")).json()
    assert timed["partitions"][0]["at_time"] == 5


def fetched(*batches: tuple[int, list[bytes]], next_offset: int):
    stored = [(base, len(values), 7, batch.encode(values, priority=9)) for base, values in batches]
    return fetched_page(0, 20, next_offset, stored)


async def test_a_stream_read_begins_at_the_offset_and_ends_at_the_limit(http, service):
    service.fetched = fetched((0, [b"a", b"b"]), (2, [b"c", b"d"]), next_offset=4)
    answer = (await http.get("/v1/topics/orders/partitions/1/messages?offset=1&limit=2")).json()
    assert [(item["offset"], item["value"]) for item in answer["messages"]] == [(1, "b"), (2, "c")]
    assert answer["next_offset"] == 3
    assert answer["messages"][0]["priority"] == 9
    whole = (await http.get("/v1/topics/orders/partitions/1/messages?offset=1")).json()
    assert [item["offset"] for item in whole["messages"]] == [1, 2, 3]
    assert whole["next_offset"] == 4


async def test_a_stream_read_over_a_hole_goes_on_behind_it(http, service):
    whole = batch.encode([b"a", b"b", b"c"])
    service.fetched = fetched_page(0, 20, 9, [(0, 3, 7, batch.extract(whole, [1]))])
    answer = (await http.get("/v1/topics/orders/partitions/0/messages")).json()
    assert [(item["offset"], item["value"]) for item in answer["messages"]] == [(1, "b")]
    assert answer["next_offset"] == 9


async def test_a_stream_read_tells_what_retention_took_and_what_queues_do_not_get(http, service):
    times = ({"deliver_at_ms": 1_001}, {"expires_at_ms": 1_000}, {})
    stored = [(5 + at, 1, 7, batch.encode([b"a"], **one)) for at, one in enumerate(times)]
    service.fetched = fetched_page(5, 20, 9, stored, [(8, 9)], [(2, 5)], 1_000)
    answer = (await http.get("/v1/topics/orders/partitions/0/messages?offset=2")).json()
    assert [item.get("flags") for item in answer["messages"]] == [["delayed"], ["expired"], None]
    assert [tuple(hole.values()) for hole in answer["holes"]] == [(2, 5, "retention"), (8, 9, "damaged")]


async def test_a_stream_read_of_some_priorities_asks_for_their_lanes(http, service):
    service.fetched = fetched((0, [b"a"]), next_offset=1)
    path = "/v1/topics/orders/partitions/0/messages"
    assert (await http.get(f"{path}?priorities=high,0")).status_code == 200
    assert [call.lanes for call in service.asked("fetch")] == [1 << 9 | 1]
    assert (await http.get(f"{path}?priorities=urgent")).status_code == 400


@pytest.mark.parametrize(("partition", "status"), [("x", 400), ("-1", 400), ("99999999999", 400), ("1000", 404)])
async def test_a_partition_in_a_path_is_a_small_number(http, partition, status):
    assert (await http.get(f"/v1/topics/orders/partitions/{partition}/messages")).status_code == status


async def test_dead_letters_are_listed_with_what_they_hold(http, service):
    whole = batch.encode([b"\xff"], keys=[b"k"], headers=[{"h": b"1"}])
    service.dead = dead_page([(0, 5, 9, 3, "bad", batch.extract(whole, [0])), (1, 6, 3, 5, "", b"")], 17)
    answer = (await http.get("/v1/topics/orders/groups/billing/dead?limit=2&start_offset=5&partition=0")).json()
    assert service.asked("list_dead") == [ListDead("orders", "billing", 0, 5, 2)]
    assert answer["total"] == 17
    first, second = answer["messages"]
    assert (first["id"], first["value"], first["encoding"], first["key"]) == ("orders/0/5", "/w==", "base64", "k")
    assert (first["headers"], first["priority"], first["reason"], first["attempts"]) == ({"h": "1"}, 9, "bad", 3)
    assert "value" not in second


async def test_dead_letters_are_redriven_and_discarded(http, service):
    path = "/v1/topics/orders/groups/billing/dead"
    assert (await http.post(f"{path}/redrive", json={})).json() == {"count": 2}
    assert (await http.post(f"{path}/discard", json={"partition": 1, "offsets": [3]})).json() == {"count": 1}
    assert service.asked("redrive") == [RedriveDead("orders", "billing")]
    assert service.asked("discard") == [DiscardDead("orders", "billing", 1, [3])]
    assert (await http.post(f"{path}/redrive", json={"offsets": [3]})).status_code == 400


# ------------------------------------------------------------------ replies that nobody gets, and large ones


async def test_the_leases_of_a_reply_that_cannot_be_made_are_given_back(http, service):
    service.deliveries = [leased(3)._replace(deadline_ms=object())]
    assert (await http.post("/v1/topics/orders/groups/g/poll", json={})).status_code == 500
    assert service.unheard == 1


@pytest.mark.parametrize(("auto_ack", "released"), [(False, 1), (True, 0)])
async def test_the_leases_of_a_reply_that_the_socket_did_not_take_are_given_back(service, auto_ack, released):
    class Lost:
        caller = None

        async def handed_over(self) -> bool:
            return False

    async def with_connection(scope, receive, send):
        await app({**scope, "lanner.connection": Lost()}, receive, send)

    app = build_app(service)
    service.deliveries = [leased(3)]
    transport = httpx.ASGITransport(app=with_connection)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await http.post("/v1/topics/orders/groups/g/poll", json={"auto_ack": auto_ack})
    assert service.unheard == released


async def test_a_large_reply_is_made_in_a_reader_thread_and_a_small_one_is_not(http, service):
    service.deliveries = [leased(3)]
    await http.post("/v1/topics/orders/groups/g/poll", json={})
    assert service.asked("in_reader") == []
    large = leased(3)
    service.deliveries = [large._replace(message=large.message._replace(value=b"x" * 100_000))]
    reply = await http.post("/v1/topics/orders/groups/g/poll", json={})
    assert len(reply.json()["messages"][0]["value"]) == 100_000
    assert service.asked("in_reader") == [None]


async def test_what_does_not_decode_is_a_hole_in_a_read(http, service):
    data = undecodable(2)
    service.fetched = fetched_page(0, 9, 9, [(5, 2, 1, data), (7, 1, 1, batch.encode([b"z"]))])
    page = (await http.get("/v1/topics/orders/partitions/0/messages?offset=6")).json()
    assert page["holes"] == [{"first_offset": 6, "next_offset": 7, "reason": "malformed"}]
    assert [message["offset"] for message in page["messages"]] == [7] and page["next_offset"] == 9


async def test_a_read_is_bounded_in_bytes_as_they_unfold(http, service):
    zeros = batch.encode([bytes(900_000)] * 4, codec=batch.Codec.ZSTD)
    assert len(zeros) < 10_000
    service.fetched = fetched_page(0, 20, 20, [(number * 4, 4, 1, zeros) for number in range(5)])
    page = (await http.get("/v1/topics/orders/partitions/0/messages")).json()
    assert len(page["messages"]) == 9 and page["next_offset"] == 9


async def test_pages_of_dead_letters_name_the_next(http, service):
    service.dead = dead_page([(0, 5, 9, 3, "bad", b"")], 17, (2, 6))
    path = "/v1/topics/orders/groups/billing/dead"
    assert (await http.get(path)).json()["next"] == "2/6"
    await http.get(f"{path}?after=2/6")
    assert service.asked("list_dead")[-1].after == (2, 6)
    assert (await http.get(f"{path}?after=2")).status_code == 400
