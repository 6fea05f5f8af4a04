"""Several brokers as processes of one cluster: founded, killed, paused, cut off, wiped, added.

It knows how to begin and end brokers and how they reach each other, and can ask who leads what; it knows nothing of
messages. Brokers are counted from 1, as places on the wires are, and keep their addresses and data directories
through every restart.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import lanner
from lanner.errors import LannerError
from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.testing.proxy import ProxyWires
from lanner.testing.wires import NamespaceWires

_LOOK_SECONDS = 0.02
_READY_SECONDS = 60.0


class ClusterProcess:
    """A cluster of brokers; a context manager that kills them all and deletes their data."""

    def __init__(
        self,
        folder: Path | str,
        size: int = 3,
        *,
        settings: Mapping[str, Any] | None = None,
        racks: Sequence[str] = (),
        hosts: Sequence[str] = (),
        wires: str = "",
        folders: Sequence[Path] = (),
        plants: Sequence[str] = (),
    ) -> None:
        """`wires`: "" (plain loopback), "namespaces", "proxy", or "any" of these two that cuts can be made with."""
        self.folder = Path(folder)
        self.settings = {"disk_reserve_bytes": 0, **(settings or {})}
        self.brokers: dict[int, BrokerProcess] = {}
        self.wires: NamespaceWires | ProxyWires | None = None
        self._namespaces: NamespaceWires | None = None
        self._proxies: dict[int, tuple[int, int]] = {}  # broker → ports of its proxy: native, HTTP
        self._racks, self._hosts, self._folders, self._plants = racks, hosts, folders, tuple(plants)
        if wires == "any":
            wires = "namespaces" if NamespaceWires.allowed() else "proxy"
        if wires == "namespaces":
            self.wires = self._namespaces = NamespaceWires(size).open()
        for number in range(1, size + 1):
            self._make(number, proxied=wires == "proxy")
        seeds = [self.native_of(number) for number in self.brokers]
        for broker in self.brokers.values():
            broker.settings["seeds"] = seeds
        if wires == "proxy":
            self.wires = ProxyWires(self._listened())

    def _make(self, number: int, *, proxied: bool = False) -> BrokerProcess:
        parent = self._folders[number - 1] if number <= len(self._folders) else self.folder
        host = HOST
        wrapper: tuple[str, ...] = ()
        if self._namespaces is not None:
            host, wrapper = self._namespaces.host_of(number), self._namespaces.wrapper_of(number)
        elif number <= len(self._hosts):
            host = self._hosts[number - 1]
        settings = {**self.settings, "name": f"broker-{number}"}
        if number <= len(self._racks):
            settings["rack"] = self._racks[number - 1]
        broker = BrokerProcess(
            parent / f"broker-{number}", settings=settings, plants=self._plants, wrapper=wrapper, host=host
        )
        broker.log_path = self.folder / f"broker-{number}.log"
        if proxied:
            self._proxies[number] = free_port(), free_port()
            broker.settings["advertise"] = self.native_of_proxy(number)
        self.brokers[number] = broker
        return broker

    def native_of_proxy(self, number: int) -> str:
        return f"{HOST}:{self._proxies[number][0]}"

    def _listened(self) -> list[tuple[int, int, int]]:
        return [
            row
            for number, (native, rest) in self._proxies.items()
            for row in (
                (native, number, self.brokers[number].native_port),
                (rest, number, self.brokers[number].http_port),
            )
        ]

    # ------------------------------------------------------------------ where they are

    def native_of(self, number: int) -> str:
        """Where others, clients too, reach a broker."""
        return self.native_of_proxy(number) if number in self._proxies else self.brokers[number].native

    def url_of(self, number: int) -> str:
        if number in self._proxies:
            return f"http://{HOST}:{self._proxies[number][1]}"
        return self.brokers[number].url

    @property
    def address(self) -> str:
        """All native addresses, as `lanner.connect` takes them."""
        return ",".join(self.native_of(number) for number in self.brokers)

    @property
    def urls(self) -> list[str]:
        return [self.url_of(number) for number in self.brokers]

    @property
    def running(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker.running]

    # ------------------------------------------------------------------ life

    def start(self, timeout_seconds: float = _READY_SECONDS) -> ClusterProcess:
        """Start all of them at once and wait until each is ready."""
        try:
            for broker in self.brokers.values():
                if not broker.running:
                    broker.launch()
            self._tell_owners()
            for broker in self.brokers.values():
                broker.wait_ready(timeout_seconds)
        except BaseException:
            self.close(keep_data=True)
            raise
        return self

    def add(self, *, rack: str = "", timeout_seconds: float = _READY_SECONDS) -> int:
        """One more broker, which joins through the first that runs; its number. Not on wires."""
        assert self.wires is None, "the wires were laid before the start"
        number = max(self.brokers) + 1
        broker = self._make(number)
        if rack:
            broker.settings["rack"] = rack
        broker.settings["join"] = self.native_of(self.running[0])
        broker.start(timeout_seconds)
        return number

    def kill(self, number: int) -> None:
        self.brokers[number].kill()

    def stop(self, number: int, timeout_seconds: float = 30.0) -> int:
        return self.brokers[number].stop(timeout_seconds)

    def restart(self, number: int, timeout_seconds: float = _READY_SECONDS) -> None:
        """Start one that is down and wait until it is ready."""
        self.brokers[number].launch()
        self._tell_owners()
        self.brokers[number].wait_ready(timeout_seconds)

    def pause(self, number: int) -> None:
        self.brokers[number].pause()

    def resume(self, number: int) -> None:
        self.brokers[number].resume()

    def wipe(self, number: int) -> None:
        self.brokers[number].wipe()

    def _tell_owners(self) -> None:
        if isinstance(self.wires, ProxyWires):
            self.wires.owners({self.brokers[number].pid: number for number in self.running})

    def close(self, *, keep_data: bool = False) -> None:
        """Kill all of them and take the wires away; delete the data unless told to keep it."""
        for broker in self.brokers.values():
            broker.kill()
        if self.wires is not None:
            self.wires.close()
            self.wires = None
        if not keep_data:
            for broker in self.brokers.values():
                shutil.rmtree(broker.data, ignore_errors=True)

    def __enter__(self) -> ClusterProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ who is who, and who leads

    def node_id(self, number: int) -> str:
        """What the broker calls itself, as its data directory says."""
        identity = json.loads((self.brokers[number].data / "identity.json").read_text())
        return str(identity["node_id"])

    def number_of(self, node_id: str) -> int:
        """Which broker that is; 0 when it is none of ours."""
        for number, broker in self.brokers.items():
            if (broker.data / "identity.json").exists() and self.node_id(number) == node_id:
                return number
        return 0

    def leaders(self, topic: str, *, ask: int = 0) -> list[int]:
        """Which broker leads each partition, by its number; 0 for none. `ask`: as this broker sees it."""
        with lanner.sync.connect(self.native_of(ask or self.running[0]), timeout_ms=5_000) as queue:
            for known in queue.admin.cluster().topics:
                if known.name == topic:
                    return [self.number_of(partition.leader) for partition in known.partitions]
        return []

    def leader(self, topic: str, partition: int = 0, *, other_than: int = 0, timeout_seconds: float = 20.0) -> int:
        """The broker that leads a partition, once the others agree that there is one that runs."""
        found = 0

        def known() -> bool:
            nonlocal found
            for number in self.running:
                if number == other_than:
                    continue
                try:
                    leaders = self.leaders(topic, ask=number)
                except LannerError:
                    continue
                found = leaders[partition] if partition < len(leaders) else 0
                if found and found != other_than and self.brokers[found].running:
                    return True
            return False

        self.until(known, timeout_seconds, f"{topic}/{partition} has no leader")
        return found

    def get(self, number: int, path: str, timeout_seconds: float = 15.0) -> tuple[int, Any]:
        """Status and JSON of a GET at one broker; 0 when it cannot be reached."""
        return self.ask(number, "GET", path, None, timeout_seconds)

    def ask(self, number: int, method: str, path: str, body: Any, timeout_seconds: float = 15.0) -> tuple[int, Any]:
        host, _, port = self.url_of(number).removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout_seconds)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {} if text is None else {"content-type": "application/json"})
            with connection.getresponse() as reply:
                content = reply.read()
            return reply.status, json.loads(content) if content else None
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> float:
        """Wait until something holds; how long it took. When it never does, the brokers' logs say more."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout_seconds:
                raise AssertionError(f"{what}, for {timeout_seconds} s\n{self.log_tails()}")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    def log_tails(self, bytes_max: int = 2_000) -> str:
        return "\n".join(f"--- broker {n}:\n{broker.log_tail(bytes_max)}" for n, broker in self.brokers.items())


__all__ = ["ClusterProcess"]
