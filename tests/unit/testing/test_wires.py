"""Cables between namespaces: what is cut is silent, in the direction that was cut."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lanner.testing.wires import CLIENTS, NamespaceWires, cut, isolate

LISTEN = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7000))
print("ready", flush=True)
while True:
    data, sender = server.recvfrom(100)
    print(data.decode(), flush=True)
    server.sendto(data, sender)
"""


@pytest.fixture(scope="module")
def wires() -> Iterator[NamespaceWires]:
    if not NamespaceWires.allowed():
        pytest.skip("network namespaces are not allowed here")
    wires = NamespaceWires(2).open()
    yield wires
    wires.close()


@pytest.fixture
def echo(wires: NamespaceWires) -> Iterator[subprocess.Popen[str]]:
    command = [*wires.wrapper_of(1), sys.executable, "-c", LISTEN, wires.host_of(1)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()
    wires.heal()


def answered(wires: NamespaceWires, text: str, seconds: float = 0.3) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(seconds)
        client.sendto(text.encode(), (wires.host_of(1), 7000))
        try:
            return client.recv(100) == text.encode()
        except TimeoutError:
            return False


def test_a_cut_is_silent_and_healing_undoes_it(wires: NamespaceWires, echo: subprocess.Popen[str]) -> None:
    assert answered(wires, "before", 5.0)
    cut(wires, CLIENTS, 1)
    assert not answered(wires, "lost")
    wires.heal()
    assert answered(wires, "after", 5.0)
    assert echo.stdout is not None
    assert [echo.stdout.readline(), echo.stdout.readline()] == ["before\n", "after\n"]


def test_a_one_way_cut_still_lets_the_other_way_through(wires: NamespaceWires, echo: subprocess.Popen[str]) -> None:
    wires.cut_one_way(1, CLIENTS)
    assert not answered(wires, "heard but not answered")
    assert echo.stdout is not None and echo.stdout.readline() == "heard but not answered\n"
    wires.heal()
    wires.cut_one_way(1, 2)  # between others: nothing to us
    assert answered(wires, "answered", 5.0)


def test_an_isolated_broker_is_cut_off_from_everybody_named(wires: NamespaceWires, echo: subprocess.Popen[str]) -> None:
    isolate(wires, 1, [CLIENTS, 1, 2])
    assert not answered(wires, "lost")
