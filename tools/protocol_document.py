"""The parts of docs/protocol.md that are made from the code, so that they cannot drift from it.

Each part stands between a pair of markers in the document. `python tools/protocol_document.py` writes them anew; a
test compares them. What a field means is the comment beside it in the source.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect as shapes

from lanner import batch, limits
from lanner.errors import catalogue
from lanner.wire import administration, cluster, dead, members, messages, peers, staging
from lanner.wire.connection import ClientConnection, ServerConnection
from lanner.wire.exchanges import EXCHANGES
from lanner.wire.messages import Asked, Call, Command, Control, HelloReply, Publish, Published
from lanner.wire.states import EXCHANGE_TRANSITIONS, TRANSITIONS, Answer, Step

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
_SECTION: Final = "<!-- begin: {0} -->\n{1}\n<!-- end: {0} -->"
_FIELD: Final = re.compile(r"^    (\w+): [^#]*?(?:#\s*(.*))?$")

_LIMITS: Final = (
    ("FRAME_BYTES_MAX", "payload of a frame"),
    ("FRAME_BYTES_MAX_BEFORE_HELLO", "payload of a frame until HELLO is answered"),
    ("CONTROL_BYTES_MAX", "control part of a request"),
    ("HELLO_DEADLINE_MS", "milliseconds from connecting to HELLO"),
    ("FRAME_DEADLINE_MS", "milliseconds from a frame's first byte to its last, while the broker reads"),
    ("UNFINISHED_BYTES_MAX", "bytes of all requests that are not whole yet, over all connections of a broker"),
    ("CONTROLS_BYTES_MAX", "bytes of the control parts of all requests that a broker works on at once"),
    ("CONNECTION_INFLIGHT_MAX", "requests of one connection that a broker works on at once"),
    ("CONNECTION_INFLIGHT_BYTES_MAX", "bulk bytes of those"),
    ("CONNECTION_UNSENT_BYTES_MAX", "bytes of replies that a client has not read"),
    ("CONNECTION_STALL_MS", "milliseconds in which a client with unread replies reads nothing"),
    ("CONNECTIONS_MAX", "connections of one broker"),
    ("NAME_LENGTH_MAX", "characters of a topic or group name"),
    ("MEMBER_LENGTH_MAX", "characters of a member's name"),
    ("REASON_LENGTH_MAX", "characters of a reason"),
    ("PARTITIONS_MAX", "partitions of a topic"),
    ("MESSAGE_BYTES_MAX", "value of a message"),
    ("KEY_BYTES_MAX", "key of a message"),
    ("HEADERS_BYTES_MAX", "headers of a message, encoded"),
    ("HEADER_COUNT_MAX", "headers of a message"),
    ("BATCH_BYTES_MAX", "a batch, also when it is uncompressed"),
    ("BATCH_MESSAGES_MAX", "messages of a batch"),
    ("DEDUP_ID_BYTES_MAX", "bytes of a dedup id"),
    ("POLL_MESSAGES_MAX", "messages of one poll"),
    ("POLL_BYTES_MAX", "bytes of one poll"),
    ("POLL_WAIT_MS_MAX", "milliseconds that a poll or fetch may wait"),
    ("FETCH_BYTES_MAX", "bytes of one fetch"),
    ("SETTLE_RANGES_MAX", "items of one settle, or settles on one poll"),
    ("LIST_ITEMS_MAX", "items of a listing"),
    ("PARTICIPANTS_MAX", "partitions of a commit"),
    ("TRANSACTION_TOPICS_MAX", "topics of a commit"),
    ("MANIFEST_ATTEMPTS_MAX", "attempts of a commit on one partition"),
    ("MANIFEST_STAGES_MAX", "stages of a commit on one partition"),
    ("STAGES_PER_ATTEMPT_MAX", "stages of one attempt on one partition"),
    ("STAGE_HOLD_MS_MAX", "milliseconds that stages are held until they are prepared"),
    ("COMMIT_TIMEOUT_MS_MAX", "milliseconds from BEGIN to the deadline of a try"),
    ("OFFSET_MAX", "the largest offset, token, sequence or time"),
    ("DEDUP_IDS_PER_PARTITION_MAX", "dedup ids that a partition remembers; at the bound a new one gets Overloaded"),
    ("PRODUCER_RESULTS_KEPT", "batches of a producer (per partition and priority) that a retry finds again"),
)


def hex_dump(data: bytes) -> str:
    """16 bytes a line: place, hex, and what is printable."""
    lines = []
    for place in range(0, len(data), 16):
        row = data[place : place + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{place:04x}  {row.hex(' '):<47}  {shown}")
    return "```\n" + "\n".join(lines) + "\n```"


def example_batch() -> bytes:
    """Two messages: one with a key and a header, one without."""
    return batch.encode(
        [b"refund RF001", b"hello"],
        keys=[b"customer-7", None],
        headers=[{"trace": b"\x01\x02"}, None],
        priority=9,
        producer_id=42,
        sequence=0,
    )


def example_exchange() -> list[tuple[str, bytes]]:
    """HELLO and a PUBLISH with their replies, as the bytes that both ends really send."""
    client, server = ClientConnection(), ServerConnection()
    said: list[tuple[str, bytes]] = []

    def take(title: str, end: ClientConnection | ServerConnection) -> bytes:
        said.append((title, b"".join(end.take_outgoing())))
        return said[-1][1]

    client.hello("example/1.0")
    [hello] = server.receive(take("client → broker: HELLO, correlation id 1", client))
    server.welcome(hello, HelloReply(1, "c1", "n1", "lanner/0.1.0", limits.FRAME_BYTES_MAX, 1_024))
    client.receive(take("broker → client: reply to HELLO", server))
    client.request(Command.PUBLISH, Publish("orders", 2), [batch.encode([b"hi"])])
    [publish] = server.receive(take("client → broker: PUBLISH, correlation id 2, the batch as bulk", client))
    server.reply(publish, Published(1_000, 1_700_000_000_000, 1))
    client.receive(take("broker → client: reply to PUBLISH", server))
    return said


def _type(shape: Any) -> str:
    """A field's type in the words of msgpack, with its bounds."""
    match shape:
        case shapes.IntType(ge=low, le=high, lt=below):
            bounds = [f"{sign} {bound}" for sign, bound in (("≥", low), ("≤", high), ("<", below)) if bound is not None]
            return " ".join(["int", *bounds]).replace(str(limits.OFFSET_MAX), "2^53-1")
        case shapes.StrType(max_length=longest):
            return "str" if longest is None else f"str, at most {longest}"
        case shapes.BytesType(min_length=shortest, max_length=longest) if longest is not None:
            return f"bin of {longest}" if shortest == longest else f"bin, at most {longest}"
        case shapes.ListType(item_type=item, max_length=longest):
            return f"array of {_type(item)}" + ("" if longest is None else f"; at most {longest}")
        case shapes.TupleType(item_types=items):
            return "(" + ", ".join(_type(item) for item in items) + ")"
        case shapes.DictType(key_type=key, value_type=value):
            return f"map of {_type(key)} to {_type(value)}"
        case shapes.UnionType(types=types):
            return " or ".join(_type(one) for one in types)
        case shapes.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
    simple = {shapes.BoolType: "bool", shapes.BytesType: "bin", shapes.NoneType: "nil", shapes.AnyType: "any"}
    simple[shapes.RawType] = "array"
    return simple[type(shape)]


