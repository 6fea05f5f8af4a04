"""The proxy in the middle: who is told from whom, what is cut waits, what is healed goes on."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from lanner.testing.process import free_port
from lanner.testing.proxy import ProxyWires
from lanner.testing.wires import CLIENTS

TALK = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    client.sendall(line.encode())
    print(client.recv(100).decode(), end="", flush=True)
"""


class Echo:
    """Listens, notes what it hears, and says it again."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    self.heard.append(data)
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def middle(echo: Echo) -> Iterator[tuple[ProxyWires, int]]:
    port = free_port()
    wires = ProxyWires([(port, 1, echo.port)])
    yield wires, port
    wires.close()


def said(client: socket.socket, text: bytes, seconds: float = 0.3) -> bytes:
    client.settimeout(seconds)
    client.sendall(text)
    return heard(client, seconds)


def heard(client: socket.socket, seconds: float) -> bytes:
    client.settimeout(seconds)
    try:
        return client.recv(100)
    except TimeoutError:
        return b""


def test_what_is_cut_waits_and_goes_on_when_it_is_healed(echo: Echo, middle: tuple[ProxyWires, int]) -> None:
    wires, port = middle
    with socket.create_connection(("127.0.0.1", port)) as client:
        assert said(client, b"before", 5.0) == b"before"
        wires.cut_one_way(CLIENTS, 1)
        assert said(client, b"during") == b"" and echo.heard == [b"before"]
        with socket.create_connection(("127.0.0.1", port)) as other:
            assert said(other, b"another") == b""
        wires.heal()
        assert heard(client, 5.0) == b"during"


def test_a_one_way_cut_lets_the_other_way_through(echo: Echo, middle: tuple[ProxyWires, int]) -> None:
    wires, port = middle
    with socket.create_connection(("127.0.0.1", port)) as client:
        wires.cut_one_way(1, CLIENTS)
        assert said(client, b"heard") == b""
        assert echo.heard == [b"heard"]
        wires.heal()
        assert heard(client, 5.0) == b"heard"


def test_a_cut_between_two_brokers_is_nothing_to_a_client(echo: Echo, middle: tuple[ProxyWires, int]) -> None:
    wires, port = middle
    with subprocess.Popen([sys.executable, "-c", TALK, str(port)], stdin=-1, stdout=-1, text=True) as broker:
        assert broker.stdin is not None and broker.stdout is not None
        wires.owners({broker.pid: 2})
        wires.cut_one_way(2, 1)
        print("from two", file=broker.stdin, flush=True)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert said(client, b"hello", 5.0) == b"hello"
        assert echo.heard == [b"hello"]
        wires.heal()
        assert broker.stdout.readline() == "from two\n"
        broker.kill()


def test_a_slow_link_takes_longer_by_what_was_asked(middle: tuple[ProxyWires, int]) -> None:
    wires, port = middle
    wires.delay(CLIENTS, 1, 0.3)
    with socket.create_connection(("127.0.0.1", port)) as client:
        began = time.monotonic()
        assert said(client, b"slow", 5.0) == b"slow"
        assert time.monotonic() - began >= 0.3
