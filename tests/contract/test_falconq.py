"""The FalconQ part of the contract over a real broker, and each of its old faults that one broker can have, by name."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lanner.broker.settings import BrokerSettings
from lanner.proxy.server import ProxyServer
from lanner.proxy.settings import ProxySettings
from lanner.server import Server

SETTINGS: dict[str, Any] = {"http": "127.0.0.1:0", "native": "127.0.0.1:0", "disk_reserve_bytes": 0}


class Broker:
    """A real broker on a real disk, behind HTTP; it can be restarted on the same data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._server: Server
        self.http: httpx.AsyncClient

    async def start(self, **settings: Any) -> None:
        self._server = Server(BrokerSettings(data=str(self._data), **SETTINGS, **settings))
        await self._server.start()
        assert self._server.http_address is not None
        self.http = client_of(self._server.http_address)

    async def stop(self) -> None:
        await self.http.aclose()
        await self._server.stop()

    @property
    def native(self) -> str:
        assert self._server.native_address is not None
        host, port = self._server.native_address
        return f"{host}:{port}"

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def publish(self, topic: str, message: str, priority: Any = "low", **fields: Any) -> dict[str, Any]:
        body = {"message": message, "priority": priority, **fields}
        reply = await self.http.post(f"/topic/{topic}/publish", json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def publish_many(self, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        reply = await self.http.post(f"/v1/topics/{topic}/messages", json={"messages": messages})
        assert reply.status_code == 200, reply.text
        return list(reply.json()["messages"])

    async def consume(self, topic: str, consumer: str, batch: int = 1, **query: Any) -> dict[str, Any]:
        reply = await self.http.get(f"/topic/{topic}/consume", params={"consumerID": consumer, "batch": batch, **query})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def consume_all(self, topic: str, consumer: str, batch: int = 100) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while page := (await self.consume(topic, consumer, batch))["messages"]:
            found += page
        return found

    async def create(self, topic: str, **settings: Any) -> None:
        reply = await self.http.post("/v1/topics", json={"name": topic, "settings": settings})
        assert reply.status_code == 201, reply.text

    async def group(self, topic: str, group: str, verb: str, **body: Any) -> dict[str, Any]:
        reply = await self.http.post(f"/v1/topics/{topic}/groups/{group}/{verb}", json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path / "data")
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture(params=["broker", "proxy"])
async def anywhere(request: pytest.FixtureRequest, broker: Broker) -> AsyncIterator[Broker]:
    """A broker that is asked by itself, or through a proxy before it."""
    if request.param == "broker":
        yield broker
        return
    proxy = ProxyServer(ProxySettings(broker.native, native="", http="127.0.0.1:0"))
    await proxy.start()
    try:
        await proxy.until_ready()
        address = proxy.address("http")
        assert address is not None
        async with client_of(address) as http:
            direct, broker.http = broker.http, http
            yield broker
            broker.http = direct
    finally:
        await proxy.stop()


def client_of(address: tuple[str, int]) -> httpx.AsyncClient:
    host, port = address
    return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30)


def values(messages: list[dict[str, Any]], name: str = "v") -> list[str]:
    return [message[name] for message in messages]


# ------------------------------------------------------------------ the six calls


async def test_publish_answers_with_the_contracts_fields(anywhere):
    answer = await anywhere.publish("orders", "hello", "high", partitionKey="customer-7")
    assert answer.keys() == {"status", "topic", "partitionID", "offset", "priority"}
    assert (answer["status"], answer["topic"], answer["priority"]) == ("message committed", "orders", "high")
    again = await anywhere.publish("orders", "hello", "low", partitionKey="customer-7")
    assert again["partitionID"] == answer["partitionID"]
    assert again["offset"] == answer["offset"] + 1


async def test_consume_answers_with_the_contracts_fields(anywhere):
    await anywhere.create("orders", partitions=1)
    await anywhere.publish("orders", "hello", "high")
    answer = await anywhere.consume("orders", "billing", partitionID=0)
    assert answer == {
        "topic": "orders",
        "consumerID": "billing",
        "partitionID": 0,
        "startOffset": 0,
        "nextOffset": 1,
        "count": 1,
        "messages": [{"v": "hello", "p": "high", "Offset": 0, "partitionID": 0, "id": "orders/0/0"}],
    }
    everywhere = await anywhere.consume("orders", "other")
    assert everywhere.keys() == answer.keys() - {"partitionID"}


async def test_peek_answers_high_first_among_what_is_at_or_after_the_offset(anywhere):
    await anywhere.create("orders", partitions=1)
    for message, priority in (("h0", "high"), ("l1", "low"), ("h2", "high"), ("l3", "low")):
        await anywhere.publish("orders", message, priority)
    reply = await anywhere.http.get("/topic/orders/peek?offset=1&batch=10&partitionID=0")
    answer = reply.json()
    assert values(answer["messages"]) == ["h2", "l1", "l3"]
    assert answer.keys() == {"topic", "partitionID", "startOffset", "nextOffset", "count", "messages"}
    assert (answer["startOffset"], answer["nextOffset"], answer["count"]) == (1, 4, 3)
    default = (await anywhere.http.get("/topic/orders/peek")).json()
    assert (values(default["messages"]), default["startOffset"]) == (["h0"], 0)
    again = (await anywhere.http.get("/topic/orders/peek")).json()
    assert again == default


async def test_topics_partitions_and_raft_stats_answer_with_the_contracts_fields(anywhere):
    await anywhere.publish("orders", "hello")
    assert (await anywhere.http.get("/topics")).json() == {"topics": ["orders"]}
    partitions = (await anywhere.http.get("/topics/orders/partitions")).json()
    assert partitions["topic"] == "orders"
    assert [partition["id"] for partition in partitions["partitions"]] == [0, 1, 2]
    assert partitions["activePartitions"] == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert partitions["configuredPartitions"] == 3
    assert partitions["partitionKeyStrategy"] == "consistent_hash+round_robin_fallback"
    stats = (await anywhere.http.get("/raft/stats?topic=orders&partitionID=0")).json()
    wanted = {"state", "term", "commit_index", "applied_index", "last_log_index", "num_peers", "latest_configuration"}
    assert wanted <= stats.keys()
    assert stats["state"] == "Leader"
    assert stats["num_peers"] == "0"
    assert int(stats["commit_index"]) >= 1
    assert all(isinstance(value, str) for value in stats.values())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/topic/orders/publish", {"message": "x", "priority": "urgent"}, 400, "ValidationError"),
        ("POST", "/topic/orders/publish", {"priority": "high"}, 400, "ValidationError"),
        ("POST", "/topic/%2e%2e/publish", {"message": "x"}, 400, "ValidationError"),
        ("GET", "/topic/orders/consume", None, 400, "ValidationError"),
        ("GET", "/topic/orders/consume?consumerID=x&batch=0", None, 400, "ValidationError"),
        ("GET", "/topic/orders/consume?consumerID=x&partitionID=7", None, 404, "NotFoundError"),
        ("GET", "/topic/orders/peek?offset=-1", None, 400, "ValidationError"),
        ("GET", "/topics/nope/partitions", None, 404, "NotFoundError"),
        ("GET", "/raft/stats?topic=nope&partitionID=0", None, 404, "NotFoundError"),
        ("GET", "/raft/stats?topic=orders&partitionID=9", None, 404, "NotFoundError"),
    ],
)
async def test_an_error_has_a_type_a_message_and_details(anywhere, method, path, body, status, kind):
    await anywhere.publish("orders", "x")
    reply = await anywhere.http.request(method, path, json=body)
    assert reply.status_code == status
    assert reply.json()["type"] == kind
    assert reply.json()["message"]
    assert reply.json()["details"]["error"]


