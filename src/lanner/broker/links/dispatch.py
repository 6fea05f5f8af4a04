"""Dispatch: messages, pieces of snapshots and answers of the engine go to the lines of other brokers.

Called after every turn that may have made some. What has no known way is lost; that costs time and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lanner.broker.links.peers import Peers
from lanner.broker.reading import Reading
from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.snapshots import UnreadPiece
from lanner.broker.saving import Saving
from lanner.broker.steward import Steward
from lanner.errors import LannerError, StorageDamaged
from lanner.ledger import FileMissing, Files

log = logging.getLogger("lanner.broker")


class Dispatch:
    """Sends what one engine has for other brokers."""

    def __init__(
        self,
        engine: Engine,
        steward: Steward,
        peers: Peers,
        *,
        files: Files,
        reading: Reading,
        saving: Saving,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._engine = engine
        self._steward = steward
        self._peers = peers
        self._files = files
        self._reading = reading
        self._saving = saving
        self._spawn = spawn

    def send(self) -> None:
        """Send messages at once, and pieces of snapshots when they have been read."""
        engine, route = self._engine, self._steward.route
        messages = engine.take_messages()
        if messages:
            put = self._peers.put
            for set_id, message in messages:
                node_id = route(set_id, message.receiver)
                if node_id is not None:
                    put(node_id, set_id, message)
            self._peers.flush()
        sending, installs = engine.sending, engine.installs
        if sending.outgoing or sending.waiting:
            for unread in engine.take_unread_pieces():
                self._spawn(self._send_piece(unread))
        if installs.replies:
            for reply in engine.take_replies():
                node_id = route(reply.set_id, reply.receiver)
                if node_id is not None:
                    self._peers.send_snapshot(node_id, reply)
        if installs.active and installs.save_wanted:
            self._saving.save_soon()

    async def _send_piece(self, unread: UnreadPiece) -> None:
        """Read one piece of a snapshot, and send it."""
        try:
            piece = await self._reading.in_reader(lambda: unread.load(self._files))
        except FileMissing:
            self._engine.sending.retry(unread)
            return
        except StorageDamaged as error:
            for index in unread.damaged(error):
                self._engine.damages.note(unread.head.set_id, index, error)
            self._engine.sending.failed(unread)
            return
        except (LannerError, OSError) as error:
            log.error("a snapshot of set %d could not be read: %s", unread.head.set_id, error)
            self._engine.sending.failed(unread)
            return
        node_id = self._steward.route(piece.set_id, piece.receiver)
        if node_id is not None:
            self._peers.send_snapshot(node_id, piece)
