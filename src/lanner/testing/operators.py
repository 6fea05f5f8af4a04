"""Operators of a simulated broker: they redrive, discard, seek and alter, and have topics come and go.

Two may want the same topic in the same moment, and either may ask again: exactly one of them is told that it is theirs.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from msgspec.structs import replace

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Topic, encode_alter_topic, encode_create_topic, encode_delete_topic
from lanner.errors import LannerError, TopicExists
from lanner.model import TopicSettings
from lanner.partition import Discard, Redrive, Seek
from lanner.testing.history import Administered, Status
from lanner.testing.parties import LOST
from lanner.testing.sim_broker import Broken
from lanner.testing.traffic import QUEUE_GROUPS, Traffic

_CREATES_MAX: Final = 4  # that may still be asked again


class OperatedTraffic(Traffic):
    """All clients of one simulation, and its operators."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._brief = 0
        self._creates: deque[tuple[str, str, int]] = deque(maxlen=_CREATES_MAX)  # name, create id, moment
        self._made: dict[int, str] = {}  # incarnation → the create that was told it is its own

    def administer(self) -> None:
        rng = self.rng
        set_id = rng.choice(list(self.settings))
        group = rng.choice(QUEUE_GROUPS)
        action = rng.choices(("redrive", "discard", "seek", "alter", "topic"), weights=(30, 15, 5, 25, 25))[0]
        if action == "alter":
            self._alter(set_id)
        elif action == "topic":
            self._brief_topic()
        elif group in self.partition(set_id).groups():
            self._ask_group(set_id, group, action)

    def _ask_group(self, set_id: int, group: str, action: str) -> None:
        request: Any
        offsets: tuple[int, ...] = ()
        if action == "seek":
            offsets = (self.rng.randint(self.partition(set_id).first_offset, self.partition(set_id).end_offset),)
            request = Seek(group, offsets[0])
        else:
            letters = self.partition(set_id).dead_letters(group, 0, 5)
            if self.rng.random() < 0.6:
                offsets = tuple(letter.offset for letter in letters)
            request = (Redrive if action == "redrive" else Discard)(group, offsets or None)
        event = Administered(self.now(), None, Status.UNKNOWN, group, set_id, action, offsets)
        operation = self._begin(event)

        def answered(answer: Any, _index: int) -> None:
            if answer is LOST:
                self._lose(operation)
                return
            status = Status.FAILED if isinstance(answer, LannerError) else Status.OK
            self.counts[action] += status is Status.OK
            self._end(operation, replace(event, returned=self.now(), status=status))

        self._ask(set_id, request, answered)

    def _alter(self, set_id: int) -> None:
        lease_ms = self.rng.choice((150, 400, 1_000))
        self._change(encode_alter_topic(self.names[set_id], {"lease_ms": lease_ms}))

    def _brief_topic(self) -> None:
        """A topic that comes and goes, so that replica sets do. Two may want it in the same moment, and ask again."""
        name = f"brief-{self._brief}"
        if name in self._topics():
            self._change(encode_delete_topic(name))
            self._brief += 1
            return
        for _ in range(self.rng.choice((1, 2, 2))):
            self._creates.append((name, f"create-{self.now()}", self.clock.now_ms()))
            self._create(*self._creates[-1])
        while self.rng.random() < 0.5:
            self.counts["repeated_creates"] += 1
            self._create(*self.rng.choice(self._creates))

    def _create(self, name: str, create_id: str, created_ms: int) -> None:
        def answered(result: Any) -> None:
            if isinstance(result, Topic):
                first = self._made.setdefault(result.incarnation, create_id)
                if first != create_id:
                    raise Broken("topic made twice", CLUSTER_SET, f"{first} and {create_id} were both told: {name}")
            elif isinstance(result, TopicExists):
                found = self._topics().get(name)
                if found is not None and found.create_id == create_id:
                    raise Broken("create forgotten", CLUSTER_SET, f"{create_id} made {name}, which exists, it is told")

        self._change(encode_create_topic(name, TopicSettings(partitions=2), created_ms, create_id), answered)
