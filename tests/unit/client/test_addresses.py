from __future__ import annotations

import asyncio

import pytest

import lanner
from lanner.client.session import parse_addresses
from lanner.errors import ValidationError


@pytest.mark.parametrize(
    "given",
    ["a:1,b", "lanner://a:1, lanner://b", "lanner://a:1,b:7400/", ["a:1", "b"], ("lanner://a:1/", "b:7400")],
)
def test_addresses_come_with_their_scheme_and_as_lists(given: str | list[str]) -> None:
    assert parse_addresses(given) == [("a", 1), ("b", 7400)]


@pytest.mark.parametrize("given", ["http://localhost:8080", "https://a", ["a:1", "http://b:2"]])
def test_a_web_address_is_explained(given: str | list[str]) -> None:
    with pytest.raises(ValidationError, match=r"http.*native door, such as localhost:7400"):
        parse_addresses(given)


@pytest.mark.parametrize("given", [[], "", ["a:1", ""]])
def test_no_address_is_none(given: str | list[str]) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        parse_addresses(given)


async def test_a_web_server_is_told_from_a_broker() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(lanner.LannerError, match="the address is that of REST"):
        async with lanner.connect(f"{host}:{port}", timeout_ms=3_000):
            pass
    server.close()
    await server.wait_closed()
