"""Children that are no brokers: small programs, so that what is looked at is how they are looked after."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lanner.cli import local_brokers
from lanner.cli.dev_folder import DevFolder, LocalBroker, open_folder
from lanner.cli.local_brokers import Child, LocalBrokers
from lanner.cli.screen import EXIT_REMOVED
from lanner.errors import ServiceUnavailable, ValidationError
from lanner.testing.process import free_port
from lanner.wire.cluster import BrokerState, ClusterDescription

STAYS = "import time; print('here I am', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
ENDS = "import sys; print('my disk is gone'); sys.exit(5)"


class Notes:
    """A teller that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def names(self) -> list[str]:
        return [event for event, _ in self.events if event != "waiting"]

    def last(self, event: str) -> Any:
        return next(value for name, value in reversed(self.events) if name == event)

    def starting(self, children: Sequence[Child]) -> None:
        self.events.append(("starting", [child.pid for child in children]))

    def waiting(self, children: Sequence[Child]) -> None:
        self.events.append(("waiting", [child.state for child in children]))

    def ready(self, children: Sequence[Child], seen: ClusterDescription) -> None:
        self.events.append(("ready", [child.pid for child in children]))

    def died(self, child: Child, restart_seconds: float | None) -> None:
        self.events.append(("died", (child.broker.name, child.ending, restart_seconds)))

    def restarted(self, child: Child) -> None:
        self.events.append(("restarted", child.pid))

    def removed(self, child: Child) -> None:
        self.events.append(("removed", child.broker.name))

    def stopping(self) -> None:
        self.events.append(("stopping", None))

    def stopped(self, killed: Sequence[Child]) -> None:
        self.events.append(("stopped", [child.broker.name for child in killed]))


class World:
    """A folder whose brokers are programs of the test, and what the cluster is said to be."""

    def __init__(self, path: Path, nodes: int) -> None:
        self.folder: DevFolder = open_folder(path, nodes, free_port(10 * (nodes + 2)) - 10)
        for broker in self.folder.brokers:
            found(broker)
        self.programs = {broker.name: STAYS for broker in self.folder.brokers}
        self.notes = Notes()
        self.names = [broker.name for broker in self.folder.brokers]
        self.leader = "somebody"
        self.states: dict[str, str] = {}
        self.views: dict[str, list[str]] = {}  # of brokers that see the cluster differently

    async def describe(self, servers: str) -> ClusterDescription:
        asked = next(broker.name for broker in self.folder.brokers if broker.native == servers)
        brokers = [
            BrokerState(name, name, "", self.states.get(name, "active"), {}, 0, 0, 0, "voter", True, None)
            for name in self.views.get(asked, self.names)
        ]
        return ClusterDescription("c", self.leader, 1, 0, 0, 0, 0, brokers)

    async def run(self, act: Callable[[LocalBrokers], Any], restart: bool = False) -> Notes:
        brokers = LocalBrokers(self.folder, self.notes, restart)
        running = asyncio.create_task(brokers.run())
        try:
            await asyncio.wait_for(act(brokers), 20)
        finally:
            brokers.stop()
            await asyncio.wait_for(running, 20)
        return self.notes

    async def until(self, event: str) -> Any:
        while event not in self.notes.names():
            await asyncio.sleep(0.01)
        return self.notes.last(event)


def found(broker: LocalBroker) -> None:
    """As a broker leaves its folder once it belongs to a cluster."""
    broker.data.mkdir()
    (broker.data / "founding.json").touch()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, 2)
    monkeypatch.setattr(
        DevFolder, "command", lambda _, broker: [sys.executable, "-c", world.programs.get(broker.name, STAYS)]
    )
    monkeypatch.setattr(local_brokers, "_describe", world.describe)
    monkeypatch.setattr(local_brokers, "_RESTART_SECONDS", 0.05)
    monkeypatch.setattr(local_brokers, "_PROBE_SECONDS", 0.02)
    monkeypatch.setattr(local_brokers, "_WATCH_SECONDS", 0.05)
    return world


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_all_are_started_and_all_are_stopped(world: World) -> None:
    notes = await world.run(lambda _: world.until("ready"))
    assert notes.names() == ["starting", "ready", "stopping", "stopped"]
    assert notes.last("stopped") == []
    assert not any(is_running(pid) for pid in notes.last("ready"))


async def test_it_is_not_ready_before_somebody_leads_and_all_are_in(world: World) -> None:
    world.leader, world.states = "", {"node-2": "joining"}

    async def act(_: LocalBrokers) -> None:
        while ("waiting", ["electing", "electing"]) not in world.notes.events[-1:]:
            await asyncio.sleep(0.01)
        world.leader = "somebody"
        while ("waiting", ["ready", "joining"]) not in world.notes.events[-1:]:
            await asyncio.sleep(0.01)
        assert "ready" not in world.notes.names()
        world.states = {}
        await world.until("ready")

    await world.run(act)


async def test_a_broker_that_is_killed_is_reported_once_and_left_dead(world: World) -> None:
    async def act(_: LocalBrokers) -> None:
        first, _second = await world.until("ready")
        os.kill(first, signal.SIGKILL)
        await world.until("died")
        await asyncio.sleep(0.3)

    notes = await world.run(act)
    assert notes.names() == ["starting", "ready", "died", "stopping", "stopped"]
    assert notes.last("died") == ("node-1", "SIGKILL", None)


async def test_a_broker_that_is_killed_comes_back_where_that_is_wanted(world: World) -> None:
    async def act(_: LocalBrokers) -> None:
        first, _second = await world.until("ready")
        os.kill(first, signal.SIGKILL)
        assert is_running(await world.until("restarted"))

    notes = await world.run(act, restart=True)
    assert notes.last("died") == ("node-1", "SIGKILL", 0.05)


