"""Three real brokers in one process, over real sockets and disks: what is asked on any of them is the truth."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from lanner.api.rest.routes import OPERATIONS
from lanner.broker.settings import BrokerSettings
from lanner.client import connect
from lanner.errors import StorageFailed
from lanner.server import Server
from lanner.testing.process import free_port

SECONDS = 30.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


def own_address() -> str:
    """An address of this machine that is not the loopback's first, as brokers on several machines would have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            found = str(probe.getsockname()[0])
        except OSError:
            found = "127.0.0.2"
    return found if found != "127.0.0.1" else "127.0.0.2"


class Three:
    """The brokers, and a client for each."""

    def __init__(self, path: Path, host: str = "127.0.0.1") -> None:
        self.path = path
        self.host = host
        self.seeds = tuple(f"{host}:{free_port()}" for _ in range(3))
        self.servers: list[Server] = []
        self.http: list[httpx.AsyncClient] = []

    async def start(self) -> None:
        self.servers = [self.make(number) for number in range(3)]
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(server.start() for server in self.servers))
        for server in self.servers:
            assert server.http_address is not None
            url = f"http://{self.host}:{server.http_address[1]}"
            self.http.append(httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False))

    def make(self, number: int) -> Server:
        return Server(
            BrokerSettings(
                data=str(self.path / str(number)),
                name=f"broker{number}",
                native=self.seeds[number],
                http=f"{self.host}:0",
                seeds=self.seeds,
                disk_reserve_bytes=0,
                drain_ms=200,
                hand_over_ms=500,
            )
        )

    async def stop(self) -> None:
        for client in self.http:
            await client.aclose()
        await asyncio.gather(*(server.stop() for server in self.servers))

    async def make_topic(self, name: str = "orders", **settings: Any) -> None:
        answer = await self.http[0].post("/v1/topics", json={"name": name, "settings": {"partitions": 3, **settings}})
        assert answer.status_code == 201, answer.text

    async def leader_of(self, topic: str, partition: int, through: int = 0) -> int:
        """The number of the broker that leads a partition."""
        answer = (await self.http[through].get(f"/topics/{topic}/partitions")).json()
        return int(answer["partitions"][partition]["leaderName"].removeprefix("broker"))

    async def kill(self, number: int) -> None:
        """No hand-over, nothing answered any more: what was under way is never heard of again."""
        server = self.servers[number]
        server.node.fail(StorageFailed("the plug was pulled"))
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Three]:
    """A cluster that nobody harms, for many tests; each has topics of its own."""
    three = Three(tmp_path_factory.mktemp("three"))
    await three.start()
    yield three
    await three.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def doomed(tmp_path: Path) -> AsyncIterator[Three]:
    """A cluster for one test, which may do with it what it likes."""
    three = Three(tmp_path)
    await three.start()
    yield three
    await three.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"topic-{hash(request.node.name) & 0xFFFFFF:x}"


GETS: dict[str, str] = {
    "/topic/{topic}/consume": "/topic/orders/consume?consumerID=nobody&batch=0",  # refused alike: it takes for good
    "/topic/{topic}/peek": "/topic/orders/peek?batch=20",
    "/topics": "/topics",
    "/topics/{topic}/partitions": "/topics/orders/partitions",
    "/raft/stats": "/raft/stats?topic=orders&partitionID=1",
    "/v1/topics/{topic}/partitions/{partition}/messages": "/v1/topics/orders/partitions/1/messages",
    "/v1/topics/{topic}/partitions/{partition}/stream": "/v1/topics/orders/partitions/1/stream?wait_ms=1",
    "/v1/topics": "/v1/topics",
    "/v1/topics/{topic}": "/v1/topics/orders",
    "/v1/topics/{topic}/offsets": "/v1/topics/orders/offsets?time_ms=1",
    "/v1/topics/{topic}/groups": "/v1/topics/orders/groups",
    "/v1/topics/{topic}/groups/{group}": "/v1/topics/orders/groups/workers",
    "/v1/topics/{topic}/groups/{group}/committed": "/v1/topics/orders/groups/readers/committed",
    "/v1/topics/{topic}/groups/{group}/dead": "/v1/topics/orders/groups/workers/dead",
    "/v1/groups/{group}/members": "/v1/groups/watchers/members",
    "/v1/clients": "/v1/clients?group=no-such-group",  # of others each look tells another age
    "/v1/cluster": "/v1/cluster",
    "/v1/brokers": "/v1/brokers",
    "/v1/partitions": "/v1/partitions?topic=orders",
    "/healthz": "/healthz",
    "/readyz": "/readyz",
}
OF_THE_BROKER_ITSELF = {"/metrics"}


