"""Partitions as server-sent events over HTTP, from a real broker; and HTTP that goes to the wrong port."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from lanner.testing.process import BrokerProcess
from lanner.testing.proxy_process import ProxyProcess

SETTINGS = {"disk_reserve_bytes": 0, "default_partitions": 1, "segment_bytes": 4 << 20}


class Event(NamedTuple):
    name: str
    id: str
    data: Any


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, place: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("streams") / "data", settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def url(broker: BrokerProcess, proxy: ProxyProcess | None) -> str:
    return broker.url if proxy is None else proxy.url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30.0, trust_env=False) as client:
        yield client


def publish(http: httpx.Client, topic: str, *values: str, priority: int = 4) -> None:
    messages = [{"value": value, "priority": priority} for value in values]
    answer = http.post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    assert answer.status_code == 200, answer.text


def events_of(answer: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if "data" in fields:
                yield Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def path_of(topic: str) -> str:
    return f"/v1/topics/{topic}/partitions/0/stream"


def test_a_stream_sends_what_is_there_and_what_comes(http: httpx.Client) -> None:
    publish(http, "follow", "a", "b")
    with http.stream("GET", path_of("follow")) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = events_of(answer)
        assert [(one.id, one.data["value"]) for one in (next(events), next(events))] == [("0", "a"), ("1", "b")]
        publish(http, "follow", "c", priority=9)
        third = next(events)
    assert (third.name, third.id, third.data["value"], third.data["priority"]) == ("message", "2", "c", 9)


def test_a_client_that_comes_again_goes_on_behind_the_last_event_it_saw(http: httpx.Client) -> None:
    publish(http, "resume", *"abcd")
    path = path_of("resume") + "?wait_ms=1&offset=0"
    with http.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
        found = list(events_of(answer))
    assert [one.data.get("value") for one in found] == ["c", "d", None]
    assert found[-1] == Event("end", "", {"reason": "quiet"})


def test_a_stream_may_begin_at_the_end_and_choose_priorities(http: httpx.Client) -> None:
    publish(http, "choose", "old", priority=9)
    with http.stream("GET", path_of("choose") + "?start=latest&priorities=high") as answer:
        events = events_of(answer)
        publish(http, "choose", "low", priority=0)
        publish(http, "choose", "new", priority=9)
        assert next(events).data["value"] == "new"


def test_the_last_event_says_that_the_topic_was_deleted(http: httpx.Client) -> None:
    publish(http, "deleted", "a")
    with http.stream("GET", path_of("deleted")) as answer:
        events = events_of(answer)
        next(events)
        assert http.delete("/v1/topics/deleted").status_code == 204
        found = list(events)
    assert [(one.name, one.data["type"]) for one in found] == [("end", "TopicNotFound")]


def test_the_last_event_says_that_the_broker_stops(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings=SETTINGS) as process,
        httpx.Client(base_url=process.url, timeout=30.0, trust_env=False) as client,
    ):
        publish(client, "stopping", "a")
        with client.stream("GET", path_of("stopping")) as answer:
            events = events_of(answer)
            next(events)
            assert process.stop() == 0
            found = list(events)
    assert [(one.name, one.data["type"]) for one in found] == [("end", "ServiceUnavailable")]


@pytest.mark.parametrize(
    ("path", "headers", "status", "error"),
    [
        (path_of("nowhere"), {}, 404, "TopicNotFound"),
        ("/v1/topics/known/partitions/7/stream", {}, 404, "PartitionNotFound"),
        (path_of("known"), {"Last-Event-ID": "x"}, 400, "ValidationError"),
        (path_of("known"), {"Last-Event-ID": "9" * 30}, 400, "ValidationError"),
        (path_of("known") + "?priorities=urgent", {}, 400, "ValidationError"),
        (path_of("known") + "?wait_ms=60001", {}, 400, "ValidationError"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_before_a_stream_begins(
    http: httpx.Client, path: str, headers: dict[str, str], status: int, error: str
) -> None:
    publish(http, "known", "a")
    answer = http.get(path, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (status, error)


@pytest.mark.parametrize("place", ["broker"], indirect=True)
@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_http_on_the_native_port_is_told_where_rest_is(broker: BrokerProcess, said: bytes) -> None:
    with socket.create_connection((broker.host, broker.native_port), timeout=10) as client:
        client.sendall(said)
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert f"REST is at {broker.url}".encode() in body
