"""What connects brokers and clients in a test, so that it can be cut: one way or both, between any two of them.

Places are numbered: 0 is the test itself with its clients, 1 and up are the brokers. `NamespaceWires` gives each broker
a network namespace of its own and a cable to every other place. A cut is an entry in the sender's neighbour table that
names a card nobody has: packets leave and arrive nowhere, silently, as on a switch that lost its way, and connections
notice only by their own timers. Where namespaces are not allowed, `lanner.testing.proxy` offers the same cuts.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

CLIENTS: Final = 0
_NOBODY: Final = "02:00:00:00:00:ff"
_runs = itertools.count()


class WiresNotAllowed(Exception):
    """This machine does not let us make network namespaces."""


class Wires(Protocol):
    """What a test may do to the network."""

    def cut_one_way(self, source: int, target: int) -> None: ...

    def heal(self) -> None: ...

    def close(self) -> None: ...


def cut(wires: Wires, one: int, other: int) -> None:
    """Nothing passes between these two any more."""
    wires.cut_one_way(one, other)
    wires.cut_one_way(other, one)


def isolate(wires: Wires, place: int, others: Sequence[int]) -> None:
    """Cut one place off from these others."""
    for other in others:
        if other != place:
            cut(wires, place, other)


class NamespaceWires:
    """A namespace for each broker and a cable between any two places."""

    def __init__(self, brokers: int) -> None:
        self.brokers = brokers
        run = next(_runs) % 250
        self._run = f"{os.getpid() % 1_000_000}-{run}"
        self._net = f"10.{64 + os.getpid() % 128}.{run}"
        self._cut: set[tuple[int, int]] = set()
        self._made = 0

    @staticmethod
    def allowed() -> bool:
        """Whether this process may make namespaces and cables."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        try:
            wires = NamespaceWires(1)
            wires.open()
            wires.close()
        except WiresNotAllowed:
            return False
        return True

    def open(self) -> NamespaceWires:
        try:
            for broker in range(1, self.brokers + 1):
                self._add(broker)
        except WiresNotAllowed:
            self.close()
            raise
        return self

    def _add(self, broker: int) -> None:
        """One more namespace, with cables to every place that is there already."""
        _ip("netns", "add", self._name(broker))
        self._made = broker
        _ip("-n", self._name(broker), "link", "set", "lo", "up")
        _ip("-n", self._name(broker), "addr", "add", f"{self.host_of(broker)}/32", "dev", "lo")
        for other in range(broker):
            self._connect(broker, other)

    def _connect(self, broker: int, other: int) -> None:
        ends = (broker, self._card(broker, other)), (other, self._card(other, broker))
        peer = () if other == CLIENTS else ("netns", self._name(other))
        near = ("link", "add", ends[0][1], "netns", self._name(broker))
        _ip(*near, "type", "veth", "peer", "name", ends[1][1], *peer)
        if other == CLIENTS:
            _ip("addr", "add", f"{self.host_of(CLIENTS)}/32", "dev", ends[1][1])
        for (place, card), (far, _) in (ends, ends[::-1]):
            self._ip_at(place, "link", "set", card, "up")
            self._ip_at(place, "route", "add", self.host_of(far), "dev", card, "src", self.host_of(place))

    def host_of(self, place: int) -> str:
        """The address of a place, the same from everywhere."""
        return f"{self._net}.{place + 1}"

    def wrapper_of(self, place: int) -> tuple[str, ...]:
        """What goes before a command to run it at this place."""
        return () if place == CLIENTS else ("ip", "netns", "exec", self._name(place))

    def cut_one_way(self, source: int, target: int) -> None:
        card = self._card(source, target)
        entry = (self.host_of(target), "lladdr", _NOBODY, "dev", card, "nud", "permanent")
        self._ip_at(source, "neigh", "replace", *entry)
        self._cut.add((source, target))

    def heal(self) -> None:
        """Undo every cut."""
        for source, target in self._cut:
            self._ip_at(source, "neigh", "del", self.host_of(target), "dev", self._card(source, target))
        self._cut.clear()

    def close(self) -> None:
        """Take everything away; a broker that still runs there is left without a network."""
        for broker in range(1, self._made + 1):
            subprocess.run(["ip", "netns", "del", self._name(broker)], capture_output=True, check=False)
        self._made = 0
        self._cut.clear()

    def _name(self, broker: int) -> str:
        return f"lanner-{self._run}-{broker}"

    def _card(self, place: int, other: int) -> str:
        """Short names: the kernel takes 15 characters, and cards of the test stand among those of the machine."""
        return f"ln{self._run}-{other}" if place == CLIENTS else f"to-{other}"

    def _ip_at(self, place: int, *command: str) -> None:
        _ip(*(() if place == CLIENTS else ("-n", self._name(place))), *command)


def _ip(*command: str) -> None:
    done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WiresNotAllowed(f"ip {' '.join(command)}: {done.stderr.strip()}")


__all__ = ["CLIENTS", "NamespaceWires", "Wires", "WiresNotAllowed", "cut", "isolate"]