def told(answer: httpx.Response) -> Any:
    """What an answer says, without what is true of the answering broker or of the moment only."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.status_code, answer.text
    body = answer.json()
    for field in ("node_id", "oldest_age_ms"):
        body.pop(field, None)
    for broker in body.get("brokers", []):
        assert broker.pop("scrub")["damaged"] == 0
    if "members" in body:
        for member in body["members"]:
            for field in ("joined_age_ms", "heard_ms"):
                member.pop(field)
    elif "group" in body:
        for part in body.get("partitions", []):
            part.pop("oldest_age_ms")
    return answer.status_code, body


async def test_every_route_gives_the_same_truth_on_every_broker(three: Three, topic: str) -> None:
    assert {one.path for one in OPERATIONS if one.method == "GET"} == set(GETS) | OF_THE_BROKER_ITSELF
    await three.make_topic(topic)
    messages = [{"value": f"{number}", "priority": number % 10, "partition": number % 3} for number in range(12)]
    stored = (await three.http[1].post(f"/v1/topics/{topic}/messages", json={"messages": messages})).json()
    assert [item["partition"] for item in stored["messages"]] == [number % 3 for number in range(12)]
    polled = (await three.http[2].post(f"/v1/topics/{topic}/groups/workers/poll", json={"max_messages": 12})).json()
    assert [message["priority"] for message in polled["messages"]][:4] == [9, 8, 7, 6]
    rejected = [one for one in polled["messages"] if one["partition"] == 0]
    settle = {"messages": [{key: one[key] for key in ("partition", "offset", "token")} for one in rejected]}
    assert (await three.http[0].post(f"/v1/topics/{topic}/groups/workers/reject", json=settle)).json()["failed"] == 0
    commit = {"offsets": {"0": 1, "1": 2, "2": 3}}
    assert (await three.http[1].post(f"/v1/topics/{topic}/groups/readers/commit", json=commit)).status_code == 204
    joined = {"topics": [topic], "kind": "queue", "assignor": "shared"}
    assert (await three.http[2].post("/v1/groups/watchers/members", json=joined)).status_code in (200, 201)
    for path in (one.replace("orders", topic) for one in GETS.values()):
        answers = [told(await client.get(path)) for client in three.http]
        assert answers[0] == answers[1] == answers[2], path
        assert answers[0][0] == (400 if "consume" in path else 200), path
    cluster = (await three.http[2].get("/v1/cluster")).json()
    assert [broker["name"] for broker in cluster["brokers"]] == ["broker0", "broker1", "broker2"]
    assert all(broker["alive"] and broker["replicas"] >= 3 for broker in cluster["brokers"])
    stats = (await three.http[0].get(f"/raft/stats?topic={topic}&partitionID=1")).json()
    assert stats["state"] == "Leader" and stats["num_peers"] == "2"


async def test_a_create_that_is_repeated_under_its_id_gets_its_first_answer(three: Three, topic: str) -> None:
    made = {"name": topic, "settings": {"partitions": 2}, "create_id": "c0ffee"}
    answers = [await client.post("/v1/topics", json=made) for client in three.http]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({answer.json()["incarnation"] for answer in answers}) == 1
    for other in ({**made, "create_id": "decade"}, {"name": topic}):
        refused = await three.http[0].post("/v1/topics", json=other)
        assert (refused.status_code, refused.json()["type"]) == (409, "TopicExists")
    long = await three.http[0].post("/v1/topics", json={**made, "create_id": "x" * 65})
    assert long.status_code == 400 and "create_id" in long.text


async def test_a_group_that_is_not_there_has_committed_nothing_and_is_not_found(three: Three, topic: str) -> None:
    await three.make_topic(topic)
    group, here = f"/v1/topics/{topic}/groups/readers", three.http[0]

    async def found() -> tuple[int, int]:
        return (await here.get(f"{group}/committed")).status_code, (await here.get(group)).status_code

    assert await found() == (404, 404)
    assert (await here.post(f"{group}/commit", json={"offsets": {"0": 0}})).status_code == 204
    assert (await here.get(f"{group}/committed")).json()["offsets"] == {"0": 0}
    assert (await here.delete(group)).status_code == 204
    assert await found() == (404, 404)
    assert (await here.get(f"{group}/committed")).json()["type"] == "GroupNotFound"
    await here.post(f"/v1/topics/{topic}/messages", json={"messages": [{"value": "old"}]})
    await here.post(f"{group}/poll", json={"max_messages": 1})  # it works as a queue: there, with nothing committed
    assert (await here.get(f"{group}/committed")).json()["offsets"] == {}
    async with await connect(three.seeds[0]) as queue:  # a reader asks before there is a group: that is no error
        assert await queue.admin.committed(topic, "new") == {}
        before_ms = time.time_ns() // 1_000_000
        described = await queue.admin.group(topic, "readers")
        (oldest_ms,) = {part.oldest_ms for part in described.partitions} - {0}
        assert before_ms - oldest_ms <= described.oldest_age_ms <= time.time_ns() // 1_000_000 - oldest_ms


async def test_a_message_published_on_one_broker_is_consumed_on_any_other_exactly_once(
    three: Three, topic: str
) -> None:
    await three.make_topic(topic)
    for number in range(30):
        answer = await three.http[number % 3].post(
            f"/topic/{topic}/publish", json={"message": f"{number}", "priority": number % 10}
        )
        assert answer.status_code == 200, answer.text
    seen: list[dict[str, Any]] = []
    for turn in range(30):
        answer = (await three.http[turn % 3].get(f"/topic/{topic}/consume?consumerID=x&batch=4")).json()
        seen += answer["messages"]
    assert sorted(int(message["v"]) for message in seen) == list(range(30))
    names = {"high": 9, "normal": 4, "low": 0}
    urgency = [names.get(message["p"], message["p"]) for message in seen]
    assert urgency == sorted(urgency, reverse=True)


async def test_groups_are_worked_seeked_and_dropped_through_changing_brokers(three: Three, topic: str) -> None:
    await three.make_topic(topic)
    turn = iter(range(1_000))

    def any_broker() -> httpx.AsyncClient:
        return three.http[next(turn) % 3]

    group = f"/v1/topics/{topic}/groups/workers"
    messages = [{"value": f"{number}", "partition": number % 3} for number in range(9)]
    await any_broker().post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    polled = (await any_broker().post(f"{group}/poll", json={"max_messages": 100})).json()["messages"]
    assert len(polled) == 9
    targets = [{key: one[key] for key in ("partition", "offset", "token")} for one in polled]
    for action, chosen in (
        ("ack", targets[:3]),
        ("nack", targets[3:5]),
        ("extend", targets[5:7]),
        ("reject", targets[7:]),
    ):
        answer = (await any_broker().post(f"{group}/{action}", json={"messages": chosen})).json()
        assert (answer["settled"], answer["failed"]) == (len(chosen), 0), action
    dead = (await any_broker().get(f"{group}/dead")).json()
    assert dead["total"] == 2
    assert (await any_broker().post(f"{group}/dead/redrive", json={})).json() == {"count": 2}
    assert (await any_broker().post(f"{group}/seek", json={"to": "earliest"})).status_code == 204
    assert (await any_broker().get(group)).json()["lag"] == 9
    assert (await any_broker().delete(group)).status_code == 204
    assert (await any_broker().get(f"/v1/topics/{topic}/groups")).json()["groups"] == []
    assert (await any_broker().patch(f"/v1/topics/{topic}", json={"settings": {"lease_ms": 777}})).status_code == 200
    assert (await any_broker().get(f"/v1/topics/{topic}")).json()["settings"]["lease_ms"] == 777
    assert (await any_broker().delete(f"/v1/topics/{topic}")).status_code == 204
    for client in three.http:
        assert topic not in (await client.get("/topics")).json()["topics"]


async def test_a_get_on_an_unknown_topic_does_not_create_it_on_any_broker(three: Three, topic: str) -> None:
    for client in three.http:
        for path in (one.replace("orders", topic) for one in GETS.values()):
            if topic in path and "consume" not in path:
                assert (await client.get(path)).status_code == 404, path
        assert (await client.get(f"/topic/{topic}/consume?consumerID=x")).status_code == 404
    for client in three.http:
        assert topic not in (await client.get("/topics")).json()["topics"]


async def test_a_topic_made_on_one_broker_is_there_on_the_others_at_once(three: Three, topic: str) -> None:
    for number in range(6):
        name = f"{topic}-{number}"
        maker, others = three.http[number % 3], [three.http[(number + step) % 3] for step in (1, 2)]
        assert (await maker.post("/v1/topics", json={"name": name})).status_code == 201
        for client in others:
            assert name in (await client.get("/topics")).json()["topics"]
            assert (await client.get(f"/topics/{name}/partitions")).status_code == 200


async def test_a_broker_that_holds_no_copy_forwards_all_the_same(three: Three, topic: str) -> None:
    await three.make_topic(topic, replication=1, partitions=1)
    leader = await three.leader_of(topic, 0)
    strangers = [client for number, client in enumerate(three.http) if number != leader]
    for number, client in enumerate(strangers):
        assert (await client.post(f"/topic/{topic}/publish", json={"message": f"{number}"})).status_code == 200
        assert (await client.get(f"/topic/{topic}/peek")).json()["count"] == 1
        partitions = (await client.get(f"/topics/{topic}/partitions")).json()["partitions"]
        assert partitions[0]["replicas"] == [f"broker{leader}"]
    found = [(await client.get(f"/topic/{topic}/consume?consumerID=x")).json() for client in strangers]
    assert [message["v"] for one in found for message in one["messages"]] == ["0", "1"]


async def test_a_poll_waits_on_one_broker_for_what_is_published_on_another(three: Three, topic: str) -> None:
    await three.make_topic(topic)
    for partition in range(3):
        leader = await three.leader_of(topic, partition)
        stranger = three.http[(leader + 1) % 3]
        waiting = asyncio.create_task(
            stranger.post(f"/v1/topics/{topic}/groups/workers/poll", json={"wait_ms": 20_000, "max_messages": 1})
        )
        await asyncio.sleep(0.2)
        assert not waiting.done()
        message = {"value": "x", "partition": partition}
        await three.http[leader].post(f"/v1/topics/{topic}/messages", json={"messages": [message]})
        assert (await asyncio.wait_for(waiting, 5)).json()["messages"][0]["partition"] == partition


async def test_a_client_that_goes_leaves_no_leases_on_any_broker(three: Three, topic: str) -> None:
    await three.make_topic(topic)
    path = f"/v1/topics/{topic}/groups/workers"
    await three.http[0].post(f"{path}/poll", json={})
    impatient = [
        asyncio.create_task(client.post(f"{path}/poll", json={"wait_ms": 30_000}, timeout=0.4)) for client in three.http
    ]
    await asyncio.wait(impatient)
    assert all(isinstance(task.exception(), httpx.TimeoutException) for task in impatient)
    messages = [{"value": "x", "partition": partition} for partition in range(3)]
    await three.http[1].post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    async with asyncio.timeout(SECONDS):
        while (await three.http[0].get(path)).json()["ready"] != 3:
            await asyncio.sleep(0.05)
    polled = (await three.http[2].post(f"{path}/poll", json={})).json()["messages"]
    assert [message["attempt"] for message in polled] == [1, 1, 1]


async def test_no_publish_is_lost_or_doubled_when_its_leader_dies_in_the_middle(doomed: Three) -> None:
    await doomed.make_topic(partitions=1)
    leader = await doomed.leader_of("orders", 0)
    strangers = [client for number, client in enumerate(doomed.http) if number != leader]
    stored: dict[str, int] = {}
    stop = asyncio.Event()

    async def publish(worker: int) -> None:
        number = 0
        while not stop.is_set():
            text = f"{worker}-{number}"
            answer = await strangers[worker % 2].post("/topic/orders/publish", json={"message": text})
            assert answer.status_code == 200, answer.text
            stored[text] = answer.json()["offset"]
            number += 1

    working = [asyncio.create_task(publish(worker)) for worker in range(8)]
    async with asyncio.timeout(SECONDS):
        while len(stored) < 50:
            await asyncio.sleep(0.05)
    before = len(stored)
    await doomed.kill(leader)
    async with asyncio.timeout(SECONDS):
        while len(stored) < 2 * before:
            await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*working)
    kept: list[str] = []
    while True:
        path = f"/v1/topics/orders/partitions/0/messages?offset={len(kept)}&limit=1000"
        found = (await strangers[0].get(path)).json()["messages"]
        if not found:
            break
        kept += [message["value"] for message in found]
    assert len(kept) == len(set(kept)), "doubled"
    assert {text: kept[offset] for text, offset in stored.items()} == {text: text for text in stored}, "lost"
    for worker in range(8):
        own = [text for text in kept if text.startswith(f"{worker}-")]
        assert own == [f"{worker}-{number}" for number in range(len(own))], "order"


async def test_polls_go_on_when_a_leader_dies_and_nothing_is_handed_out_twice_at_once(doomed: Three) -> None:
    await doomed.make_topic(lease_ms=60_000)
    messages = [{"value": f"{number}", "partition": number % 3} for number in range(300)]
    await doomed.http[0].post("/v1/topics/orders/messages", json={"messages": messages})
    leader = await doomed.leader_of("orders", 0)
    stranger = doomed.http[(leader + 1) % 3]
    seen: list[str] = []

    async def work() -> None:
        while len(seen) < 300:
            answer = await stranger.post(
                "/v1/topics/orders/groups/workers/poll", json={"max_messages": 10, "wait_ms": 1_000}
            )
            assert answer.status_code == 200, answer.text
            polled = answer.json()["messages"]
            seen.extend(message["value"] for message in polled)
            if polled:
                targets = [{key: one[key] for key in ("partition", "offset", "token")} for one in polled]
                await stranger.post("/v1/topics/orders/groups/workers/ack", json={"messages": targets})

    working = [asyncio.create_task(work()) for _ in range(3)]
    while len(seen) < 60:
        await asyncio.sleep(0.01)
    await doomed.kill(leader)
    async with asyncio.timeout(2 * SECONDS):
        await asyncio.gather(*working)
    assert sorted(seen, key=int) == [f"{number}" for number in range(300)]


async def test_no_ack_that_took_effect_is_called_lost_when_its_leader_dies(doomed: Three) -> None:
    await doomed.make_topic(lease_ms=600_000)
    messages = [{"value": f"{number}", "partition": number % 3} for number in range(600)]
    await doomed.http[0].post("/v1/topics/orders/messages", json={"messages": messages})
    leader = await doomed.leader_of("orders", 0)
    strangers = [client for number, client in enumerate(doomed.http) if number != leader]
    path = "/v1/topics/orders/groups/workers"
    polled: list[dict[str, Any]] = []
    while len(polled) < 600:
        polled += (await strangers[0].post(f"{path}/poll", json={"max_messages": 600})).json()["messages"]
    targets = [{key: one[key] for key in ("partition", "offset", "token")} for one in polled]
    waiting, answered = list(targets), 0

    async def ack(client: httpx.AsyncClient) -> None:
        nonlocal answered
        while waiting:
            target = waiting.pop()
            answer = (await client.post(f"{path}/ack", json={"messages": [target]})).json()
            assert answer.get("messages", [{}])[0].get("error") != "LeaseLost", "it was leased for ten minutes"
            if answer.get("failed") != 0:
                waiting.append(target)  # nobody took it in time: asked again, as a worker does
            else:
                answered += 1

    working = [asyncio.create_task(ack(strangers[worker % 2])) for worker in range(16)]
    while answered < 100:
        await asyncio.sleep(0.001)
    await doomed.kill(leader)
    async with asyncio.timeout(2 * SECONDS):
        await asyncio.gather(*working)
    assert answered == 600
    again = (await strangers[1].post(f"{path}/ack", json={"messages": targets})).json()
    assert (again["settled"], again["failed"]) == (600, 0), "the first answers, from the present leader"


async def test_of_two_creates_at_two_brokers_exactly_one_wins(three: Three, topic: str) -> None:
    for number in range(30):
        body = {"name": f"{topic}-{number}", "settings": {"partitions": 1}}
        answers = await asyncio.gather(*(client.post("/v1/topics", json=body) for client in three.http[:2]))
        assert sorted(answer.status_code for answer in answers) == [201, 409], [answer.text for answer in answers]


async def test_while_nobody_leads_rest_says_when_to_come_back(doomed: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    from lanner.forwarding.asking import Tries

    await doomed.make_topic(partitions=1, replication=1)
    leader = await doomed.leader_of("orders", 0)
    await doomed.kill(leader)
    monkeypatch.setattr(Tries.__init__, "__defaults__", (1_500,))
    stranger = doomed.http[(leader + 1) % 3]
    for answer in (
        await stranger.post("/topic/orders/publish", json={"message": "x", "partitionKey": "k"}),
        await stranger.get("/topics/orders/partitions"),
    ):
        assert answer.status_code in (502, 503), answer.text
        assert answer.json()["details"]["retryable"] is True
    answer = await stranger.get("/raft/stats?topic=orders")  # by now it is known to be silent
    assert answer.status_code == 503 and "retry-after" in answer.headers
    rows = (await stranger.get("/v1/partitions?topic=orders")).json()["partitions"]
    assert rows[0]["leader"] == ""
    brokers = {one["name"]: one["alive"] for one in (await stranger.get("/v1/brokers")).json()["brokers"]}
    assert brokers[f"broker{leader}"] is False and sum(brokers.values()) == 2


async def test_forwarding_works_with_a_non_loopback_address(tmp_path: Path) -> None:
    three = Three(tmp_path, own_address())
    await three.start()
    try:
        await three.make_topic()
        for number, client in enumerate(three.http):
            for partition in range(3):
                message = {"value": f"{number}", "partition": partition}
                answer = await client.post("/v1/topics/orders/messages", json={"messages": [message]})
                assert answer.status_code == 200, answer.text
        found = (await three.http[0].get("/topic/orders/consume?consumerID=x&batch=20")).json()
        assert found["count"] == 9
        brokers = (await three.http[1].get("/v1/brokers")).json()["brokers"]
        assert {broker["host"] for broker in brokers} == {own_address()}
    finally:
        await three.stop()


async def test_replicas_and_leaders_move_when_asked_over_rest(three: Three, topic: str) -> None:
    await three.make_topic(topic, partitions=1, replication=2)
    rows = (await three.http[0].get(f"/v1/partitions?topic={topic}")).json()["partitions"]
    held = [replica["broker"] for replica in rows[0]["replicas"]]
    (free,) = {"broker0", "broker1", "broker2"} - set(held)
    leader = f"broker{await three.leader_of(topic, 0)}"
    source = next(name for name in held if name != leader)
    move = {"source": source, "target": free}
    answer = await three.http[2].post(f"/v1/partitions/{topic}/0/move", json=move)
    assert answer.status_code == 200 and answer.json()["plan"]["kind"] == "move", answer.text

    async def until(condition: Any) -> None:
        async with asyncio.timeout(SECONDS):
            while not await condition():
                await asyncio.sleep(0.1)

    async def moved() -> bool:
        rows = (await three.http[1].get(f"/v1/partitions?topic={topic}")).json()["partitions"]
        return {replica["broker"] for replica in rows[0]["replicas"]} == {leader, free}

    await until(moved)
    answer = await three.http[0].post(f"/v1/partitions/{topic}/0/transfer", json={"target": free})
    assert answer.status_code == 200, answer.text

    async def transferred() -> bool:
        return f"broker{await three.leader_of(topic, 0, 2)}" == free

    await until(transferred)
    assert (await three.http[0].post("/v1/brokers/nobody/drain")).status_code == 404
    refused = await three.http[0].post("/v1/brokers/broker0/drain")
    assert refused.status_code == 409, "some topics have three replicas, and there would be two brokers"
