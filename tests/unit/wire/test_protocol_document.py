"""docs/protocol.md says what the code does: tables, bounds and the bytes of its examples."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lanner import batch
from lanner.wire.connection import ServerConnection
from lanner.wire.exchanges import EXCHANGES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_document", ROOT / "tools" / "protocol_document.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def undump(section: str) -> list[bytes]:
    """The bytes of every hex dump in a piece of the document, read as a newcomer would."""
    dumps = []
    for block in re.findall(r"```\n(0000  .*?)\n```", section, re.DOTALL):
        dumps.append(b"".join(bytes.fromhex(line[6:53]) for line in block.splitlines()))
    return dumps


def part(text: str, name: str) -> str:
    return text.split(f"<!-- begin: {name} -->")[1].split(f"<!-- end: {name} -->")[0]


def test_the_generated_parts_are_current(tool: ModuleType, text: str) -> None:
    assert tool.render(text) == text, "run: python tools/protocol_document.py"


def test_a_part_that_differs_is_noticed(tool: ModuleType, text: str) -> None:
    assert tool.render(text.replace("| 51 | LeaseLost", "| 50 | LeaseLost")) == text


def test_the_batch_in_the_document_decodes_to_what_the_document_says(text: str) -> None:
    [data] = undump(part(text, "batch"))
    decoded = batch.decode(data)
    assert decoded.values() == [b"refund RF001", b"hello"]
    assert decoded.keys() == [b"customer-7", None]
    assert decoded.headers() == [{"trace": b"\x01\x02"}, {}]
    assert (decoded.header.priority, decoded.header.producer_id) == (9, 42)
    [extract] = undump(part(text, "extract"))
    assert batch.decode(extract).values() == [b"hello"]
    assert list(batch.decode(extract).positions or ()) == [1]


def test_a_broker_understands_the_exchange_in_the_document(text: str) -> None:
    hello, welcome, publish, published = undump(part(text, "exchange"))
    server = ServerConnection()
    [request] = server.receive(hello)
    server.welcome(request, EXCHANGES[request.command].reply(1, "c1", "n1", "lanner/0.1.0", 16 * 2**20, 1_024))
    assert b"".join(server.take_outgoing()) == welcome
    [request] = server.receive(publish)
    assert (request.control.topic, request.control.partition) == ("orders", 2)
    assert batch.decode(bytes(request.bulk)).values() == [b"hi"]
    server.reply(request, EXCHANGES[request.command].reply(1_000, 1_700_000_000_000, 1))
    assert b"".join(server.take_outgoing()) == published


def test_every_command_and_every_struct_has_its_place(text: str) -> None:
    for command, exchange in EXCHANGES.items():
        assert f"| {command.name} | `0x{command:02x}` |" in text
        for kind in (exchange.request, exchange.reply):
            assert f"\n#### {kind.__name__}\n" in text


def test_links_inside_the_document_lead_somewhere(text: str) -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(#([^)]+)\)", text):
        assert target in headings, target