async def test_a_value_that_is_not_utf8_comes_back_as_it_went_in(anywhere):
    given = base64.b64encode(bytes(range(256))).decode()
    await anywhere.publish("orders", given, encoding="base64")
    (message,) = (await anywhere.consume("orders", "billing"))["messages"]
    assert (message["v"], message["encoding"]) == (given, "base64")


async def test_each_consumer_id_has_its_own_progress(anywhere):
    await anywhere.publish("orders", "a")
    for consumer in ("one", "two", "a name with spaces"):
        assert values((await anywhere.consume("orders", consumer))["messages"]) == ["a"]
        assert (await anywhere.consume("orders", consumer))["messages"] == []


async def test_an_idempotency_key_publishes_once(anywhere):
    offsets = [
        (
            await anywhere.http.post(
                "/topic/orders/publish", json={"message": "x"}, headers={"Idempotency-Key": "refund-1"}
            )
        ).json()["offset"]
        for _ in range(3)
    ]
    assert offsets == [offsets[0]] * 3
    assert len(await anywhere.consume_all("orders", "billing")) == 1


# ------------------------------------------------------------------ what went wrong there


async def test_high_goes_before_low_over_batches_not_only_inside_one(broker):
    await broker.create("orders", partitions=1)
    for number in range(5):
        await broker.publish("orders", f"low-{number}", "low")
    for number in range(5):
        await broker.publish("orders", f"high-{number}", "high")
    taken = [values((await broker.consume("orders", "billing"))["messages"])[0] for _ in range(10)]
    assert taken == [f"high-{number}" for number in range(5)] + [f"low-{number}" for number in range(5)]


