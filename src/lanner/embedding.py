"""A broker inside this process: for tests, notebooks and programs that need a durable queue and no operations.

The broker runs in a thread of its own, over the same code and the same sockets (on loopback, a free port) as one that
stands alone; only the process is shared. The data directory is the broker's: nobody else may open it meanwhile. It
needs the extra `server`, which is asked for when a broker is started: the name `lanner.embedded` is there without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lanner import sync
from lanner.extras import need
from lanner.sync_thread import LoopThread

if TYPE_CHECKING:
    from lanner.broker.settings import BrokerSettings
    from lanner.server import Server

LOOPBACK = "127.0.0.1:0"


def embedded(path: str | os.PathLike[str], *, client_name: str = "embedded", **settings: Any) -> sync.Queue:
    """Start a broker on this data directory and connect to it: `with lanner.embedded("./data") as queue`.

    Further settings are those of a broker; its other doors stay shut unless they are given an address. Leaving the
    block stops the broker; what was acknowledged is on disk.
    """
    need("server", "lanner.embedded")
    from lanner.broker.settings import BrokerSettings

    chosen = {"http": "", "grpc": "", "native": LOOPBACK, **settings}
    thread = LoopThread("lanner-broker")
    try:
        server = thread.call(_started(BrokerSettings(data=os.fspath(path), **chosen)))
    except BaseException:
        thread.stop()
        raise

    def stop() -> None:
        try:
            thread.call(server.stop())
        finally:
            thread.stop()

    assert server.native_address is not None
    host, port = server.native_address
    try:
        queue = sync.connect(f"{host}:{port}", client_name=client_name)
    except BaseException:
        stop()
        raise
    queue.on_close(stop)
    return queue


async def _started(settings: BrokerSettings) -> Server:
    from lanner.server import Server

    server = Server(settings)
    await server.start()
    return server
