"""Where messages went, in runs, is the same as one place each."""

from __future__ import annotations

from lanner.forwarding.values import NewMessage, Placed, PlainMessages, Run, Stored


def test_runs_read_as_the_place_of_each_message() -> None:
    placed = Placed([Run(2, range(5, 7), 9, False), Run(0, range(1, 2), 8, True)])
    each = [Stored(2, 5, 9, False), Stored(2, 6, 9, False), Stored(0, 1, 8, True)]
    assert list(placed) == each and placed == each and placed != each[:2]
    assert len(placed) == 3 and placed[-1] == each[-1] and placed[:2] == each[:2]


def test_plain_messages_read_as_messages() -> None:
    messages = PlainMessages([b"a", b"b", b"c"])
    assert list(messages) == [NewMessage(b"a"), NewMessage(b"b"), NewMessage(b"c")]
    assert messages[1] == NewMessage(b"b") and messages[1:].values == [b"b", b"c"]