async def test_low_high_high_in_a_batch_of_three_is_not_delivered_again(broker):
    await broker.create("orders", partitions=1)
    for message, priority in (("l", "low"), ("h1", "high"), ("h2", "high")):
        await broker.publish("orders", message, priority)
    first = await broker.consume("orders", "billing", 3)
    assert values(first["messages"]) == ["h1", "h2", "l"]
    assert first["nextOffset"] == 3
    assert (await broker.consume("orders", "billing", 3))["messages"] == []


async def test_the_next_offset_neither_skips_nor_repeats(broker):
    await broker.create("orders", partitions=1)
    for message, priority in (("l", "low"), ("h1", "high"), ("h2", "high")):
        await broker.publish("orders", message, priority)
    first = await broker.consume("orders", "billing", 2)
    assert values(first["messages"]) == ["h1", "h2"]
    assert first["nextOffset"] == 0  # the low one is still there
    second = await broker.consume("orders", "billing", 2)
    assert (values(second["messages"]), second["nextOffset"]) == (["l"], 3)


async def test_a_thousand_messages_of_all_priorities_in_odd_batches_come_exactly_once(broker):
    chance = random.Random(1_000)
    given = [{"value": f"m{number}", "priority": chance.randrange(10)} for number in range(1_000)]
    for first in range(0, 1_000, 97):
        await broker.publish_many("orders", given[first : first + 97])
    taken: list[dict[str, Any]] = []
    while page := (await broker.consume("orders", "billing", chance.choice([1, 3, 7, 13, 29, 61])))["messages"]:
        taken += page
    assert sorted(values(taken)) == sorted(message["value"] for message in given)
    numbers = [{"low": 0, "normal": 4, "high": 9}.get(message["p"], message["p"]) for message in taken]
    assert numbers == sorted(numbers, reverse=True)


async def test_a_consumer_beside_concurrent_publishers_skips_nothing(broker):
    await broker.create("orders", partitions=1)
    published = 0

    async def publisher(name: int) -> None:
        nonlocal published
        for number in range(50):
            await broker.publish("orders", f"{name}-{number}", "high" if number % 3 == 0 else "low")
            published += 1

    publishing = asyncio.gather(*(publisher(name) for name in range(8)))
    taken: list[str] = []
    while not publishing.done() or len(taken) < published:
        taken += values((await broker.consume("orders", "billing", 7))["messages"])
    await publishing
    assert len(taken) == len(set(taken)) == 400


async def test_offsets_go_on_after_a_restart_and_overwrite_nothing(broker):
    await broker.create("orders", partitions=1)
    before = [(await broker.publish("orders", f"before-{number}"))["offset"] for number in range(5)]
    await broker.restart()
    after = [(await broker.publish("orders", f"after-{number}"))["offset"] for number in range(5)]
    assert before + after == list(range(10))
    assert [int(message["Offset"]) for message in await broker.consume_all("orders", "billing")] == list(range(10))


