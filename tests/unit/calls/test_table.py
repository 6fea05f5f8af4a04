"""Every call has a row, and every row says what forwarding needs."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from lanner.calls import ROWS, Action, Row, Where, row_of
from lanner.wire.exchanges import EXCHANGES
from lanner.wire.messages import Call, Command, Settle

BETWEEN_BROKERS = {
    Command.PEER_INFO,
    Command.PROPOSE,
    Command.RAFT,
    Command.SNAPSHOT,
    Command.PULSE,
    Command.REPORT,
    Command.FORWARD,
}
OF_THE_SESSION = {Command.HELLO, Command.PING}


def test_every_command_of_a_caller_has_one_row() -> None:
    assert sorted(row.command for row in ROWS.values()) == sorted(set(Command) - BETWEEN_BROKERS - OF_THE_SESSION)


def test_every_call_of_the_wire_has_a_row() -> None:
    assert set(Call.__subclasses__()) == set(ROWS)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.command.name)
def test_a_row_has_the_structs_that_travel(row: Row[Any, Any]) -> None:
    exchange = EXCHANGES[row.command]
    assert (row.call, row.answer) == (exchange.request, exchange.reply)
    assert [base.__args__[0] for base in row.call.__orig_bases__] in ([row.answer], [_named(row.answer.__name__)])


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.command.name)
def test_a_row_knows_how_to_wait_cut_and_whom_to_ask(row: Row[Any, Any]) -> None:
    fields = row.call.__struct_fields__
    waits = row.waits is not Row.__dataclass_fields__["waits"].default
    assert waits == ("wait_ms" in fields), "what may be kept waiting is never kept longer than it says"
    assert (row.sizes is not None) == EXCHANGES[row.command].reply_bulk
    assert callable(row.action) or row.action in get_args(Action)
    if row.where is Where.LEADERS:
        assert {"topic", "name"} & set(fields)
        assert row.partitions is not Row.__dataclass_fields__["partitions"].default, "else it is asked of all of them"


def test_a_call_finds_its_row() -> None:
    assert row_of(Settle("g", "t", [])).command is Command.SETTLE


def _named(name: str) -> object:
    from typing import ForwardRef

    return ForwardRef(name)
