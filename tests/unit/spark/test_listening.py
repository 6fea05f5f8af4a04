"""What Spark's progress events tell of a query with a group."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from lanner.spark import listening
from lanner.spark.listening import ProgressListener, finished

END = {"version": 1, "topics": {"orders": {"incarnation": 7, "offsets": {"0": 5, "1": 3}}}, "group": "g"}
LATEST = END | {"servers": "a:1,b:2"}


def test_the_end_of_a_batch_is_told_with_its_group_and_servers() -> None:
    assert finished(json.dumps(END), json.dumps(LATEST)) == ("a:1,b:2", "g", {"orders": {0: 5, 1: 3}})


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        (None, None),
        ("3", "4"),
        ("{", "{"),
        ({"orders": {"0": 1}}, {"orders": {"0": 1}}),
        (END, {}),
        ({"version": 1, "topics": {}}, LATEST),
        (END | {"deadLettersOf": "w"}, LATEST),
        (END | {"topics": 5}, LATEST),
    ],
)
def test_another_source_or_one_without_a_group_is_left_alone(end: Any, latest: Any) -> None:
    shown = [one if isinstance(one, str | None) else json.dumps(one) for one in (end, latest)]
    assert finished(*shown) is None


class MemoryLog:
    """Remembers what a group was told."""

    groups: ClassVar[dict[tuple[str, str], dict[int, int]]] = {}
    opened = 0

    def __init__(self, servers: str) -> None:
        assert servers == "a:1,b:2"

    def __enter__(self) -> MemoryLog:
        MemoryLog.opened += 1
        return self

    def close(self) -> None:
        MemoryLog.opened -= 1

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return dict(self.groups.get((group, topic), {}))

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self.groups.setdefault((group, topic), {}).update(offsets)


def test_a_group_is_told_of_each_batch_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "TopicLog", MemoryLog)
    monkeypatch.setattr(MemoryLog, "groups", {("g", "orders"): {0: 4, 1: 9}})
    listener: Any = ProgressListener()
    query = SimpleNamespace(runId="1")
    listener.onQueryStarted(query)
    source = SimpleNamespace(endOffset=json.dumps(END), latestOffset=json.dumps(LATEST))
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(sources=[source])))
    assert MemoryLog.groups == {("g", "orders"): {0: 5, 1: 9}}
    assert MemoryLog.opened == 1
    listener.onQueryTerminated(query)
    assert MemoryLog.opened == 0


class ConnectedStreams:
    """Begins to listen as those of a session of Spark Connect do: in a thread that has no end."""

    def __init__(self) -> None:
        self.thread = threading.Thread()
        self.over = threading.Event()

    def addListener(self, _: ProgressListener) -> None:  # noqa: N802
        self.thread = threading.Thread(target=self.over.wait)
        self.thread.start()


class ConnectedSession:
    def __init__(self, streams: Any) -> None:
        self.streams = streams


def test_a_program_of_spark_connect_does_not_wait_at_its_end_for_the_thread_that_listens() -> None:
    streams = ConnectedStreams()
    try:
        listening.watch(ConnectedSession(streams))  # type: ignore[arg-type]
        assert streams.thread.is_alive()
        assert streams.thread.daemon
    finally:
        streams.over.set()


def test_a_server_that_does_not_let_a_program_listen_is_told() -> None:
    class Refusing:
        def addListener(self, _: ProgressListener) -> None:  # noqa: N802
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        listening.watch(ConnectedSession(Refusing()))  # type: ignore[arg-type]