async def test_several_topics_live_beside_each_other(broker):
    for number in range(4):
        await broker.publish(f"topic-{number}", f"value-{number}")
    await broker.restart()
    for number in range(4):
        await broker.publish(f"topic-{number}", f"more-{number}")
        taken = values(await broker.consume_all(f"topic-{number}", "billing"))
        assert sorted(taken) == [f"more-{number}", f"value-{number}"]


async def test_twelve_thousand_messages_then_a_restart_still_serve(broker):
    await broker.create("orders", partitions=1)
    for first in range(0, 12_000, 1_000):
        await broker.publish_many("orders", [{"value": str(first + number)} for number in range(1_000)])
    await broker.restart()
    await broker.publish("orders", "12000", "low")
    taken = values(await broker.consume_all("orders", "billing", 1_000))
    assert [int(value) for value in taken] == list(range(12_001))


async def test_a_consumers_progress_survives_a_restart(broker):
    await broker.create("orders", partitions=1)
    await broker.publish_many("orders", [{"value": str(number)} for number in range(10)])
    assert values((await broker.consume("orders", "billing", 4))["messages"]) == ["0", "1", "2", "3"]
    await broker.restart()
    assert values((await broker.consume("orders", "billing", 10))["messages"]) == ["4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize(
    "path",
    [
        "/topic/ghost/consume?consumerID=x",
        "/topic/ghost/peek",
        "/topics/ghost/partitions",
        "/raft/stats?topic=ghost&partitionID=0",
        "/v1/topics/ghost",
        "/v1/topics/ghost/offsets",
        "/v1/topics/ghost/groups",
        "/v1/topics/ghost/groups/g",
        "/v1/topics/ghost/groups/g/dead",
        "/v1/topics/ghost/partitions/0/messages",
    ],
)
async def test_a_get_on_an_unknown_topic_creates_nothing(broker, path):
    reply = await broker.http.get(path)
    assert (reply.status_code, reply.json()["details"]["error"]) == (404, "TopicNotFound")
    assert (await broker.http.get("/topics")).json() == {"topics": []}


async def test_after_a_restart_every_topic_is_listed_at_once(broker):
    names = [f"topic-{number}" for number in range(5)]
    for name in names:
        await broker.publish(name, "x")
    await broker.restart()
    assert (await broker.http.get("/topics")).json() == {"topics": names}


async def test_an_empty_message_is_stored_and_does_not_poison_a_restart(broker):
    await broker.publish("orders", "")
    await broker.restart()
    assert values(await broker.consume_all("orders", "billing")) == [""]


async def test_a_settle_by_an_unknown_consumer_does_not_poison_a_restart(broker):
    await broker.publish("orders", "x")
    target = {"partition": 0, "offset": 0, "token": 1}
    for verb in ("ack", "nack", "extend", "reject"):
        reply = await broker.http.post(f"/v1/topics/orders/groups/nobody/{verb}", json={"messages": [target]})
        assert reply.status_code in (200, 404)
        if reply.status_code == 200:
            assert reply.json()["settled"] == 0
    await broker.restart()
    assert values(await broker.consume_all("orders", "billing")) == ["x"]


@pytest.mark.parametrize("partitions", [0, -1, 10_000, "many", None])
async def test_a_topic_without_a_sensible_number_of_partitions_is_refused(broker, partitions):
    reply = await broker.http.post("/v1/topics", json={"name": "orders", "settings": {"partitions": partitions}})
    assert (reply.status_code, reply.json()["type"]) == (400, "ValidationError")
    await broker.restart()
    assert (await broker.http.get("/topics")).json() == {"topics": []}


async def leased(broker: Broker, count: int) -> list[dict[str, Any]]:
    await broker.create("orders", partitions=1, backoff_ms=0)
    await broker.publish_many("orders", [{"value": str(number)} for number in range(count)])
    return list((await broker.group("orders", "workers", "poll", max_messages=count))["messages"])


async def left_after(broker: Broker) -> list[str]:
    """What is delivered once every lease has been given back."""
    await broker.http.post("/v1/topics/orders/groups/workers/seek", json={"to": "earliest"})
    return values((await broker.group("orders", "workers", "poll", max_messages=100))["messages"], "value")


