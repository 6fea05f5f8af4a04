"""A broker that is only a script: it keeps what it is asked, and answers what it was told to."""

from __future__ import annotations

from typing import Any

from lanner.calls import Answer
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import Delivered
from lanner.model import Message
from lanner.wire.messages import Call, Poll


class Script:
    """Answers by the type of the call, one after the other; the last one stays."""

    node_id = "n"

    def __init__(self, **answers: Any) -> None:
        self.answers = {name: list(given) if isinstance(given, list) else [given] for name, given in answers.items()}
        self.asked: list[Any] = []

    def next(self, name: str) -> Any:
        given = self.answers[name]
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def calls(self, kind: type[Any]) -> list[Any]:
        return [call for call in self.asked if isinstance(call, kind)]

    async def ask(self, identity: object, call: Call[Any], bulk: Any = ()) -> Answer[Any]:
        self.asked.append(call)
        return Answer(self.next(type(call).__name__))

    async def poll_messages(self, identity: object, call: Poll) -> Handed:
        self.asked.append(call)
        offsets = self.next("Poll")
        return Handed([Delivered(Message(call.topic, 0, offset, b"x", b"k"), 7, 0) for offset in offsets])


class ScriptedCaller:
    """Takes whatever it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def trail(self, **trailers: str) -> None: ...

    def wait_ms(self, wanted: int) -> int:
        return wanted

    async def send(self, response: Any) -> None:
        self.sent.append(response)
