"""The workers of a workload that come through REST: each asks one broker after the other, no matter which leads.

A status of 200 is an answer; anything else (a refusal, a lost connection, silence) leaves the outcome unknown, and the
worker goes on to the next broker. Every other publisher gives an Idempotency-Key and repeats what was not answered, at
whichever broker, until it is: that must store it once. Requests run in threads, one connection a worker.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from lanner.testing.history import Handed

_TIMEOUT_SECONDS = 15.0
_RETRY_SECONDS = 0.02


class Notebook(Protocol):
    """What the workers need of the workload."""

    topic: str
    group: str
    lease_ms: int
    partitions: int
    pause_seconds: float
    urls: list[str]
    failures: Any

    @property
    def publishing(self) -> bool: ...
    @property
    def consuming(self) -> bool: ...
    def was_disturbed(self, since: float) -> bool: ...
    def note_unheard(self, called: float) -> None: ...
    def note_leases(self, called: float, leases: Mapping[tuple[int, int, int], list[Handed]]) -> None: ...
    def note_acked(self, called: float, failure: str, partition: int, token: int, offset: int) -> None: ...
    def note_published(
        self,
        called: float,
        values: tuple[str, ...],
        partition: int,
        priority: int,
        offset: int = -1,
        append_ms: int = 0,
    ) -> None: ...


class RestFailed(Exception):
    """No answer, or a refusal: its status, or what happened to the connection."""


class _Caller:
    """One connection to one broker at a time."""

    def __init__(self, urls: list[str], first: int) -> None:
        self._urls = urls
        self._next = first
        self._connection: http.client.HTTPConnection | None = None

    async def post(self, path: str, body: Mapping[str, Any], key: str = "") -> Any:
        return await asyncio.to_thread(self._post, path, json.dumps(body).encode(), key)

    def _post(self, path: str, body: bytes, key: str) -> Any:
        headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        if self._connection is None:
            host, _, port = self._urls[self._next % len(self._urls)].removeprefix("http://").rpartition(":")
            self._next += 1
            self._connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_SECONDS)
        try:
            self._connection.request("POST", path, body, headers)
            with self._connection.getresponse() as reply:  # one that breaks off would keep its socket open
                content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise RestFailed(type(error).__name__) from error
        if reply.status != 200:
            self.close()  # somebody else may know better
            problem = json.loads(content) if content[:1] == b"{" else {}
            kind = problem.get("details", {}).get("error") or problem.get("type", "")
            raise RestFailed(f"{reply.status} {kind}")
        return json.loads(content)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RestWorkers:
    """Publishers and consumers of a workload, by REST."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    async def publish(self, publisher: int) -> None:
        book = self._notebook
        caller = _Caller(book.urls, publisher)
        partition, priority, number = publisher % book.partitions, (publisher * 5) % 10, 0
        try:
            while book.publishing:
                count = 1 + number % 3
                values = tuple(f"{publisher}-{number + step}" for step in range(count))
                number += count
                called, key = time.monotonic(), f"{publisher}-{number}" if publisher % 2 else ""
                stored = await self._publish_values(caller, values, partition, priority, key)
                while not stored and key and book.publishing:
                    await asyncio.sleep(_RETRY_SECONDS)
                    stored = await self._publish_values(caller, values, partition, priority, key)
                self._note(called, values, partition, priority, stored)
                if book.pause_seconds:
                    await asyncio.sleep(book.pause_seconds)
        finally:
            caller.close()

    async def _publish_values(
        self, caller: _Caller, values: tuple[str, ...], partition: int, priority: int, key: str
    ) -> list[dict[str, Any]]:
        """What was stored, or nothing when nobody knows. A worker that is cancelled here does not know either."""
        book, called = self._notebook, time.monotonic()
        messages = [{"value": value, "partition": partition, "priority": priority} for value in values]
        try:
            reply = await caller.post(f"/v1/topics/{book.topic}/messages", {"messages": messages}, key)
        except RestFailed as error:
            book.failures[f"REST publish: {error}"] += 1
            return []
        except BaseException:
            book.note_published(called, values, partition, priority)
            raise
        return list(reply["messages"])

    def _note(
        self, called: float, values: tuple[str, ...], partition: int, priority: int, stored: list[dict[str, Any]]
    ) -> None:
        if not stored:
            self._notebook.note_published(called, values, partition, priority)
            return
        # One batch for all of them: its offsets are those right behind the first.
        offsets = [one["offset"] for one in stored]
        assert offsets == list(range(offsets[0], offsets[0] + len(values))), f"{values} lie at {offsets}"
        stamp_ms = stored[0]["timestamp_ms"]
        self._notebook.note_published(called, values, partition, priority, offsets[0], stamp_ms)

    async def consume(self, number: int) -> None:
        book = self._notebook
        caller = _Caller(book.urls, number)
        path = f"/v1/topics/{book.topic}/groups/{book.group}"
        try:
            while book.consuming:
                called = time.monotonic()
                try:
                    asked = {"max_messages": 20, "wait_ms": 200, "lease_ms": book.lease_ms}
                    reply = await caller.post(f"{path}/poll", asked)
                except BaseException as error:
                    book.note_unheard(called)
                    if not isinstance(error, RestFailed):
                        raise
                    book.failures[f"REST poll: {error}"] += 1
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if book.was_disturbed(called):
                    book.note_unheard(called)
                if reply["messages"]:
                    book.note_leases(called, _leases(reply["messages"]))
                    await self._ack(caller, path, reply["messages"])
        finally:
            caller.close()

    async def _ack(self, caller: _Caller, path: str, messages: list[dict[str, Any]]) -> None:
        book = self._notebook
        called = time.monotonic()
        failures = ["no answer"] * len(messages)
        targets = [{name: one[name] for name in ("partition", "offset", "token")} for one in messages]
        try:
            reply = await caller.post(f"{path}/ack", {"messages": targets})
            failures = [one.get("error", "") for one in reply["messages"]]
        except RestFailed as error:
            failures = [f"{error}"] * len(messages)
        finally:
            for one, failure in zip(messages, failures, strict=True):
                if failure:
                    book.failures[f"REST ack: {failure}"] += 1
                book.note_acked(called, failure, one["partition"], one["token"], one["offset"])


def _leases(messages: list[dict[str, Any]]) -> dict[tuple[int, int, int], list[Handed]]:
    leases: dict[tuple[int, int, int], list[Handed]] = {}
    for one in messages:
        lease = one["partition"], one["token"], one["lease_until_ms"]
        priority = {"low": 0, "normal": 4, "high": 9}.get(one["priority"], one["priority"])
        leases.setdefault(lease, []).append(Handed(one["offset"], one["value"], priority, one["attempt"]))
    return leases