def _meanings(kind: type[Control]) -> dict[str, str]:
    found = (_FIELD.match(line) for line in inspect.getsource(kind).splitlines())
    return {match[1]: (match[2] or "").replace("None", "nil") for match in found if match}


def _default(field: shapes.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default).decode()}`".replace("null", "nil")
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    return ""


def struct_table(kind: type[Control]) -> str:
    """One control part: its fields in the order in which they travel."""
    shape = shapes.type_info(kind)
    assert isinstance(shape, shapes.StructType)
    lines = [f"#### {kind.__name__}", ""]
    text = inspect.cleandoc(kind.__doc__ or "") if kind.__dict__.get("__doc__") else ""
    if text:
        lines += [text.replace("\n", " "), ""]
    if not shape.fields:
        return "\n".join([*lines, "No fields: an empty array."])
    meanings = _meanings(kind)
    lines += ["| # | field | type | default | |", "|---|---|---|---|---|"]
    for number, field in enumerate(shape.fields):
        cells = (str(number), f"`{field.name}`", _type(field.type), _default(field), meanings.get(field.name, ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _all_structs() -> list[type[Control]]:
    modules = (messages, administration, dead, members, cluster, peers, staging)
    found = {name: kind for module in modules for name, kind in vars(module).items()}.values()
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Control)]
    return [kind for kind in kinds if kind not in (Control, Asked, Call)]


def _link(kind: type[Control], bulk: bool) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})" + (" + bulk" if bulk else "")


def commands_table() -> str:
    lines = ["| command | code | request | reply |", "|---|---|---|---|"]
    for command, exchange in EXCHANGES.items():
        asked = _link(exchange.request, exchange.request_bulk)
        answered = _link(exchange.reply, exchange.reply_bulk) if exchange.answered else "not answered"
        lines.append(f"| {command.name} | `0x{command:02x}` | {asked} | {answered} |")
    return "\n".join(lines)


def errors_table() -> str:
    lines = ["| code | name | repeat? | meaning |", "|---|---|---|---|"]
    for code, kind in sorted(catalogue().items()):
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(f"| {code} | {kind.__name__} | {'yes' if kind.retryable else ''} | {meaning} |")
    return "\n".join(lines)


def steps_table(what: str, steps: type[StrEnum], transitions: Mapping[Any, Mapping[Any, str]]) -> str:
    """One table of legal steps: a row for where it is, a column for what happens, in each cell where it is then."""
    lines = [f"| {what} | " + " | ".join(steps) + " |", "|---" * (len(steps) + 1) + "|"]
    for place, legal in transitions.items():
        lines.append(f"| {place} | " + " | ".join(legal.get(step, "—") for step in steps) + " |")
    return "\n".join(lines)


def limits_table() -> str:
    lines = ["| at most | of |", "|---:|---|"]
    return "\n".join(lines + [f"| {getattr(limits, name):,} | {what} |" for name, what in _LIMITS])


def sections() -> dict[str, str]:
    """Every generated part by its name."""
    data = example_batch()
    extract = batch.extract(data, [1])
    return {
        "states": steps_table("state", Step, TRANSITIONS),
        "exchanges": steps_table("request", Answer, EXCHANGE_TRANSITIONS),
        "commands": commands_table(),
        "structs": "\n\n".join(struct_table(kind) for kind in _all_structs()),
        "errors": errors_table(),
        "limits": limits_table(),
        "batch": hex_dump(data),
        "extract": hex_dump(extract),
        "exchange": "\n\n".join(
            f"{title} ({len(data)} bytes)\n\n{hex_dump(data)}" for title, data in example_exchange()
        ),
    }


def render(text: str) -> str:
    """The document with every generated part as the code has it now."""
    for name, content in sections().items():
        pattern = re.compile(f"<!-- begin: {name} -->.*?<!-- end: {name} -->", re.DOTALL)
        section = _SECTION.format(name, content)
        text, count = pattern.subn(lambda _, section=section: section, text)  # type: ignore[misc]
        assert count == 1, f"docs/protocol.md has {count} sections named {name}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