async def test_acking_a_later_message_skips_none_before_it(broker):
    messages = await leased(broker, 5)
    assert (await broker.group("orders", "workers", "ack", messages=[messages[4]]))["settled"] == 1
    given_back = await broker.group("orders", "workers", "nack", messages=messages[:4], delay_ms=0)
    assert given_back["settled"] == 4
    again = await broker.group("orders", "workers", "poll", max_messages=10, wait_ms=5_000)
    assert values(again["messages"], "value") == ["0", "1", "2", "3"]


async def test_acking_an_earlier_message_rewinds_nothing(broker):
    messages = await leased(broker, 5)
    await broker.group("orders", "workers", "ack", messages=messages)
    again = await broker.group("orders", "workers", "ack", messages=[messages[2]])
    assert (again["settled"], again["failed"]) == (1, 0), "asked again, it gets its first answer"
    other = await broker.group("orders", "workers", "nack", messages=[messages[2]], delay_ms=0)
    assert (other["settled"], other["failed"]) == (0, 1)
    assert other["messages"][0]["error"] == "LeaseLost"
    assert (await broker.group("orders", "workers", "poll", max_messages=10))["messages"] == []


async def test_acking_what_was_never_delivered_hides_nothing(broker):
    messages = await leased(broker, 3)
    unknown = {**messages[0], "offset": 99}
    answer = await broker.group("orders", "workers", "ack", messages=[unknown])
    assert (answer["settled"], answer["messages"][0]["error"]) == (0, "LeaseLost")
    await broker.publish("orders", "3")
    rest = await broker.group("orders", "workers", "poll", max_messages=10)
    assert values(rest["messages"], "value") == ["3"]
    assert await left_after(broker) == ["0", "1", "2", "3"]


async def test_the_second_member_of_a_group_gets_messages_too(broker):
    await broker.publish_many("orders", [{"value": str(number), "key": str(number)} for number in range(20)])
    first = await broker.group("orders", "workers", "poll", max_messages=10)
    second = await broker.group("orders", "workers", "poll", max_messages=10)
    taken = values(first["messages"], "value") + values(second["messages"], "value")
    assert (first["count"], second["count"]) == (10, 10)
    assert sorted(taken, key=int) == [str(number) for number in range(20)]


async def test_a_full_topic_rejects_the_publisher_at_once(broker):
    await broker.create("orders", partitions=1, max_bytes=10_000)
    statuses = set()
    for _ in range(20):
        reply = await broker.http.post("/topic/orders/publish", json={"message": "x" * 1_000})
        statuses.add(reply.status_code)
    assert statuses == {200, 429}
    assert reply.json()["details"]["error"] == "TopicFull"
    assert int(reply.headers["retry-after"]) >= 1
    assert (await broker.consume("orders", "billing", 100))["count"] >= 1


async def test_a_body_that_claims_four_gigabytes_is_refused_unread(broker):
    host, port = broker.http.base_url.host, broker.http.base_url.port
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST /topic/orders/publish HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4294967296\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
    assert (await broker.http.get("/healthz")).status_code == 200


async def test_what_a_consumer_left_behind_is_delivered_again_and_nothing_after_it_is_lost(broker):
    await broker.create("orders", partitions=1, lease_ms=200, backoff_ms=0)
    await broker.publish("orders", "first")
    abandoned = await broker.group("orders", "workers", "poll")
    assert values(abandoned["messages"], "value") == ["first"]
    await broker.publish("orders", "second")
    taken: list[str] = []
    for _ in range(10):
        page = await broker.group("orders", "workers", "poll", wait_ms=1_000)
        taken += values(page["messages"], "value")
        if page["messages"]:
            await broker.group("orders", "workers", "ack", messages=page["messages"])
        if len(taken) == 2:
            break
    assert sorted(taken) == ["first", "second"]


async def test_a_waiting_poll_whose_client_leaves_loses_no_message(broker):
    await broker.create("orders", partitions=1)
    with pytest.raises(httpx.TimeoutException):
        await broker.http.post("/v1/topics/orders/groups/workers/poll", json={"wait_ms": 20_000}, timeout=0.3)
    await broker.publish("orders", "kept")
    page = await broker.group("orders", "workers", "poll", wait_ms=5_000)
    assert [(message["value"], message["attempt"]) for message in page["messages"]] == [("kept", 1)]
