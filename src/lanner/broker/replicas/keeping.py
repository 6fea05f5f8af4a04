"""What machines want to keep of their logs, told to the ledger; and what is left of an entry kept in part."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from lanner import batch
from lanner.broker.replicas.payloads import PayloadCache
from lanner.broker.replicas.replica import Effects, Released
from lanner.errors import LannerError
from lanner.ledger import Ledger
from lanner.partition import STAGE_KIND, batch_start

_POSITIONS: Final = "I"


class Keeping:
    """Between the machines and the ledger."""

    def __init__(self, ledger: Ledger, cache: PayloadCache) -> None:
        self._ledger = ledger
        self._cache = cache

    def tell(self, set_id: int, effects: Iterable[Effects], *, leads: bool) -> None:
        """What the machine wants to keep, run by run, and what it lets go of. Only a leader is asked for payloads."""
        ledger, cache = self._ledger, self._cache
        first, last = 1, 0  # of the run that is not told yet
        for index, payload, released in effects:
            if payload is not None:
                if index != last + 1:
                    ledger.keep(set_id, first, last)
                    first = index
                last = index
                if leads and payload[0] != STAGE_KIND:  # what is staged is not read soon
                    cache.put(set_id, index, payload)
            if released:
                ledger.keep(set_id, first, last)
                first = last + 1
                self._let_go(set_id, released)
        ledger.keep(set_id, first, last)

    def _let_go(self, set_id: int, released: Released) -> None:
        ledger = self._ledger
        for index, kept, size in released:
            if kept is None:
                ledger.release(set_id, index)
                self._cache.drop(set_id, index)
            else:
                ledger.keep_part(set_id, index, array(_POSITIONS, kept).tobytes(), size)


def transform(set_id: int, payload: bytes, kept: bytes) -> bytes:
    """What a rewrite stores of an entry of which only some messages are still needed."""
    positions = array(_POSITIONS, kept)
    start = batch_start(payload)
    try:
        return payload[:start] + batch.extract(memoryview(payload)[start:], positions)
    except LannerError:
        return payload  # a batch that does not decode stays as it is until its dead letters are discarded


__all__ = ["Keeping", "transform"]