async def test_a_founder_that_ends_before_the_founding_ends_the_whole_attempt(world: World) -> None:
    world.leader = ""
    world.programs["node-2"] = ENDS
    for broker in world.folder.brokers:
        (broker.data / "founding.json").unlink()

    with pytest.raises(ServiceUnavailable, match=r"node-2 ended \(exit code 5\)(?s:.*)my disk is gone"):
        await world.run(lambda _: world.until("stopped"))
    assert world.notes.names()[-1] == "stopped"
    assert not any(is_running(pid) for pid in world.notes.last("starting"))


async def test_a_broker_that_does_not_come_back_does_not_keep_the_others_from_it(world: World) -> None:
    world.programs["node-2"] = ENDS

    async def act(_: LocalBrokers) -> None:
        await world.until("ready")
        await world.until("died")

    notes = await world.run(act)
    assert notes.last("died") == ("node-2", "exit code 5", None)
    assert notes.names().count("died") == 1


async def test_when_every_broker_has_ended_there_is_nothing_to_wait_for(world: World) -> None:
    world.leader = ""
    world.programs = {"node-1": ENDS, "node-2": ENDS}
    with pytest.raises(ServiceUnavailable, match="every broker has ended"):
        await world.run(lambda _: world.until("stopped"))


async def test_newcomers_are_started_when_the_others_are_ready(world: World) -> None:
    world.folder = open_folder(world.folder.path, 3, None)
    world.names.append("node-3")
    notes = await world.run(lambda _: world.until("ready"))
    assert notes.names() == ["starting", "starting", "ready", "stopping", "stopped"]
    assert len(notes.last("ready")) == 3


async def test_a_broker_that_leaves_the_cluster_is_stopped_and_forgotten(world: World) -> None:
    async def act(_: LocalBrokers) -> None:
        _first, second = await world.until("ready")
        world.names.remove("node-2")
        await world.until("removed")
        while is_running(second):
            await asyncio.sleep(0.01)

    world.views["node-2"] = ["node-1", "node-2"]  # it does not hear of it any more
    notes = await world.run(act)
    assert notes.names() == ["starting", "ready", "removed", "stopping", "stopped"]
    assert [broker.name for broker in open_folder(world.folder.path, None, None).brokers] == ["node-1"]


async def test_a_broker_that_ends_because_it_was_removed_has_not_died(world: World) -> None:
    world.programs["node-2"] = f"raise SystemExit({EXIT_REMOVED})"

    async def act(_: LocalBrokers) -> None:
        await world.until("removed")
        await world.until("ready")

    notes = await world.run(act, restart=True)
    assert sorted(notes.names()) == sorted(["starting", "removed", "ready", "stopping", "stopped"])
    assert [broker.name for broker in open_folder(world.folder.path, None, None).brokers] == ["node-1"]


async def test_a_broker_that_left_while_all_were_down_is_not_waited_for(world: World) -> None:
    world.names.remove("node-2")

    async def act(_: LocalBrokers) -> None:
        (only,) = await world.until("ready")
        assert is_running(only)

    notes = await world.run(act)
    assert notes.names() == ["starting", "removed", "ready", "stopping", "stopped"]


async def test_a_broker_that_an_outdated_one_has_not_heard_of_stays(world: World) -> None:
    world.folder = open_folder(world.folder.path, 3, None)
    world.names.append("node-3")
    world.views["node-2"] = ["node-1", "node-2"]

    async def act(_: LocalBrokers) -> None:
        await world.until("ready")
        await asyncio.sleep(0.4)

    assert "removed" not in (await world.run(act)).names()


async def test_who_does_not_listen_is_killed_in_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_brokers, "_STOP_SECONDS", 0.2)
    world.programs["node-1"] = DEAF

    async def act(_: LocalBrokers) -> None:
        await world.until("ready")
        while "deaf" not in world.folder.brokers[0].log_tail():
            await asyncio.sleep(0.01)

    assert (await world.run(act)).last("stopped") == ["node-1"]


async def test_a_signal_that_comes_twice_at_once_is_one_wish(world: World) -> None:
    async def act(brokers: LocalBrokers) -> None:
        await world.until("ready")
        brokers.stop()

    assert (await world.run(act)).last("stopped") == []


async def test_asked_a_second_time_it_does_not_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_brokers, "_AGAIN_SECONDS", 0.0)
    world.programs["node-1"] = DEAF

    async def act(brokers: LocalBrokers) -> None:
        await world.until("ready")
        while "deaf" not in world.folder.brokers[0].log_tail():
            await asyncio.sleep(0.01)
        brokers.stop()

    began = time.monotonic()
    assert "node-1" in (await world.run(act)).last("stopped")
    assert time.monotonic() - began < 10


async def test_a_taken_port_starts_nothing(world: World) -> None:
    server = await asyncio.start_server(lambda *_: None, *world.folder.brokers[1].http.split(":"))
    try:
        with pytest.raises(ValidationError, match="REST port of node-2"):
            await LocalBrokers(world.folder, world.notes, False).run()
    finally:
        server.close()
    assert world.notes.events == []


def test_a_wiped_broker_counts_as_the_one_that_came_back() -> None:
    from lanner.cli.watching import broker_of

    lost = BrokerState("node-1", "old", "", "lost", {}, 0, 0, 0, "", False, None)
    back = replace(lost, node_id="new", state="active")
    found = ClusterDescription("c", "", 1, 0, 0, 0, 0, [lost, back])
    assert broker_of(found, "node-1") is back
    assert broker_of(found, "old") is lost
    assert broker_of(found, "node-7") is None
