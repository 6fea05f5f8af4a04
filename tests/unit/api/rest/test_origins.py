from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from lanner.api.rest import RestDoor, build_app
from lanner.api.rest.origins import Gate, origin_of
from lanner.errors import ValidationError

PUBLISH = "/topic/orders/publish"
LOCAL = Gate("127.0.0.1", names=["broker.example"])
OPEN = Gate("0.0.0.0")


def verdict(gate: Gate, path: str = PUBLISH, **headers: str) -> str:
    """Which header a request is refused for; empty: it is not."""
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    error = gate.check(path, given)
    return "" if error is None else error.details["field"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "localhost:8080",
        "LOCALHOST",
        "localhost.:8080",
        "[::1]:8080",
        "127.9.9.9:9000",
        "broker.example:8080",  # where it is advertised
    ],
)
def test_a_local_broker_answers_to_its_own_names_through_any_port(host: str) -> None:
    assert verdict(LOCAL, host=host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example.",
        "0.0.0.0:8080",
        "[::ffff:10.0.0.1]:8080",
        "10.0.0.5:8080",
        "localhost@evil.example",
        "[::1",
        " ",
        "127.0.0.1:port",
    ],
)
def test_a_local_broker_answers_to_no_other_name(host: str) -> None:
    assert verdict(LOCAL, host=host) == "Host"


def test_a_broker_that_others_reach_cannot_know_all_its_names() -> None:
    assert verdict(OPEN, host="queue.example:8080") == ""


@pytest.mark.parametrize("gate", [LOCAL, OPEN])
def test_programs_that_send_no_origin_are_let_in(gate: Gate) -> None:
    assert verdict(gate, host="127.0.0.1:8080") == ""
    assert verdict(gate) == ""  # HTTP/1.0 needs no Host


@pytest.mark.parametrize("gate", [LOCAL, OPEN])
@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://localhost:9000", "localhost:9000"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://localhost", "localhost:80"),
    ],
)
def test_pages_of_the_broker_itself_are_let_in(gate: Gate, origin: str, host: str) -> None:
    assert verdict(gate, origin=origin, host=host) == ""


@pytest.mark.parametrize("gate", [LOCAL, OPEN])
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1:8081",
        "http://localhost:8080",  # the same machine under another name is another origin to a browser
        "https://127.0.0.1",
        "http://127.0.0.1:8080.evil.example",
        "null",
        "",
        "file://",
        "http://127.0.0.1:8080/path",
        "chrome-extension://abc",
    ],
)
def test_other_pages_are_refused(gate: Gate, origin: str) -> None:
    assert verdict(gate, origin=origin, host="127.0.0.1:8080") == "Origin"


def test_a_borrowed_name_is_no_name_of_a_broker_that_others_reach_either() -> None:
    assert verdict(OPEN, origin="http://evil.example:8080", host="evil.example:8080") == "Origin"
    assert verdict(OPEN, origin="http://10.0.0.5:8080", host="10.0.0.5:8080") == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_page_that_only_reads_is_refused_as_well(site: str) -> None:
    """A GET of a picture has no Origin, and consuming is a GET."""
    path = "/topic/orders/consume"
    assert verdict(LOCAL, path, host="localhost:8080", sec_fetch_site=site) == "Origin"
    assert verdict(LOCAL, "/docs", host="localhost:8080", sec_fetch_site=site) == ""
    assert verdict(LOCAL, path, host="localhost:8080", sec_fetch_site="none") == ""
    assert verdict(LOCAL, path, host="localhost:8080", sec_fetch_site="same-origin") == ""


def test_an_operator_lets_pages_in() -> None:
    gate = Gate("127.0.0.1", allowed=["https://Board.example:443/", "http://[2001:db8::1]:3000", "null"])
    for origin in ("https://board.example", "http://[2001:db8::1]:3000", "null"):
        assert verdict(gate, origin=origin, host="localhost:8080") == ""
    assert verdict(gate, origin="http://board.example", host="localhost:8080") == "Origin"
    assert verdict(gate, host="board.example") == ""  # behind a proxy that keeps the name
    assert verdict(Gate("127.0.0.1", allowed=["*"]), origin="https://evil.example", host="localhost") == ""


@pytest.mark.parametrize("text", ["board.example", "ftp://board.example", "http://", "http://a/b", "http://a:port", ""])
def test_what_is_no_origin_is_not_taken_for_one(text: str) -> None:
    with pytest.raises(ValidationError, match="allow_origin"):
        origin_of(text)


async def test_a_refusal_tells_the_next_step_and_nothing_was_done(service) -> None:
    transport = httpx.ASGITransport(app=build_app(service, LOCAL))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
        reply = await http.post(PUBLISH, json={"message": "x"}, headers={"origin": "https://evil.example"})
        assert reply.status_code == 403
        assert reply.json()["type"] == "PermissionDenied"
        assert "--allow-origin https://evil.example" in reply.json()["message"]
        reply = await http.get("/topics", headers={"host": "evil.example"})
        assert reply.status_code == 403
        assert "--allow-origin http://evil.example" in reply.json()["message"]
    assert service.calls == []


async def test_an_allowed_page_sees_its_answers(service) -> None:
    transport = httpx.ASGITransport(app=build_app(service, Gate("127.0.0.1", allowed=["https://board.example"])))
    page = {"origin": "https://board.example"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as http:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        preflight = await http.options(PUBLISH, headers=page | asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://board.example"
        assert preflight.headers["access-control-allow-headers"] == "content-type"
        reply = await http.post(PUBLISH, json={"message": "x"}, headers=page)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://board.example"
        assert "origin" in reply.headers["vary"]
        reply = await http.get("/topics")
        assert "access-control-allow-origin" not in reply.headers


@pytest.fixture
async def address(service) -> AsyncIterator[tuple[str, int]]:
    door = RestDoor(service)
    yield await door.start("127.0.0.1", 0)
    await door.stop(drain_ms=1_000)


async def test_a_door_on_loopback_checks_the_host(address) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as http:
        assert (await http.get("/healthz")).status_code == 200
        refused = await http.post(PUBLISH, content=b"x" * 200_000, headers={"host": "evil.example"})
        assert refused.status_code == 403
